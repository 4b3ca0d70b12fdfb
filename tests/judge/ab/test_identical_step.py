"""A step that is known to be the same is `same` after one pair; nothing that is slower hides so.

Each planted difference is in one part of what is known of HEAD; all else is as in the other tree.
"""

import functools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from builders import PROPERTY, block, evidence, launch, replace
from comparisons import comparison_of, with_margins
from hypothesis import given
from hypothesis import strategies as st

from stepguard import Case
from stepguard.core.comparison import LaunchPair
from stepguard.core.evidence import Counts
from stepguard.core.margins import MARGINS, PRIOR
from stepguard.core.profile import Parts, Profile, StepIdentity
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.compare_profiles import IDLE_SHARE
from stepguard.judge.judge_pairs import judge_ab, wants_another_pair
from stepguard.judge.rules import RULES, identical_step
from stepguard.judge.rules.identical_step import (
    MOST_ALIKE,
    enough,
    identical,
    why_not_identical,
)
from stepguard.judge.unchanged_pairs import (
    HOST_SHARE,
    PAIR_SDS,
    UNTIMED_LIMIT,
)
from stepguard.measure.suite import Result
from stepguard.report.next_steps import Commands
from stepguard.report.terminal_summary import ShownRun, lines
from stepguard.report.verdict_text import times

MS, STEPS = 250.0, 32
PARTS_OF_A_STEP = ("kernels and copies", "operators", "CUDA calls", "collectives", "settings")
IDENTITY = StepIdentity(dict.fromkeys(PARTS_OF_A_STEP, "a1"))
SIX = (MS * 1e3,) * 6
NONE = (0.0,) * 6
PROFILE = Profile("NVIDIA H200", 1, Parts(SIX, SIX, NONE, NONE, (2500.0,) * 6), (), ())


def blocks(times_ms, ran=20, enqueue_ms=0.5 * MS):
    """Two blocks of these steps, with untimed ones between."""
    half = len(times_ms) // 2
    return tuple(
        block(
            steps=half,
            wall_ms=(math.fsum(part),),
            events_ms=(math.fsum(part),),
            step_ms=tuple(part),
            enqueue_ms=enqueue_ms,
            ran=ran + number * (half + 4),
        )
        for number, part in enumerate((times_ms[:half], times_ms[half:]))
    )


