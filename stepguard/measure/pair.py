"""One pair: a launch of each of two trees. Their blocks run in turns on the same machine.

If memory has room for both launches, they are built at the same time. They warm up, and run blocks
in the order base, head, head, base, or the other way round. While one launch runs, the other is
parked: it waits on the host, and has given its cached memory back.

Both launches time the same steps, counted from the first: at a power cap a step's speed depends on
the values of the parameters (docs/measurements.md).
"""

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stepguard.core.device import CPU, GPU, is_gpu
from stepguard.judge.count_again import counted_again, not_counted_again
from stepguard.measure.case_workers import CaseWorkers
from stepguard.measure.running_launch import RunningLaunch, block_steps
from stepguard.measure.warm_up import Protocol

HEAD, BASE = 0, 1
SIDES = ("head", "base")
FIRST = "first launch"
ORDERS = ((BASE, HEAD, HEAD, BASE), (HEAD, BASE, BASE, HEAD))
BLOCKS = 2  # of each side of a pair
# Before a second launch counts: what a script does by the clock then falls on other steps.
PAUSE_S = 0.37
FULL = 0.9  # share of the card's memory; if two groups need more, they are not built together


@dataclass(frozen=True)
class PairTiming:
    """How many seconds each launch of a pair runs."""

    lead_s: float  # untimed, before each block: memory is allocated again, and clocks settle
    block_s: float
    # Short, since both sides run in turns and drift alike: the drift need not be over.
    warmup: Protocol
    ahead: int = 2  # how many pairs import while one is built; on few cores one is enough


# On an H200 at its power cap the steps scatter, not the launches, so only timed seconds help. More
# pairs are better than longer ones, since they also show the scatter. A pair has 13.5 s of load, of
# which 8 s are timed: 8 pairs take two minutes of GPU time, 22 take five.
# A profile of a launch takes 5 s more.
PAIR_TIMINGS = {
    GPU: PairTiming(0.5, 2.0, Protocol(1.5, 20.0, 0.5, 0.02, blocks=2, block_s=2.0)),
    CPU: PairTiming(0.1, 0.5, Protocol(0.5, 2.0, 0.25, 0.1, blocks=2, block_s=0.5), ahead=1),
}


def _block_steps(timing: PairTiming, *launches: RunningLaunch) -> tuple[int, int]:
    """Return the untimed steps before each block of a pair, and its timed ones, for both sides."""
    # The faster side needs more steps for its seconds. All of ``launches`` have warmed up.
    step_s = min(launch.warmup.step_s for launch in launches)
    return max(1, round(timing.lead_s / step_s)), block_steps(timing.block_s, step_s)


