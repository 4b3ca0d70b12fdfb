"""The time to the first step: shown for both sides, and judged in pairs where a case gates it."""

import pytest
from builders import cpu_evidence, entry_of, metric, replace
from test_judge_pairs import GATES, turns

from stepguard import Case
from stepguard.core.comparison import judged
from stepguard.core.metrics import FIRST_STEP, default_gates
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.judge_pairs import judge_ab, wants_another_pair
from stepguard.judge.judge_recordings import judge
from stepguard.report.metric_notes import note
from stepguard.report.verdict_text import headline


def starting(head_s, base_s, gated=True, **changes):
    """Pairs of steps that are as fast, whose launches took so many seconds to their first step."""
    found = turns((0.0,) * len(head_s), **changes)
    sides = []
    for side, seconds in ((found.head, head_s), (found.base, base_s)):
        launches = tuple(
            replace(launch, compile_s=each)
            for launch, each in zip(side.launches, seconds, strict=True)
        )
        gates = (*GATES, FIRST_STEP) if gated else GATES
        sides.append(replace(side, launches=launches, gates=gates))
    return replace(found, head=sides[0], base=sides[1])


WARM = (6.0, 6.2, 5.9, 6.1, 6.0, 6.1)


@pytest.mark.parametrize(
    ("factor", "status", "reason"),
    [
        (3.6, Status.SLOWER, Reason.BEYOND_MARGIN),
        (0.5, Status.FASTER, Reason.BEYOND_MARGIN),
        (1.0, Status.SAME, Reason.WITHIN_MARGINS),
    ],
)
def test_a_case_that_gates_it_is_judged_by_it(factor, status, reason):
    """A cache that is bypassed: 6 -> 22 s in every launch. The step time alone is `same`."""
    found = starting([factor * s for s in reversed(WARM)], WARM)
    verdict = judge_ab(found)
    start = metric(verdict, FIRST_STEP)
    assert (start.status, start.reason) == (status, reason) and start.gated
    assert verdict.status is status and not wants_another_pair(found)
    assert start.new / start.old == pytest.approx(factor, rel=1e-6)
    assert "margins 5 and 20 %, level 0.01 % among the cases of its run" in note(start)
    assert (f"{FIRST_STEP} 6." in headline(verdict)) is (status is not Status.SAME)


def test_nobody_else_is():
    """It is shown, old and new, and gated by no default."""
    verdict = judge_ab(starting([22.0] * 6, WARM, gated=False))
    start = metric(verdict, FIRST_STEP)
    assert (verdict.status, start.reason, start.gated) == (Status.SAME, Reason.NOT_JUDGED, False)
    assert (start.old, start.new) == (6.2, 22.0)
    assert FIRST_STEP not in default_gates("cuda") and FIRST_STEP not in default_gates("cpu")


def test_pairs_are_wanted_until_it_is_decided():
    """Two launches of three are slow to start; a budget that ends there is no pass."""
    seconds = (6.0, 9.0, 9.0, 6.0, 9.0, 9.0)
    assert wants_another_pair(starting(seconds, WARM))
    late = judge_ab(starting(seconds, WARM, out_of_time=True))
    assert (late.status, late.worst.metric) == (Status.INCONCLUSIVE, FIRST_STEP)


def test_a_case_can_gate_it_beside_others():
    """It is a gate of pairs; a CPU's step time is looked at as before."""
    case = Case("a", "m:f", device="cpu", gates=("graph_breaks", FIRST_STEP))
    assert judged(case) == ("step_ms", "graph_breaks", FIRST_STEP)


def test_recordings_do_not_judge_it():
    """A cache may have been cold then, or now."""
    found = cpu_evidence(gates=(*cpu_evidence().gates, FIRST_STEP))
    slow = replace(found, launches=tuple(replace(one, compile_s=500.0) for one in found.launches))
    recorded = entry_of(found, device_uuid="", driver="", information={FIRST_STEP: 5.0})
    verdict = judge(slow, recorded)
    start = metric(verdict, FIRST_STEP)
    assert (verdict.status, start.status, start.gated) == (Status.SAME, Status.SAME, False)
