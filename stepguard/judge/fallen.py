"""Counters that only fell, with the operators that went along.

A step that waits less often also calls fewer operators: those that hand a number to the host. Both
are a gain, and so is a search for unused parameters that is gone. What no fallen counter explains
is work that the step no longer does: CHANGED. docs/judge.md has the conditions.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from stepguard.core.metrics import (
    COLLECTIVE_BYTES,
    COLLECTIVES,
    METRICS,
    OPERATOR_METRICS,
    OPERATORS,
)
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict
from stepguard.judge.moved_places import is_view, packet

SYNCS = ("host_syncs_per_step", "sync_candidates_per_step")
_EQUAL_WORK = ("flops_per_step", "tokens_per_step")
# By the dispatcher's and the profiler's names. What .item() calls: an operator that makes the
# number (a sum, a norm) computes, and is not among them.
_READS = ("aten._local_scalar_dense", "aten::_local_scalar_dense", "aten::item", "aten::is_nonzero")
_FILLS = ("aten.fill_", "aten::fill_")
_ALL_REDUCES = ("c10d.allreduce_.default", "c10d::allreduce_")
_MAP = re.compile(r"allreduce (\d+) B")
# What a search copies besides, at most: its map to the device and back, in torch 2.13.
_SEARCH_COPIES = {
    "aten.clone": 2,
    "aten.copy_": 3,
    "aten::clone": 2,
    "aten::copy_": 3,
    "aten::empty_strided": 2,
}


@dataclass(frozen=True)
class _Search:
    """A search for unused parameters that is gone: ranks add up a map of 32-bit numbers, one for
    each parameter. Backward passes fill it number by number, and then each number is read.
    """

    times: int = 0  # a step
    parameters: int = 0

    def explains(self, name: str, fall: int, syncs: float) -> bool:
        """Tell whether an operator that is called less often is one of a search, and the number of
        calls that of a search: it is exact where a step could fill or read something else.
        """
        if name in _READS:
            return 0 <= fall - self.times * self.parameters <= syncs
        if name in _FILLS and self.parameters:  # each pass, also without an exchange, fills it
            passes, rest = divmod(fall - self.times, self.parameters)
            return passes >= self.times and rest == 0
        if name in _ALL_REDUCES:
            return fall <= self.times
        return fall <= self.times * _SEARCH_COPIES.get(name, 0)


def with_fallen(metrics: Sequence[MetricVerdict]) -> tuple[MetricVerdict, ...]:
    """Return all compared metrics of a case. Operators that only fell, and went along with a cost
    that fell, are FASTER; so are the bytes of a search for unused parameters.
    """
    counters = {
        metric.metric: metric for metric in metrics if METRICS[metric.metric].kind == "counter"
    }
    search, syncs = _search(counters), _fallen_syncs(counters)
    along = {name for name in OPERATOR_METRICS if _went_along(counters.get(name), search, syncs)}
    # Bytes are those of a search if its operators went, too.
    if search.times and OPERATORS in along:
        along.add(COLLECTIVE_BYTES)
    if not _only_fell(counters, along):
        return tuple(metrics)
    return tuple(
        replace(metric, status=Status.FASTER, reason=Reason.COUNTER_FELL)
        if metric.metric in along
        else metric
        for metric in metrics
    )


def _only_fell(counters: Mapping[str, MetricVerdict], along: set[str]) -> bool:
    """Tell whether a cost fell, no counter rose, and FLOPs and tokens are as many. Operators that
    did not go along stay what they are.
    """
    work = [counters[name] for name in _EQUAL_WORK if name in counters]
    equal = all(metric.reason is Reason.EQUAL for metric in work)
    others = [
        metric for name, metric in counters.items() if name not in (*along, *OPERATOR_METRICS)
    ]
    fell = [metric for metric in others if metric.reason is Reason.COUNTER_FELL]
    rose = any(metric.status is not Status.SAME for metric in others if metric not in fell)
    return bool("flops_per_step" in counters and equal and fell and not rose)


def _fallen_syncs(counters: Mapping[str, MetricVerdict]) -> float:
    """Return how many syncs a step has fewer."""
    return max((_fall(counters[name]) for name in SYNCS if name in counters), default=0.0)


def _fall(metric: MetricVerdict) -> float:
    return max(0.0, (metric.old or 0) - (metric.new or 0))


def _search(counters: Mapping[str, MetricVerdict]) -> _Search:
    """Return the search whose collective is gone: it explains all bytes that are exchanged less."""
    collectives, exchanged = counters.get(COLLECTIVES), counters.get(COLLECTIVE_BYTES)
    if collectives is None or exchanged is None or exchanged.failing_ranks:
        return _Search()
    for part in collectives.moved:
        size, times = _MAP.fullmatch(part.name), part.old - part.new
        if size and 0 < times and times * int(size[1]) == _fall(exchanged):
            return _Search(times, int(size[1]) // 4)
    return _Search()


def _went_along(metric: MetricVerdict | None, search: _Search, syncs: float) -> bool:
    """Tell whether every operator that moved fell, and is a view, a read of one of the ``syncs``
    that are gone, or one of the ``search``; on every rank.
    """
    if metric is None or metric.reason is not Reason.WORK_MOVED or not metric.moved:
        return False
    falls: Counter[str] = Counter()
    for part in metric.moved:
        falls[packet(part.name)] += part.old - part.new
    if search.times and not all(any(name in falls for name in kind) for kind in (_READS, _FILLS)):
        return False  # an exchange of something else
    explained = all(
        fall > 0 and (is_view(name) or search.explains(name, fall, syncs))
        for name, fall in falls.items()
    )
    return explained and all(0 <= old - new <= falls.total() for old, new in metric.failing_ranks)
