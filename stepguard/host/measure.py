"""Measures one case: launch after launch, warm-up and blocks by command, evidence at the end.

The host decides everything that is not physics, so that one rank protocol serves any policy. While
a launch warms up, the next one is started and imports torch; its import is over before the first
timed block begins, since that waits for its hello.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stepguard.case import Case
from stepguard.evidence import Block, Counts, Evidence, Fault, Fingerprint, Launch
from stepguard.hardware import nominal_peak_flops, physical_peak_flops
from stepguard.host.launch import LaunchFailed, LaunchSpec, WorkerGroup
from stepguard.host.machine import Gpu, Monitor
from stepguard.host.revision import Revision
from stepguard.statistics import steady
from stepguard.verdict import Reason

Progress = Callable[[str], None]
COMPILE_LIMIT_S = 600.0
COMMAND_LIMIT_S = 120.0


@dataclass(frozen=True)
class Protocol:
    """How long things take, by device. A GPU's clocks settle in seconds; a CPU is not judged."""

    warmup_min_s: float
    warmup_cap_s: float
    window_s: float
    tolerance: float  # two windows of a steady state agree within this
    blocks: int
    block_s: float
    retries: int = 3  # tainted blocks measured again, per launch


PROTOCOLS = {
    "cuda": Protocol(5.0, 60.0, 1.0, 0.003, blocks=3, block_s=2.0),
    "cpu": Protocol(0.5, 3.0, 0.25, 0.1, blocks=3, block_s=0.5),
}


@dataclass(frozen=True)
class Bench:
    """Where cases are measured: the tree, the machine, the folder that keeps what happened."""

    root: Path
    cache: Path
    folder: Path
    gpus: tuple[Gpu, ...]
    revision: Revision
    command: str
    more_launches: int = 3  # at most, when the comparison is close


def measure(
    case: Case,
    bench: Bench,
    progress: Progress = lambda text: None,
    wants_more: Callable[[Evidence], bool] = lambda evidence: False,
) -> Evidence:
    """All launches of a case. Never raises for what a workload or a worker does: that is a fault
    in the evidence. ``wants_more`` is asked after the planned launches, and after each more.
    """
    run = _CaseRun(case, bench, progress)
    try:
        run.measure(wants_more)
    except LaunchFailed as failed:
        run.faults.append(failed.fault)
    return run.evidence()


