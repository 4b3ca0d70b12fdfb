"""Slowdowns that begin late or return every so many steps: planted, and noise without any."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from alarms import confirmed, of_metrics, to_confirm
from builders import CASE_ID, block_of, compared, entry, evidence, one_recording, replace
from checkpoint_steps import checkpointing
from comparisons import with_margins

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Launch
from stepguard.core.metrics import PYTHON_LINES
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.verdict import Confirmation
from stepguard.judge.judge_pairs import (
    judge_ab,
    wants_another_pair,
)
from stepguard.judge.judge_recordings import judge
from stepguard.judge.rules import mean_of_pairs
from stepguard.judge.slow_step_patterns import of_head_alone, of_launches, of_pairs
from stepguard.judge.summarise_evidence import summarise
from stepguard.report.next_steps import Commands
from stepguard.report.verdict_text import block as shown_block
from stepguard.report.verdict_text import headline

GATES = ("step_ms", "flops_per_step")
SCREEN = (range(110, 156), range(156, 202), range(202, 248))  # blocks of a launch, steps of 43 ms
NEAR = (range(46, 93), range(104, 151))
FAR = (range(46, 93), range(273, 320))
LONG_NEAR = (range(8, 16), range(17, 25))  # of steps of 270 ms
LONG_FAR = (range(8, 16), range(34, 42))
MS = 43.0
SOUND = {"planned_launches": 3, "floor_flops_per_step": 0.0}


def steps_ms(
    draw, steps, late=None, every=None, waits=None, drift=0.0, follows=0.5, cv=0.015, odd=0.0
):
    """Times of steps that scatter by ``cv`` and follow the one before; ``late`` is (from which step
    on, by how much), ``every`` is (interval, first, by how much), ``waits`` is like ``late``, of a
    block's first step alone.
    """
    ms, noise, new = [], cv * draw.standard_normal(), cv * math.sqrt(1 - follows**2)
    for step in steps:
        noise = follows * noise + new * draw.standard_normal()
        log = noise + drift * step / 100
        if odd and draw.random() < odd:
            log += draw.exponential(0.3)
        if late and step >= late[0]:
            log += math.log1p(late[1])
        if waits and step >= waits[0] and step == steps.start:
            log += math.log1p(waits[1])
        if every and step % every[0] == every[1]:
            log += math.log1p(every[2])
        ms.append(MS * math.exp(log))
    return tuple(ms)


def launch(draw, blocks, index, untimed=(), **how):
    """A launch of blocks of these steps, with a level of its own and one for each block."""
    level, made = 0.001 * draw.standard_normal(), []
    for steps in (*blocks, *untimed):
        shift = math.exp(level + 0.0015 * draw.standard_normal())
        ms = [shift * one for one in steps_ms(draw, steps, **how)]
        made.append(block_of(ms, steps.start))
    timed, rest = tuple(made[: len(blocks)]), tuple(made[len(blocks) :])
    return Launch(index, timed, 1.0, 5.0, 110, "", 60.0, untimed=rest)


def launches(count=3, seed=0, blocks=SCREEN, **how):
    """Launches as a stored baseline judges them."""
    draw = np.random.default_rng(seed)
    return tuple(launch(draw, blocks, number, **how) for number in range(1, count + 1))


def pairs(count=4, seed=0, head=None, base=None, far=FAR, near=NEAR, **both):
    """A comparison with pairs of which the first two reach far."""
    draw, sides = np.random.default_rng(seed), ([], [])
    for number in range(1, count + 1):
        blocks = far if number <= 2 else near
        for side, how in zip(sides, (head, base), strict=True):
            side.append(launch(draw, blocks, number, **both, **(how or {})))
    made = [
        evidence((), launches=tuple(s), gates=GATES, **(SOUND | {"planned_launches": 1}))
        for s in sides
    ]
    return Comparison("main", replace(made[0], commit="f" * 40), replace(made[1], commit="0" * 40))


PLANTED = [
    ({"late": (150, 0.12)}, "late", 150, 0, 12.0),
    ({"late": (300, 0.15)}, "late", 300, 0, 15.0),
    ({"every": (16, 5, 40 / MS)}, "periodic", 5, 16, 100 * 40 / MS),
    ({"every": (16, 5, 0.10)}, "periodic", 5, 16, 10.0),
]


@pytest.mark.parametrize(("how", "kind", "begin", "period", "pct"), PLANTED)
def test_head_alone_is_slower_for_it(how, kind, begin, period, pct):
    """Two pairs are enough, no more are asked for, and the first line says where it begins."""
    found = pairs(2, head=how)
    verdict = judge_ab(found)
    worst = verdict.worst
    reason = Reason.LATE_SLOWDOWN if kind == "late" else Reason.PERIODIC_SLOWDOWN
    assert (verdict.status, verdict.reason, worst.metric) == (Status.SLOWER, reason, "step_ms")
    slow = worst.slow_steps
    assert slow.kind == kind and slow.period == period
    if kind == "late":  # NEAR is not in these pairs: nothing is timed from 93 to 272
        assert slow.after - 2 <= begin <= slow.begin + 2
    else:
        assert slow.begin % period == begin
    assert slow.slower_pct == pytest.approx(pct, abs=1.5)
    assert not wants_another_pair(found)
    line = headline(verdict)
    where = f"from step {slow.begin}" if kind == "late" else "every 16 steps, first at step"
    assert where in line and f"{slow.slower_pct:+.1f} %" in line
    assert where in shown_block(verdict, "runs/1", Commands())


LONG = {"far": LONG_FAR, "near": LONG_NEAR, "cv": 0.005}


def test_what_a_blocks_first_step_waits_for_is_no_period():
    """A sleep of the host is whole in that step, and part of it in the others: in six pairs it is
    the mean that is slower.
    """
    found = pairs(6, head={"late": (0, 0.22), "waits": (0, 0.4)}, **LONG)
    for count in range(2, 7):
        few = [replace(side, launches=side.launches[:count]) for side in (found.head, found.base)]
        assert of_pairs(replace(found, head=few[0], base=few[1])) is None
    verdict = judge_ab(found)
    assert (verdict.status, verdict.reason) == (Status.SLOWER, Reason.BEYOND_MARGIN)
    assert verdict.worst.change_pct == pytest.approx(28, abs=1)


@pytest.mark.parametrize(
    ("begin", "blocks"), [(30, LONG), (10, {"far": (range(4, 8), range(12, 16)), "cv": 0.005})]
)
def test_two_pairs_of_long_steps_find_what_begins_late(begin, blocks):
    """A sleep from some step on, of which the one block that reaches so far has eight, or four; the
    first of them waits for all of it.
    """
    verdict = judge_ab(pairs(2, head={"late": (begin, 0.22), "waits": (begin, 0.4)}, **blocks))
    assert (verdict.status, verdict.reason) == (Status.SLOWER, Reason.LATE_SLOWDOWN)
    slow = verdict.worst.slow_steps
    assert slow.after < begin <= slow.begin
    assert slow.slower_pct == pytest.approx(22, abs=2)


def with_python(found, lines):
    """Evidence whose step runs so many lines of Python, and 240 of the model."""
    sites = tuple(
        Site("lines of Python", file, line, function, count=count)
        for file, line, function, count in (
            ("model/gpt.py", 55, "Attention.forward", 240),
            ("model/workloads.py", 169, "TrainStep.step", lines),
        )
    )
    information = found.counts.information | {PYTHON_LINES: 240.0 + lines}
    placed = found.counts.sites | {PYTHON_LINES: sites}
    return replace(found, counts=replace(found.counts, information=information, sites=placed))


@pytest.mark.parametrize(
    ("how", "count", "named"),
    [
        ({"every": (16, 5, 1.75)}, 2, True),
        ({"late": (150, 0.12)}, 2, True),
        ({"late": (0, 0.2)}, 6, False),
    ],
)
def test_the_function_that_runs_one_line_more_is_named(how, count, named):
    """An ``if`` that is true in some steps is one line in all others. Of a step that is slower as a
    whole one line says nothing.
    """
    found = pairs(count, head=how)
    sides = {"head": with_python(found.head, 20), "base": with_python(found.base, 19)}
    verdict = judge_ab(replace(found, **sides))
    assert verdict.status is Status.SLOWER
    assert headline(verdict).endswith("model/workloads.py:169") is named


def test_a_period_adds_its_share_of_the_time():
    """One step in sixteen that takes 2.75 times as long is 10.9 % of the mean."""
    verdict = judge_ab(pairs(2, head={"every": (16, 5, 1.75)}))
    assert verdict.reason is Reason.PERIODIC_SLOWDOWN
    assert verdict.worst.change_pct == pytest.approx(175 / 16, abs=1)


def test_one_slow_step_in_each_launch_has_no_period():
    """Steps 30 and 46 are timed in none of them."""
    verdict = judge_ab(pairs(4, head={"every": (16, 14, 1.75)}, **LONG))
    assert verdict.reason is Reason.PERIODIC_SLOWDOWN
    assert "step_ms at step 14 of each launch +1" in headline(verdict)


SEVEN = {"far": (range(8, 15), range(34, 41)), "near": (range(8, 15), range(17, 24)), "cv": 0.005}


@pytest.mark.parametrize(
    ("interval", "phase", "said"),
    [
        (11, 5, "at step 38 of each launch"),
        (11, 1, "every 11 steps, first at step 12,"),
    ],
)
def test_two_pairs_find_few_steps_that_take_twice_as_long(interval, phase, said):
    """Of steps of 270 ms a block times seven, so each launch times one or two slow ones. The other
    launches of a full run time none of them, or one.
    """
    for count in (2, 6):
        found = pairs(count, head={"every": (interval, phase, 1.15)}, **SEVEN)
        verdict = judge_ab(found)
        assert (verdict.status, verdict.reason) == (Status.SLOWER, Reason.PERIODIC_SLOWDOWN)
        assert not wants_another_pair(found)
        assert count == 6 or f"step_ms {said} +11" in headline(verdict)


BETWEEN = {"untimed": (range(10, 15), range(24, 31), range(31, 34)), "cv": 0.005}


@pytest.mark.parametrize(
    ("interval", "slow", "said"),
    [
        (11, 33, "every 11 steps, first at step 11,"),
        (16, 25, "at step 25 of each launch"),
        (50, 27, "at step 27 of each launch"),
    ],
)
def test_slow_steps_between_the_blocks_of_two_pairs_are_found(interval, slow, said):
    """The blocks time none of them: the means are those of unchanged code, as the old time is."""
    places = {"far": (range(16, 22), range(34, 40)), "near": (range(16, 22), range(34, 40))}
    how = {"head": {"every": (interval, slow % interval, 1.15)}}
    unseen = pairs(6, **how, **places, cv=0.005)
    assert of_pairs(unseen) is None and judge_ab(unseen).status is not Status.SLOWER
    found = pairs(2, **how, **places, **BETWEEN)
    verdict = judge_ab(found)
    assert (verdict.status, verdict.reason) == (Status.SLOWER, Reason.PERIODIC_SLOWDOWN)
    assert f"{said} +1" in headline(verdict)
    assert verdict.worst.old == pytest.approx(MS, rel=0.01)
    assert verdict.worst.new == pytest.approx(MS * (1 + verdict.worst.change_pct / 100), rel=0.01)


def test_a_disturbed_step_between_the_blocks_hides_nothing():
    """It is half as long again in one launch; the slow steps are those that blocks time."""
    found = pairs(2, head={"every": (11, 5, 1.15)}, **SEVEN, untimed=(range(17, 27),))
    first, second = found.head.launches
    (between,) = second.untimed
    ms = [each * (1.5 if at == 3 else 1) for at, each in enumerate(between.step_ms)]
    disturbed = replace(second, untimed=(block_of(ms, between.ran),))
    found = replace(found, head=replace(found.head, launches=(first, disturbed)))
    assert judge_ab(found).reason is Reason.PERIODIC_SLOWDOWN


@pytest.mark.parametrize("side", ["head", "base"])
@pytest.mark.parametrize("wrong", [{"step_ms": (0.0,) * 5}, {"step_ms": ()}, {"wall_ms": ()}])
def test_steps_between_blocks_without_times_are_no_pass(side, wrong):
    """Of one launch, or of all: slow steps in timed blocks may hide behind them."""
    found = pairs(2, head={"every": (11, 5, 1.15)}, **SEVEN | BETWEEN)
    assert judge_ab(found).status is Status.SLOWER
    damaged = [
        replace(one, untimed=(replace(one.untimed[0], **wrong), *one.untimed[1:]))
        for one in getattr(found, side).launches
    ]
    for launches in (damaged, [damaged[0], getattr(found, side).launches[1]]):
        broken = replace(getattr(found, side), launches=tuple(launches))
        verdict = judge_ab(replace(found, **{side: broken}))
        assert (verdict.status, verdict.reason) == (Status.BROKEN, Reason.NOTHING_MEASURED)


def test_steps_between_blocks_without_numbers_are_left_out():
    """Kept evidence of no launch says which they are."""
    found = pairs(2, **SEVEN | BETWEEN)
    unnumbered = tuple(
        replace(one, untimed=tuple(replace(block, ran=None) for block in one.untimed))
        for one in found.head.launches
    )
    assert of_pairs(replace(found, head=replace(found.head, launches=unnumbered))) is None


def test_first_steps_of_blocks_are_found_in_three_launches():
    """Step 34 is the first of its block, where the host's delay shows, so two are not enough."""
    found = pairs(4, head={"every": (17, 0, 1.15)}, **SEVEN)
    for count in (2, 3):
        sides = {
            name: replace(getattr(found, name), launches=getattr(found, name).launches[:count])
            for name in ("head", "base")
        }
        assert of_pairs(replace(found, **sides), least=2) is None
    series = {"far": SEVEN["far"], "near": SEVEN["far"], "cv": 0.005}
    verdict = judge_ab(pairs(3, head={"every": (17, 0, 1.15)}, **series))
    assert (verdict.status, verdict.reason) == (Status.SLOWER, Reason.PERIODIC_SLOWDOWN)


