"""What happens next to a case: a row is a state, and the action that follows."""

import pytest

from stepguard.judge.rule_book import NOTHING, Need
from stepguard.measure.plan import (
    BASE,
    HEAD,
    Do,
    Next,
    SoFar,
    Stage,
    imports,
    next_action,
)

BOTH = (HEAD, BASE)
LAUNCH, PAIR, LAST = Need(launch=True), Need(pair=True), Need(pair=True, last=True)
PROFILED = Need(pair=True, profiled=True)
DOUBT = Need(counters=("launches_per_step",))
DOUBT_OF_BASE = Need(counters=("launches_per_step",), of_base=True)


def two(need=PAIR, **how):
    """Two trees that are compared, and are counted unless it says otherwise."""
    return SoFar(need, 2, **how)


@pytest.mark.parametrize(("state", "expected"), [
    # One tree. The first launch counts; each is timed.
    (SoFar(LAUNCH, uncounted=(HEAD,)), Next(Do.START, (HEAD,))),
    (SoFar(LAUNCH, uncounted=(HEAD,), stage=Stage.BUILT), Next(Do.COUNT)),
    (SoFar(LAUNCH, stage=Stage.COUNTED), Next(Do.TIME)),
    (SoFar(DOUBT, stage=Stage.COUNTED), Next(Do.TIME)),  # it ends no case
    (SoFar(LAUNCH, stage=Stage.TIMED), Next(Do.END)),
    (SoFar(DOUBT, number=2), Next(Do.COUNT_ALONE, (HEAD,), DOUBT.counters)),
    (SoFar(LAUNCH, number=2), Next(Do.START, (HEAD,))),
    (SoFar(LAUNCH, number=2, stage=Stage.BUILT), Next(Do.TIME)),
    (SoFar(NOTHING, number=2), Next(Do.STOP)),
    (SoFar(Need(beside="4f2a91c"), number=2), Next(Do.STOP)),  # another question's pairs
    # Two trees. The first launches count, and are the first pair if one is needed.
    (two(NOTHING, uncounted=BOTH), Next(Do.START, BOTH)),
    (two(NOTHING, uncounted=BOTH, stage=Stage.BUILT), Next(Do.COUNT)),
    (two(stage=Stage.COUNTED), Next(Do.TIME)),
    (two(PROFILED, stage=Stage.COUNTED), Next(Do.TIME, profiled=True)),
    (two(NOTHING, stage=Stage.COUNTED), Next(Do.END)),
    (two(), Next(Do.START, BOTH)),
    (two(PROFILED, number=3, stage=Stage.BUILT), Next(Do.TIME, profiled=True)),
    # The steps have to decide if this pair may replace a disturbed one.
    (two(PROFILED, number=3, stage=Stage.BUILT, waiting=True), Next(Do.TIME)),
    (two(DOUBT_OF_BASE, number=2), Next(Do.COUNT_ALONE, (BASE,), DOUBT.counters)),
    (two(NOTHING, number=2), Next(Do.STOP)),
    # No room beside each other: each counts alone.
    (two(NOTHING, uncounted=BOTH, stage=Stage.BUILT, room=False), Next(Do.DROP)),
    (two(PAIR, uncounted=BOTH, stage=Stage.COUNTED, crowded=True), Next(Do.END)),
    (two(NOTHING, uncounted=BOTH, crowded=True), Next(Do.COUNT_ALONE, (HEAD,))),
    (two(NOTHING, uncounted=(BASE,), crowded=True), Next(Do.COUNT_ALONE, (BASE,))),
    (two(crowded=True), Next(Do.START, BOTH)),  # parked launches have room
    # One after the other, in the order of the pair's blocks.
    (two(together=False), Next(Do.START, (BASE,))),
    (two(together=False, number=2), Next(Do.START, (HEAD,))),
    (two(together=False, done=BASE), Next(Do.START, (HEAD,))),
    (two(together=False, done=BASE, late=True), Next(Do.START, (HEAD,))),
    # Time is up: the first pair is measured in any case, and no other one begins.
    (two(late=True), Next(Do.START, BOTH)),
    (two(late=True, number=2), Next(Do.STOP, late=True)),
    (two(NOTHING, late=True, number=2), Next(Do.STOP)),  # it had enough
    (two(late=True, number=2, stage=Stage.BUILT), Next(Do.TIME)),
])  # fmt: skip
def test_what_happens_next(state, expected):
    """By the judge's need, and by how far the launches are that are alive."""
    assert next_action(state) == expected


GPU, CPU = True, False
NEXT_CASE, NOTHING_YET = ((), True), ((), False)


@pytest.mark.parametrize(("state", "on_gpu", "ahead", "most", "expected"), [
    # One tree: the next launch, or if this is likely the last one the next case's.
    (SoFar(LAUNCH, uncounted=(HEAD,)), GPU, 1, 3, ((2,), False)),
    (SoFar(Need(launch=True, last=True)), GPU, 1, 3, NEXT_CASE),
    (SoFar(LAUNCH, stage=Stage.COUNTED), GPU, 1, 3, NOTHING_YET),  # they began when it started
    # Two trees: on a GPU the counts say if there will be another pair.
    (two(NOTHING, uncounted=BOTH), GPU, 2, 24, NEXT_CASE),
    (two(NOTHING, uncounted=BOTH), CPU, 1, 24, NOTHING_YET),
    (two(LAST, stage=Stage.COUNTED), GPU, 2, 24, NEXT_CASE),
    (two(PAIR, stage=Stage.COUNTED), GPU, 2, 24, ((2, 3), False)),
    (two(PAIR, number=2), GPU, 2, 24, ((3, 4), False)),
    (two(PAIR, number=2), CPU, 1, 24, ((3,), False)),
    (two(PAIR, number=23), GPU, 2, 24, ((24,), False)),
    (two(PAIR, number=24), GPU, 2, 24, NOTHING_YET),
    (two(NOTHING, uncounted=BOTH, stage=Stage.BUILT), GPU, 2, 24, NOTHING_YET),
    (two(PAIR, number=2, together=False), GPU, 2, 24, NOTHING_YET),  # there is no memory for it
])  # fmt: skip
def test_what_imports_meanwhile(state, on_gpu, ahead, most, expected):
    """Only what will likely be wanted: two pairs ahead on a GPU, one on a CPU's few cores."""
    assert imports(state, on_gpu, ahead, most) == expected
