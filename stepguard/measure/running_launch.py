"""One launch while it runs: import, build, first step, counts, warm-up, timed blocks, end.

This process decides what a launch does next; the ranks only answer commands.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from stepguard.core.evidence import Block, Disturbance, Fault, Launch
from stepguard.core.metrics import SYNCS
from stepguard.core.reasons import Reason
from stepguard.judge.count_again import with_counts
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.measure.case_workers import CaseWorkers
from stepguard.measure.combine_ranks import Answers, counts_of, without_eager
from stepguard.measure.warm_up import Protocol, WarmUp

COMPILE_LIMIT_S = 600.0
COMMAND_LIMIT_S = 120.0
MIN_STEPS = 4
# How many blocks of a launch may be repeated because clocks disagree. A host stalled for 10 ms at
# the end of about one block in 300. Work that the events do not see would be in every block.
CLOCKS_RETRIES = 1


class WorkersFailed(LaunchFailed):
    """A launch that failed, and the workers that it belongs to."""

    def __init__(self, workers: CaseWorkers, failed: LaunchFailed) -> None:
        super().__init__(failed.fault)
        self.workers = workers


class RunningLaunch:
    """A worker group from its start. All failures raise WorkersFailed."""

    def __init__(self, workers: CaseWorkers, label: str, protocol: Protocol) -> None:
        self.workers, self.label, self.protocol = workers, label, protocol
        self.group = workers.start(label)
        self._began = time.monotonic()
        self._compile_s = 0.0
        self._first_compiled = False  # the first step compiled what no cache had
        self.compiled_afresh = False  # a step so far compiled what no cache had
        self.missed_graphs = 0  # that the first step added to the compile cache, on all ranks
        self._graphs = 0  # compiled so far, on all ranks
        self._compiled_late = ""  # the timed block in which something compiled
        self.warmup = WarmUp(protocol)
        self.ran = 0  # steps after the first one
        self.blocks: list[Block] = []
        self._discarded: list[Block] = []
        self._kernels_us: tuple[float, ...] = ()
        self._counted = False  # its ranks know the steps whose host syncs they counted
        self.ended = False  # it had too little memory for the second part of the counting pass

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        try:
            yield
        except LaunchFailed as failed:
            raise WorkersFailed(self.workers, failed) from None

    def show(self, text: str) -> None:
        """Show progress under the launch's label."""
        self.workers.progress(f"{self.label}: {text}")

    def ask(
        self, command: str, limit_s: float = COMMAND_LIMIT_S, quietly: bool = False, **args: Any
    ) -> Answers:
        """Return every rank's answer to a command. Meanwhile the machine is monitored, and progress
        is shown. Only the main thread may do so: other threads ask ``quietly``.
        """
        poll, show = (_nothing, _nothing) if quietly else (self.workers.poll, self.show)
        with self._blamed():
            return self.group.request(command, limit_s=limit_s, poll=poll, progress=show, **args)

    @staticmethod
    def expect(*launches: "RunningLaunch") -> None:
        """Let only these launches be on the GPUs from now on."""
        launches[0].workers.expect(*(launch.group for launch in launches))

    def hello(self) -> None:
        """Wait until the ranks have imported everything."""
        self._began = time.monotonic()
        self.show("start")
        with self._blamed():
            self.group.hello(self.workers.progress.tick)

    def build(self) -> None:
        """Build the workload and run its first step."""
        self.show("build and first step")
        self.prepare(quietly=False)
        self.first_step(quietly=False)

    def prepare(self, quietly: bool) -> None:
        """Build the workload. Keep what the ranks say of it."""
        case = self.workers.case
        # A loop has already compiled and run steps when it stops for the first time.
        limit_s = COMPILE_LIMIT_S if case.loop else COMMAND_LIMIT_S
        answers = self.ask(
            "prepare",
            limit_s=limit_s,
            quietly=quietly,
            case=case.as_dict(),
            timed_s=self.protocol.timed_s,
        )
        with self._blamed():
            self.workers.take_description(answers, self.group.spec)

    def first_step(self, quietly: bool) -> None:
        """Run the first step, which compiles."""
        first = self.ask("first_step", quietly=quietly, limit_s=COMPILE_LIMIT_S)
        self._compile_s = max(rank.compile_s for rank in first)
        self.compiled_afresh = any(rank.compiled_afresh for rank in first)
        self._first_compiled = self.compiled_afresh
        self.missed_graphs = sum(rank.missed_graphs for rank in first)
        self.workers.first_reserved_bytes = max(rank.reserved_bytes for rank in first)

    def warm_up(
        self, until: Callable[[], bool] = lambda: True, windows: Sequence[int] = ()
    ) -> None:
        """Run windows of steps, first ``windows``, until the launch is steady or at its cap, and
        ``until`` is true: a pause while others import would cool the card.
        """
        self.warmup, given = WarmUp(self.protocol), [*windows]
        while given or not self.warmup.done() or not until():
            steps = given.pop(0) if given else self.warmup.next_steps()
            self.show("warm-up")
            self.warmup.add(self.run(steps))

    def run(self, steps: int) -> Answers:
        """Run so many steps in a block. Return each rank's times."""
        limit_s = COMMAND_LIMIT_S + 10 * steps * self.warmup.step_s
        answers = self.ask("block", steps=steps, limit_s=limit_s)
        self.ran += steps
        self.compiled_afresh = any(rank.compiled_afresh for rank in answers)
        self._graphs = sum(rank.compiled_graphs for rank in answers)
        return answers

    def timed_block(self, steps: int, of: int) -> None:
        """Time one of ``of`` blocks. Repeat it if the machine was disturbed."""
        number, graphs = len(self.blocks) + 1, 0

        def measure() -> tuple[Block, Answers]:
            nonlocal graphs
            self.show(f"block {number} of {of}")
            ran, graphs = self.ran, self._graphs
            answers = self.run(steps)
            return _block_of(answers, steps, ran), answers

        block, _ = self.undisturbed(measure, self._discarded, "block")
        if self._graphs != graphs:  # one of the steps took the compilation's time, too
            timed = block.timed_steps
            where = f"block {number}, at one of the steps {timed[0]} to {timed[-1]}"
            self._compiled_late = f"something was compiled in {where}"
        self.blocks.append(block)

    def undisturbed(
        self, measure: Callable[[], tuple[Block, Answers]], discarded: list[Block], during: str
    ) -> tuple[Block, Answers]:
        """Measure blocks until one is undisturbed. Return it with the ranks' answers; the others
        join ``discarded``. Fails after too many of them.
        """
        while True:
            measured, answers = measure()
            block = self.workers.monitored(measured, answers)
            disturbance = block.disturbance or _clocks_disagree(block)
            if disturbance is None:
                return block, answers
            discarded.append(replace(block, disturbance=disturbance))
            reasons = [lost.disturbance.reason for lost in discarded if lost.disturbance]
            gaps = reasons.count(Reason.CLOCKS_DISAGREE)
            if gaps > CLOCKS_RETRIES or len(discarded) > self.protocol.retries:
                times = gaps if gaps > CLOCKS_RETRIES else len(discarded)
                text = f"{times} blocks could not be used: {disturbance.text}"
                fault = Fault(disturbance.reason, text, "", f"{self.label}, {during}")
                raise WorkersFailed(self.workers, LaunchFailed(fault))

    @property
    def timed_a_compiler(self) -> bool:
        """Tell whether a timed block may contain a compilation, of which the next has none."""
        return bool(self._compiled_late) and self.compiled_afresh

    def count(self) -> None:
        """Run the counting pass, right after the first step, and keep its counts. If a rank lacks
        memory for the step without the compiler, the launch has ``ended``: the others wait for that
        rank.
        """
        began, case = time.monotonic(), self.workers.case
        answers = self.ask("count", limit_s=COMPILE_LIMIT_S)
        cold_s = self._compile_s if self._first_compiled else None
        first = self.workers.take_counts(answers, time.monotonic() - began, cold_s)
        self._counted = True
        self.check_imports("count")  # the second part may end the launch
        began = time.monotonic()
        try:
            answers = self.ask("count_eager", limit_s=COMPILE_LIMIT_S)
        except WorkersFailed as failed:
            if failed.fault.code != Reason.OUT_OF_MEMORY:
                raise
            self.show("count: too little memory without the compiler")
            self.ended = True
            self.group.close()
            self.workers.counts = without_eager(first, case.device, case.world_size)
        else:
            # What only this process knows of the first part stays.
            both_s = first.wall_s + time.monotonic() - began
            self.workers.counts = counts_of(answers, both_s, first.information)

    def count_again(self) -> None:
        """Run the first part of the counting pass once more, so that locate() can follow."""
        self.ask("count", limit_s=COMPILE_LIMIT_S)
        self._counted = True

    def locate(self) -> None:
        """Find the lines of the counted host syncs. Nothing is timed after it: torch slows down."""
        counts = self.workers.counts
        if self._counted and not self.ended and counts and counts.values.get(SYNCS):
            self.show("count: lines of host syncs")
            located = counts_of(self.ask("locate"), 0.0)
            self.workers.counts = with_counts(counts, {SYNCS: located})

    def profile(self, lead: int) -> None:
        """Run ``lead`` untimed steps, and profile a few."""
        self.show("profile")
        self.run(lead)
        self.ask("profile")

    def read_kernels(self) -> None:
        """Read what profile() took on all ranks. Keep the kernels' times if the kernels are those
        of the case's profile. It asks quietly, so both launches of a pair can do so at once.
        """
        each = [rank.profile for rank in self.ask("kernels", quietly=True)]
        if all(each):
            self._kernels_us = self.workers.take_profiles(each)

    def park(self, quietly: bool = False) -> None:
        """Give the cached memory back, and idle until the next command."""
        if not self.ended:
            self.ask("park", quietly=quietly)

    def check_imports(self, during: str) -> None:
        """Check what the ranks imported since ``prepare``."""
        answers = self.ask("sources")
        with self._blamed():
            self.workers.check_sources(answers, self.group.spec, during)

    def leave(self, *others: "RunningLaunch") -> None:
        """Check what the ranks of these launches imported. End all at once, then the agents."""
        running = [launch for launch in (self, *others) if not launch.ended]
        for launch in running:
            launch.show("end")
            launch.check_imports("end")
            with launch._blamed():
                launch.group.let_exit()
        for launch in running:
            with launch._blamed():
                launch.group.leave()

    def measured(self, index: int) -> Launch:
        """Return what it ran so far, as the case's launch ``index``."""
        return Launch(
            index=index,
            blocks=tuple(self.blocks),
            compile_s=self._compile_s,
            warmup_s=self.warmup.seconds,
            warmup_steps=self.warmup.steps,
            steady=self.warmup.problem or self._compiled_late,
            wall_s=time.monotonic() - self._began,
            discarded=tuple(self._discarded),
            kernels_us=self._kernels_us,
            cold=self.missed_graphs > 0,
        )


def _nothing(*progress: object) -> None:
    pass


def block_steps(seconds: float, step_s: float) -> int:
    """Return how many steps fill a block of about so many seconds."""
    return max(MIN_STEPS, round(seconds / step_s))


def _block_of(ranks: Answers, steps: int, ran: int) -> Block:
    """Return the ranks' reports of a block as one. Single steps are the slowest rank's."""
    slowest = max(ranks, key=lambda rank: rank.wall_ms)
    enqueue_ms = [rank.enqueue_ms for rank in ranks]
    return Block(
        steps=steps,
        wall_ms=tuple(rank.wall_ms for rank in ranks),
        events_ms=tuple(rank.events_ms for rank in ranks),
        step_ms=tuple(slowest.step_ms),
        # A rank whose host is late makes all ranks wait.
        enqueue_ms=None if None in enqueue_ms else max(enqueue_ms),
        ran=ran,
        outside_ms=ranks[0].outside_ms,
    )


def _clocks_disagree(block: Block) -> Disturbance | None:
    gap = block.clock_gap()
    return Disturbance(Reason.CLOCKS_DISAGREE, gap.sentence) if gap else None