@pytest.mark.parametrize("what", ["small", "elsewhere", "not alone", "on a CPU"])
def test_a_step_that_may_be_slow_by_chance_takes_more_pairs(what):
    """It is a quarter longer; or another step in each launch; or another step is slow as well; or
    other work of a CPU may cause it.
    """
    found = pairs(2, head={"every": (11, 5, 0.25 if what == "small" else 1.15)}, **SEVEN)
    first, second = found.head.launches
    moved = {"elsewhere": (4, 2), "not alone": (None, 2)}.get(what)
    if moved:  # the times of two steps of the last block change places; or one is copied
        late = second.blocks[1]
        ms = list(late.step_ms)
        ms[moved[1]] = ms[4]
        if moved[0] is not None:
            ms[moved[0]] = ms[1]
        second = replace(second, blocks=(second.blocks[0], block_of(ms, late.ran)))
    case = found.head.case | ({"device": "cpu"} if what == "on a CPU" else {})
    head = replace(found.head, launches=(first, second), case=case)
    found = replace(found, head=head, base=replace(found.base, case=case))
    assert of_pairs(found, least=2) is None


def test_a_step_that_is_slower_by_more_than_some_steps_has_the_figures_of_its_pairs():
    """All steps are 20 % slower, and one in sixteen a third on top of that, which is a note."""
    found = pairs(6, head={"late": (0, 0.2), "every": (16, 5, 0.3)})
    verdict = judge_ab(found)
    worst = verdict.worst
    assert (verdict.status, verdict.reason) == (Status.SLOWER, Reason.BEYOND_MARGIN)
    assert worst.change_pct == worst.pairs.decision.estimate_pct > 20
    assert "every 16" not in headline(verdict)
    assert "every 16 steps, first at step 53" in shown_block(verdict, "runs/1", Commands())
    # Two pairs do not decide by their mean; they are no smaller for it.
    few = judge_ab(pairs(2, head={"late": (0, 0.2), "every": (16, 5, 0.3)}))
    assert few.reason is Reason.PERIODIC_SLOWDOWN and few.worst.change_pct > 20


