"""One pair: a launch of each of two trees. Their blocks run in turns on the same machine.

If memory has room for both, they are built at the same time. They warm up, and run blocks in the
order base, head, head, base, or the other way round. While one runs, the other is parked: it waits
on the host and has given its cached memory back.

Both time the same steps, counted from the first: at a power cap the speed of a step follows the
parameters (docs/measurements.md).
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from stepguard.measure.case_workers import CaseWorkers
from stepguard.measure.launch_durations import Protocol
from stepguard.measure.running_launch import RunningLaunch, block_steps

HEAD, BASE = 0, 1
SIDES = ("head", "base")
ORDERS = ((BASE, HEAD, HEAD, BASE), (HEAD, BASE, BASE, HEAD))
BLOCKS = 2  # of each side of a pair
# Late slowdowns are looked for in two launches of each side: two are enough to show that one
# returns. In all launches they would cost as much as the pairs themselves.
FAR_PAIRS = 2
REACH_STEPS = 320


@dataclass(frozen=True)
class PairTiming:
    """How many seconds each launch of a pair runs."""

    lead_s: float  # untimed, before each block: allocations return, clocks settle
    block_s: float
    # Running in turns removes the drift, so the warm-up need not wait until all of it is over.
    warmup: Protocol
    ahead: int = 2  # pairs that import while one is built; on few cores one is enough
    steps: range = range(0)  # steps that blocks have to time; empty: any
    # How far the second block of the first pairs reaches, in seconds of load: as far as a launch
    # beside a stored baseline. If it takes at most twice as long, it reaches step REACH_STEPS.
    reach_s: float = 0.0


@dataclass(frozen=True)
class _Blocks:
    """The steps of a pair's blocks, equal on both sides."""

    lead: int  # untimed, before each block
    timed: int  # in each block
    begins: tuple[int, int]  # the earliest begin of the first and of the second block


def _blocks(timing: PairTiming, number: int, far: bool, *launches: RunningLaunch) -> _Blocks:
    # The faster side needs more steps. All of ``launches`` have warmed up.
    step_s = min(launch.warmup.step_s for launch in launches)
    lead = max(1, round(timing.lead_s / step_s))
    timed = max(block_steps(timing.block_s, step_s), (len(timing.steps) + 1) // BLOCKS)
    # Untimed steps lie between the two blocks. Every second pair begins so many steps earlier, and
    # times what the pair before it did not.
    first = timing.steps.start - (lead if number % 2 == 0 else 0)
    second = _reach(timing, step_s) - timed if far and not timing.steps else 0
    return _Blocks(lead, timed, (first, second))


def _reach(timing: PairTiming, step_s: float) -> int:
    """Return the step, counted from the first, at which the last block of a far pair ends."""
    usual = round(timing.reach_s / step_s)
    return max(usual, REACH_STEPS) if REACH_STEPS <= 2 * usual else usual


class Pair:
    """Two launches, HEAD's and the other tree's, which then import. With ``standby`` only their
    agents import until release().
    """

    def __init__(
        self,
        number: int,
        sides: Sequence[CaseWorkers],
        timing: PairTiming,
        standby: bool = False,
    ) -> None:
        self._number, self._timing = number, timing
        self._ticker = sides[HEAD].progress
        self.launches = [
            RunningLaunch(workers, f"pair {number} {name}", timing.warmup, standby=standby)
            for name, workers in zip(SIDES, sides, strict=True)
        ]

    def build(self, at_once: bool) -> None:
        """Build both, ``at_once`` if memory allows. Then they are parked."""
        RunningLaunch.expect(*self.launches)
        if at_once:
            self._build_at_once()
        for launch in self.launches:
            if not at_once:
                launch.build()
            launch.park()

    def _build_at_once(self) -> None:
        self._ticker(f"pair {self._number}: build and first step")
        # Not in a with: leaving it would wait for the threads, and they wait for groups that only
        # the caller's stack closes.
        pool = ThreadPoolExecutor(len(self.launches))
        futures = [pool.submit(launch.build, quietly=True) for launch in self.launches]
        pool.shutdown(wait=False)
        self._wait(lambda: all(future.done() for future in futures))
        for future in futures:
            future.result()

    def run(self, order: Sequence[int], nobody_imports: Callable[[], bool], far: bool) -> None:
        """Warm up, then run blocks in ``order``, all of them while ``nobody_imports``. ``far``: the
        second blocks reach as far as launches beside a stored baseline.
        """
        first, second = self.launches[order[0]], self.launches[order[1]]
        most = self._timing.steps.start // 2
        # The launch whose block comes first warms up last, and goes on without being parked.
        second.warm_up(most=most)
        second.park()
        # Imports of the next pairs may disturb that warm-up, but nothing after it.
        self._ticker(f"pair {self._number}: wait until nobody imports")
        began = time.monotonic()
        self._wait(nobody_imports)
        for launch in self.launches:
            launch.group.grant(time.monotonic() - began)
        first.warm_up(windows=second.warmup.windows, most=most)
        blocks = _blocks(self._timing, self._number, far, first, second)
        for before, now in zip([order[0], *order], order, strict=False):
            if before != now:
                self.launches[before].park()
            _block(self.launches[now], self.launches[1 - now], blocks)
        for launch in self.launches:
            launch.leave()

    def _wait(self, until: Callable[[], bool]) -> None:
        while not until():
            self._ticker.tick()
            time.sleep(0.02)


def one_after_the_other(
    number: int,
    sides: Sequence[CaseWorkers],
    order: Sequence[int],
    timing: PairTiming,
    far: bool,
) -> list[RunningLaunch]:
    """Run a launch of each side, the second after the first has ended, for trees that do not fit on
    the card together. Return them in the order of ``sides``.
    """
    done: dict[int, RunningLaunch] = {}
    blocks = None
    # The first half of an order names each side once.
    for index in order[:BLOCKS]:
        label = f"pair {number} {SIDES[index]}"
        launch, other = RunningLaunch(sides[index], label, timing.warmup), done.get(1 - index)
        build_alone(launch)
        windows = other.warmup.windows if other else ()
        launch.warm_up(windows=windows, most=timing.steps.start // 2)
        blocks = blocks or _blocks(timing, number, far, launch)
        for _ in range(BLOCKS):
            _block(launch, other, blocks)
        launch.leave()
        done[index] = launch
    return [done[index] for index in range(len(sides))]


def build_alone(launch: RunningLaunch) -> None:
    """Import, build and run the first step of a launch that has the GPUs to itself."""
    launch.hello()
    RunningLaunch.expect(launch)
    launch.build()


def _block(launch: RunningLaunch, other: RunningLaunch | None, blocks: _Blocks) -> None:
    """Run untimed steps, then a timed block. It times the steps that ``other`` timed in its block
    of this number, if it has one.
    """
    number = len(launch.blocks)
    begin = max(launch.ran + blocks.lead, blocks.begins[number])
    if other and len(other.blocks) > number:
        begin = max(begin, other.blocks[number].ran or 0)
    elif other:
        begin = max(begin, other.ran + blocks.lead)
    if begin - launch.ran > blocks.timed:
        launch.show(f"{begin - launch.ran} steps that are not timed")
    while launch.ran < begin:
        launch.run(min(blocks.timed, begin - launch.ran))
    launch.timed_block(blocks.timed, of=BLOCKS)
