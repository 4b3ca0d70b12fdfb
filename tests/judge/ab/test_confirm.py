"""A baseline's SLOWER or FASTER, after its own code ran beside HEAD: the code, or the machine."""

import math

import pytest
from alarms import by_recordings, confirmed, same_code, to_confirm
from builders import PROPERTY, entry, evidence, metric, one_recording, replace, with_counts
from hypothesis import given
from hypothesis import strategies as st

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Fault
from stepguard.core.metrics import JUDGED_TIME, METRICS
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Joins, Verdict
from stepguard.judge.time_rules import decision
from stepguard.report.metric_notes import note

FIVE = entry((250.0, 250.1, 249.9, 250.0, 250.0))
HOW = "the recording's own commit, 000000000000"
SPREAD = (0.0002, -0.0002, 0.0001, -0.0001, 0.0, 0.0)
GATES = (JUDGED_TIME, "flops_per_step")  # what confirmation measures
WASTE = next(name for name in evidence().gates if METRICS[name].role == "waste")


def screened(pct, known=FIVE, **counts):
    """The verdict of a baseline on a step that is ``pct`` percent slower than its recordings."""
    ms = 250.0 * (1 + pct / 100)
    found = evidence((ms,) * 3)
    return by_recordings(with_counts(found, **counts), known)


def entry_of_another_card():
    """A baseline that this card has no recording in."""
    return one_recording(device_uuid="GPU-5678")


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
@pytest.mark.parametrize(("code_pct", "status", "words"), [
    (2.0, Status.SLOWER, "confirmed, the code is SLOWER"),
    (0.0, Status.SAME, "not the code: as fast as its level's first commit; "),
    (-2.0, Status.FASTER, "confirmed, the code is FASTER"),
])  # fmt: skip
def test_the_pairs_decide(screen, code_pct, status, words):
    """Whatever the recordings said, the pairs' word counts. Equal code is shown. It may join a
    level of other cards.
    """
    verdict = confirmed(screened(screen), beside(code_pct), HOW)
    assert verdict.status is metric(verdict, "step_ms").status is status
    text = note(metric(verdict, "step_ms"))
    assert text.startswith(words) and f"{HOW} beside it" in text and "over 6 pairs" in text
    assert verdict.joins is (Joins.UNPROVEN if status is Status.SAME else Joins.ANOTHER)
    other_card = confirmed(screened(screen, entry_of_another_card()), beside(code_pct), HOW)
    assert other_card.joins is (Joins.ITSELF if status is Status.SAME else Joins.ANOTHER)
    assert verdict.has_notice is (status is not Status.SLOWER)
    if status.value == "SLOWER" and screen < 0:  # the figures are then those that say so
        assert metric(verdict, "step_ms").change_pct == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("screen", [5.0, -5.0])
@pytest.mark.parametrize(("judge_says", "why"), [
    (beside(0.3, spread=NOISY), f"the pairs do not decide, {HOW} beside it"),
    (beside(0.0, base=LACKING, head={"launches": ()}), "NOT COMPARABLE, 000000000000: no fact"),
    (beside(0.0, head=FAULTY), "BROKEN, pair 1: planted"),
    (beside(0.0, head={"gates": ("flops_per_step",)}), "the step time was not judged"),
], ids=["INCONCLUSIVE", "NOT COMPARABLE", "BROKEN", "no time"])  # fmt: skip
def test_without_an_answer_nothing_is_proven(screen, judge_says, why):
    """A longer step is INCONCLUSIVE. A shorter one is `same` with a note, and joins no level."""
    verdict = confirmed(screened(screen), judge_says, HOW)
    status = Status.INCONCLUSIVE if screen > 0 else Status.SAME
    assert (verdict.status, verdict.reason) == (status, Reason.UNCONFIRMED)
    assert note(metric(verdict, "step_ms")).startswith(f"unconfirmed: {why}")
    assert verdict.joins is (Joins.ANOTHER if screen > 0 else Joins.UNPROVEN)


@pytest.mark.parametrize("how", ["pairs", "commit"])
def test_an_amount_keeps_its_say_beside_a_time_that_was_cleared(how):
    """Recordings say SLOWER and CHANGED: if the code did not move the time, it is CHANGED."""
    name = "memsets_per_step"
    before = screened(5.0, **{name: evidence().counts.values[name] + 1})
    assert before.status is Status.SLOWER and to_confirm(before).metric == "step_ms"
    after = confirmed(before, beside(0.0), HOW) if how == "pairs" else same_code(before, HOW)
    assert (after.status, after.reason) == (Status.CHANGED, Reason.COUNTER_ROSE)
    assert metric(after, "step_ms").status is Status.SAME


def test_what_is_confirmed():
    """Times that a baseline calls SLOWER or FASTER, where they decide; nothing else."""
    assert to_confirm(screened(5.0)).metric == "step_ms"
    assert to_confirm(screened(-5.0)).metric == "step_ms"
    assert to_confirm(screened(0.0)) is None
    risen = {WASTE: evidence().counts.values[WASTE] + 1}
    assert to_confirm(screened(0.0, **risen)) is None
    assert to_confirm(screened(-5.0, **risen)) is None  # CHANGED decides
    assert to_confirm(screened(5.0, **risen)) is None  # before the time
    assert to_confirm(by_recordings(evidence(**FAULTY), FIVE)) is None
    assert to_confirm(by_recordings(evidence(), None)) is None
    assert to_confirm(replace(screened(5.0), against="main")) is None
    assert to_confirm(Verdict("a[b]", Status.SLOWER, Reason.BEYOND_LIMIT)) is None


@PROPERTY
@given(
    st.sampled_from([3.0, 30.0, -3.0, -30.0]),
    st.lists(st.floats(-0.3, 0.3), min_size=1, max_size=24),
)
def test_a_longer_step_passes_only_by_its_pairs(screen, ratios):
    """Any pairs: SLOWER turns to a pass only where they are `same` or FASTER by the rule, and
    SLOWER pairs are always SLOWER.
    """
    found = beside(0.0, spread=ratios)
    after, said = confirmed(screened(screen), found, HOW), decision(found)
    if screen > 0 and after.status.outcome == "passed":
        assert said.status in (Status.SAME, Status.FASTER)
    assert (after.status is Status.SLOWER) is (said.status is Status.SLOWER)