def test_its_limit_is_what_is_ignored():
    """Pairs whose mean is `same` show the matter margin, which a slowdown within launches may be
    below: SLOWER by 0.5 % of 8 would read as no failure.
    """
    found = with_margins(pairs(4, head={"every": (16, 5, 0.06)}), 0.2, 8.0)
    assert mean_of_pairs.rule(found).status is Status.SAME
    worst = judge_ab(found).worst
    assert (worst.status, worst.limit_pct) == (Status.SLOWER, 0.2)
    assert worst.change_pct == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("how", [one[0] for one in PLANTED])
def test_what_both_revisions_do_is_a_notice(how):
    """The other tree has it at the same steps: no failure; it is shown, and pairs decide."""
    found = pairs(24, seed=3, **how)
    assert of_pairs(found) is None
    verdict = judge_ab(found)
    assert verdict.status is Status.SAME and verdict.has_notice


def test_a_checkpoint_in_each_eighth_step_is_never_same():
    """Steps of a real run on a busy CPU: more pairs are wanted, and time that is up is no pass. Six
    pairs say SLOWER, since HEAD's launches show the interval, which the pairs alone do not.
    """
    for count in range(2, 6):
        assert wants_another_pair(checkpointing(count))
        early = judge_ab(checkpointing(count, out_of_time=True))
        assert early.status is Status.INCONCLUSIVE
        assert count == 2 or "every 8 steps" in headline(early)  # two have three such steps
    for count in (6, 7, 8):
        found = checkpointing(count)
        assert of_pairs(found) is None and not wants_another_pair(found)
        verdict = judge_ab(found)
        assert (verdict.status, verdict.reason) == (Status.SLOWER, Reason.PERIODIC_SLOWDOWN)
        assert "step_ms every 8 steps, first at step 14, +" in headline(verdict)


