"""Where the host waits for the device: which line, in which phase, for what.

torch tells Python about the synchronizations that it makes (worker/device.py). How many there are
never depends on that: the profiler's trace has every call, also those of other libraries. What is
found here gives the calls their lines.

Listening slows every allocation and cannot be undone, so it never shares a process with timing
that follows.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from stepguard.allow import allowed_by_comment, allowed_now
from stepguard.site import Site
from stepguard.trace.steps import Sync
from stepguard.worker.count.locate import Place, frames, locate
from stepguard.worker.device import SYNC_KINDS, call_on_sync
from stepguard.worker.position import MICRO_STEP, Phases

_AUTOGRAD = "autograd::engine::evaluate_function: "
# What waits, by the operator that it waits in; the first that is found decides.
_BY_OPERATOR = {
    "aten::is_nonzero": "truth of a tensor",
    "aten::_local_scalar_dense": ".item()",
    "aten::nonzero": "nonzero",
}
_BY_COPY = {  # ... or by how the name of the copy that is waited for begins
    "HtoD (Pageable": "pageable copy to the GPU",
    "HtoD": "blocking copy to the GPU",
    "DtoH": "copy to the host",
}


@dataclass(frozen=True)
class Seen:
    """One synchronization as torch reported it."""

    kind: str
    place: Place
    phase: str
    micro_step: str
    allowed: str


def seen_here(kind: str, phases: Phases) -> Seen:
    """Return what is known at this moment: the line outside of torch and this engine, the phase."""
    place = locate(frames(sys._getframe()))
    allowed = allowed_now() or allowed_by_comment(place.text)
    return Seen(kind, place, phases.current, phases.micro_step, allowed)


class SyncListener:
    """Collects the synchronizations that torch reports while listening."""

    def __init__(self, phases: Phases) -> None:
        self.phases = phases
        self.seen: list[Seen] = []
        self._listening = False
        call_on_sync(self._note)

    def _note(self, kind: str) -> None:
        if self._listening:
            self.seen.append(seen_here(kind, self.phases))

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Collect into ``seen`` until the end of the block."""
        self._listening = True
        try:
            yield
        finally:
            self._listening = False


def located(syncs: Sequence[Sync], seen: Sequence[Seen], micro_steps: int = 0) -> list[Site]:
    """Return the trace's calls with their lines: of a kind the n-th call is the n-th reported one.

    A kind of which they disagree on the number keeps its calls, with operators and without lines.
    """
    sites = []
    for kind in (*SYNC_KINDS, "copy"):
        calls = [sync for sync in syncs if sync.kind == kind]
        lines: list[Seen | None] = [one for one in seen if one.kind == kind]
        if len(lines) != len(calls):
            lines = [None] * len(calls)
        for sync, line in zip(calls, lines, strict=True):
            what = what_waits(sync)
            sites.append(Site(what) if line is None else site_of(line, what))
    return by_place(sites, micro_steps)


def site_of(seen: Seen, what: str) -> Site:
    """Return the Site of something seen, in its phase and, if there is one, its micro-step."""
    phase = f"{seen.micro_step}/{seen.phase}" if seen.micro_step else seen.phase
    place = seen.place
    return Site(
        what, place.file, place.line, place.function, place.text, phase, allowed=seen.allowed
    )


def what_waits(sync: Sync) -> str:
    """Return what made the host wait, as one writes it: ".item()", "nonzero in IndexBackward0"."""
    backward = [n.removeprefix(_AUTOGRAD) for n in sync.chain if n.startswith(_AUTOGRAD)]
    return _call(sync) + (f" in {backward[-1]}" if backward else "")


def _call(sync: Sync) -> str:
    if sync.kind == "device":
        return "torch.cuda.synchronize()"
    if sync.kind == "event":
        return "Event.synchronize()"
    found = [what for operator, what in _BY_OPERATOR.items() if operator in sync.chain]
    found += [what for copy, what in _BY_COPY.items() if sync.after_copy.startswith(copy)]
    found += [n.removeprefix("aten::") for n in reversed(sync.chain) if n.startswith("aten::")]
    return next(iter(found), "stream synchronize")


def by_place(sites: Sequence[Site], micro_steps: int = 0) -> list[Site]:
    """Return one Site a line: ``print(loss)`` waits eight times in four ways, and is one to mend.

    Phases are joined: "forward, each micro-step" when it happens in all ``micro_steps`` of them.
    """
    groups: dict[tuple[str, ...], list[Site]] = {}
    for site in sites:
        place = (site.file, site.function, site.text) if site.file else ("", site.what)
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