def between(times_ms):
    """Untimed steps between the two blocks."""
    return blocks((*times_ms, *times_ms), ran=20 + STEPS // 2 + 1)[:1]


def noisy(seed, steps=STEPS):
    """Single steps of an H200: they scatter by 1.5 % and follow each other."""
    draw = np.random.default_rng(seed).standard_normal(steps)
    series = np.convolve(draw, [0.6, 0.5, 0.4, 0.3], "same")
    series = 0.012 * (series - series.mean())
    return [float(ms) for ms in MS * np.exp(series)]


def pair(head_ms=None, base_ms=None, files=("model/gpt.py",), **head):
    """One pair of steps that are the same; ``head`` changes its counts."""
    found = comparison_of([(MS, MS)], [(MS, MS)])
    counts = replace(evidence().counts, profile=PROFILE, identity=IDENTITY)
    sides = [
        replace(
            side,
            counts=replace(counts, **(head if side is found.head else {})),
            launches=(launch(blocks=blocks(noisy(seed) if ms is None else ms), index=1),),
        )
        for seed, (side, ms) in enumerate(((found.head, head_ms), (found.base, base_ms)), start=1)
    ]
    return replace(found, head=sides[0], base=sides[1], files=files)


def test_the_same_step_is_same_after_one_pair():
    """With the reason in every output; and no further pair is asked for."""
    found = pair()
    assert why_not_identical(found) == "" and identical(found) and not wants_another_pair(found)
    verdict = judge_ab(found)
    assert (verdict.status, verdict.reason) == (Status.SAME, Reason.IDENTICAL_STEP)
    assert "the same kernels, generated code, operands and settings" in times(verdict)[0]
    result = Result(Case("x", "a:b"), found.head, verdict, Path("e.json"), Path("b.json"))
    shown = [text for text, _ in lines(ShownRun([result], Commands()))]
    assert sum("over one pair" in text for text in shown) == 1


@pytest.mark.parametrize(("slower", "same"), [(0.98, True), (1.02, False)])
@pytest.mark.parametrize("place", [0, 2])
def test_a_slow_step_between_the_blocks_takes_more_pairs(slower, same, place):
    """No block times it, so no mean shows it. If both sides have it, one pair is enough."""
    found = pair([MS] * STEPS, [MS] * STEPS)
    both = [
        replace(side.launches[0], untimed=between([MS] * 3)) for side in (found.head, found.base)
    ]
    times_ms = [MS] * 3
    times_ms[place] *= math.exp(slower * UNTIMED_LIMIT)
    slow = replace(both[0], untimed=between(times_ms))

    def of(head, base):
        sides = (found.head, head), (found.base, base)
        head, base = (replace(side, launches=(launch,)) for side, launch in sides)
        return replace(found, head=head, base=base)

    assert identical(of(slow, both[1])) is same
    assert identical(of(slow, slow)) and identical(of(*both))
    assert wants_another_pair(of(slow, both[1])) is not same


@pytest.mark.parametrize(
    ("place", "same"), [(1, False), (2, True), (3, True), (4, True), (5, False)]
)
def test_a_clock_that_dips_is_no_slow_step_between_the_blocks(place, same):
    """It dips at the same place of each block, or a step beside it. One side alone may have an
    untimed block that is long enough.
    """
    dipped = [MS * (1.15 if n % (STEPS // 2) == 3 else 1.0) for n in range(STEPS)]
    untimed = [MS * (1.15 if n == place else 1.0) for n in range(6)]
    found = pair(dipped, dipped)
    sides = (found.head, untimed), (found.base, [MS] * 6)
    head, base = (
        replace(side, launches=(replace(side.launches[0], untimed=between(ms)),))
        for side, ms in sides
    )
    assert identical(replace(found, head=head, base=base)) is same


@given(st.integers(0, 10**6))
@PROPERTY
def test_most_pairs_of_unchanged_code_look_so(seed):
    """What the first pair shows beyond it costs pairs, never a verdict."""
    found = pair(noisy(seed), noisy(seed + 1))
    assert identical(found) is not wants_another_pair(found)
    assert judge_ab(found).status in (Status.SAME, Status.INCONCLUSIVE)


@pytest.mark.parametrize(
    "counts",
    [
        {"identity": None},
        {"identity": StepIdentity(problem="it launches a graph")},
        *({"identity": StepIdentity(IDENTITY.parts | {name: "other"})} for name in IDENTITY.parts),
        {"identity": StepIdentity({"kernels and copies": "a1", "operators": "a1"})},
        {"identity": StepIdentity({})},
        {"profile": None},
        {"profile": replace(PROFILE, lost_share=0.001)},
        {"profile": replace(PROFILE, incomplete=1)},
        {"profile": replace(PROFILE, parts=replace(PROFILE.parts, idle_us=(9000.0,) * 6))},
    ],
)
def test_what_is_not_known_to_be_the_same_is_timed(counts):
    """Anything unknown, unstable or different: pairs as ever."""
    found = pair(**counts)
    assert why_not_identical(found) and not identical(found) and wants_another_pair(found)
    assert judge_ab(found).status is not Status.SAME


VALUES = evidence().counts.values


@pytest.mark.parametrize(
    "counts",
    [
        {"detail": {"peak_allocated_bytes": {"forward": 45_000_000_000, "optimizer": 1004}}},
        {"values": VALUES | {"peak_allocated_bytes": VALUES["peak_allocated_bytes"] + 9}},
        {"by_rank": {"launches_per_step": (1000, 999)}},
        {"unstable": {"copies_per_step": "steps differ: 4, 5"}},
    ],
)
def test_no_counter_takes_part(counts):
    """A phase's peak of 4 bytes more, or a count within its slack, makes no other step."""
    found = pair(**counts)
    assert why_not_identical(found) == "" and not wants_another_pair(found)
    assert judge_ab(found).reason is Reason.IDENTICAL_STEP


def test_a_counter_of_the_same_step_is_judged_by_its_own_rule():
    """A price that rose fails, though one pair shows that the step is as fast."""
    moved = pair(values=VALUES | {"peak_allocated_bytes": 46_000_000_000})
    gates = ("step_ms", "peak_allocated_bytes")
    head, base = (replace(side, gates=gates) for side in (moved.head, moved.base))
    found = replace(moved, head=head, base=base)
    verdict = judge_ab(found)
    assert verdict.status is Status.CHANGED and not wants_another_pair(found)
    assert "step_ms" not in {metric.metric for metric in verdict.moved}


@pytest.mark.parametrize(
    "files", [None, ("model/gpt.py", "model/fast.so"), ("data.bin",), ("pyproject.toml",), ("lib",)]
)
def test_other_files_than_code_are_timed(files):
    """Data, libraries and settings may steer what a later step does."""
    assert why_not_identical(pair(files=files)) and wants_another_pair(pair(files=files))
    assert not why_not_identical(pair(files=("a/b.py", "README.md"))) and not why_not_identical(
        pair(files=())
    )


def test_modules_that_git_ignores_are_timed():
    """A library that was built in the tree is on one side alone, and among no files that differ."""
    found = pair()
    for side in ("head", "base"):
        loose = replace(getattr(found, side), untracked=("model/fast.so",))
        assert why_not_identical(replace(found, **{side: loose})) == (
            "a module is in no commit: model/fast.so"
        )


def test_nothing_counted_or_no_gpu():
    """A CPU has no identity of a step."""
    found = pair()
    assert why_not_identical(replace(found, base=replace(found.base, counts=None)))
    case = found.head.case | {"device": "cpu"}
    assert (
        why_not_identical(replace(found, head=replace(found.head, case=case))) == "there is no GPU"
    )


def every(n, factor):
    """Each n-th step takes so much longer."""
    return [ms * (factor if i % n == n - 1 else 1) for i, ms in enumerate(noisy(1))]


def late(begin, factor):
    """From some step on."""
    return [ms * (factor if i >= begin else 1) for i, ms in enumerate(noisy(1))]


@pytest.mark.parametrize(
    "head_ms",
    [
        [ms * 1.01 for ms in noisy(1)],
        every(16, 1.2),
        every(8, 1.1),
        every(31, 1.5),
        late(16, 1.01),
        late(24, 1.04),
        late(30, 1.2),
    ],
    ids=["all", "16th", "8th", "once", "second block", "last quarter", "last steps"],
)
def test_what_only_the_host_does_is_in_the_pair(head_ms):
    """A sleep or a thread is in no identity: every n-th step, or late; the pair shows it."""
    found = pair(head_ms, noisy(1))
    assert not why_not_identical(found) and not identical(found) and wants_another_pair(found)


@given(st.floats(0.01, 1.0), st.integers(0, 10**6))
@PROPERTY
def test_one_percent_never_hides(slower, seed):
    """Spread over all steps it is beyond what one pair may be away from zero."""
    found = pair([ms * (1 + slower) for ms in noisy(seed)], noisy(seed))
    assert not identical(found)


@pytest.mark.parametrize(
    "change",
    [
        {"enqueue_ms": 1.01 * HOST_SHARE * MS},
        {"enqueue_ms": None},
    ],
)
def test_a_step_that_the_host_may_bound_is_timed(change):
    """Or of which that is not known; on either side."""
    found = pair()
    slow = launch(blocks=blocks(noisy(1), **change), index=1)
    for side in ("head", "base"):
        one = replace(getattr(found, side), launches=(slow,))
        assert not identical(replace(found, **{side: one}))


def test_a_pair_that_looks_changed_may_be_followed_by_others():
    """The mean of up to MOST_ALIKE pairs counts. All of them were measured in turns."""
    of = functools.partial(series, matter_pct=0.5)
    odd, usual = pair([1.006 * MS] * STEPS, [MS] * STEPS), pair([MS] * STEPS, [MS] * STEPS)
    looks = [identical(of(odd, *[usual] * more)) for more in range(MOST_ALIKE + 1)]
    assert looks == [False, False, True, True, False]
    assert not identical(replace(usual, together=False))
    assert wants_another_pair(of(odd)) and not wants_another_pair(of(odd, usual, usual))


def test_why_one_pair_was_not_enough_is_said():
    """Who waited for more pairs of a step that did not change wants to know."""
    sides = [pair(every(8, 1.1), noisy(1)), pair(noisy(3), noisy(4))]
    head, base = (
        replace(
            getattr(sides[0], side), launches=tuple(getattr(one, side).launches[0] for one in sides)
        )
        for side in ("head", "base")
    )
    found = replace(sides[0], head=replace(head, commit="e" * 40), base=base)
    assert "fewer were not enough: the step time differs" in times(judge_ab(found))[0]
    other = replace(base.counts, identity=StepIdentity(IDENTITY.parts | {"operators": "b"}))
    told = times(judge_ab(replace(found, base=replace(base, counts=other))))[0]
    assert "fewer were not enough: other operators" in told
    slower = replace(found.head, launches=tuple(launch(270.0, n) for n in range(1, 7)))
    base = replace(base, launches=tuple(launch(250.0, n) for n in range(1, 7)), counts=other)
    verdict = judge_ab(replace(found, head=slower, base=base))
    assert verdict.status is Status.SLOWER and "not enough" not in times(verdict)[0]


def test_a_commit_beside_itself_needs_no_reason_for_its_pairs():
    """All are wanted, whatever the first one showed, or a later one that was out of line."""
    one = pair()
    head, base = (replace(side, launches=side.launches * 2) for side in (one.head, one.base))
    odd = LaunchPair(head.launches[0], base.launches[0])
    found = replace(one, head=replace(head, commit=base.commit), base=base, again=(odd,))
    assert found.same_commit and "not enough" not in times(judge_ab(found))[0]


def test_after_a_pair_that_was_out_of_line_there_are_pairs_as_ever():
    """What HEAD does in some launches only is not the machine's for sure: a pair that was measured
    again is one that was odd.
    """
    found = pair()
    odd = LaunchPair(found.head.launches[0], found.base.launches[0])
    again = replace(found, again=(odd,))
    assert identical(found) and not identical(again) and wants_another_pair(again)
    assert judge_ab(again).status is Status.INCONCLUSIVE


def series(*pairs, matter_pct):
    """A comparison of several such pairs, of a case with such a matter margin."""
    head, base = (
        replace(
            getattr(pairs[0], side), launches=tuple(getattr(one, side).launches[0] for one in pairs)
        )
        for side in ("head", "base")
    )
    return with_margins(replace(pairs[0], head=head, base=base), 0.1, matter_pct)


@pytest.mark.parametrize(
    ("matter_pct", "count"), [(2.0, 1), (0.5, 1), (0.49, 2), (0.36, 2), (0.35, 3), (0.25, 4)]
)
def test_beside_a_narrow_margin_it_takes_several(matter_pct, count):
    """Where pairs scatter by more than two fifths of the matter margin, one may hide a change of
    it: code of a kernel that keeps its name and grid is in no identity. Their mean tells.
    """
    for measured in range(1, count + 1):
        found = series(*[pair(noisy(1), noisy(1))] * measured, matter_pct=matter_pct)
        assert identical(found) is (measured == count) and enough(found) == count
        assert wants_another_pair(found) is (measured < count)
    assert judge_ab(found).reason is Reason.IDENTICAL_STEP


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("head_ms", [every(8, 1.1), late(24, 1.04), [ms * 1.01 for ms in noisy(1)]])
def test_one_odd_pair_of_them_is_seen(place, head_ms):
    """In whichever of them the host did what costs time; there are pairs as ever."""
    pairs = [pair(noisy(1), noisy(1))] * 2
    pairs[place] = pair(head_ms, noisy(1))
    found = series(*pairs, matter_pct=0.45)
    assert enough(found) == 2 and not identical(found) and wants_another_pair(found)


@pytest.mark.parametrize("place", [0, 1])
def test_a_pair_out_of_line_is_not_enough(place):
    """Also where nothing was measured in its place: two in a row both count, and so does the last
    one when time is up.
    """
    slow = [*noisy(1)[: STEPS // 2], *(1.02 * ms for ms in noisy(1)[STEPS // 2 :])]
    pairs = [pair(noisy(1), noisy(1))] * 2
    assert identical(series(*pairs, matter_pct=0.45))
    pairs[place] = pair(slow, slow)  # which tells nothing of either side
    assert not identical(series(*pairs, matter_pct=0.45))


def test_what_is_slower_by_the_matter_margin_hardly_looks_the_same():
    """Whatever the margin: where no identity shows it, at most a third passes of quiet pairs."""
    draw = np.random.default_rng(5)
    sd_pct = PRIOR.sd_pct
    for matter in (0.5, 0.45, 0.36, 0.3, 0.25):
        count = enough(series(pair(), matter_pct=matter))
        limit = PAIR_SDS * sd_pct / math.sqrt(count)
        means = matter + sd_pct * draw.standard_normal((20_000, count)).mean(axis=1)
        assert (np.abs(means) <= limit).mean() < 1 / 3


def test_the_rule_says_how_often_it_errs():
    """Where HEAD is slower by the matter margin."""
    (errs,) = (rule.errs for rule in RULES if rule.decide is identical_step.rule)
    draw = np.random.default_rng(7).standard_normal((200_000, MOST_ALIKE))
    pairs = np.arange(1, MOST_ALIKE + 1)
    sums = MARGINS.matter_pct / PRIOR.sd_pct * pairs + draw.cumsum(axis=1)
    passes = (abs(sums) <= PAIR_SDS * pairs**0.5).any(1)
    (told,) = (int(number) for number in re.findall(r"(?<![.\d])(\d+) ", errs))
    assert told == pytest.approx(100 * passes.mean(), abs=1.0)


def test_no_ranks_gpu_may_be_idle():
    """The mean of eight hides one that waits for its host; the others wait in their exchange."""
    busy, waits = PROFILE.parts, replace(PROFILE.parts, idle_us=(0.2 * MS * 1e3,) * 6)
    ranks = pair(parts_by_rank=(busy,) * 8)
    assert identical(ranks)
    assert "a GPU is idle for 20.0 %" in why_not_identical(
        pair(parts_by_rank=(busy,) * 7 + (waits,))
    )


def test_where_more_would_be_needed_the_plan_decides():
    """A margin that is narrower than the noise: a few such pairs say nothing of it."""
    noisy_one = series(pair(), matter_pct=0.24)
    assert enough(noisy_one) == 0 and not identical(noisy_one) and wants_another_pair(noisy_one)
    assert not identical(replace(noisy_one, head=replace(noisy_one.head, launches=())))
    both = series(*[pair()] * 2, matter_pct=0.24)
    both = replace(both, head=replace(both.head, commit="e" * 40))
    assert "fewer were not enough: with this noise a few pairs" in times(judge_ab(both))[0]


def test_the_limits():
    """What the constants stand for."""
    assert 0 < IDLE_SHARE < 0.05 and 0.72 < HOST_SHARE < 1
    assert Counts({}).identity is None