def test_a_checkpoint_that_is_no_longer_written_is_none_of_heads():
    """The other tree alone has the pattern."""
    found = checkpointing(swapped=True)
    assert of_head_alone(found) is None and of_pairs(found) is None
    assert judge_ab(found).status.outcome == "passed"


@pytest.mark.parametrize("seed", [0, 2, 4, 9, 10])
@pytest.mark.parametrize("count", [2, 6])
def test_a_pause_of_the_host_that_a_gpu_hides_is_found(seed, count):
    """In each eleventh step the host sleeps for longer than the step takes. The GPU has launches to
    run meanwhile, and hides up to nine tenths of it, in each launch another part. Two pairs decide,
    and six do so, too.
    """
    draw, sides = np.random.default_rng(seed), ([], [])
    for number in range(1, count + 1):
        seen = 1.3 * (1 - 0.9 * draw.random())
        for side, how in zip(sides, ({"every": (11, 4, seen)}, {}), strict=True):
            side.append(launch(draw, (range(20, 40), range(70, 90)), number, cv=0.004, **how))
    head, base = (
        evidence((), launches=tuple(side), gates=GATES, **(SOUND | {"planned_launches": 1}))
        for side in sides
    )
    found = Comparison("main", replace(head, commit="f" * 40), replace(base, commit="0" * 40))
    verdict = judge_ab(found)
    assert (verdict.status, verdict.reason) == (Status.SLOWER, Reason.PERIODIC_SLOWDOWN)
    assert "every 11 steps" in headline(verdict)


