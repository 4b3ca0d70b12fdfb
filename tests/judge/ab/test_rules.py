"""The rules for a step time in pairs: which is asked first, and what replaced pairs change."""

from dataclasses import replace

import pytest
from builders import PROPERTY
from comparisons import alike, with_margins
from hypothesis import given
from hypothesis import strategies as st
from recorded_kernels import as_recorded
from test_same_step_rule import pairs

from stepguard.core.comparison import LaunchPair
from stepguard.core.margins import MARGINS_PCT
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.pair_statistics import MOST_PAIRS, by_plan
from stepguard.judge.time_rules import by_fastest_blocks, by_kernels, by_same_step, decision


def on_a_cpu(found, **changes):
    """The comparison, of a case on a CPU."""
    head, base = (
        replace(side, case=side.case | {"device": "cpu"}, **changes)
        for side in (found.head, found.base)
    )
    return with_margins(replace(found, head=head, base=base), *MARGINS_PCT["cpu"])


@pytest.mark.parametrize(("found", "rule", "reason"), [
    (pairs(*(0.0,) * 4), by_same_step, Reason.IDENTICAL_STEP),  # the plan would pass it, too
    (pairs(0.5), by_plan, Reason.UNDECIDED),
    (as_recorded((1, 4, 5, 8)), by_kernels, Reason.CHANGED_KERNELS),
    (alike((0.0,) * 4), by_plan, Reason.WITHIN_MARGINS),
    (on_a_cpu(alike((0.0,) * 4)), by_plan, Reason.WITHIN_MARGINS),  # it gates its time
    (on_a_cpu(alike((0.0,)), gates=()), by_fastest_blocks, Reason.NO_SLOWDOWN),
])  # fmt: skip
def test_the_first_rule_that_decides_counts(found, rule, reason):
    """The same step, kernels that differ, the plan; a CPU whose time is not gated has its own."""
    assert decision(found) == rule(found) and decision(found).reason is reason


@PROPERTY
@given(st.lists(st.floats(-50, 50), min_size=1, max_size=MOST_PAIRS), st.booleans())
def test_pairs_always_have_a_decision(ratios_pct, out_of_time):
    """INCONCLUSIVE while more are wanted: no comparison falls through. Time that is up ends it."""
    for found in (alike(ratios_pct), pairs(*ratios_pct)):
        decided = decision(replace(found, out_of_time=out_of_time))
        assert decided.final or decided.status is Status.INCONCLUSIVE
        assert decided.final or not out_of_time and len(ratios_pct) < MOST_PAIRS


@pytest.mark.parametrize(("replaced_pct", "compiled", "passes"), [
    (0.98, False, True), (1.02, False, False), (-9.0, False, True), (9.0, True, True),
])  # fmt: skip
def test_with_the_replaced_pairs_head_is_not_slower_by_the_matter_margin(
    replaced_pct, compiled, passes
):
    """Otherwise HEAD itself may disturb its pairs. A pair in which a side compiled tells nothing.
    The mean of one pair and one that was replaced is half of the replaced one's.
    """
    (odd,) = alike((replaced_pct,)).paired_launches()
    found = replace(pairs(0.0), again=(LaunchPair(*odd, compiled=compiled),))
    decided = decision(found)
    assert (decided.status is Status.SAME) is decided.final is passes
    if not passes:
        assert (decided.status, decided.reason) == (Status.INCONCLUSIVE, Reason.UNDECIDED)
        assert decision(replace(found, out_of_time=True)).final
    slower = replace(alike((9.0,) * 6), again=found.again)
    assert decision(slower).status is Status.SLOWER


@pytest.mark.parametrize("side", ["head", "base"])
def test_a_time_that_is_not_known_is_not_decided(side):
    """No pair, a launch without times, or a case on a GPU that does not gate it."""
    found = alike((0.0,))
    launches = (replace(getattr(found, side).launches[0], blocks=()),)
    for other in ((), launches):
        untimed = replace(getattr(found, side), launches=other)
        assert decision(replace(found, **{side: untimed})) is None
    assert decision(replace(found, head=replace(found.head, gates=found.head.gates[1:]))) is None
