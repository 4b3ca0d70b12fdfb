"""Pairs whose blocks are out of line: another is measured, and no estimate moves by it."""

import numpy as np
import pytest
from builders import block, launch, replace
from comparisons import alike, comparison_of

from stepguard.core.comparison import LaunchPair
from stepguard.core.status import Status
from stepguard.judge.pair_statistics import MOST_PAIRS, SEQUENTIAL_PLAN, by_plan
from stepguard.judge.soundness import MOST_REPLACED, Pairs, out_of_line
from stepguard.judge.time_rules import decision

ANALYSES = {analysis.pairs for analysis in SEQUENTIAL_PLAN}


def pair(draw, pct=0.0, slow=0.0, by_pct=3.0, own_pct=0.1, block_pct=0.14, base_slow=None):
    """A pair of two blocks a side with a true change of so many percent; each block is slower by
    ``by_pct`` with the chance ``slow``, those of the base with ``base_slow`` if that is given.
    """
    sides = []
    for shift, chance in ((pct, slow), (0.0, slow if base_slow is None else base_slow)):
        level = shift + own_pct * draw.standard_normal()
        logs = level + block_pct * draw.standard_normal(2) + by_pct * (draw.random(2) < chance)
        ms = (250 * np.exp(logs / 100)).tolist()
        sides.append(launch(blocks=tuple(map(block, ms))))
    return LaunchPair(*sides)


class Run:
    """Pairs as they are measured."""

    def __init__(self, on_gpu=True):
        self.on_gpu, self.pairs = on_gpu, Pairs()

    def take(self, pair, again=True):
        """Take a pair. Not ``again``: it counts, even if it is out of line."""
        self.pairs = self.pairs.take(pair, self.on_gpu and again)

    @property
    def replaced(self):
        return [*self.pairs.replaced]

    def ratios(self):
        """The log-ratios of the pairs that count."""
        return [one.log_ratio for one in self.pairs.counted]


def taken(draw, count, again=True, **how):
    """A run that has so many pairs; not ``again``: those out of line count, too."""
    run = Run()
    while len(run.ratios()) < count:
        run.take(pair(draw, **how), again)
    return run


def status_of(run):
    """What the plan says of a run's twelve pairs."""
    return by_plan(alike([100 * d for d in run.ratios()[:12]])).status


def odd(side=0):
    """A pair with one slow block, of HEAD or the base."""
    slow = launch(blocks=(block(250.0), block(258.0)))
    sides = [launch(blocks=(block(250.0),) * 2)] * 2
    sides[side] = slow
    return LaunchPair(*sides)


def judged(draw, **how):
    """What the plan says of a run as soon as it decides."""
    run, empty = Run(), comparison_of([], [])
    while True:
        run.take(pair(draw, **how))
        counted = run.pairs.counted[:MOST_PAIRS]
        if len(counted) not in ANALYSES:
            continue
        head, base = (tuple(getattr(one, side) for one in counted) for side in ("head", "base"))
        sides = replace(empty.head, launches=head), replace(empty.base, launches=base)
        found = replace(empty, head=sides[0], base=sides[1], again=run.pairs.replaced)
        said = decision(found)
        if said.final:
            return said.status


EVEN = LaunchPair(launch(blocks=(block(250.0),) * 2), launch(blocks=(block(250.0),) * 2))


@pytest.mark.parametrize("side", [0, 1])
def test_a_pair_out_of_line_is_replaced_and_kept(side):
    """On whichever side the slow block is; the next pair takes its place."""
    assert out_of_line(odd(side).head, odd(side).base) and not out_of_line(EVEN.head, EVEN.base)
    run = Run()
    run.take(odd(side))
    assert run.ratios() == [] and run.replaced == []
    run.take(EVEN)
    assert run.ratios() == [0.0] and run.replaced == [odd(side)] and run.pairs.waiting is None


@pytest.mark.parametrize(
    ("within_pct", "out"),
    [((1.5, 0.0), False), ((0.0, 1.6), True), ((1.05, 1.05), False), ((1.15, -1.15), True)],
)
def test_a_pair_is_out_of_line_beyond_1_1_percent(within_pct, out):
    """The root of the sum of squares of what the blocks of each side differ by, over the square
    root of two.
    """
    sides = [launch(blocks=(block(250.0), block(250.0 * np.exp(pct / 100)))) for pct in within_pct]
    assert out_of_line(*sides) is out


def test_a_pair_that_waits_at_the_end_counts():
    """No other one came after it."""
    run = Run()
    run.take(odd())
    assert run.pairs.ended().counted == (odd(),) and not run.pairs.ended().waiting


def test_what_returns_counts():
    """A second pair out of line is no accident: both count, so that rare work of HEAD is seen."""
    run = Run()
    run.take(odd())
    run.take(odd())
    assert len(run.ratios()) == 2 and run.replaced == []


def test_it_is_bounded():
    """Three pairs are replaced; then all count. On a CPU none is."""
    run = Run()
    for _ in range(MOST_REPLACED):
        run.take(odd())
        run.take(EVEN)
    run.take(odd())
    assert len(run.replaced) == MOST_REPLACED and len(run.ratios()) == MOST_REPLACED + 1
    cpu = Run(on_gpu=False)
    cpu.take(odd())
    assert len(cpu.ratios()) == 1


@pytest.mark.parametrize("pct", [0.0, 0.5])
def test_no_estimate_moves_by_it(pct):
    """Disturbances that may hit either side, one block in fifty: the mean over runs is the truth,
    as it is without replacing any.
    """
    draw = np.random.default_rng(18)
    means = [100 * np.mean(taken(draw, 6, pct=pct, slow=0.02).ratios()) for _ in range(400)]
    assert abs(np.mean(means) - pct) < 4 * np.std(means) / np.sqrt(len(means))


def test_half_a_percent_is_found_among_disturbances():
    """More often than without, and nothing is found where nothing changed."""
    found = {}
    for again in (True, False):
        draw = np.random.default_rng(18)
        said = [status_of(taken(draw, 12, again, pct=0.5, slow=0.02)) for _ in range(150)]
        found[again] = said.count(Status.SLOWER) / len(said)
    assert found[True] > 0.8 and found[True] > found[False] + 0.2, found
    draw = np.random.default_rng(18)
    none = [status_of(taken(draw, 12, slow=0.02)) for _ in range(150)]
    assert Status.SLOWER not in none


def test_what_disturbs_head_alone_seldom_passes():
    """One block of HEAD in seven is 10 % longer, 1.5 % in all: without the pairs that were replaced
    60 % of runs would pass. Where both sides are disturbed nearly all of them do.
    """
    draw = np.random.default_rng(18)
    one = [judged(draw, slow=0.15, by_pct=9.53, base_slow=0.0) for _ in range(60)]
    assert one.count(Status.SAME) < 0.4 * len(one)
    both = [judged(draw, slow=0.02, by_pct=9.53) for _ in range(60)]
    assert both.count(Status.SAME) > 0.85 * len(both) and Status.SLOWER not in both
