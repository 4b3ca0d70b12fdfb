"""Where a case is measured: tree, machine, folder; worker groups are started and asked here.

Whoever measures decides which groups there are and what they do: launch after launch
(measure/launches.py), or two trees in turns (measure/ab.py).
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepguard.case import Case
from stepguard.device import is_gpu
from stepguard.evidence import Counts, Fault
from stepguard.fingerprint import Fingerprint
from stepguard.git.revision import Revision
from stepguard.gpu.lock import GpuLocked, held
from stepguard.gpu.nvml import Gpu, MachineError, Monitor
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.group import WorkerGroup
from stepguard.launch.held import Held
from stepguard.launch.sources import check as check_sources
from stepguard.launch.sources import held_by
from stepguard.launch.torchrun import LaunchSpec
from stepguard.measure.blocks import Annotate, Ask, block_limit_s, undisturbed
from stepguard.measure.prepared import fingerprint_of, refuse_other_gpus, refuse_unlike_ranks
from stepguard.measure.progress import Ticker
from stepguard.measure.rank_counts import counts_of
from stepguard.measure.warmup import Protocol, WarmUp
from stepguard.verdict import Reason

COMPILE_LIMIT_S = 600.0
COMMAND_LIMIT_S = 120.0
# Also where nothing compiles: whoever asks for it in a step first would lose what it did before it
# was told to keep more than 64 compilations (worker/count/compiler.py).
COMPILER = ("torch._dynamo", "torch._inductor")

Answers = list[dict[str, Any]]  # of every rank, in rank order


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
    own: Path | None = None  # the whole tree that root is a folder of; None: root is all of it
    forbidden: tuple[Path, ...] = ()  # trees that no module may come from


def watch(
    case: Case, bench: Bench, stack: contextlib.ExitStack, progress: Callable[[str], None]
) -> Monitor | None:
    """Who watches the case's GPUs, None on a CPU; nobody else measures on them until ``stack``
    ends. Raises LaunchFailed if they cannot be measured on.
    """
    if not is_gpu(case.device):
        return None
    gpus = bench.gpus[: case.world_size]
    if len(gpus) < case.world_size:
        message = f"{case.world_size} GPUs needed, {len(gpus)} here"
        raise LaunchFailed(Fault(Reason.TOO_FEW_GPUS.name, message, "", "preflight"))
    try:
        stack.enter_context(held([gpu.uuid for gpu in gpus], bench.command, progress))
    except GpuLocked as error:
        fault = Fault(Reason.GPU_LOCKED.name, str(error), "", "preflight")
        raise LaunchFailed(fault) from None
    return _fit_monitor(gpus)


def _fit_monitor(gpus: Sequence[Gpu]) -> Monitor:
    """Raises LaunchFailed, before anything is launched, where a GPU is not fit to measure on."""
    reason = Reason.FOREIGN_PROCESS
    try:
        monitor = Monitor(gpus)
        problem = monitor.preflight()
    except MachineError as error:
        reason, problem = Reason.MACHINE_UNREADABLE, str(error)
    if problem:
        raise LaunchFailed(Fault(reason.name, problem, "", "preflight"))
    return monitor


class CaseWorkers:
    """The worker groups of one case in one tree.

    ``prepared`` and ``counts`` are what its groups told, of all ranks of the case.
    """

    def __init__(
        self,
        case: Case,
        bench: Bench,
        progress: Ticker,
        telemetry: Monitor | None,
        stack: contextlib.ExitStack,
    ) -> None:
        self.case, self.bench, self.progress, self.telemetry = case, bench, progress, telemetry
        self._stack = stack  # closes every group at the end, whatever happens
        self.prepared: Answers = []
        self.counts: Counts | None = None

    @functools.cached_property
    def own_files(self) -> Held:
        """The files of the tree that is measured."""
        return held_by(self.bench.root, self.bench.own)

    def start(self, label: str, *, alone: bool = False, held: bool = False) -> WorkerGroup:
        """A group that begins to import. ``alone``: of one rank, though the case has several;
        ``held``: torchrun alone, until the group is released.
        """
        name = label.partition(" (")[0].replace(" ", "-").replace(",", "")
        spec = LaunchSpec(
            device=self.case.device,
            preload=(self.case.workload.partition(":")[0], *COMPILER),
            world_size=1 if alone else self.case.world_size,
            root=self.bench.root,
            folder=self.bench.folder / self.case.slug / name,
            cache=self.bench.cache,
            label=label,
            time_limit_s=self.case.time_limit_s,
            own=self.bench.own,
            forbidden=self.bench.forbidden,
            one_of_several=alone,
            held=held,
        )
        return self._stack.enter_context(WorkerGroup(spec))

    def expect(self, *groups: WorkerGroup) -> None:
        """The ranks of these groups, and no others, may be on the GPUs from now on."""
        if self.telemetry:
            self.telemetry.expect(*([*group.pids.values()] for group in groups))

    def asker(self, group: WorkerGroup) -> Ask:
        """A function that asks the group's ranks, while the machine is watched."""

        def poll() -> None:
            if self.telemetry:
                self.telemetry.poll()
            self.progress.tick()

        def ask(command: str, *, limit_s: float = COMMAND_LIMIT_S, **arguments: Any) -> Answers:
            show = self.shown(group.spec.label)
            return group.request(command, limit_s=limit_s, poll=poll, progress=show, **arguments)

        return ask

    def prepare(self, group: WorkerGroup, ask: Ask) -> Answers:
        """Build the workload. Raises LaunchFailed, also for another GPU or another tree's code."""
        told = ask("prepare", factory=self.case.workload, params=self.case.params)
        self._check(group, told, "prepare")
        if self.telemetry:
            refuse_other_gpus(told, self.telemetry.gpus)
        refuse_unlike_ranks(told)
        if not group.spec.one_of_several:
            self.prepared = told
        return told

    def leave(self, group: WorkerGroup, ask: Ask) -> None:
        """End the group in order; what it imported late is looked at first."""
        self._check(group, ask("sources"), "end")
        group.leave()

    def _check(self, group: WorkerGroup, told: Answers, during: str) -> None:
        factory = self.case.workload.partition(":")[0]
        check_sources(group.spec, told, during, self.own_files, factory)

    def warm_up(
        self,
        ask: Ask,
        label: str,
        protocol: Protocol,
        following: Callable[[], bool] = lambda: True,
        windows: Sequence[int] = (),
        most: int = 0,
    ) -> WarmUp:
        """Windows of steps, those of ``windows`` first, until steady, or until the cap, and until
        ``following`` is ready; of ``most`` steps in all, if that is not 0.

        The card is kept busy while the next launch still imports: a pause would cool it.
        """
        state, given = WarmUp(protocol), [*windows]
        while given or not state.done() or not following():
            steps = given.pop(0) if given else state.next_steps()
            if most:
                if state.steps >= most:
                    break
                steps = min(steps, most - state.steps)
            self.progress(f"{label}: warm-up")
            state.add(ask("block", steps=steps, limit_s=block_limit_s(steps, state.step_s)))
        return state

    def count(self, ask: Ask, clock: Callable[[], float]) -> None:
        """The counting pass."""
        began = clock()
        self.counts = counts_of(ask("count", limit_s=COMPILE_LIMIT_S), clock() - began)

    def annotate(self) -> Annotate:
        """What says whether the machine was fit during a block."""
        monitor = self.telemetry
        if monitor is None:
            return undisturbed
        return lambda block, ranks: monitor.annotate(block, *span(ranks))

    def shown(self, label: str) -> Callable[[str], None]:
        """Progress under a label."""
        return lambda text: self.progress(f"{label}: {text}")

    def identity(self) -> dict[str, Any]:
        """What the case's figures depend on."""
        return self.case.as_dict()

    def told(self) -> dict[str, Any]:
        """What the ranks said of themselves, as fields of Evidence."""
        if not self.prepared:
            return {}
        first = self.prepared[0]
        fingerprint: Fingerprint = fingerprint_of(first, self.bench.gpus)
        return {
            "fingerprint": fingerprint,
            "tokens_per_step": sum(rank["tokens_per_step"] for rank in self.prepared),
            "flops_per_step": sum(rank["flops_per_step"] for rank in self.prepared),
            "floor_flops_per_step": first.get("floor_flops_per_step", 0.0),
        }


def span(ranks: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """From when the first of the ranks began till the last one ended, on the machine's clock."""
    return min(rank["began_ns"] for rank in ranks), max(rank["ended_ns"] for rank in ranks)
