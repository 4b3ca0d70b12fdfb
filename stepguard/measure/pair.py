"""One pair of live worker groups, a group of each tree, that take turns on the same machine.

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
from typing import Any

from stepguard.launch.group import WorkerGroup
from stepguard.measure.blocks import Ask
from stepguard.measure.paired_launch import PairedLaunch, PairTiming, Side, build_alone, expect
from stepguard.measure.workers import COMMAND_LIMIT_S, Answers

HEAD, BASE = 0, 1
SIDES = ("head", "base")
ORDERS = ((BASE, HEAD, HEAD, BASE), (HEAD, BASE, BASE, HEAD))


class Pair:
    """Two live groups, HEAD's and the other tree's, which import from now on; ``held``: their
    torchruns alone, until they are released.
    """

    def __init__(
        self, number: int, sides: Sequence[Side], turn: PairTiming, held: bool = False
    ) -> None:
        self.number = number
        self.progress = sides[HEAD].station.progress
        turn = turn.of_pair(number)
        self.both = [PairedLaunch(side, f"pair {number} {side.name}", turn, held) for side in sides]

    def release(self) -> None:
        """Let the ranks import, too."""
        for live in self.both:
            live.group.release()

    def hello(self) -> None:
        """Wait until both have imported all."""
        for live in self.both:
            live.hello()

    def build(self, at_once: bool) -> None:
        """Build both, ``at_once`` if memory allows; then they are parked."""
        expect(*self.both)
        self.progress(f"pair {self.number}: build and first step")
        if at_once:
            self._build_at_once()
            return
        for live in self.both:
            live.first_step()
            live.park()

    def _build_at_once(self) -> None:
        # Not in a with: leaving one waits for the threads, and they for groups that only the
        # caller's stack closes.
        pool = ThreadPoolExecutor(len(self.both))
        futures = [pool.submit(live.first_step, _quietly(live.group)) for live in self.both]
        pool.shutdown(wait=False)
        while not all(future.done() for future in futures):
            self.progress.tick()
            time.sleep(0.02)
        for future in futures:
            future.result()
        for live in self.both:
            live.park()

    def take_turns(self, order: Sequence[int], following: Callable[[], bool]) -> None:
        """Warm up, then blocks in ``order``, all of them when ``following`` says that nobody
        imports.
        """
        self.progress(f"pair {self.number}: wait until nobody imports")
        began = time.monotonic()
        while not following():
            self.progress.tick()
            time.sleep(0.02)
        for live in self.both:
            live.group.began += time.monotonic() - began  # the wait is none of its time
        first, second = self.both[order[0]], self.both[order[1]]
        second.warm_up()
        second.park()
        first.warm_up(second)
        for before, now in zip([order[0], *order], order, strict=False):
            if before != now:
                self.both[before].park()
            self.both[now].block(self.both[1 - now])
        for live in self.both:
            live.leave()

    def stands(self) -> bool:
        """Whether both torchruns have imported."""
        return all(live.stands() for live in self.both)

    def ready(self) -> bool:
        """Whether both have imported all: they must not do so beside a timed block."""
        return all(live.ready() for live in self.both)

    def close(self) -> None:
        """End both at once; their memory is free then."""
        for live in self.both:
            live.group.close()


def one_after_the_other(
    number: int, sides: Sequence[Side], order: Sequence[int], turn: PairTiming
) -> list[PairedLaunch]:
    """A launch of each side, the second when the first has ended, for trees that do not fit
    together; in the order of ``sides``.
    """
    both: dict[int, PairedLaunch] = {}
    for which in order[:2]:
        live = PairedLaunch(
            sides[which], f"pair {number} {sides[which].name}", turn.of_pair(number)
        )
        other = both.get(1 - which)
        build_alone(live)
        live.warm_up(other)
        live.block(other)
        live.block(other)
        live.leave()
        both[which] = live
    return [both[which] for which in range(len(sides))]


def _quietly(group: WorkerGroup) -> Ask:
    """Asks from another thread: only the main one samples the machine and tells progress."""

    def ask(command: str, *, limit_s: float = COMMAND_LIMIT_S, **arguments: Any) -> Answers:
        return group.request(
            command, limit_s=limit_s, poll=_nothing, progress=_nothing, **arguments
        )

    return ask


def _nothing(*told: object) -> None:
    pass
