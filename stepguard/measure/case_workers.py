"""The bench that a case is measured on, its progress, and its worker groups in one tree.

driver.py decides which launches there are, and what they run.
"""

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stepguard.core.case import Case
from stepguard.core.device import is_gpu
from stepguard.core.evidence import Block, Counts, Evidence, Fault, Launch
from stepguard.core.profile import Profile, over_ranks
from stepguard.core.reasons import Reason
from stepguard.judge.kernel_times import times_as_counted, with_machine_code_of
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.loaded_sources import check as check_sources
from stepguard.launch.loaded_sources import of_the_tree, tree_of_root
from stepguard.launch.nodes import Launcher, identity, spread
from stepguard.launch.torchrun import LaunchSpec
from stepguard.launch.worker_group import WorkerGroup
from stepguard.machine.git.revision import Revision, tracked_files, untracked
from stepguard.machine.gpu import Gpu, GpuLocked, MachineError, Monitor, exclusive
from stepguard.machine.inherited import Inherited, inherited_now
from stepguard.machine.packages import Python
from stepguard.measure.combine_ranks import (
    Answers,
    counts_of,
    fingerprint_of,
    of_profiles,
    refuse_differing_ranks,
    refuse_other_gpus,
)


class Ahead:
    """Worker groups that import torch before they are wanted, of this case or the next one. Until
    they are released, on standby, they load no code of the tree: a fixture may still write a
    module.
    """

    def __init__(self) -> None:
        self.case: Case | None = None  # the next case, if known
        self._groups: list[WorkerGroup] = []
        self._inherited: Inherited | None = None

    def expect(self, case: Case | None) -> None:
        """Set the next case; None if there is none."""
        self.case = case

    def begin(self, specs: Sequence[LaunchSpec], environment: Mapping[str, str]) -> None:
        """Start those of these launches that do not yet run in this environment. End all that wait
        first, if others are among them.
        """
        inherited = _inherited(environment)
        others = [group for group in self._groups if group.spec not in specs]
        if others or inherited != self._inherited:
            self.close()
        self._inherited = inherited
        held = [group.spec for group in self._groups]
        for spec in specs:
            if spec not in held:
                self._groups.append(WorkerGroup(replace(spec, standby=True), environment))

    def release(self, specs: Sequence[LaunchSpec]) -> None:
        """Let the ranks of these launches import, too."""
        for group in self._groups:
            if group.spec in specs:
                group.release()

    def ready(self) -> bool:
        """Tell whether no group imports any more. A group that failed is ended."""
        # All are asked, so that each group that failed is ended.
        return all([self._is_ready(group) for group in [*self._groups]])

    def _is_ready(self, group: WorkerGroup) -> bool:
        try:
            return group.ready() if group.released else group.imported()
        except LaunchFailed:
            self._groups.remove(group)
            group.close()
            return True

    def take(self, spec: LaunchSpec, environment: Mapping[str, str]) -> WorkerGroup | None:
        """Return the waiting group that equals ``spec``, for the caller to close; else None."""
        if spec not in [group.spec for group in self._groups]:
            return None
        if self._inherited != _inherited(environment):
            self.close()
        self.ready()
        group = next((group for group in self._groups if group.spec == spec), None)
        if group is not None:
            self._groups.remove(group)
            group.release()
        return group

    def close(self) -> None:
        """End the groups that no case took, also if the user interrupts the first one's end."""
        with contextlib.ExitStack() as stack:
            for group in self._groups:
                stack.callback(group.close)
            self._groups = []


def _inherited(environment: Mapping[str, str]) -> Inherited:
    kept = {key: value for key, value in environment.items() if not key.startswith("PYTEST_")}
    return Inherited(kept, inherited_now().limits)


# Imported before the workload, even if nothing compiles. If the first step imported the compiler,
# torch would keep records of only its newest 64 compilations (worker/counters/compiler.py).
COMPILER = ("torch._dynamo", "torch._inductor")
TICK_S = 0.5

Progress = Callable[[str], None]  # takes the text of a stage that begins or goes on


class Ticker:
    """Passes on each stage, and what is ``known``; repeats it while the stage goes on."""

    def __init__(self, show: Progress) -> None:
        self.known = ""  # "; step_ms +0.04 [-0.12, +0.20] % over 6 pairs"
        self._show = show
        self._text, self._began_s, self._shown_s = "", time.monotonic(), 0.0

    def __call__(self, text: str) -> None:
        self._shown_s = time.monotonic()
        if text != self._text:
            self._text, self._began_s = text, self._shown_s
        self._show(text + self.known)

    @property
    def reached(self) -> str:
        """Return "4 s into pair 7 head: warm-up", and what is known of the case so far."""
        lasted_s = time.monotonic() - self._began_s
        return f"{lasted_s:.0f} s into {self._text or 'start'}{self.known}"

    def tick(self) -> None:
        """Show the stage once more if that is due. Whoever waits calls this often."""
        if self._text and time.monotonic() - self._shown_s >= TICK_S:
            self(self._text)