class Pair:
    """Two launches: HEAD's and the other tree's. They start and import when the pair is made. With
    ``standby`` only their agents import, until release(). Both may have a ``label`` of their own.
    """

    def __init__(
        self,
        number: int,
        sides: Sequence[CaseWorkers],
        timing: PairTiming,
        standby: bool = False,
        label: str = "",
    ) -> None:
        self._number, self._timing = number, timing
        self._ticker = sides[HEAD].progress
        self.launches = [
            RunningLaunch(workers, label or f"pair {number} {name}", timing.warmup, standby=standby)
            for name, workers in zip(SIDES, sides, strict=True)
        ]

    def prepare(self) -> None:
        """Build both workloads at once, without their first steps."""
        self._ticker(f"{self.launches[HEAD].label}: build and first step")
        self._at_once(lambda launch: launch.prepare(quietly=True))

    def first_steps(self) -> None:
        """Run both first steps at once, after prepare(). Who is done first is parked: the other one
        may need the memory, as it may still compile.
        """
        done: dict[RunningLaunch, float] = {}

        def run(launch: RunningLaunch) -> None:
            launch.first_step(quietly=True)
            launch.park(quietly=True)
            done[launch] = time.monotonic()

        self._at_once(run)
        for launch in self.launches:
            launch.group.grant(max(done.values()) - done[launch])

    def build(self, at_once: bool) -> None:
        """Build both launches and park them: ``at_once``, or one after the other."""
        RunningLaunch.expect(*self.launches)
        if at_once:
            self._ticker(f"pair {self._number}: build and first step")
            self._at_once(lambda launch: launch.build(quietly=True))
        for launch in self.launches:
            if not at_once:
                launch.build()
            launch.park()

    def _at_once(self, do: Callable[[RunningLaunch], object]) -> None:
        # Not in a with statement: at its end it would wait for the threads, and after a failure
        # they wait for groups that only the caller closes.
        pool = ThreadPoolExecutor(len(self.launches))
        futures = [pool.submit(do, launch) for launch in self.launches]
        pool.shutdown(wait=False)
        self._wait(lambda: all(future.done() for future in futures))
        for future in futures:
            future.result()

    def run(self, order: Sequence[int], nobody_imports: Callable[[], bool]) -> None:
        """Warm up, wait until ``nobody_imports``, then run blocks in ``order``."""
        first, second = self.launches[order[0]], self.launches[order[1]]
        # The launch whose block comes first warms up last, so it need not be parked.
        second.warm_up()
        second.park()
        # Imports of the next pairs may disturb the warm-up above, but nothing below.
        self._ticker(f"pair {self._number}: wait until nobody imports")
        began = time.monotonic()
        self._wait(nobody_imports)
        for launch in self.launches:
            launch.group.grant(time.monotonic() - began)
        first.warm_up(windows=second.warmup.windows)
        steps = _block_steps(self._timing, first, second)
        for before, now in zip([order[0], *order], order, strict=False):
            if before != now:
                self.launches[before].park()
            _block(self.launches[now], self.launches[1 - now], *steps)

    def count(self, order: Sequence[int]) -> None:
        """Count each launch, after build(), and park both."""
        self._in_turns(order, RunningLaunch.count)
        for launch in self.launches:
            launch.park()

    def locate(self) -> None:
        """Find the lines of each launch's host syncs. It is the last thing that they do."""
        for launch in self.launches:
            launch.park()
        for launch in self.launches:
            launch.locate()
            launch.park()

    def _in_turns(self, order: Sequence[int], do: Callable[[RunningLaunch], object]) -> None:
        """Let each launch do something while the other is parked. The last of ``order`` may not be
        parked yet.
        """
        active = order[-1]
        for now in order[: len(SIDES)]:
            if now != active:
                self.launches[active].park()
            do(self.launches[now])
            active = now

    def profile(self, order: Sequence[int]) -> None:
        """Profile a few steps of each launch, after untimed ones. Call it after run(), with the
        same ``order``. Both profiles are read at once, after all steps have run, so that reading
        disturbs no step.
        """
        lead_s = self._timing.lead_s
        self._in_turns(order, lambda one: one.profile(block_steps(lead_s, one.warmup.step_s)))
        self._ticker(f"pair {self._number}: kernels of both profiles")
        self._at_once(RunningLaunch.read_kernels)

    def leave(self) -> None:
        """Check what both launches imported, and end them at once."""
        first, second = self.launches
        first.leave(second)

    def _wait(self, until: Callable[[], bool]) -> None:
        while not until():
            self._ticker.tick()
            time.sleep(0.02)


def both_fit(sides: Sequence[CaseWorkers]) -> bool:
    """Tell whether the peak memory of both trees fits on the card together. On a CPU it always
    does.
    """
    if not is_gpu(sides[HEAD].case.device):
        return True
    # Reserved bytes count, since both groups' allocators take them from one card. A tree that never
    # ran is taken to need as much as the other one.
    known = [workers.reserved_bytes for workers in sides]
    peaks = [reserved_bytes or max(known) for reserved_bytes in known]
    return 0 < sum(peaks) < FULL * sides[HEAD].gpu_memory_bytes


def one_after_the_other(
    number: int,
    sides: Sequence[CaseWorkers],
    order: Sequence[int],
    timing: PairTiming,
) -> list[RunningLaunch]:
    """Run a launch of each side, one after the other, since they do not fit on the card together.
    Return the launches in the order of ``sides``.
    """
    done: dict[int, RunningLaunch] = {}
    steps = None
    # The first half of an order names each side once.
    for index in order[:BLOCKS]:
        label = f"pair {number} {SIDES[index]}"
        launch, other = RunningLaunch(sides[index], label, timing.warmup), done.get(1 - index)
        build_alone(launch)
        windows = other.warmup.windows if other else ()
        launch.warm_up(windows=windows)
        steps = steps or _block_steps(timing, launch)
        for _ in range(BLOCKS):
            _block(launch, other, *steps)
        launch.leave()
        done[index] = launch
    return [done[index] for index in range(len(sides))]


