"""Counts of ranks that do not do the same: none of them may hide behind the busiest."""

from datetime import date

import msgspec
import pytest
from alarms import permit
from builders import PROPERTY, entry, epoch, replace, two_rank_evidence
from hypothesis import given
from hypothesis import strategies as st

from stepguard.core.comparison import Question
from stepguard.core.metrics import METRICS
from stepguard.core.permission import Effect, Permission
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.rule_book import judge
from stepguard.judge.summarise_evidence import stored
from stepguard.report.metric_notes import note

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
    recorded = msgspec.structs.replace(stored(before), **changes)
    known = entry(case=before.case, epochs=[epoch(recordings=[recorded])])
    return judge(Question(counted(name, *now), known)).worst


@pytest.mark.parametrize(("name", "then", "now", "status", "moved", "where"), [
    (SYNCS, (1, 0), (1, 0), Status.SAME, (1, 1), ""),
    (SYNCS, (1, 0), (1, 1), Status.CHANGED, (0, 1), "on rank 1"),
    (SYNCS, (1, 1), (1, 0), Status.FASTER, (1, 0), "on rank 1"),
    (SYNCS, (1, 0), (0, 1), Status.CHANGED, (0, 1), "on rank 1"),
    (SYNCS, (5, 1), (4, 3), Status.CHANGED, (1, 3), "on rank 1"),
    (SYNCS, (1, 0), (2, 0), Status.CHANGED, (1, 2), "on rank 0"),
    (SYNCS, (1, 0), (2, 1), Status.CHANGED, (1, 2), ""),
    (FLOPS, (8, 8), (8, 1), Status.CHANGED, (8, 1), "on rank 1"),
    (FLOPS, (8, 1), (8, 8), Status.CHANGED, (1, 8), "on rank 1"),
])  # fmt: skip
def test_each_rank_is_compared_with_itself(name, then, now, status, moved, where):
    """The most that a rank counted is equal, or has fallen, and another rank's count rose."""
    found = verdict(name, then, now)
    assert (found.status, (found.old, found.new)) == (status, moved)
    assert note(found).partition(",")[0] == where


def test_slack_is_each_ranks():
    """Two percent of launches more are nothing on any rank, and five are something on each."""
    name = "launches_per_step"
    assert verdict(name, (1000, 900), (1000, 910)).status is Status.SAME
    assert verdict(name, (1000, 900), (1000, 945)).reason is Reason.COUNTER_ROSE


def test_small_rises_on_any_rank_do_not_add_up():
    """A rank's count with slack is compared with its lowest of the epoch, like the busiest's."""
    name = "launches_per_step"
    past = [stored(counted(name, 1700, each)) for each in (1000, 1015, 1030)]
    now = counted(name, 1700, 1040)
    found = judge(Question(now, entry(case=now.case, epochs=[epoch(recordings=past)]))).worst
    assert (found.reason, found.old, found.new) == (Reason.COUNTER_ROSE, 1000, 1040)


def test_recordings_from_before_ranks_were_kept_apart_are_left_out():
    """The newest knows its ranks, or its file is refused."""
    older = msgspec.structs.replace(stored(counted(SYNCS, 1, 1)), by_rank=msgspec.UNSET)
    past = [older, stored(counted(SYNCS, 1, 0))]
    now = counted(SYNCS, 1, 1)
    found = judge(Question(now, entry(case=now.case, epochs=[epoch(recordings=past)]))).worst
    assert (found.status, note(found)) == (Status.CHANGED, "on rank 1")


def waiver_of(found, value):
    """Of the one metric that the evidence gates."""
    known = {"reason": "known", "expires": date(2026, 12, 31), "who": "A. A."}
    return Permission(case=found.case_id, metric=found.gates[0], value=value, **known)


@pytest.mark.parametrize(("name", "then", "now", "value", "passes"), [
    (FLOPS, (800, 800), (810, 800), 810, True),
    (FLOPS, (800, 800), (810, 10), 810, False),
    (FLOPS, (800, 800), (801, 810), 810, False),
    (FLOPS, (800, 400), (800, 410), 410, True),
    (SYNCS, (0, 0), (2, 0), 2, True),
    (SYNCS, (0, 0), (2, 3), 2, False),
    (SYNCS, (200, 0), (201, 180), 201, False),  # more than is little beside 0
])  # fmt: skip
def test_a_waiver_is_of_every_rank_that_fails(name, then, now, value, passes):
    """A rank that moved otherwise, or further, than was waived is not covered by another one."""
    before, after = counted(name, *then), counted(name, *now)
    known = entry(case=before.case, epochs=[epoch(recordings=[stored(before)])])
    found = permit(
        judge(Question(after, known)), after, [waiver_of(after, value)], date(2026, 11, 22)
    )
    assert (found.outcome == "passed") is passes
    assert (found.permissions[0].effect is Effect.ALLOWED) is passes


def exact(m):
    return m.role and not m.floor and m.exists("cuda", 2)


@PROPERTY
@given(
    st.sampled_from([n for n, m in METRICS.items() if exact(m)]),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
)
def test_no_rise_on_any_rank_passes(name, then, now):
    """Whatever the others do; and equal ranks are `same`."""
    if name in ("tokens_per_step", "numbers"):
        return
    found = verdict(name, then, now)
    if any(b > a for a, b in zip(then, now, strict=True)):
        assert found.status is Status.CHANGED
    if then == now:
        assert found.status is Status.SAME
