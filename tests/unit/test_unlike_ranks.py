"""Counts of ranks that do not do the same: none of them may hide behind the busiest."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from making import PROPERTY, entry, epoch, two_rank_evidence

from stepguard.judge import judge
from stepguard.metrics import METRICS
from stepguard.recording import summary_of
from stepguard.verdict import Reason, Status

SYNCS, FLOPS = "host_syncs_per_step", "flops_per_step"


def counted(name, *each):
    """Two ranks' evidence in which they counted this."""
    found = two_rank_evidence(gates=(name,))
    values = found.counts.values | {name: max(each)}
    by_rank = {name: each} if len({*each}) > 1 else {}
    return replace(found, counts=replace(found.counts, values=values, by_rank=by_rank))


def verdict(name, then, now, **changes):
    """The one metric's verdict on ``now`` against a recording of ``then``."""
    before = counted(name, *then)
    recorded = msgspec.structs.replace(summary_of(before), **changes)
    known = entry(case=before.case, epochs=[epoch(recordings=[recorded])])
    return judge(counted(name, *now), known).worst


@pytest.mark.parametrize(
    ("name", "then", "now", "status", "moved", "note"),
    [
        (SYNCS, (1, 0), (1, 0), Status.SAME, (1, 1), ""),
        (SYNCS, (1, 0), (1, 1), Status.CHANGED, (0, 1), "on rank 1"),
        (SYNCS, (1, 1), (1, 0), Status.FASTER, (1, 0), "on rank 1"),
        (SYNCS, (1, 0), (0, 1), Status.CHANGED, (0, 1), "on rank 1"),
        (SYNCS, (5, 1), (4, 3), Status.CHANGED, (1, 3), "on rank 1"),
        (SYNCS, (1, 0), (2, 0), Status.CHANGED, (1, 2), ""),
        (FLOPS, (8, 8), (8, 1), Status.CHANGED, (8, 1), "on rank 1"),
        (FLOPS, (8, 1), (8, 8), Status.CHANGED, (1, 8), "on rank 1"),
    ],
)
def test_each_rank_is_compared_with_itself(name, then, now, status, moved, note):
    """The most that a rank counted is equal, or has fallen, and another rank's count rose."""
    found = verdict(name, then, now)
    assert (found.status, (found.old, found.new)) == (status, moved)
    assert found.note.partition(",")[0] == note


def test_slack_is_each_ranks():
    """Two percent of launches more are nothing on any rank, and five are something on each."""
    name = "launches_per_step"
    assert verdict(name, (1000, 900), (1000, 910)).status is Status.SAME
    assert verdict(name, (1000, 900), (1000, 945)).reason is Reason.COUNTER_ROSE


def test_a_recording_that_does_not_know_its_ranks_is_compared_by_the_most():
    """An older file has no counts by rank."""
    found = verdict(SYNCS, (1, 0), (1, 1), by_rank=msgspec.UNSET)
    assert found.status is Status.SAME


@PROPERTY
@given(
    st.sampled_from([name for name, m in METRICS.items() if m.role and m.exists("cuda", 2)]),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_no_rise_on_any_rank_passes(name, then, now):
    """Whatever the others do; and equal ranks are `same`."""
    if name == "tokens_per_step":
        return
    found = verdict(name, then, now)
    if any(b > a for a, b in zip(then, now, strict=True)):
        assert found.status is Status.CHANGED
    if then == now:
        assert found.status is Status.SAME
