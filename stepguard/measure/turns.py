"""What launches do that are alive at once: one, or one in each of two trees, in turns.

While one of two launches runs, the other is parked: it waits on the host, and has given its cached
memory back. Both time the same steps, counted from the first: at a power cap a step's speed depends
on the values of the parameters (docs/measurements.md).
"""

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from stepguard.core.device import is_gpu
from stepguard.judge.count_again import counted_again, not_counted_again
from stepguard.measure.case_workers import CaseWorkers, Ticker
from stepguard.measure.plan import HEAD
from stepguard.measure.running_launch import RunningLaunch, block_steps
from stepguard.measure.warm_up import Protocol

COUNTING = "counting launch"
# Before a second launch counts: what a script does by the clock then falls on other steps.
PAUSE_S = 0.37
FULL = 0.9  # share of the card's memory; if two groups need more, they are not built together

Alive = dict[int, RunningLaunch]  # by tree


def both_fit(sides: Sequence[CaseWorkers]) -> bool:
    """Tell whether all trees' peak memory fits on the card together."""
    if not is_gpu(sides[HEAD].case.device):
        return True
    # Reserved bytes count, since both groups' allocators take them from one card. A tree that never
    # ran is taken to need as much as the other one.
    known = [workers.reserved_bytes for workers in sides]
    peaks = [reserved_bytes or max(known) for reserved_bytes in known]
    return 0 < sum(peaks) < FULL * sides[HEAD].gpu_memory_bytes


def build(alive: Alive, label: str, first: bool) -> None:
    """Build the launches, run their first steps, and park them: at once if there is memory. Of the
    ``first`` ones one compiles at a time: the other takes that from the cache, and no trial of a
    kernel is timed beside it.
    """
    launches = [*alive.values()]
    RunningLaunch.expect(*launches)
    sides = [launch.workers for launch in launches]
    ticker, loop = sides[0].progress, sides[0].case.loop is not None
    prepared = len(launches) > 1 and (not loop if first else both_fit(sides))
    if prepared:
        ticker(f"{label}: build and first step")
        _at_once(ticker, launches, lambda launch: launch.prepare(quietly=True))
        if not first:
            _at_once(ticker, launches, _first_step)
            return
    for launch in launches:
        if prepared:
            launch.show("build and first step")
            launch.first_step(quietly=False)
        else:
            launch.build()
        launch.park()


def _first_step(launch: RunningLaunch) -> None:
    """Run a launch's first step, and park it: the other one may need the memory."""
    launch.first_step(quietly=True)
    launch.park(quietly=True)


def count(alive: Alive, order: Sequence[int]) -> None:
    """Count each launch. One that is alone is replaced if it ends for want of memory."""
    for tree in dict.fromkeys(order):
        if len(alive) == 1:
            alive[tree] = let_count(alive[tree])
        else:
            alive[tree].count()
        alive[tree].park()


def run_blocks(
    alive: Alive,
    order: Sequence[int],
    protocol: Protocol,
    label: str,
    quiet: Callable[[], bool],
    done: RunningLaunch | None = None,
) -> None:
    """Warm up, and time blocks of these trees in ``order``. No block is timed until it is
    ``quiet``: until nobody imports. ``done`` is the other launch of the pair, if that ran before.
    """
    trees = [*dict.fromkeys(order)]
    windows = done.warmup.windows if done else ()
    # The launch whose block comes first warms up last, so it need not be parked. A launch that is
    # alone keeps the card busy until it is quiet: a pause would cool it.
    for tree in reversed(trees[1:]):
        alive[tree].warm_up(windows=windows)
        alive[tree].park()
        windows = alive[tree].warmup.windows
        ticker = alive[tree].workers.progress
        ticker(f"{label}: wait until nobody imports")
        _wait(ticker, quiet)
    alive[trees[0]].warm_up(quiet, windows)
    # The faster side needs more steps for its seconds.
    paced = [done] if done else alive.values()
    step_s = min(launch.warmup.step_s for launch in paced)
    lead = max(1, round(protocol.lead_s / step_s)) if protocol.lead_s else 0
    for before, tree in zip([order[0], *order], order, strict=False):
        if before != tree:
            alive[before].park()
        other = done or alive.get(1 - tree)
        _block(alive[tree], other, lead, block_steps(protocol.block_s, step_s), protocol.blocks)


