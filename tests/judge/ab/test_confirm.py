"""A baseline's SLOWER or FASTER, after its own code ran beside HEAD: the code, or the machine."""

import math

import pytest
from alarms import confirmed, ended, same_code, to_confirm, unconfirmed
from builders import PROPERTY, block, entry, evidence, launch, metric, replace, with_counts
from comparisons import with_margins
from hypothesis import given
from hypothesis import strategies as st

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Fault
from stepguard.core.metrics import JUDGED_TIME, METRICS
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Joins, Verdict
from stepguard.judge.alarm import MACHINE_LIMIT_PCT
from stepguard.judge.judge_pairs import wants_another_pair
from stepguard.judge.judge_recordings import judge
from stepguard.judge.rules import decision
from stepguard.report.metric_notes import note
from stepguard.report.next_steps import Commands, next_steps
from stepguard.report.verdict_text import evidence_lines, times

FIVE = entry((250.0, 250.1, 249.9, 250.0, 250.0))  # limit: the floor, 0.5 %
HOW = "the recording's own commit, 000000000000"
SPREAD = (0.0002, -0.0002, 0.0001, -0.0001, 0.0, 0.0)
GATES = (JUDGED_TIME, "flops_per_step")  # what confirmation measures
WASTE = next(name for name in evidence().gates if METRICS[name].role == "waste")


def screened(pct, **counts):
    """The verdict of a baseline on a step that is ``pct`` percent slower than its recordings."""
    ms = 250.0 * (1 + pct / 100)
    found = evidence((ms,) * 3)
    return judge(with_counts(found, **counts), FIVE)


def beside(pct, head=None, base=None, spread=SPREAD):
    """What was measured of both codes in turns: HEAD is ``pct`` percent slower."""
    ratios = [math.log1p(pct / 100) + one for one in spread]
    sides = {"gates": GATES, "planned_launches": 1}
    new = evidence(tuple(250.0 * math.exp(d) for d in ratios), **sides)
    old = evidence((250.0,) * len(ratios), commit="0" * 40, **sides)
    return Comparison("0" * 40, replace(new, **head or {}), replace(old, **base or {}))


NOISY = (0.03, -0.03, 0.03, -0.03, 0.03, -0.03)
FAULTY = {"faults": (Fault(Reason.RAISED, "planted", "", "pair 1, block"),), "launches": ()}
LACKING = {"faults": (Fault(Reason.BAD_WORKLOAD, "no factory", "", "prepare"),), "launches": ()}


@pytest.mark.parametrize("screen", [5.0, -5.0])
@pytest.mark.parametrize(
    ("judge_says", "status", "words"),
    [
        (beside(2.0), Status.SLOWER, "confirmed, the code is SLOWER"),
        (beside(0.0), Status.SAME, "the machine changed; "),
    ],
    ids=["SLOWER", "same"],
)
def test_the_pairs_decide_about_the_screen(screen, judge_says, status, words):
    """Whatever the baseline said, slower code is SLOWER, and equal code is the machine's doing."""
    verdict = confirmed(screened(screen), judge_says, HOW)
    assert verdict.status is status
    assert metric(verdict, "step_ms").status is status
    text = note(metric(verdict, "step_ms"))
    assert text.startswith(words) and f"{HOW} beside it" in text and "over 6 pairs" in text
    if status is Status.SLOWER and screen < 0:  # the figures are then those that say so
        assert metric(verdict, "step_ms").change_pct == pytest.approx(2.0, abs=0.1)


def test_slower_becomes_same_where_the_code_is_faster():
    """HEAD beats the recording's code on this machine: it was the machine, and it is told."""
    verdict = confirmed(screened(5.0), beside(-2.0), HOW)
    assert (verdict.status, verdict.reason) == (Status.SAME, Reason.MACHINE_MOVED)
    assert verdict.has_notice and verdict.status.outcome == "passed"


def test_faster_is_confirmed_by_faster():
    """The gain is the code's."""
    verdict = confirmed(screened(-5.0), beside(-2.0), HOW)
    assert verdict.status is Status.FASTER
    assert times(verdict)[0].startswith(f"step_ms: confirmed, the code is FASTER: {HOW} beside it:")


@pytest.mark.parametrize("screen", [5.0, -5.0])
@pytest.mark.parametrize(
    ("judge_says", "why"),
    [
        (beside(0.3, spread=NOISY), f"the pairs do not decide, {HOW} beside it"),
        (beside(0.0, base=LACKING, head={"launches": ()}), "NOT COMPARABLE, 000000000000: no fact"),
        (beside(0.0, head=FAULTY), "BROKEN, pair 1: planted"),
        (beside(0.0, head={"gates": ("flops_per_step",)}), "the step time was not judged"),
    ],
    ids=["INCONCLUSIVE", "NOT COMPARABLE", "BROKEN", "no time"],
)
def test_without_an_answer_the_screens_word_stands(screen, judge_says, why):
    """SLOWER stays SLOWER, FASTER stays FASTER, and both say that nobody confirmed it, and why."""
    before = screened(screen)
    verdict = confirmed(before, judge_says, HOW)
    assert (verdict.status, verdict.reason) == (before.status, before.reason)
    assert note(metric(verdict, "step_ms")).startswith(f"unconfirmed: {why}")


