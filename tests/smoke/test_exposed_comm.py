"""Exposed communication and rank skew of two real ranks, of which one sleeps longer."""

import pytest
from builders import replace

from stepguard import Case
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.judge_recordings import judge
from stepguard.judge.summarise_evidence import summarise
from stepguard.measure.launches import measure_launches, planned_launches

EXPOSED = "exposed_comm_pct"


def two_ranks(factory, **changes):
    """A case of two gloo ranks that gates exposed communication alone."""
    known = {"device": "cpu", "world_size": 2, "launches": 1, "gates": (EXPOSED,)}
    return Case(factory, f"factories:{factory}", **known | changes)


@pytest.fixture(scope="module")
def uneven(bench):
    """Rank 1 has five times rank 0's work, and exchange costs as much as that is more."""
    return measure_launches(two_ranks("uneven"), bench)


def test_exchange_costs_something(uneven):
    """Six pairs, of which steps with exchange are the longer half."""
    assert not uneven.faults, uneven.faults
    (one,) = uneven.differences
    assert (one.name, len(one.pairs_ms)) == ("exposed_comm", 6)
    assert summarise(uneven).values()["exposed_comm_ms"] > 0


def test_the_slower_rank_is_slower_alone(uneven):
    """It is rank 1; tests/measure/test_exposed_comm_figures.py has the words."""
    (one,) = uneven.differences
    assert one.plain_by_rank_ms[1] > one.plain_by_rank_ms[0]


def test_wall_times_of_blocks_do_not_show_it(uneven):
    """With exchange the ranks are closer than without: that is why skew needs steps without."""
    (one,) = uneven.differences
    alone = max(one.plain_by_rank_ms) / min(one.plain_by_rank_ms)
    for block in uneven.launches[0].blocks:
        assert max(block.wall_ms) / min(block.wall_ms) < alone


def test_a_workload_that_cannot_do_without_exchange_is_broken(bench):
    """The attribute that it lacks is named, instead of a difference of nothing.

    What else is refused is in tests/worker/test_variants.py.
    """
    case = two_ranks("pair", params={"how": "never", "at_step": -1})
    found = measure_launches(case, bench)
    verdict = judge(found, None)
    assert (verdict.status, verdict.reason) == (Status.BROKEN, Reason.BAD_WORKLOAD)
    assert "Pair has no attribute gradient_sync" in verdict.message


def test_the_plan_has_a_launch_for_it_where_it_is_gated():
    """One of its own, behind the first launch, which counts as ever."""
    case = two_ranks("uneven", device="cuda", launches=2)
    case = replace(case, gates=("step_ms", "graph_breaks", EXPOSED))
    planned = [(one.label, one.timed, one.count, one.differences) for one in planned_launches(case)]
    assert planned == [
        ("launch 1", True, True, ()),
        ("exposed communication launch", False, False, ("exposed_comm",)),
        ("launch 2", True, False, ()),
        ("one-rank launch", True, False, ()),
    ]
    both = planned_launches(replace(case, gates=("step_ms", "sync_overhead_pct", EXPOSED)))
    assert [one.differences for one in both] == [("sync_overhead",), ("exposed_comm",), (), ()]
    ungated = planned_launches(replace(case, gates=("step_ms",)))
    assert [one.label for one in ungated] == ["launch 1", "launch 2", "one-rank launch"]


def test_one_rank_cannot_gate_it():
    """There is nobody to exchange with."""
    with pytest.raises(ValueError, match="only a case of several ranks has this metric"):
        two_ranks("uneven", world_size=1)