def growing(by, both=0.0, count=2, seed=0, cv=0.015):
    """Pairs whose steps grow by a share over 320 steps, in HEAD alone or on both sides."""
    draw, sides = np.random.default_rng(seed), ([], [])
    for number in range(1, count + 1):
        for side, rise in zip(sides, (by + both, both), strict=True):
            plain = launch(draw, FAR, number, cv=cv)
            blocks = tuple(
                block_of(
                    [ms * (1 + rise * step / 320) for step, ms in enumerate(b.step_ms, b.ran)],
                    b.ran,
                )
                for b in plain.blocks
            )
            side.append(replace(plain, blocks=blocks))
    made = (
        evidence((), launches=tuple(s), gates=GATES, **(SOUND | {"planned_launches": 1}))
        for s in sides
    )
    head, base = made
    return Comparison("main", replace(head, commit="f" * 40), replace(base, commit="0" * 40))


@pytest.mark.parametrize("by", [0.3, 1.0])
def test_steps_that_grow_in_head_alone_are_slower(by):
    """Two pairs; the text says from where to where, and by how much."""
    found = growing(by)
    verdict = judge_ab(found)
    assert (verdict.status, verdict.reason) == (Status.SLOWER, Reason.GROWING_SLOWDOWN)
    assert not wants_another_pair(found)
    assert "step_ms grows from step to step, +" in headline(verdict)
    slow = verdict.worst.slow_steps
    assert (slow.begin, slow.after) == (47, 319)
    assert slow.slower_pct == pytest.approx(100 * by * 272 / (320 + 47 * by), rel=0.25)