def _block(
    launch: RunningLaunch, other: RunningLaunch | None, lead: int, steps: int, blocks: int
) -> None:
    """Run at least ``lead`` untimed steps, then a block of ``steps``. If ``other`` has already run
    its block of the same number, both time the same steps.
    """
    number, begin = len(launch.blocks), launch.ran + lead
    if other and len(other.blocks) > number:
        begin = max(begin, other.blocks[number].ran or 0)
    elif other:
        begin = max(begin, other.ran + lead)
    if begin > launch.ran:
        launch.run(begin - launch.ran)
    launch.timed_block(steps, of=blocks)


def profile(alive: Alive, order: Sequence[int], lead_s: float, label: str) -> None:
    """Profile a few steps of each launch, after ``lead_s`` of untimed ones and run_blocks() with
    the same ``order``. All profiles are read at once, after all steps, so that reading disturbs no
    step.
    """
    active = order[-1]
    for tree in dict.fromkeys(order):
        if tree != active:
            alive[active].park()
        active = tree
        alive[tree].profile(block_steps(lead_s, alive[tree].warmup.step_s))
    ticker = alive[active].workers.progress
    ticker(f"{label}: kernels of the profiles")
    _at_once(ticker, [*alive.values()], RunningLaunch.read_kernels)


def locate(alive: Alive) -> None:
    """Find the lines of each launch's host syncs. It is the last thing that they do."""
    for launch in alive.values():
        launch.park()
    for launch in alive.values():
        launch.locate()
        launch.park()


def build_alone(launch: RunningLaunch) -> None:
    """Import, build and run the first step of a launch that has the GPUs to itself."""
    launch.hello()
    RunningLaunch.expect(launch)
    launch.build()


def count_alone(workers: CaseWorkers, protocol: Protocol, names: Collection[str]) -> None:
    """Count in a launch that has the GPUs to itself. With ``names`` it counts once more, after a
    pause behind its first step. What both launches say of these counters is kept.
    """
    first = workers.counts
    try:
        launch = RunningLaunch(workers, COUNTING, protocol)
        build_alone(launch)
        if names:
            time.sleep(PAUSE_S)
        launch = let_count(launch)
        launch.locate()
        launch.leave()
    except BaseException:
        if names and first:
            workers.counts = not_counted_again(first, names, f"the {COUNTING} did not end")
        raise
    if names and first:
        assert workers.counts is not None, "a launch that counts leaves its counts"
        workers.counts = counted_again(first, workers.counts, names)


def let_count(launch: RunningLaunch) -> RunningLaunch:
    """Let the launch count. If that ends it, return another that has run the same steps."""
    launch.count()
    if not launch.ended:
        return launch
    other = RunningLaunch(launch.workers, launch.label, launch.protocol)
    build_alone(other)
    other.count_again()
    return other


def _at_once(
    ticker: Ticker, launches: Sequence[RunningLaunch], do: Callable[[RunningLaunch], object]
) -> None:
    # Not in a with statement: at its end it would wait for the threads, and after a failure they
    # wait for groups that only the caller closes.
    pool = ThreadPoolExecutor(len(launches))
    futures = [pool.submit(do, launch) for launch in launches]
    pool.shutdown(wait=False)
    _wait(ticker, lambda: all(future.done() for future in futures))
    for future in futures:
        future.result()


def _wait(ticker: Ticker, until: Callable[[], bool]) -> None:
    while not until():
        ticker.tick()
        time.sleep(0.02)
