"""Find where the host waits for the device: the line, the phase and the reason.

torch tells Python about its synchronizations (torch_device.py), but not about those of other
libraries. So all are counted in the profiler's trace, which has every call. This module gives the
calls their lines.

Listening slows down every allocation and cannot be undone, so no timing follows in the same
process.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from stepguard.core.metrics import SYNCS
from stepguard.core.site import Site
from stepguard.core.source_marks import allowed_by_comment, allowed_now
from stepguard.trace.host_steps import StepCalls, Sync
from stepguard.worker.counters.locate import BACKWARD, frames, locate, phase_at, site_at
from stepguard.worker.counters.tally import RankStep, StepCounter, Tally
from stepguard.worker.rank_position import MICRO_STEP, Phases
from stepguard.worker.torch_device import SYNC_KINDS, call_on_sync, synchronize

_AUTOGRAD = "autograd::engine::evaluate_function: "
# What waits, by the operator around it. The first that applies decides.
_BY_OPERATOR = {
    "aten::is_nonzero": "truth of a tensor",
    "aten::_local_scalar_dense": ".item()",
    "aten::nonzero": "nonzero",
}
_BY_COPY = {  # ... or by the beginning of the name of the copy that is waited for
    "HtoD (Pageable": "pageable copy to the GPU",
    "HtoD": "blocking copy to the GPU",
    "DtoH": "copy to the host",
}


def site_here(what: str, phases: Phases, count: int = 1) -> Site:
    """Return the line that runs now, outside of torch and this engine. Its phase is the one that
    the workload names, or else the one that torch shows. A phase that a workload enters lasts until
    the next one, but a backward pass is over when autograd's is.
    """
    # A variable with this call's own frame would be a cycle. Until the cycle is collected, the
    # tensors of all callers would stay alive.
    caller = sys._getframe(1)
    place = locate(frames(caller))
    allowed = allowed_now() or allowed_by_comment(place.text)
    over = phases.current == BACKWARD and place.file and phase_at(caller) != BACKWARD
    phase = phases.micro_step if over else phases.path or phase_at(caller)
    return site_at(what, place, phase, count, allowed)


class SyncListener:
    """Collects the synchronizations that torch reports while it listens."""

    def __init__(self, phases: Phases) -> None:
        self.phases = phases
        self._sites: list[Site] | None = None  # of the block that listens now; None outside of all
        call_on_sync(self._note)

    def _note(self, kind: str) -> None:
        if self._sites is not None:
            self._sites.append(site_here(kind, self.phases))

    @contextmanager
    def listen(self) -> Iterator[list[Site]]:
        """Yield a list that gets a Site for each synchronization, with its kind in ``what``."""
        sites: list[Site] = []
        self._sites = sites
        try:
            yield sites
        finally:
            self._sites = None


def count_traced(tally: Tally, counted: RankStep) -> None:
    """Count the host syncs of the traced steps. locate_syncs() finds their lines."""
    count_syncs(tally, tally.calls, [[] for _ in tally.calls])


def locate_syncs(tally: Tally, counted: RankStep, steps: Sequence[StepCalls]) -> None:
    """Count host_syncs_per_step of these steps once more, with the lines that torch reports as it
    runs as many steps. Then those that a line allows do not count.

    torch's reports slow down each later allocation, so no step of this process is timed after.
    """
    listener = SyncListener(counted.phases)
    reported: list[list[Site]] = []
    for _ in steps:
        counted.phases.begin_step()
        with listener.listen() as sites:
            counted.step()
        synchronize(counted.device)
        reported.append(sites)
    kinds = [Counter(site.what for site in sites) for sites in reported]
    seen = []
    for number, calls in enumerate(steps):
        # Steps may take turns, and these begin at another one.
        wanted = Counter(sync.kind for sync in calls.syncs if sync.kind in SYNC_KINDS)
        same = kinds.index(wanted) if wanted in kinds else number
        seen.append(reported[number if kinds[number] == wanted else same])
    count_syncs(tally, steps, seen, len(counted.phases.micro_steps))


def count_syncs(
    tally: Tally, steps: Sequence[StepCalls], seen: Sequence[Sequence[Site]], micro_steps: int = 0
) -> None:
    """Count host_syncs_per_step and keep their sites. Allowed ones do not count."""
    both = zip(steps, seen, strict=True)
    sites = [located(calls.syncs, lines, micro_steps) for calls, lines in both]
    counts = [sum(site.count for site in of_step if not site.allowed) for of_step in sites]
    tally.add(SYNCS, counts, sites=sites)


def located(syncs: Sequence[Sync], seen: Sequence[Site], micro_steps: int = 0) -> list[Site]:
    """Return the trace's calls with the lines ``seen``, kind by kind if as many."""
    sites: list[Site] = []
    # A blocking cudaMemcpy ("copy") never has a line: torch's hook does not report it.
    for kind in (*SYNC_KINDS, "copy"):
        calls = [sync for sync in syncs if sync.kind == kind]
        lines = [site for site in seen if site.what == kind]
        if len(lines) != len(calls):
            lines = [Site(kind)] * len(calls)
        for sync, line in zip(calls, lines, strict=True):
            # Without a line autograd's nodes tell.
            phase = line.phase or ("backward" if _nodes(sync) else "")
            sites.append(replace(line, what=what_waits(sync), phase=phase))
    return by_place(sites, micro_steps)


def what_waits(sync: Sync) -> str:
    """Return what made the host wait, as in code: ".item()", "nonzero in IndexBackward0"."""
    nodes = _nodes(sync)
    return _call(sync) + (f" in {nodes[-1]}" if nodes else "")


def _nodes(sync: Sync) -> list[str]:
    """Return autograd's nodes around a call, "IndexBackward0"; none in a forward pass."""
    return [name.removeprefix(_AUTOGRAD) for name in sync.chain if name.startswith(_AUTOGRAD)]


def _call(sync: Sync) -> str:
    if sync.kind == "device":
        return "torch.cuda.synchronize()"
    if sync.kind == "event":
        return "Event.synchronize()"
    calls = [what for operator, what in _BY_OPERATOR.items() if operator in sync.chain]
    calls += [what for copy, what in _BY_COPY.items() if sync.after_copy.startswith(copy)]
    calls += [n.removeprefix("aten::") for n in reversed(sync.chain) if n.startswith("aten::")]
    return next(iter(calls), "stream synchronize")


def by_place(sites: Sequence[Site], micro_steps: int = 0) -> list[Site]:
    """Return one Site for each line: ``print(loss)`` waits eight times in four ways."""
    groups: dict[tuple[str, ...], list[Site]] = {}
    for site in sites:
        place = site.key[1:] if site.file else ("", site.what)
        # Syncs without a line have one place. An allowed one must not be joined with the others.
        groups.setdefault((*place, site.allowed), []).append(site)
    return [
        replace(
            group[0],
            what=", ".join(dict.fromkeys(site.what for site in group)),
            phase=_joined_phases([site.phase for site in group], micro_steps),
            count=sum(site.count for site in group),
        )
        for group in groups.values()
    ]


def _joined_phases(paths: Sequence[str], micro_steps: int) -> str:
    last = (path.rpartition("/")[2] for path in paths)
    names = list(dict.fromkeys(name for name in last if name and not name.startswith(MICRO_STEP)))
    inside = list(dict.fromkeys(path.partition("/")[0] for path in paths if "/" in path))
    if len(inside) > 1:
        names += ["each micro-step"] if len(inside) == micro_steps else inside
    return ", ".join(names)


COUNTER = StepCounter("host syncs", (SYNCS,), count_traced)
