"""Less work of a step: a gain, or another step?

A step that waits less often for the GPU also calls fewer of the operators that give a number to the
host. Operators and FLOPs that only fell are a gain if the step is known to compute the same
numbers. Else it does other work: CHANGED.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from stepguard.core.metrics import FLOPS, METRICS, NUMBERS, OPERATOR_METRICS
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict
from stepguard.judge.compare_numbers import known_equal


def with_fallen(metrics: Sequence[MetricVerdict]) -> tuple[MetricVerdict, ...]:
    """Return all metrics of a case, of which operators and FLOPs that are a gain are FASTER."""
    counters = {one.metric: one for one in metrics if METRICS[one.metric].kind == "counter"}
    less = {name for name in (*OPERATOR_METRICS, FLOPS) if _only_fell(counters.get(name))}
    others = (metric for name, metric in counters.items() if name not in less)
    rose = any(metric.status not in (Status.SAME, Status.FASTER) for metric in others)
    if rose or not known_equal(counters.get(NUMBERS)):
        return tuple(metrics)
    return tuple(
        replace(metric, status=Status.FASTER, reason=Reason.COUNTER_FELL)
        if metric.metric in less
        else metric
        for metric in metrics
    )


def _only_fell(metric: MetricVerdict | None) -> bool:
    """Tell whether a count moved, and fell with all its parts, on each rank that it moved on."""
    if metric is None or metric.reason is not Reason.WORK_MOVED:
        return False
    ranks = metric.failing_ranks or ((metric.old or 0.0, metric.new or 0.0),)
    parts = all(part.new <= part.old for part in metric.moved)
    return parts and all(new < old for old, new in ranks)