@dataclass(frozen=True)
class Bench:
    """Where cases are measured: the tree, the machine, and the folder that keeps what happens."""

    root: Path
    cache: Path
    folder: Path
    gpus: tuple[Gpu, ...]
    revision: Revision
    command: str
    launcher: Launcher | None = None  # its nodes share a case of several ranks
    own: Path | None = None  # the whole tree that contains root; None: root is all of it
    forbidden: tuple[Path, ...] = ()  # trees that no module may come from
    # Names of the modules whose files differ between the two trees of a comparison.
    changed: frozenset[str] = frozenset()
    # Of pairs in two environments: the interpreter of this side. None: the running one's.
    python: Python | None = None
    ahead: Ahead = field(default_factory=Ahead, compare=False)  # launches of the next case
    # The launches' environment. By default it is this process' own, as it is when a launch starts.
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, compare=False)


def watch(
    case: Case, bench: Bench, stack: contextlib.ExitStack, progress: Progress
) -> tuple[Monitor | None, Fault | None]:
    """Lock the case's GPUs until ``stack`` ends. Return their monitor, or why they are unfit."""
    if not is_gpu(case.device):
        return None, None
    launcher, reason = spread(case, bench.launcher), Reason.FOREIGN_PROCESS
    per_node = launcher.per_node(case) if launcher else case.world_size
    gpus = launcher.gpus(per_node) if launcher else bench.gpus[:per_node]
    if len(gpus) < case.world_size:
        have = f"a node has {launcher.fewest_gpus}" if launcher else f"here: {len(gpus)}"
        problem, reason = f"GPUs needed: {per_node}, {have}", Reason.TOO_FEW_GPUS
        return None, Fault(reason, problem, "", "preflight")
    try:
        # Only this host's GPUs are locked: a scheduler gave the other nodes' GPUs to this job. The
        # lock comes before the check, since processes of another run would make a GPU unfit.
        here = [gpu.uuid for gpu in gpus[:per_node]]
        stack.enter_context(exclusive(here, bench.command, progress))
        monitor = Monitor(gpus, per_node)
        problem = monitor.preflight() or (launcher.preflight() if launcher else "")
    except GpuLocked as error:
        problem = str(error)
    except MachineError as error:
        problem, reason = str(error), Reason.MACHINE_UNREADABLE
    return (None, Fault(reason, problem, "", "preflight")) if problem else (monitor, None)