def build_alone(launch: RunningLaunch) -> None:
    """Import, build and run the first step of a launch that has the GPUs to itself."""
    launch.hello()
    RunningLaunch.expect(launch)
    launch.build()


def count_once_more(
    workers: CaseWorkers, protocol: Protocol, names: Collection[str], label: str
) -> None:
    """Count these counters in one more launch, which has the GPUs to itself. Keep what both say."""
    first = workers.counts
    assert first is not None, "only what was counted is counted again"
    try:
        count_alone(workers, protocol, label, pause_s=PAUSE_S)
    except BaseException:
        workers.counts = not_counted_again(first, names, f"the {label} did not end")
        raise
    assert workers.counts is not None, "a launch that counts leaves its counts"
    workers.counts = counted_again(first, workers.counts, names)


def count_alone(workers: CaseWorkers, protocol: Protocol, label: str, pause_s: float = 0.0) -> None:
    """Count in a launch that has the GPUs to itself, after a pause behind its first step."""
    launch = RunningLaunch(workers, label, protocol)
    build_alone(launch)
    time.sleep(pause_s)
    launch = let_count(launch)
    launch.locate()
    launch.leave()


def let_count(launch: RunningLaunch) -> RunningLaunch:
    """Let the launch count, and return it. If the step without the compiler ends it for want of
    memory, return another launch that has run the same steps without that one.
    """
    launch.count()
    if not launch.ended:
        return launch
    other = RunningLaunch(launch.workers, launch.label, launch.protocol)
    build_alone(other)
    other.count_again()
    return other


def _block(launch: RunningLaunch, other: RunningLaunch | None, lead: int, timed: int) -> None:
    """Run at least ``lead`` untimed steps, then a block of ``timed``. If ``other`` has already run
    its block of the same number, both time the same steps.
    """
    number = len(launch.blocks)
    begin = launch.ran + lead
    if other and len(other.blocks) > number:
        begin = max(begin, other.blocks[number].ran or 0)
    elif other:
        begin = max(begin, other.ran + lead)
    launch.run(begin - launch.ran)
    launch.timed_block(timed, of=BLOCKS)


class FirstPair(Pair):
    """The first two launches of a case, one of each tree, until both have run their first steps.

    Usually one of them compiles at a time. So the base takes from the cache what HEAD's launch
    compiled, and no trial of a kernel is timed beside another launch. On a GPU both first steps run
    at once if the cache had both before (CompiledStep), and both fit into memory. Those of a loop
    never do.
    """

    def __init__(self, sides: Sequence[CaseWorkers], timing: PairTiming) -> None:
        super().__init__(1, sides, timing, label=FIRST)
        self._sides = sides
        # A loop runs its first steps while it is built.
        self._builds_at_once = sides[HEAD].case.loop is None
        self._steps_at_once = False

    def run_first_steps(self) -> None:
        """Build both launches, and run their first steps at once. If both may compile, only HEAD's
        runs its step, and run_base() follows.
        """
        RunningLaunch.expect(*self.launches)
        if self._builds_at_once:
            self.prepare()
            # A step's memory is known before it runs if an earlier run compiled that step.
            known = all(workers.reserved_bytes > 0 for workers in self._sides)
            self._steps_at_once = known and both_fit(self._sides)
        if self._steps_at_once:
            self.first_steps()
        else:
            self._run_first_step(HEAD)

    def run_base(self) -> None:
        """Run the base's first step, unless it ran beside HEAD's."""
        if not self._steps_at_once:
            self._run_first_step(BASE)

    def _run_first_step(self, index: int) -> None:
        began, launch = time.monotonic(), self.launches[index]
        launch.show("build and first step")
        if not self._builds_at_once:
            launch.prepare(quietly=False)
        launch.first_step(quietly=False)
        launch.park()
        self.launches[1 - index].group.grant(time.monotonic() - began)  # which waits meanwhile

    @property
    def may_be_timed(self) -> bool:
        """Tell whether the two can be a pair that is timed. They cannot if one of them compiled
        beside the other, since equal kernels may then run in other forms.
        """
        return not (self._steps_at_once and any(one.compiled_afresh for one in self.launches))
