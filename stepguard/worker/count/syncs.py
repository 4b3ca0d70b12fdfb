"""Where the host waits for the device: which line, in which phase, for what.

torch tells Python about every synchronization it makes through torch.cuda._gpu_trace, which is
private (it serves the CUDA sanitizer): only this module knows it. Where it is missing, torch's sync
debug mode names the lines of syncs made by operators, and not those of torch.cuda.synchronize() and
Event.synchronize(). How many syncs there are never depends on either: the profiler's trace has
every call, also those of other libraries. What is found here gives the calls their lines.

Listening slows every allocation and cannot be undone, so it never shares a process with timing
that follows.
"""

import importlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from stepguard.allow import allowed_by_comment, allowed_now
from stepguard.site import Site
from stepguard.trace.steps import Sync
from stepguard.worker.count.locate import Place, frames, locate
from stepguard.worker.phases import MICRO_STEP, Phases

_KINDS = ("stream", "device", "event")
_AUTOGRAD = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class Seen:
    """One synchronization that torch told of."""

    kind: str
    place: Place
    phase: str
    micro_step: str
    allowed: str


def seen_here(kind: str, phases: Phases, depth: int = 1) -> Seen:
    """What is true at this moment; ``depth`` frames above the caller is where the stack starts."""
    place = locate(frames(sys._getframe(depth + 1)))
    allowed = allowed_now() or allowed_by_comment(place.text)
    return Seen(kind, place, phases.current, phases.micro_step, allowed)


class SyncListener:
    """Collects what torch tells while listening. ``blind`` says what it then cannot locate."""

    def __init__(self, phases: Phases) -> None:
        self.phases = phases
        self.seen: list[Seen] = []
        self.blind = ""
        self._listening = False
        try:
            self._use_gpu_trace()
        except (ImportError, AttributeError) as error:
            self.blind = f"device and event syncs have no line: {error}"

    def _use_gpu_trace(self) -> None:
        trace: Any = importlib.import_module("torch.cuda._gpu_trace")
        torch._C._activate_gpu_trace()
        for kind in _KINDS:
            register = getattr(trace, f"register_callback_for_{kind}_synchronization")
            register(lambda *stream, kind=kind: self._note(kind))

    def _note(self, kind: str) -> None:
        if self._listening:
            self.seen.append(seen_here(kind, self.phases, depth=2))

    @contextmanager
    def listen(self) -> Iterator[None]:
        """Collect into ``seen`` until the end of the block."""
        self._listening = True
        try:
            if self.blind:
                with self._debug_mode():
                    yield
            else:
                yield
        finally:
            self._listening = False

    @contextmanager
    def _debug_mode(self) -> Iterator[None]:
        def show(message: Any, *rest: Any, **named: Any) -> None:
            if "synchronizing CUDA operation" in str(message):
                self._note("stream")

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = show
            torch.cuda.set_sync_debug_mode("warn")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode("default")


def located(syncs: Sequence[Sync], seen: Sequence[Seen], micro_steps: int = 0) -> list[Site]:
    """The trace's calls with their lines: of a kind the n-th call is the n-th that torch told of.

    A kind of which they disagree on the number keeps its calls, with operators and without lines.
    """
    lines = {kind: [one for one in seen if one.kind == kind] for kind in _KINDS}
    calls = {kind: [one for one in syncs if one.kind == kind] for kind in (*_KINDS, "copy")}
    sites = []
    for kind, of_kind in calls.items():
        told = lines.get(kind, [])
        known: Sequence[Seen | None] = told if len(told) == len(of_kind) else [None] * len(of_kind)
        sites += [_site(sync, one) for sync, one in zip(of_kind, known, strict=True)]
    return by_place(sites, micro_steps)


def _site(sync: Sync, seen: Seen | None) -> Site:
    if seen is None:
        return Site(what=what_waits(sync))
    return site_of(seen, what_waits(sync))


def site_of(seen: Seen, what: str) -> Site:
    """A Site of something seen; in its phase, and in which micro-step, if any."""
    phase = f"{seen.micro_step}/{seen.phase}" if seen.micro_step else seen.phase
    place = seen.place
    return Site(
        what, place.file, place.line, place.function, place.text, phase, allowed=seen.allowed
    )


def what_waits(sync: Sync) -> str:
    """What made the host wait, as one would write it: ".item()", "nonzero in IndexBackward0"."""
    operators = [name for name in sync.chain if name.startswith("aten::")]
    backward = [n.removeprefix(_AUTOGRAD) for n in sync.chain if n.startswith(_AUTOGRAD)]
    suffix = f" in {backward[-1]}" if backward else ""
    if sync.kind == "device":
        return "torch.cuda.synchronize()" + suffix
    if sync.kind == "event":
        return "Event.synchronize()" + suffix
    if "aten::is_nonzero" in operators:
        return "truth of a tensor" + suffix
    if "aten::_local_scalar_dense" in operators:
        return ".item()" + suffix
    if "aten::nonzero" in operators:
        return "nonzero" + suffix
    if sync.after_copy.startswith("HtoD (Pageable"):
        return "pageable copy to the GPU" + suffix
    if sync.after_copy.startswith("HtoD"):
        return "blocking copy to the GPU" + suffix
    if sync.after_copy.startswith("DtoH"):
        return "copy to the host" + suffix
    return (operators[-1].removeprefix("aten::") if operators else "stream synchronize") + suffix


def by_place(sites: Sequence[Site], micro_steps: int = 0) -> list[Site]:
    """One Site a line: ``print(loss)`` waits eight times in four ways, and is one thing to mend.

    Phases are joined: "forward, each micro-step" when it happens in all ``micro_steps`` of them.
    """
    groups: dict[tuple[str, ...], list[Site]] = {}
    for site in sites:
        place = (site.file, site.function, site.text) if site.file else ("", site.what)
        groups.setdefault((*place, site.allowed), []).append(site)
    merged = []
    for group in groups.values():
        first = group[0]
        what = ", ".join(dict.fromkeys(site.what for site in group))
        merged.append(
            replace(
                first,
                what=what,
                phase=_phases([site.phase for site in group], micro_steps),
                count=sum(site.count for site in group),
            )
        )
    return merged


def _phases(paths: Sequence[str], micro_steps: int) -> str:
    last = (path.rpartition("/")[2] for path in paths)
    names = list(dict.fromkeys(name for name in last if name and not name.startswith(MICRO_STEP)))
    inside = list(dict.fromkeys(path.partition("/")[0] for path in paths if "/" in path))
    if len(inside) > 1:
        names += ["each micro-step"] if len(inside) == micro_steps else inside
    return ", ".join(names)
