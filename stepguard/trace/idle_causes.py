"""Why the GPU was idle: the cause of every gap between two records.

A gap ends with a record. If that record's launch began before the gap, the GPU had work: a short
gap is the pause between two kernels, a long one a stream that waits. If not, the host was late, and
what it did at that moment is the cause.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from stepguard.trace.api_calls import SYNC_CALLS
from stepguard.trace.columns import NONE, OVERHEAD, Bools, Floats, Host, Ints, Trace, taken
from stepguard.trace.kernel_classes import INPUT
from stepguard.trace.phases import Pass
from stepguard.trace.step_windows import Windows, queue_depth


@dataclass(frozen=True)
class Union:
    """Intervals that neither overlap nor touch, in order; in us."""

    start_us: Floats
    end_us: Floats

    def inside(self, begin_us: Floats, end_us: Floats) -> Floats:
        """Return how many us of each window [begin, end) the union covers."""
        return self._up_to(end_us) - self._up_to(begin_us)

    def _up_to(self, when_us: Floats) -> Floats:
        """Return the length of the union before each moment, in us."""
        if not len(self.start_us):
            return np.zeros(len(when_us))
        before = np.concatenate([[0.0], np.cumsum(self.end_us - self.start_us)])
        at = np.searchsorted(self.start_us, when_us, side="right")
        last = np.maximum(at - 1, 0)
        partly = np.minimum(when_us, self.end_us[last]) - self.start_us[last]
        return np.where(at > 0, before[last] + partly, 0.0)

    def gaps(self) -> tuple[Floats, Floats]:
        """Return the begins and ends of the gaps between the intervals."""
        return self.end_us[:-1], self.start_us[1:]


def union(start_us: Floats, end_us: Floats) -> Union:
    """Return the union of intervals, which may overlap, in any order."""
    order = np.argsort(start_us, kind="stable")
    start, end = start_us[order], end_us[order]
    if not len(start):
        return Union(start, end)
    reached = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reached[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Union(start[first], reached[last])


class Idle(StrEnum):
    """Why the GPU had nothing to do."""

    SYNC = "sync"  # the host waited for the GPU, and only then launched more
    INPUT = "input wait"  # the host waited for data
    PROFILER = "profiler"  # the profiler emptied its buffers
    HOST = "host late"  # the host was slower than the GPU
    GAP = "between kernels"  # work was queued; the GPU took this long to begin it
    # Work was queued, but its stream waited: for another stream, an event, memory.
    STREAM = "stream wait"


CAUSES = tuple(Idle)
_SYNC = CAUSES.index(Idle.SYNC)
# A longer gap is no pause between two kernels. 16,485 pauses on H200s: median 1.6 us, longest 19.4.
BETWEEN_US = 50.0
AHEAD = 16  # if so many launches wait, the host is ahead of the GPU
CATCH_UP_SHARE = 0.05  # share of a step; a host that takes longer to get ahead is slow by itself


_IN_ORDER = (Idle.STREAM, Idle.GAP, Idle.INPUT, Idle.SYNC, Idle.PROFILER)  # the first that applies


@dataclass(frozen=True)
class Gaps:
    """Every gap inside the steps; one item for each gap."""

    begin_us: Floats
    us: Floats
    step: Ints
    cause: Ints  # into CAUSES
    sync: Ints  # row in ``Windows.calls`` of the call that caused it; NONE without one
    record: Ints  # row in ``Windows.gpu`` of the record that ended it


def find_gaps(trace: Trace, windows: Windows, passes: tuple[Pass, ...]) -> Gaps:
    """Return the gaps of the GPU inside the steps, with their causes."""
    gpu = windows.gpu
    begin, end = union(gpu.start_us, gpu.end_us).gaps()
    step = np.searchsorted(windows.begin_us, begin, side="right") - 1
    inside = (step >= 0) & (end <= windows.end_us[np.maximum(step, 0)] + 1e-6)
    begin, end, step = begin[inside], end[inside], step[inside]
    record = np.searchsorted(gpu.start_us, end, side="left")
    call = windows.call_of_record[record]
    launch = taken(windows.calls.start_us, call, -np.inf)
    late = launch > begin
    sync = np.where(late, _sync_before(trace, windows.calls, begin, launch), NONE)
    inputs = [span for span in passes if span.path.rpartition("/")[2] == INPUT]
    waits = union(np.array([p.start_us for p in inputs]), np.array([p.end_us for p in inputs]))
    dumps = trace.host.where(trace.host.kind == OVERHEAD)
    buffers = union(dumps.start_us, dumps.end_us)
    cause = np.select(
        [
            ~late & (end - begin > BETWEEN_US),
            ~late,
            _mostly(waits, begin, launch, late),
            sync != NONE,
            _mostly(buffers, begin, launch, late),
        ],
        [CAUSES.index(cause) for cause in _IN_ORDER],
        CAUSES.index(Idle.HOST),
    )
    sync = np.where(cause == _SYNC, sync, NONE)
    sync = _catching_up(windows, cause, sync, record)
    cause = np.where(sync == NONE, cause, _SYNC)
    return Gaps(begin, end - begin, step, cause, sync, record)


def _catching_up(windows: Windows, cause: Ints, sync: Ints, record: Ints) -> Ints:
    """Return the sync of each gap. After a sync the host may be late several times until it is
    ahead of the GPU: those gaps have the same sync. A host that does not get ahead soon is late for
    another reason.
    """
    waits = np.flatnonzero(cause == _SYNC)
    ahead = np.flatnonzero(queue_depth(windows) >= AHEAD)
    if not len(waits) or not len(ahead):
        return sync
    last = np.searchsorted(record[waits], record, side="right") - 1
    from_record = record[waits[np.maximum(last, 0)]]
    at = np.minimum(np.searchsorted(ahead, from_record), len(ahead) - 1)
    until = ahead[at]
    took = windows.gpu.start_us[until] - windows.gpu.start_us[from_record]
    soon = (took >= 0) & (took <= CATCH_UP_SHARE * windows.step_us.mean())
    caught = (cause == CAUSES.index(Idle.HOST)) & (last >= 0) & (record < until) & soon
    return np.where(caught, sync[waits[np.maximum(last, 0)]], sync)


def _sync_before(trace: Trace, calls: Host, begin: Floats, launch: Floats) -> Ints:
    """Return the wait that was going on when the GPU ran out of work and that ended before the
    launch.
    """
    rows = np.flatnonzero(np.isin(calls.name, trace.named(SYNC_CALLS)))
    rows = rows[np.argsort(calls.end_us[rows], kind="stable")]
    if not len(rows):
        return np.full(len(begin), NONE, np.int64)
    ends = calls.end_us[rows]
    at = np.searchsorted(ends, begin, side="right")
    row = rows[np.minimum(at, len(rows) - 1)]
    waited = (at < len(rows)) & (calls.start_us[row] <= begin) & (calls.end_us[row] <= launch)
    return np.where(waited, row, NONE)


def _mostly(busy: Union, begin: Floats, launch: Floats, late: Bools) -> Bools:
    """Return whether the union covers at least half of the time from the begin to the launch."""
    end = np.where(late, launch, begin)
    covered: Bools = late & (2 * busy.inside(begin, end) >= end - begin)
    return covered
