"""The time of a case on a CPU that gates none: the fastest block of each side, in each pair."""

import pytest
from builders import block, cpu_evidence, launch, replace

from stepguard.core.comparison import Comparison, Question
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.judge_pairs import wants_another_pair
from stepguard.judge.rule_book import judge
from stepguard.judge.time_rules import decision


def pairs(*times, **changes):
    """Pairs in which HEAD's fastest block takes so many times 10 ms; other blocks are slower."""
    sides = []
    for ms in ([10.0 * one for one in times], [10.0] * len(times)):
        launches = tuple(
            launch(index=n, blocks=(block(3 * one), block(one))) for n, one in enumerate(ms, 1)
        )
        made = {"launches": launches, "planned_launches": 1, "floor_flops_per_step": 0.0}
        sides.append(cpu_evidence(**made))
    head, base = replace(sides[0], commit="f" * 40), replace(sides[1], commit="0" * 40)
    return Comparison("main", head, base, **changes)


@pytest.mark.parametrize(("times", "status", "more"), [
    ((1.49,), Status.SAME, False),
    ((1.51,), Status.INCONCLUSIVE, True),
    ((1.51, 1.51), Status.INCONCLUSIVE, True),
    ((1.51, 1.49), Status.SAME, False),
    ((1.51, 1.51, 1.51), Status.SLOWER, False),
    ((9.0, 9.0, 1.49), Status.SAME, False),
])  # fmt: skip
def test_each_of_three_pairs_has_to_show_it(times, status, more):
    """One pair that does not is enough. Slower blocks beside the fastest do not count."""
    found = pairs(*times)
    assert decision(found).status is status and wants_another_pair(found) is more
    if status is Status.SAME:
        assert judge(Question(pairs=found)).metrics[0].reason is Reason.NO_SLOWDOWN


def test_the_interval_is_from_the_smallest_to_the_largest_ratio():
    """The chance is that of three disturbances which spare the other tree alone."""
    decided = decision(pairs(2.0, 3.0, 2.5))
    assert (decided.low_pct, decided.high_pct) == pytest.approx((100.0, 200.0))
    assert decided.p_value == 0.25**3 and decided.final


def test_what_is_shown_is_what_is_judged():
    """HEAD's fastest blocks take twice as long, and its mean is shorter: a step that is slow now
    and then on the other side alone.
    """
    found = pairs(2.0, 2.0, 2.0)
    slow = tuple(launch(index=n, blocks=(block(90.0), block(10.0))) for n in (1, 2, 3))
    judged = decision(replace(found, base=replace(found.base, launches=slow)))
    assert judged.status is Status.SLOWER
    assert judged.low_pct <= judged.estimate_pct <= judged.high_pct