def test_steps_that_grow_on_both_sides_are_said_once():
    """No change, and a notice of the step time."""
    found = growing(0.0, both=0.5, count=24)
    assert of_pairs(found) is None and of_head_alone(found) is None
    verdict = judge_ab(found)
    assert (verdict.status, verdict.reason) == (Status.SAME, Reason.GROWING_SLOWDOWN)
    assert verdict.has_notice
    assert sum(metric.slow_steps is not None for metric in verdict.metrics) == 1


def test_a_level_is_no_line_and_a_line_no_level():
    """What begins at a step is late, also where all launches have it; what grows is not."""
    assert of_launches(launches(late=(150, 0.3))).kind == "late"
    assert of_launches(growing(0.5).head.launches).kind == "growing"


def test_head_without_it_is_not_slower():
    """Only the other tree's steps become slower."""
    assert of_pairs(pairs(4, base={"late": (150, 0.12)})) is None
    assert of_pairs(pairs(4, base={"every": (16, 5, 0.2)})) is None


def test_a_faster_step_that_becomes_slower_is_as_fast_as_it_ends():
    """30 % faster at first and 10 % slower than that from step 150 on is a gain all the same."""
    found = pairs(4, head={"late": (150, 0.10)})
    quick = tuple(
        replace(
            one,
            blocks=tuple(
                replace(
                    b,
                    step_ms=tuple(0.7 * ms for ms in b.step_ms),
                    wall_ms=(0.7 * b.wall_ms[0],),
                    events_ms=(0.7 * b.wall_ms[0],),
                )
                for b in one.blocks
            ),
        )
        for one in found.head.launches
    )
    assert of_pairs(replace(found, head=replace(found.head, launches=quick))) is None


NOISE = [
    {},
    {"odd": 0.02},
    {"drift": 0.01},
    {"follows": 0.9, "cv": 0.025},
]


@pytest.mark.parametrize("how", NOISE)
def test_noise_has_no_pattern(how):
    """Steps that are correlated, drift alike on both sides, or are far out now and then: looked for
    after every one of six pairs, nothing is found in 60 comparisons.
    """
    for seed in range(60):
        found = pairs(6, seed=seed, **how)
        for count in (1, 2, 4, 6):
            some = [
                replace(side, launches=side.launches[:count]) for side in (found.head, found.base)
            ]
            few = replace(found, head=some[0], base=some[1])
            assert of_pairs(few, least=1) is None, (seed, count)
        assert of_launches(launches(seed=seed, **how)) is None


@pytest.mark.parametrize("how", [PLANTED[0][0], PLANTED[2][0]])
def test_against_recordings_it_is_a_notice(how):
    """Nobody knows what the recorded steps did within their launches."""
    found = evidence((), launches=launches(**how), **SOUND)
    verdict = judge(found, one_recording(times_ms=summarise(found).times_ms))
    assert verdict.status is Status.SAME and verdict.has_notice
    step = next(one for one in verdict.metrics if one.metric == "step_ms")
    assert step.reason in (Reason.LATE_SLOWDOWN, Reason.PERIODIC_SLOWDOWN)


def test_the_level_that_lasts_is_compared():
    """From step 225 on 15 % slower is 2.5 % of the mean over the timed steps, and 15 % of those
    that a training run will take.
    """
    late = evidence((), launches=launches(late=(225, 0.15)), **SOUND)
    mean = np.mean([one.step_ms for one in late.launches])
    assert mean == pytest.approx(1.025 * MS, rel=0.01)
    assert summarise(late).values()["step_ms"] == pytest.approx(1.15 * MS, rel=0.01)
    found = compared("step_ms", late, entry((MS,)).epochs[-1].recordings)
    assert found.status is Status.SLOWER and found.change_pct == pytest.approx(15, abs=1.5)


def test_one_launch_alone_shows_no_pattern():
    """What is in one launch of three does not return."""
    odd, *others = launches(late=(150, 0.2))[:1] + launches()[1:]
    assert of_launches((odd, *others)) is None
    assert of_launches((odd,)) is None