@pytest.mark.parametrize("name", ["tokens_per_step", "flops_per_step"])
def test_a_step_that_does_other_work_is_not_faster(name):
    """FASTER would pass, and what does nothing is fast: CHANGED. SLOWER fails as it is."""
    fewer = {"tokens_per_step": 1}
    if name == "flops_per_step":
        counts = evidence().counts
        fewer = {"counts": replace(counts, values=counts.values | {name: 1})}
    verdict = confirmed(screened(-50.0), beside(-50.0, base=fewer), HOW)
    assert verdict.status is Status.CHANGED and verdict.outcome == "failed"
    assert verdict.message.startswith(
        f"FASTER, but the step does other work: {name} 1 in 000000000000, now "
    )
    assert next_steps(verdict, "e.json", Commands())[0].startswith("accept: ")
    slower = confirmed(screened(5.0), beside(5.0, base=fewer), HOW)
    assert slower.status is Status.SLOWER
    assert note(metric(slower, "step_ms")).startswith("unconfirmed: CHANGED")


@pytest.mark.parametrize(("screen", "code"), [(6.0, 4.9), (-6.0, -4.9)])
def test_wide_margins_do_not_call_the_code_the_machine(screen, code):
    """`same` by margins that hold most of what the baseline says moved: its word stands."""
    apart = (0.02, -0.02, 0.02, -0.02)
    pairs = with_margins(beside(code, spread=apart), 5.0, 20.0)
    assert decision(pairs).status is Status.SAME
    verdict = confirmed(screened(screen), pairs, HOW)
    assert verdict.status is screened(screen).status
    text = note(metric(verdict, "step_ms"))
    assert text.startswith("unconfirmed: the pairs do not exclude what the baseline says")


@pytest.mark.parametrize(
    ("head", "base", "status"),
    [
        (10, 10, Status.SAME),
        (9, 9, Status.SLOWER),
        (10, 9, Status.SLOWER),
        (9, 10, Status.SLOWER),
    ],
)
def test_the_machine_moved_only_where_both_sides_timed_its_steps(head, base, status):
    """The screen timed steps 3 to 9. A step that one side of the pairs lacks may be the slow one,
    whichever side that is.
    """
    sides = [
        tuple(launch(250.0, n, blocks=(block(steps=steps, ran=0),)) for n in range(1, 7))
        for steps in (head, base)
    ]
    found = beside(0.0, head={"launches": sides[0]}, base={"launches": sides[1]})
    after = confirmed(screened(5.0), found, HOW, steps=range(3, 10))
    assert after.status is status
    missed = "unconfirmed: the pairs did not time 1 of the steps that the run timed"
    assert note(metric(after, "step_ms")).startswith(missed) is (status is Status.SLOWER)


@pytest.mark.parametrize("pct", [MACHINE_LIMIT_PCT + 1, 171.0, -40.0])
@pytest.mark.parametrize("how", ["pairs", "commit"])
def test_no_machine_changes_so_much(pct, how):
    """Twice as slow with the same code is no other card: a recording that is not of its commit,
    maybe. Nothing passes, and nothing is recorded.
    """
    before = screened(pct)
    after = confirmed(before, beside(0.0), HOW) if how == "pairs" else same_code(before, HOW)
    assert (after.status, after.reason) == (Status.INCONCLUSIVE, Reason.MACHINE_TOO_FAR)
    assert after.outcome == "error" and after.joins is Joins.MACHINE
    told = (
        "unconfirmed: the pairs see no change, but other cards and clocks change a time by 15 % at "
        f"most, {HOW}"
    )
    assert times(after)[0].startswith(f"step_ms: {told}")


@pytest.mark.parametrize("pct", [MACHINE_LIMIT_PCT - 1, 9.7, -12.0])
def test_what_machines_do_is_still_theirs(pct):
    """Within what cards and clocks were seen to do, and beyond the screen's limit."""
    after = confirmed(screened(pct), beside(0.0), HOW)
    assert (after.status, after.reason) == (Status.SAME, Reason.MACHINE_MOVED)


def test_the_same_commit_is_the_machine():
    """The recording is of this very code: `same`, told, without a measurement."""
    verdict = same_code(screened(5.0), HOW)
    assert (verdict.status, verdict.reason) == (Status.SAME, Reason.MACHINE_MOVED)
    assert times(verdict)[0] == f"step_ms: the machine changed: HEAD is {HOW}"
    assert verdict.has_notice