class _CaseRun:
    def __init__(self, case: Case, bench: Bench, progress: Progress) -> None:
        self.case, self.bench, self.progress = case, bench, progress
        self.protocol = PROTOCOLS[case.device]
        self.began = time.monotonic()
        self.date = datetime.now(UTC).isoformat(timespec="seconds")
        self.launches: list[Launch] = []
        self.counts: Counts | None = None
        self.faults: list[Fault] = []
        self.prepared: list[dict[str, Any]] = []
        self.monitor: Monitor | None = None
        self._stack = contextlib.ExitStack()

    def measure(self, wants_more: Callable[[Evidence], bool]) -> None:
        if self.case.device == "cuda" and not self._machine_fit():
            return
        with self._stack:
            # On a GPU the counting pass has a launch of its own, first: it fills compile caches.
            own_count = self.case.device == "cuda"
            labels = ["counting launch"] if own_count else []
            labels += [f"launch {i + 1}" for i in range(self.case.launches)]
            group: WorkerGroup | None = self._start(labels[0])
            for index in range(len(labels)):
                assert group is not None
                following = labels[index + 1] if index + 1 < len(labels) else ""
                timed = not (own_count and index == 0)
                group = self._launch(
                    group, following, timed=timed, count=not timed or not own_count
                )
            while len(self.launches) < self.case.launches + self.bench.more_launches and wants_more(
                self.evidence()
            ):
                label = f"launch {len(self.launches) + 1} (close, one more)"
                self._launch(self._start(label), "", timed=True, count=False)

    def _machine_fit(self) -> bool:
        have = len(self.bench.gpus)
        if have < self.case.world_size:
            message = f"{self.case.world_size} GPUs needed, {have} here"
            self.faults.append(Fault(Reason.TOO_FEW_GPUS.name, message, "", "preflight"))
            return False
        self.monitor = Monitor(self.bench.gpus[: self.case.world_size])
        if problem := self.monitor.preflight():
            self.faults.append(Fault(Reason.FOREIGN_PROCESS.name, problem, "", "preflight"))
        return not problem

    def _start(self, label: str) -> WorkerGroup:
        folder = self.bench.folder / self.case.slug / label.partition(" (")[0].replace(" ", "-")
        spec = LaunchSpec(
            device=self.case.device,
            preload=(self.case.workload.partition(":")[0], "torch._dynamo", "torch._inductor"),
            world_size=self.case.world_size,
            root=self.bench.root,
            folder=folder,
            cache=self.bench.cache,
            label=label,
            time_limit_s=self.case.time_limit_s,
        )
        return self._stack.enter_context(WorkerGroup(spec))

    def _launch(
        self, group: WorkerGroup, following: str, *, timed: bool, count: bool
    ) -> WorkerGroup | None:
        """Run one launch; the group that was started meanwhile for the next one, if any."""
        began = time.monotonic()
        label = group.spec.label
        self.progress(f"{label}: start")
        group.hello(lambda: None)
        ask = self._asker(group)
        self.progress(f"{label}: build")
        self._take_prepared(ask("prepare", factory=self.case.workload, params=self.case.params))
        self.progress(f"{label}: first step (compilation)")
        first = ask("first_step", limit_s=COMPILE_LIMIT_S)
        next_group = self._start(following) if following else None
        if timed:
            warmup = self._warm_up(ask, label)
            if next_group is not None:
                next_group.hello(lambda: None)
            blocks, discarded = self._blocks(ask, label, warmup.step_s)
            self.launches.append(
                Launch(
                    index=len(self.launches) + 1,
                    blocks=tuple(blocks),
                    compile_s=max(rank["compile_s"] for rank in first),
                    warmup_s=warmup.seconds,
                    warmup_steps=warmup.steps,
                    steady=warmup.problem,
                    wall_s=0.0,
                    discarded=tuple(discarded),
                )
            )
        if count:
            self._count(ask, label)
        group.leave(lambda: None)
        if timed:
            self.launches[-1] = replace(self.launches[-1], wall_s=time.monotonic() - began)
        return next_group

    def _asker(self, group: WorkerGroup) -> "Ask":
        def ask(
            command: str, *, limit_s: float = COMMAND_LIMIT_S, **arguments: Any
        ) -> list[dict[str, Any]]:
            poll = self.monitor.poll if self.monitor else (lambda: None)

            def show(text: str) -> None:
                self.progress(f"{group.spec.label}: {text}")

            return group.request(command, limit_s=limit_s, poll=poll, progress=show, **arguments)

        if self.monitor:
            self.monitor.expect(group.pids)
        return ask

    def _take_prepared(self, ranks: list[dict[str, Any]]) -> None:
        for rank, (gpu, told) in enumerate(zip(self.bench.gpus, ranks, strict=False)):
            uuid = told["fingerprint"]["device_uuid"]
            if self.case.device == "cuda" and uuid != gpu.uuid:
                message = f"rank {rank} runs on {uuid}, NVML's GPU {rank} is {gpu.uuid}"
                raise LaunchFailed(Fault(Reason.MACHINE_UNREADABLE.name, message))
        self.prepared = ranks

    def _warm_up(self, ask: "Ask", label: str) -> "_WarmUp":
        """Windows of steps until steady, or until the cap."""
        state = _WarmUp(self.protocol)
        while not state.done():
            self.progress(f"{label}: warm-up {state.seconds:.0f} s")
            state.add(ask("block", steps=state.next_steps()))
        return state

    def _blocks(self, ask: "Ask", label: str, step_s: float) -> tuple[list[Block], list[Block]]:
        steps = max(4, round(self.protocol.block_s / step_s))
        limit_s = COMMAND_LIMIT_S + 10 * steps * step_s
        kept: list[Block] = []
        discarded: list[Block] = []
        while len(kept) < self.protocol.blocks:
            self.progress(f"{label}: block {len(kept) + 1}/{self.protocol.blocks} of {steps} steps")
            ranks = ask("block", steps=steps, limit_s=limit_s)
            block = block_of(ranks, steps)
            if self.monitor:
                began = min(rank["began_ns"] for rank in ranks)
                ended = max(rank["ended_ns"] for rank in ranks)
                block = self.monitor.annotate(block, began, ended)
            if not block.tainted:
                kept.append(block)
                continue
            discarded.append(block)
            if len(discarded) > self.protocol.retries:
                raise LaunchFailed(_taint_fault(block.tainted, label, len(discarded)))
        return kept, discarded

    def _count(self, ask: "Ask", label: str) -> None:
        began = time.monotonic()
        ranks = ask("count", limit_s=COMPILE_LIMIT_S)
        self.counts = Counts(**ranks[0], wall_s=time.monotonic() - began)

    def evidence(self) -> Evidence:
        """What is known so far."""
        told = self.prepared
        first = told[0] if told else {}
        return Evidence(
            case_id=self.case.id,
            case=self.case.as_dict(),
            date=self.date,
            commit=self.bench.revision.commit,
            dirty=self.bench.revision.dirty,
            command=self.bench.command,
            planned_launches=self.case.launches,
            gates=self.case.gates,
            fingerprint=self._fingerprint(first) if told else None,
            launches=tuple(self.launches),
            counts=self.counts,
            faults=tuple(self.faults),
            tokens_per_step=sum(rank["tokens_per_step"] for rank in told),
            flops_per_step=sum(rank["flops_per_step"] for rank in told),
            floor_flops_per_step=first.get("floor_flops_per_step", 0.0),
            wall_s=time.monotonic() - self.began,
        )

    def _fingerprint(self, told: dict[str, Any]) -> Fingerprint:
        known = dict(told["fingerprint"])
        capability, sm_count = known.pop("capability", ""), known.pop("sm_count", 0)
        if self.monitor is None:
            return Fingerprint(**known)
        gpu = self.monitor.gpus[0]
        return Fingerprint(
            **known,
            driver=gpu.driver,
            peak_flops=nominal_peak_flops(gpu.name, told["precision"]),
            floor_flops=physical_peak_flops(
                capability, sm_count, gpu.max_sm_clock_mhz, told["precision"]
            ),
        )