@pytest.mark.parametrize(("least", "found"), [(0.6, True), (0.4, False)])
def test_each_launch_has_at_least_half_of_what_is_late(least, found):
    """Nine launches are slower by 20 % from step 150 on. The tenth has a share of that."""
    all_but_one, shared = (launches(10, late=(150, by)) for by in (0.2, least * 0.2))
    assert (of_launches((*all_but_one[:9], shared[9])) is not None) is found


@pytest.mark.parametrize(("by", "found"), [(0.075, False), (0.08, True)])
def test_what_returns_is_clear_by_eight_standard_errors(by, found):
    """One step in 32 of two launches whose steps scatter by 2.5 %: 7.5 % more are 7.6 standard
    errors, 8 % more are 8.1.
    """
    every = launches(2, seed=2, every=(32, 5, by), cv=0.025, follows=0.0)
    assert (of_launches(every) is not None) is found


def test_pairs_that_confirm_find_it_where_the_mean_does_not():
    """The screen says SLOWER by the level that lasts; pairs whose mean moved by less than the
    margin do not blame the machine when HEAD's steps alone become slower.
    """
    late = evidence((), launches=launches(late=(225, 0.15)), **SOUND, gates=GATES)
    screened = judge(late, entry((MS,)))
    assert screened.status is Status.SLOWER
    after = confirmed(screened, pairs(2, head={"late": (300, 0.15)}), "the recording's commit")
    assert after.status is Status.SLOWER
    assert after.worst.confirmed.outcome is Confirmation.CONFIRMED
    assert CASE_ID in headline(after) and "from step" in headline(after)


@pytest.mark.parametrize(("ms", "status"), [(MS, Status.SAME), (1.04 * MS, Status.FASTER)])
def test_pairs_that_confirm_find_it_whatever_the_screen_says(ms, status):
    """On a card that is faster than the recorded one, or where kernels ask: no further pair is
    measured, since the step is SLOWER, and so it is.
    """
    screened = judge(evidence((MS,) * 3, gates=GATES, **SOUND), entry((ms,)))
    asked = [replace(one, reason=Reason.KERNELS_MOVED) for one in screened.metrics[:1]]
    if status is Status.SAME:
        screened = of_metrics(screened, (*asked, *screened.metrics[1:]))
    assert screened.status is status and to_confirm(screened)
    found = pairs(2, head={"late": (300, 0.15)})
    assert not wants_another_pair(found)
    after = confirmed(screened, found, "the recording's commit")
    assert after.status is Status.SLOWER
    assert after.worst.change_pct == pytest.approx(15, abs=1)
    assert "SLOWER: step_ms from step 300 on +14." in headline(after)


RECORDED = Path(__file__).parents[2] / "studies/warm_up/blocks_2026-11-23.json"


def recorded(case, every=None):
    """Launches of an H200 or H100; every so many steps slower by a share, from a first one on."""
    made = []
    for index, blocks in enumerate(json.loads(RECORDED.read_text())[case]["launches"], start=1):
        of_launch = []
        for one in blocks:
            steps = range(one["ran"], one["ran"] + len(one["step_ms"]))
            ms = [
                each * (1 + every[2] * (step % every[0] == every[1])) if every else each
                for step, each in zip(steps, one["step_ms"], strict=True)
            ]
            of_launch.append(block_of(ms, one["ran"]))
        made.append(Launch(index, tuple(of_launch), 1.0, 5.0, 110, "", 60.0))
    return tuple(made)


@pytest.mark.parametrize("case", json.loads(RECORDED.read_text()))
def test_what_a_card_does_after_the_pause_before_a_block_is_no_pattern(case):
    """At its power cap its clock dips 0.8 s later, by 8 to 20 %, and again 0.95 s after that."""
    assert of_launches(recorded(case)) is None


def test_a_period_is_found_among_these_dips():
    """10 % in every sixteenth step, where every nineteenth is slower by the clock."""
    found = of_launches(recorded("forward[350m-bf16]", every=(16, 5, 0.10)))
    assert (found.period, found.begin % 16) == (16, 5)
    assert found.figures().slower_pct == pytest.approx(10, abs=2)