def test_no_commit_leaves_slower():
    """Nobody can tell: SLOWER, unconfirmed, with the reason."""
    verdict = unconfirmed(screened(5.0), "no main branch is known")
    assert (verdict.status, verdict.reason) == (Status.SLOWER, Reason.BEYOND_LIMIT)
    assert times(verdict)[0] == "step_ms: unconfirmed: no main branch is known"
    assert any("unconfirmed: no main branch" in line for line in evidence_lines(verdict))
    assert next_steps(verdict, "e.json", Commands())[0].startswith("accept: ")


@pytest.mark.parametrize("how", ["pairs", "commit"])
def test_an_amount_keeps_its_say_when_the_machine_moved(how):
    """A baseline says SLOWER and CHANGED: if the machine moved, it is CHANGED, which fails."""
    name = "memsets_per_step"
    risen = {name: evidence().counts.values[name] + 1}
    before = screened(5.0, **risen)
    assert before.status is Status.SLOWER and to_confirm(before).metric == "step_ms"
    after = confirmed(before, beside(0.0), HOW) if how == "pairs" else same_code(before, HOW)
    assert (after.status, after.reason) == (Status.CHANGED, Reason.COUNTER_ROSE)
    assert metric(after, "step_ms").status is Status.SAME
    assert after.worst.metric == name and not after.has_notice


@pytest.mark.parametrize(
    ("pairs", "more"),
    [
        (beside(0.0, spread=()), True),
        (beside(0.0, spread=SPREAD[:3]), True),
        (beside(0.0, spread=SPREAD[:4]), False),
        (beside(0.3, spread=NOISY), True),
        (replace(beside(0.3, spread=NOISY), out_of_time=True), False),
        (beside(2.0), False),
        (beside(0.0, head=FAULTY), False),
        (beside(0.0, head={"gates": ("flops_per_step",)}), False),
    ],
    ids=["none", "three", "same", "noise", "out of time", "SLOWER", "BROKEN", "no time"],
)
def test_pairs_are_measured_until_they_answer(pairs, more):
    """As many as the judge wants; none after a fault or the end of the time."""
    assert wants_another_pair(pairs) is more


def test_what_is_confirmed():
    """Times that a baseline calls SLOWER or FASTER, where they decide; nothing else."""
    assert to_confirm(screened(5.0)).metric == "step_ms"
    assert to_confirm(screened(-5.0)).metric == "step_ms"
    assert to_confirm(screened(0.0)) is None
    risen = {WASTE: evidence().counts.values[WASTE] + 1}
    assert to_confirm(screened(0.0, **risen)) is None
    assert to_confirm(screened(-5.0, **risen)) is None  # CHANGED decides
    assert to_confirm(screened(5.0, **risen)) is None  # before the time
    assert to_confirm(judge(evidence(**FAULTY), FIVE)) is None
    assert to_confirm(judge(evidence(), None)) is None
    assert to_confirm(replace(screened(5.0), against="main")) is None
    assert to_confirm(Verdict("a[b]", Status.SLOWER, Reason.BEYOND_LIMIT)) is None


@PROPERTY
@given(
    st.sampled_from([3.0, 30.0, -3.0, -30.0]),
    st.lists(st.floats(-0.3, 0.3), min_size=1, max_size=24),
)
def test_slower_passes_only_for_pairs_that_exclude_it(screen, ratios):
    """Any pairs: SLOWER turns to a pass only where they are `same` or FASTER by the rule, and a
    pass of the screen is never made worse than the pairs say.
    """
    found = beside(0.0, spread=ratios)
    after, said = confirmed(screened(screen), found, HOW), decision(found)
    if screen > 0 and after.status.outcome == "passed":
        assert said.status in (Status.SAME, Status.FASTER) and after.has_notice
        assert said.high_pct < screen
    if said.status is Status.SLOWER:
        assert after.status is Status.SLOWER
    if after.status is Status.SLOWER and screen < 0:
        assert said.status is Status.SLOWER


@pytest.mark.parametrize(
    ("change_pct", "status", "reason"),
    [
        (2.0, Status.INCONCLUSIVE, Reason.UNCONFIRMED),
        (5.0, Status.SLOWER, Reason.BEYOND_LIMIT),
        (-2.0, Status.SAME, Reason.UNCONFIRMED),
        (-5.0, Status.FASTER, Reason.BEYOND_LIMIT),
        (0.0, Status.SAME, Reason.WITHIN_LIMIT),
    ],
)
def test_an_alarm_that_no_pairs_confirmed(change_pct, status, reason):
    """Within 4 % it proves nothing: an error where it is bad, and no gain where it is good."""
    found = ended(screened(change_pct))
    assert (found.status, found.reason) == (status, reason)
    assert unconfirmed(screened(2.0), "gone").outcome == "error"


def test_an_alarm_that_pairs_confirmed_remains():
    """SLOWER by 2 % is SLOWER, and what the machine did is `same` with a notice."""
    slower = confirmed(screened(2.0), beside(2.0), HOW)
    assert (slower.status, slower.outcome) == (Status.SLOWER, "failed")
    machine = confirmed(screened(2.0), beside(0.0), HOW)
    assert machine.status is Status.SAME and machine.has_notice