Ask = Callable[..., list[dict[str, Any]]]


class _WarmUp:
    """The windows of a warm-up, and whether they are steady by now."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.steps = 0
        self.seconds = 0.0
        self.step_s = 0.0
        self.problem = ""
        self._window_ms: list[float] = []
        self._window_s: list[float] = []
        self._settled: tuple[int, int] | None = None  # graphs, device allocations

    def next_steps(self) -> int:
        """Steps of the next window: one at first, then as many as fill ``window_s``."""
        return max(1, round(self.protocol.window_s / self.step_s)) if self.step_s else 1

    def add(self, ranks: Sequence[dict[str, Any]]) -> None:
        """Take a window's figures. A recompilation or a new allocation starts the series anew."""
        steps = len(ranks[0]["step_ms"])
        wall_s = max(rank["wall_ms"] for rank in ranks) / 1e3
        self.steps += steps
        self.seconds += wall_s
        self.step_s = wall_s / steps
        settled = (
            sum(rank["compiled_graphs"] for rank in ranks),
            sum(rank.get("device_allocations", 0) for rank in ranks),
        )
        if settled != self._settled:
            self._settled = settled
            self._window_ms, self._window_s = [], []
            return
        self._window_ms.append(1e3 * self.step_s)
        self._window_s.append(wall_s)

    def done(self) -> bool:
        """Steady, or out of time (then ``problem`` says so)."""
        if self.seconds >= self.protocol.warmup_min_s and steady(
            self._window_ms, self._window_s, self.protocol.tolerance
        ):
            return True
        if self.seconds < self.protocol.warmup_cap_s:
            return False
        last = ", ".join(f"{ms:.2f}" for ms in self._window_ms[-4:]) or "none without allocation"
        self.problem = f"not steady after {self.seconds:.0f} s; last windows: {last} ms per step"
        return True


def block_of(ranks: Sequence[dict[str, Any]], steps: int) -> Block:
    """One block out of every rank's report; single steps are those of the slowest rank."""
    slowest = max(ranks, key=lambda rank: rank["wall_ms"])
    return Block(
        steps=steps,
        wall_ms=tuple(rank["wall_ms"] for rank in ranks),
        events_ms=tuple(rank["events_ms"] for rank in ranks),
        step_ms=tuple(slowest["step_ms"]),
        enqueue_ms=slowest["enqueue_ms"],
    )


def _taint_fault(tainted: str, label: str, times: int) -> Fault:
    code = Reason.THROTTLED
    if "process" in tainted:
        code = Reason.FOREIGN_PROCESS
    elif "telemetry" in tainted:
        code = Reason.MACHINE_UNREADABLE
    return Fault(code.name, f"{times} blocks could not be used: {tainted}", "", f"{label}, block")
