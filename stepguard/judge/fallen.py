"""Counters that only fell, and the operators that fell with them.

A step that waits less often for the GPU also calls fewer of the operators that give a number to the
host. Both are a gain. If no fallen counter explains the missing operators, the step does less work:
CHANGED.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from stepguard.core.metrics import (
    COPIES,
    FLOPS,
    METRICS,
    OPERATOR_METRICS,
)
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict
from stepguard.judge.moved_places import is_view, packet

SYNCS = ("host_syncs_per_step", "sync_candidates_per_step")
_EQUAL_WORK = (FLOPS, "tokens_per_step")
# The operators that .item() calls, by the dispatcher's and the profiler's names. An operator that
# computes the number (a sum, a norm) is not one of them.
_READS = ("aten._local_scalar_dense", "aten::_local_scalar_dense", "aten::item", "aten::is_nonzero")
# The operators that .cpu() calls on a GPU. A cast has its type in its name, and is none of them.
_COPIES_TO_HOST = (
    "aten._to_copy",
    "aten::_to_copy",
    "aten::copy_",
    "aten::empty_strided",
    "aten::to",
)


def with_fallen(metrics: Sequence[MetricVerdict]) -> tuple[MetricVerdict, ...]:
    """Return all metrics of a case. Operators that only fell, together with waste or a price that
    fell, are now FASTER.
    """
    counters = {
        metric.metric: metric for metric in metrics if METRICS[metric.metric].kind == "counter"
    }
    syncs = _fallen_syncs(counters)
    to_host = min(syncs, _fallen_copies_to_host(counters))
    along = {name for name in OPERATOR_METRICS if _went_along(counters.get(name), syncs, to_host)}
    if not _only_fell(counters):
        return tuple(metrics)
    return tuple(
        replace(metric, status=Status.FASTER, reason=Reason.COUNTER_FELL)
        if metric.metric in along
        else metric
        for metric in metrics
    )


def _only_fell(counters: Mapping[str, MetricVerdict]) -> bool:
    """Tell whether a counter fell, no other counter but operators moved, and FLOPs and tokens are
    equal.
    """
    work = [counters[name] for name in _EQUAL_WORK if name in counters]
    equal = all(metric.reason is Reason.EQUAL for metric in work)
    others = [metric for name, metric in counters.items() if name not in OPERATOR_METRICS]
    fell = [metric for metric in others if metric.reason is Reason.COUNTER_FELL]
    rose = any(metric.status is not Status.SAME for metric in others if metric not in fell)
    return bool(FLOPS in counters and equal and fell and not rose)


def _fallen_syncs(counters: Mapping[str, MetricVerdict]) -> float:
    """Return by how many the syncs of a step fell."""
    return max((_fall(counters[name]) for name in SYNCS if name in counters), default=0.0)


def _fallen_copies_to_host(counters: Mapping[str, MetricVerdict]) -> float:
    """Return by how many a step's copies from a GPU to the host fell; 0 if other copies rose: then
    the data may go another way.
    """
    copies = counters.get(COPIES)
    parts = copies.moved if copies else ()
    if any(part.new > part.old for part in parts):
        return 0.0
    return sum(part.old - part.new for part in parts if part.name.startswith("DtoH"))


def _fall(metric: MetricVerdict) -> float:
    return max(0.0, (metric.old or 0) - (metric.new or 0))


def _went_along(metric: MetricVerdict | None, syncs: float, to_host: float) -> bool:
    """Tell whether every operator that moved fell, on every rank, and is a view, a read of one of
    the ``syncs`` that are gone, or one of the ``to_host`` copies that were waited for.
    """
    if metric is None or metric.reason is not Reason.WORK_MOVED or not metric.moved:
        return False
    falls: Counter[str] = Counter()
    for part in metric.moved:
        falls[packet(part.name)] += part.old - part.new
    # Each .item() makes such a copy, too.
    copies = to_host - max(falls[name] for name in _READS)
    explained = all(
        fall > 0
        and (
            is_view(name)
            or (name in _COPIES_TO_HOST and fall <= copies)
            or (name in _READS and fall <= syncs)
        )
        for name, fall in falls.items()
    )
    return explained and all(0 <= old - new <= falls.total() for old, new in metric.failing_ranks)
