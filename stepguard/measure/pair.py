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
from dataclasses import dataclass, replace

from stepguard.measure.running_launch import RunningLaunch, block_steps
from stepguard.measure.warmup import Protocol
from stepguard.measure.workers import CaseWorkers

HEAD, BASE = 0, 1
SIDES = ("head", "base")
ORDERS = ((BASE, HEAD, HEAD, BASE), (HEAD, BASE, BASE, HEAD))
BLOCKS = 2  # of each side of a pair


@dataclass(frozen=True)
class PairTiming:
    """How long each launch of a pair runs, in seconds."""

    lead_s: float  # untimed, before each block: allocations return, clocks settle
    block_s: float
    # Interleaving takes the drift out, so that the warm-up need not wait for the last of it.
    warmup: Protocol
    ahead: int = 2  # pairs that import while one is built; few cores have enough to do with one
    steps: range = range(0)  # that blocks have to time; empty: whichever come
    # Untimed steps lie between the two blocks. With ``early`` both begin by so many steps earlier,
    # so that a pair times what the one before it did not.
    early: bool = False

    def as_dict(self) -> dict[str, float]:
        """Return what the noise of pairs depends on, as a calibration keeps it. ``steps`` are no
        part of it: they only make blocks longer.
        """
        return {
            "lead_s": self.lead_s,
            "block_s": self.block_s,
            "warmup_min_s": self.warmup.warmup_min_s,
            "same_steps": 1.0,  # of both sides; blocks of unequal steps were noisier
        }


@dataclass(frozen=True)
class BlockLength:
    """Steps of a block of a pair, alike on both sides."""

    lead: int  # untimed, before it
    timed: int

    @classmethod
    def of(cls, launch: RunningLaunch, timing: PairTiming) -> "BlockLength":
        """Return what a launch needs that has warmed up."""
        step_s, both = launch.warmup.step_s, (len(timing.steps) + 1) // BLOCKS
        timed = max(block_steps(timing.block_s, step_s), both)
        return cls(max(1, round(timing.lead_s / step_s)), timed)

    def at_least(self, other: "BlockLength") -> "BlockLength":
        """Return the longer one of the two: the faster side needs more steps."""
        return BlockLength(max(self.lead, other.lead), max(self.timed, other.timed))


class Pair:
    """Two launches, HEAD's and the other tree's, which import from now on; ``standby``: their
    torchruns alone, until release().
    """

    def __init__(
        self,
        number: int,
        sides: Sequence[CaseWorkers],
        timing: PairTiming,
        standby: bool = False,
    ) -> None:
        self._number, self._timing = number, _of_pair(timing, number)
        self._ticker = sides[HEAD].progress
        self.launches = [
            RunningLaunch(workers, f"pair {number} {name}", timing.warmup, standby=standby)
            for name, workers in zip(SIDES, sides, strict=True)
        ]

    def release(self) -> None:
        """Let the ranks import, too."""
        for launch in self.launches:
            launch.release()

    def hello(self) -> None:
        """Wait until both have imported all."""
        for launch in self.launches:
            launch.hello()

    def build(self, at_once: bool) -> None:
        """Build both, ``at_once`` if memory allows; then they are parked."""
        RunningLaunch.expect(*self.launches)
        if at_once:
            self._build_at_once()
            return
        for launch in self.launches:
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
        for launch in self.launches:
            launch.park()

    def run(self, order: Sequence[int], nobody_imports: Callable[[], bool]) -> None:
        """Warm up, then run blocks in ``order``, all of them while ``nobody_imports``."""
        self._ticker(f"pair {self._number}: wait until nobody imports")
        began = time.monotonic()
        self._wait(nobody_imports)
        for launch in self.launches:
            launch.grant(time.monotonic() - began)
        first, second = self.launches[order[0]], self.launches[order[1]]
        second.warm_up(most=self._timing.steps.start // 2)
        second.park()
        first.warm_up(windows=second.warmup.windows, most=self._timing.steps.start // 2)
        length = BlockLength.of(first, self._timing).at_least(BlockLength.of(second, self._timing))
        for before, now in zip([order[0], *order], order, strict=False):
            if before != now:
                self.launches[before].park()
            _block(self.launches[now], self.launches[1 - now], length, self._timing)
        for launch in self.launches:
            launch.leave()

    def _wait(self, until: Callable[[], bool]) -> None:
        while not until():
            self._ticker.tick()
            time.sleep(0.02)

    def torchruns_ready(self) -> bool:
        """Tell whether both torchruns have imported."""
        return all(launch.torchrun_ready() for launch in self.launches)

    def ready(self) -> bool:
        """Tell whether both have imported all: they must not do so beside a timed block."""
        return all(launch.ready() for launch in self.launches)

    def close(self) -> None:
        """End both at once; their memory is free then."""
        for launch in self.launches:
            launch.close()


def one_after_the_other(
    number: int, sides: Sequence[CaseWorkers], order: Sequence[int], timing: PairTiming
) -> list[RunningLaunch]:
    """Run a launch of each side, the second when the first has ended, for trees that do not fit
    the card together; return them in the order of ``sides``.
    """
    timing = _of_pair(timing, number)
    done: dict[int, RunningLaunch] = {}
    length = None
    for index in order[:BLOCKS]:
        label = f"pair {number} {SIDES[index]}"
        launch, other = RunningLaunch(sides[index], label, timing.warmup), done.get(1 - index)
        build_alone(launch)
        windows = other.warmup.windows if other else ()
        launch.warm_up(windows=windows, most=timing.steps.start // 2)
        length = length or BlockLength.of(launch, timing)
        for _ in range(BLOCKS):
            _block(launch, other, length, timing)
        launch.leave()
        done[index] = launch
    return [done[index] for index in range(len(sides))]


def build_alone(launch: RunningLaunch) -> None:
    """Import, build and run the first step of a launch that has the GPUs to itself."""
    launch.hello()
    RunningLaunch.expect(launch)
    launch.build()


def _of_pair(timing: PairTiming, number: int) -> PairTiming:
    return replace(timing, early=number % 2 == 0)


def _block(
    launch: RunningLaunch, other: RunningLaunch | None, length: BlockLength, timing: PairTiming
) -> None:
    """Run untimed steps, then a timed block of those steps that ``other`` timed in its block of
    this number, if it has.
    """
    number, begin = len(launch.blocks), launch.ran + length.lead
    if number == 0:
        begin = max(begin, timing.steps.start - length.lead * timing.early)
    if other and len(other.blocks) > number:
        begin = max(begin, other.blocks[number].ran or 0)
    elif other:
        begin = max(begin, other.ran + length.lead)
    if begin - launch.ran > length.timed:
        launch.show(f"{begin - launch.ran} steps that are not timed")
    while launch.ran < begin:
        launch.run(min(length.timed, begin - launch.ran))
    launch.timed_block(length.timed, of=BLOCKS)
