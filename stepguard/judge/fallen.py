"""Counters that only fell, with the operators that went along.

A step that waits less often also calls fewer operators: those that hand a number to the host. Both
are a gain. What no fallen counter explains is work that the step no longer does, and such a step is
another one: CHANGED stays where any counter rose, where FLOPs or tokens are not known to be equal,
and where an operator went that computes something.
"""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from stepguard.core.metrics import METRICS, OPERATOR_METRICS
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, PartMove
from stepguard.judge.moved_places import is_view, packet

SYNCS = ("host_syncs_per_step", "sync_candidates_per_step")
# What .item() calls, by the dispatcher's and the profiler's names. An operator that makes the
# number (a sum, a norm) computes, and is not among them.
_READS = ("aten._local_scalar_dense", "aten::_local_scalar_dense", "aten::item", "aten::is_nonzero")
_EQUAL_WORK = ("flops_per_step", "tokens_per_step")


def with_fallen(metrics: Sequence[MetricVerdict]) -> tuple[MetricVerdict, ...]:
    """Return all compared metrics of a case. Operators that only fell, and went along with a cost
    that fell, are FASTER.
    """
    counters = {one.metric: one for one in metrics if METRICS[one.metric].kind == "counter"}
    if not _only_fell(counters):
        return tuple(metrics)
    syncs = max((_fall(counters[name]) for name in SYNCS if name in counters), default=0.0)
    return tuple(
        replace(one, status=Status.FASTER, reason=Reason.COUNTER_FELL)
        if one.metric in OPERATOR_METRICS and _went_along(one, syncs)
        else one
        for one in metrics
    )


def _only_fell(counters: Mapping[str, MetricVerdict]) -> bool:
    """Tell whether a cost fell, no counter rose, and FLOPs and tokens are as many."""
    work = [counters[name] for name in _EQUAL_WORK if name in counters]
    equal = all(one.reason is Reason.EQUAL for one in work)
    others = [one for name, one in counters.items() if name not in OPERATOR_METRICS]
    fell = any(one.reason is Reason.COUNTER_FELL for one in others)
    rose = any(
        one.status is not Status.SAME and one.reason is not Reason.COUNTER_FELL for one in others
    )
    return "flops_per_step" in counters and equal and fell and not rose


def _fall(found: MetricVerdict) -> float:
    return max(0.0, (found.old or 0) - (found.new or 0))


def _went_along(found: MetricVerdict, syncs: float) -> bool:
    """Tell whether every operator that moved fell, and is a view or a read of one of the ``syncs``
    that are gone; on every rank.
    """
    if found.reason is not Reason.WORK_MOVED or not found.moved:
        return False
    explained = all(_is_explained(part, syncs) for part in found.moved)
    total = sum(part.old - part.new for part in found.moved)
    ranks = all(0 <= old - new <= total for old, new in found.failing_ranks)
    return explained and ranks


def _is_explained(part: PartMove, syncs: float) -> bool:
    fall, name = part.old - part.new, packet(part.name)
    return fall > 0 and (is_view(name) or name in _READS and fall <= syncs)