class CaseWorkers:
    """Starts the worker groups of one case in one tree, and keeps what they say."""

    def __init__(
        self,
        case: Case,
        bench: Bench,
        progress: Ticker,
        monitor: Monitor | None,
        stack: contextlib.ExitStack,
        following: Ahead | None = None,
    ) -> None:
        self.case, self.progress = case, progress
        self.counts: Counts | None = None
        self.launches: list[Launch] = []
        self.faults: list[Fault] = []
        self.began = time.monotonic()  # a wait for the GPU does not count
        self._modules: set[Path] = set()  # modules of the tree that its launches imported
        self._known: dict[Path, bool] = {}  # of these modules; True if no commit has it
        self.bench, self._monitor = bench, monitor
        self._stack = stack  # closes all groups at the end, whatever happens
        self._following = following or Ahead()  # launches of this case that are to come
        # The GPU memory that a rank had reserved after its first step, until it is counted how much
        # later steps need; 0 if unknown.
        self.first_reserved_bytes = 0
        self._date = datetime.now(UTC).isoformat(timespec="seconds")
        self._ranks: Answers = []  # what all ranks of the case say of themselves
        self._tokens_per_step = 0  # of the counted steps, over all ranks; 0: not counted

    @functools.cached_property
    def _tree(self) -> Path:
        return self.bench.own or tree_of_root(self.bench.root)

    def start(self, label: str) -> WorkerGroup:
        """Start a group, or take the one that was started ahead."""
        spec, environment = self.spec(label), self.bench.environment
        taken = (held.take(spec, environment) for held in (self.bench.ahead, self._following))
        group = next(filter(None, taken), None) or WorkerGroup(spec, environment)
        return self._stack.enter_context(group)

    def spec(self, label: str, case: Case | None = None) -> LaunchSpec:
        """Return the specification of a launch in this tree, of this case or of another one."""
        case, bench = case or self.case, self.bench
        launcher = spread(case, bench.launcher)
        return LaunchSpec(
            device=case.device,
            preload=(case.module,) if case.module else (),
            shared=COMPILER,
            world_size=case.world_size,
            root=bench.root,
            folder=bench.folder / case.slug / label.replace(" ", "-"),
            cache=bench.cache,
            label=label,
            time_limit_s=case.time_limit_s,
            python=bench.python.executable if bench.python else sys.executable,
            own=bench.own,
            forbidden=bench.forbidden,
            launcher=launcher.command if launcher else (),
            nodes=len(launcher.nodes) if launcher else 1,
        )

    def expect(self, *groups: WorkerGroup) -> None:
        """Let only the ranks of these groups be on the GPUs from now on."""
        if self._monitor:
            self._monitor.expect(*([*group.pids.values()] for group in groups))

    def poll(self) -> None:
        """Sample the GPUs and repeat the progress, if they are due."""
        if self._monitor:
            self._monitor.poll()
        self.progress.tick()

    def monitored(self, block: Block, ranks: Answers) -> Block:
        """Return the block with what the monitor saw while the ranks ran it."""
        return self._monitor.annotate(block, ranks) if self._monitor else block

    def take_description(self, ranks: Answers, spec: LaunchSpec) -> None:
        """Keep what ranks say of their workload. Raises LaunchFailed if it is not the case's."""
        self.check_sources(ranks, spec, "prepare")
        if self._monitor:
            refuse_other_gpus(ranks, self._monitor.gpus)
        refuse_differing_ranks(ranks)
        self._ranks = ranks

    def check_sources(self, ranks: Answers, spec: LaunchSpec, during: str) -> None:
        """Raise LaunchFailed if a rank imported a module of the tree from another place."""
        package = self.case.module.partition(".")[0]
        check_sources(spec, ranks, during, self._tree, package, self.bench.changed)
        self._modules |= of_the_tree(ranks, self._tree.resolve())

    def _untracked(self) -> tuple[str, ...]:
        """Return the modules that ran but are in no commit, also if git ignores them."""
        new = self._modules - self._known.keys()
        if new and self.bench.revision.commit:
            tracked = tracked_files(self._tree, *new)
            missing = {*untracked(self._tree, new, tracked)}
            self._known |= {path: path in missing for path in new}
        top = self._tree.resolve()
        return tuple(sorted(str(p.relative_to(top)) for p, alone in self._known.items() if alone))

    def take_counts(self, ranks: Answers, wall_s: float, cold_s: float | None = None) -> Counts:
        """Keep and return the counts of the counting pass's first part. ``cold_s`` is the first
        step's duration if no cache had all of it.
        """
        cold = {} if cold_s is None else {"cold_compile_s": cold_s}
        self.counts = counts_of(ranks, wall_s, cold)
        self._tokens_per_step = sum(rank.tokens_per_step for rank in ranks)
        return self.counts

    def take_profiles(self, profiles: Sequence[Profile]) -> tuple[float, ...]:
        """Take the ranks' profiles of a timed launch. Return the us a step of each kernel of the
        case's profile; empty if this has others. The first becomes the case's: counting has a cold
        card.
        """
        if self.counts is None or self.counts.profile is None:
            return ()
        profile = over_ranks(profiles)
        if any(launch.kernels_us for launch in self.launches):
            return times_as_counted(self.counts.profile, profile)
        times_us = times_as_counted(profile, profile)  # empty if it is not whole
        if times_us:
            known = [with_machine_code_of(self.counts.profile, one) for one in profiles]
            self.counts = replace(self.counts, **of_profiles(known))
        return times_us

    @property
    def reserved_bytes(self) -> float:
        """Return the GPU memory that a rank's step reserves; 0 if unknown."""
        counted = self.counts.information if self.counts else {}
        return counted.get("peak_reserved_bytes", float(self.first_reserved_bytes))

    @property
    def gpu_memory_bytes(self) -> int:
        """Return the memory of the smallest GPU; 0 if unknown."""
        return min((rank.memory_bytes for rank in self._ranks), default=0)

    def note_end(self, interrupt: KeyboardInterrupt) -> None:
        """Note as a fault that somebody ended the run: by which signal, when, in which stage."""
        by, after_s = str(interrupt) or "SIGINT", time.monotonic() - self.began
        text = f"ended by {by} after {after_s:.0f} s, {self.progress.reached}"
        self.faults.append(Fault(Reason.UNDECIDED, text))

    def evidence(self, **measured: Any) -> Evidence:
        """Return what was measured, with case, tree, machine and counts."""
        if self._ranks:
            first, python = self._ranks[0], self.bench.python
            fingerprint = fingerprint_of(first, self.bench.gpus)
            if python:
                fingerprint = replace(fingerprint, libraries=python.versions(first))
            measured |= {
                "fingerprint": fingerprint,
                "tokens_per_step": self._tokens_per_step
                or sum(rank.tokens_per_step for rank in self._ranks),
                "flops_per_step": sum(rank.flops_per_step for rank in self._ranks),
                "floor_flops_per_step": first.floor_flops_per_step,
            }
        return Evidence(
            case_id=self.case.id,
            case=identity(self.case, self.bench.launcher),
            date=self._date,
            commit=self.bench.revision.commit,
            dirty=self.bench.revision.dirty,
            command=self.bench.command,
            counts=self.counts,
            launches=tuple(self.launches),
            faults=tuple(self.faults),
            untracked=self._untracked(),
            margins_pct=self.case.margins_pct,
            wall_s=time.monotonic() - self.began,
            **measured,
        )
