"""Counters that only fell, and the operators that fell with them.

A step that waits less often for the GPU also calls fewer of the operators that give a number to the
host. Both are a gain. So is a search for unused parameters that is gone. If no fallen counter
explains the missing operators, the step does less work: CHANGED. docs/judge.md has the conditions.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from stepguard.core.metrics import (
    COLLECTIVE_BYTES,
    COLLECTIVES,
    COPIES,
    FLOPS,
    METRICS,
    OPERATOR_METRICS,
    OPERATORS,
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
_FILLS = ("aten.fill_", "aten::fill_")
_ALL_REDUCES = ("c10d.allreduce_.default", "c10d::allreduce_")
_MAP = re.compile(r"allreduce (\d+) B")
# The most calls of other operators in a search: in torch 2.13 it copies its map to the device and
# back.
_SEARCH_COPIES = {
    "aten.clone": 2,
    "aten.copy_": 3,
    "aten::clone": 2,
    "aten::copy_": 3,
    "aten::empty_strided": 2,
}


@dataclass(frozen=True)
class _Search:
    """A search for unused parameters that is gone. In such a search ranks add up a map with a
    32-bit number for each parameter. Backward passes fill the map number by number, and then each
    number is read.
    """

    times: int = 0  # how many searches a step made
    parameters: int = 0

    def explains(self, name: str, fall: int, syncs: float) -> bool:
        """Tell whether an operator that fell is one of this search, and fell by a number of calls
        that the search can explain. A step may also read and fill for other reasons. So for reads
        and fills that number is exact, apart from a read for each of the ``syncs`` that are gone.
        """
        if name in _READS:
            return 0 <= fall - self.times * self.parameters <= syncs
        if name in _FILLS and self.parameters:  # every pass fills it, also one without an exchange
            passes, rest = divmod(fall - self.times, self.parameters)
            return passes >= self.times and rest == 0
        if name in _ALL_REDUCES:
            return fall <= self.times
        return fall <= self.times * _SEARCH_COPIES.get(name, 0)


def with_fallen(metrics: Sequence[MetricVerdict]) -> tuple[MetricVerdict, ...]:
    """Return all metrics of a case. Operators that only fell, together with a cost that fell, are
    now FASTER. So are the exchanged bytes of a search for unused parameters that is gone.
    """
    counters = {
        metric.metric: metric for metric in metrics if METRICS[metric.metric].kind == "counter"
    }
    search, syncs = _search(counters), _fallen_syncs(counters)
    to_host = min(syncs, _fallen_copies_to_host(counters))
    along = {
        name for name in OPERATOR_METRICS if _went_along(counters.get(name), search, syncs, to_host)
    }
    # The missing bytes are those of a search only if its operators fell, too.
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
    """Tell whether a cost fell, no other counter moved, and FLOPs and tokens are equal. Operators
    and the metrics in ``along`` are not looked at.
    """
    work = [counters[name] for name in _EQUAL_WORK if name in counters]
    equal = all(metric.reason is Reason.EQUAL for metric in work)
    others = [
        metric for name, metric in counters.items() if name not in (*along, *OPERATOR_METRICS)
    ]
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


def _search(counters: Mapping[str, MetricVerdict]) -> _Search:
    """Return the search whose collective is gone and explains all bytes by which the exchange fell.
    An empty one if there is none.
    """
    collectives, exchanged = counters.get(COLLECTIVES), counters.get(COLLECTIVE_BYTES)
    if collectives is None or exchanged is None or exchanged.failing_ranks:
        return _Search()
    for part in collectives.moved:
        size, times = _MAP.fullmatch(part.name), part.old - part.new
        if size and 0 < times and times * int(size[1]) == _fall(exchanged):
            return _Search(times, int(size[1]) // 4)
    return _Search()


def _went_along(
    metric: MetricVerdict | None, search: _Search, syncs: float, to_host: float
) -> bool:
    """Tell whether every operator that moved fell, on every rank, and is a view, a read of one of
    the ``syncs`` that are gone, one of the ``to_host`` copies that were waited for, or an operator
    of the ``search``.
    """
    if metric is None or metric.reason is not Reason.WORK_MOVED or not metric.moved:
        return False
    falls: Counter[str] = Counter()
    for part in metric.moved:
        falls[packet(part.name)] += part.old - part.new
    if search.times and not all(any(name in falls for name in kind) for kind in (_READS, _FILLS)):
        return False  # the exchange that is gone was no search
    # Each .item() makes such a copy, too.
    copies = to_host - max(falls[name] for name in _READS)
    explained = all(
        fall > 0
        and (
            is_view(name)
            or (name in _COPIES_TO_HOST and fall <= copies)
            or search.explains(name, fall, syncs)
        )
        for name, fall in falls.items()
    )
    return explained and all(0 <= old - new <= falls.total() for old, new in metric.failing_ranks)
