"""One pair: a launch of each of two trees, whose blocks alternate on the same machine.

Both are built at the same time where memory holds both, warm up, and run a block each in the order
base, head, head, base, or the other way round. While one runs, the other is parked: it waits on the
host and has given its cached memory back.

Both time the same steps, counted from the first. At its power cap an H200 runs a step faster or
slower as the parameters change, by 2.3 % over the first 80 steps that a GPT-2 learns in
(docs/measurements.md): a side that is steps ahead runs other steps.
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
# What begins late is looked for in two launches of each side, which is what it takes to tell that
# it returns; in all of them it would cost as much again as the pairs.
FAR_PAIRS = 2
REACH_STEPS = 320


@dataclass(frozen=True)
class PairTiming:
    """Sets how long each launch of a pair runs, in seconds."""

    lead_s: float  # untimed, before each block: allocations return, clocks settle
    block_s: float
    # Interleaving takes the drift out, so that the warm-up need not wait for the last of it.
    warmup: Protocol
    ahead: int = 2  # pairs that import while one is built; few cores have enough to do with one
    steps: range = range(0)  # that blocks have to time; empty: whichever come
    # How far the second block of the first pairs reaches, in seconds of load: as far as a launch
    # beside a stored baseline does, and to step REACH_STEPS where that takes no longer than twice.
    reach_s: float = 0.0


@dataclass(frozen=True)
class _Blocks:
    """Counts the steps of a pair's blocks, alike on both sides."""

    lead: int  # untimed, before each
    timed: int  # in each
    begins: tuple[int, int]  # at the earliest, the first and the second


def _blocks(timing: PairTiming, number: int, far: bool, *launches: RunningLaunch) -> _Blocks:
    # The faster side needs more steps. All of ``launches`` have warmed up.
    step_s = min(launch.warmup.step_s for launch in launches)
    lead = max(1, round(timing.lead_s / step_s))
    timed = max(block_steps(timing.block_s, step_s), (len(timing.steps) + 1) // BLOCKS)
    # Untimed steps lie between the two blocks. Every second pair begins by so many steps earlier,
    # so that it times what the one before it did not.
    first = timing.steps.start - (lead if number % 2 == 0 else 0)
    second = _reach(timing, step_s) - timed if far and not timing.steps else 0
    return _Blocks(lead, timed, (first, second))


def _reach(timing: PairTiming, step_s: float) -> int:
    """Return the step, from the first, that a far pair's last block ends at."""
    usual = round(timing.reach_s / step_s)
    return max(usual, REACH_STEPS) if REACH_STEPS <= 2 * usual else usual


class Pair:
    """Two launches, HEAD's and the other tree's, which import from now on; ``standby``: their
    agents alone, until release().
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
        """Build both, ``at_once`` if memory allows; then they are parked."""
        RunningLaunch.expect(*self.launches)
        if at_once:
            self._build_at_once()
        for launch in self.launches:
            if not at_once:
                launch.build()
            launch.park()

    def _build_at_once(self) -> None:
        self._ticker(f"pair {self._number}: build and first step")
        # Not in a with: leaving one waits for the threads, and they for groups that only the
        # caller's stack closes.
        pool = ThreadPoolExecutor(len(self.launches))
        futures = [pool.submit(launch.build, quietly=True) for launch in self.launches]
        pool.shutdown(wait=False)
        self._wait(lambda: all(future.done() for future in futures))
        for future in futures:
            future.result()

    def run(self, order: Sequence[int], nobody_imports: Callable[[], bool], far: bool) -> None:
        """Warm up, then run blocks in ``order``, all of them while ``nobody_imports``; ``far``: the
        second ones reach as far as launches beside a stored baseline do.
        """
        first, second = self.launches[order[0]], self.launches[order[1]]
        most = self._timing.steps.start // 2
        # The one whose block comes first warms up last, and goes on without being parked.
        second.warm_up(most=most)
        second.park()
        # Imports of the next pairs may disturb that warm-up, and nothing that follows it.
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
    """Run a launch of each side, the second when the first has ended, for trees that do not fit
    the card together; return them in the order of ``sides``.
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
    """Run untimed steps, then a timed block of those steps that ``other`` timed in its block of
    this number, if it has.
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
