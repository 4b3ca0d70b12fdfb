"""A/B comparison of one case: pairs of launches, HEAD's tree and another one on the same machine.

Each tree's counting pass comes first, in a launch of its own, which also fills the compile cache
that both share. Then pair after pair (pair.py), each of two fresh groups, so that a card that
drifts does so for both. Where memory does not hold both, though each fitted alone, the two are
launched one after the other.

Nobody imports beside a timed block. A launch imports torch in its agent, and then the compiler and
the workload in its ranks: together that takes longer than a pair takes to be built. So while a pair
is built the next one's ranks import, and the agents of the one after it.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stepguard.core.case import Case
from stepguard.core.comparison import Comparison, LaunchPair, glances, judged
from stepguard.core.device import CPU, GPU, is_gpu
from stepguard.core.evidence import Evidence
from stepguard.core.margins import ALPHA
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.reasons import Reason
from stepguard.judge.judge_pairs import wants_another_pair
from stepguard.judge.pair_statistics import out_of_line
from stepguard.judge.rules import mean_on_cpu
from stepguard.judge.rules.identical_step import enough, unlike
from stepguard.judge.sequential_plan import MOST_PAIRS
from stepguard.measure.case_workers import Bench, CaseWorkers, Progress, Ticker, watch
from stepguard.measure.launch_durations import Protocol
from stepguard.measure.pair import (
    FAR_PAIRS,
    HEAD,
    ORDERS,
    Pair,
    PairTiming,
    build_alone,
    one_after_the_other,
)
from stepguard.measure.running_launch import RunningLaunch, WorkersFailed

FULL = 0.9  # of the card's memory: with more, two groups are not built at the same time
COUNTING = "counting launch"  # the first of a tree
MOST_AGAIN = 3  # pairs that others replace; a machine that is always so is judged as noisy
# On an H200 at its power cap it is the steps that scatter, not the launches, so that only timed
# seconds help, and more pairs are worth more than longer ones, whose spread is known less well.
# 13.5 s of load a pair, 8 of them timed: 8 pairs in two minutes of GPU time, 22 in five.
PAIR_TIMINGS = {
    GPU: PairTiming(0.5, 2.0, Protocol(1.5, 20.0, 0.5, 0.02, blocks=2, block_s=2.0), reach_s=11.0),
    CPU: PairTiming(
        0.1, 0.5, Protocol(0.5, 2.0, 0.25, 0.1, blocks=2, block_s=0.5), ahead=1, reach_s=2.0
    ),
}


@dataclass(frozen=True)
class PairsWanted:
    """Says how many pairs to measure, which steps they time, and which rule judges them."""

    budget_s: float  # for all of them; the pair that runs when it is over is completed
    wants_another: Callable[[Comparison], bool] = wants_another_pair
    alpha: float = ALPHA  # the level of the case among those of its run
    steps: range = range(0)  # of all that are timed, counted from the first; empty: any
    # In which the trees differ: where it is known, a step that is the same is timed by few pairs.
    files: tuple[str, ...] | None = None
    # Gives the comparison of an earlier run whose SLOWER still holds for HEAD's evidence, if any.
    stays: Callable[[Evidence], Comparison | None] = lambda head: None
    fresh: bool = False  # it was asked for, though an earlier run may have said SLOWER
    # Called after each pair, so that SLOWER stays also where somebody ends the run before its end.
    # Returns them, marked if their tree changed meanwhile.
    keep: Callable[[Comparison], Comparison] = lambda so_far: so_far


def measure_ab(
    case: Case,
    benches: tuple[Bench, Bench],
    against: str,
    progress: Progress,
    wanted: PairsWanted,
) -> Comparison:
    """Measure pairs of ``benches``: HEAD's tree, and that of the revision ``against``.

    Never raises for what a workload, a worker or the machine does: that is a fault in the evidence
    of its side.
    """
    ticker = Ticker(progress)
    with contextlib.ExitStack() as stack:
        monitor, unfit = watch(case, benches[HEAD], stack, ticker)
        sides = [CaseWorkers(case, bench, ticker, monitor, stack) for bench in benches]
        run = _PairRun(case, sides, against, wanted)
        if unfit:
            sides[HEAD].faults.append(unfit)
        else:
            run.measure()
    return run.stays or run.comparison()


class _PairRun:
    def __init__(
        self, case: Case, sides: Sequence[CaseWorkers], against: str, wanted: PairsWanted
    ) -> None:
        self.case, self.sides, self.against, self.wanted = case, sides, against, wanted
        self.timing = replace(PAIR_TIMINGS[case.device], steps=wanted.steps)
        self.together, self.out_of_time = True, False
        self.again: list[LaunchPair] = []
        self.aside: LaunchPair | None = None  # one that waits for the next
        self.following: list[Pair] = []  # they import: the next one, and of a second the agents
        self.stays: Comparison | None = None  # of an earlier run: nothing is measured again

    def measure(self) -> None:
        """Run counting passes and pairs; what fails is noted on its side, and ends it."""
        try:
            self._count()
            for number in range(1, 1 + MOST_PAIRS + MOST_AGAIN):
                counted = len(self.sides[HEAD].launches)
                if self.stays or counted == MOST_PAIRS:
                    return
                if not self.wanted.wants_another(self.comparison()):
                    return
                took_s = time.monotonic() - self.sides[HEAD].began
                if number > 1 and took_s > self.wanted.budget_s:
                    self.out_of_time = True
                    return
                self._take(self._pair(number))
                self._keep()
        except WorkersFailed as failed:
            failed.workers.faults.append(failed.fault)
        finally:
            if self.aside:  # none came after it, so that it counts
                self._count_pair(self.aside)

    def _count(self) -> None:
        # Counts do not mind a busy host: the next launches import meanwhile.
        launches = [RunningLaunch(side, COUNTING, self.timing.warmup) for side in self.sides]
        for launch in launches:
            build_alone(launch)
            if launch is launches[-1]:
                self.following.append(Pair(1, self.sides, self.timing))
            launch.count()
            launch.leave()
            # As soon as it is known what HEAD runs on, and with.
            if launch is launches[HEAD] and self._still_slower():
                return

    def _still_slower(self) -> bool:
        """Take the comparison of an earlier run whose SLOWER stays."""
        head = self.comparison().head
        self.stays = None if head.faults else self.wanted.stays(head)
        return self.stays is not None

    def _pair(self, number: int) -> LaunchPair:
        """Measure a pair."""
        order = ORDERS[(number - 1) % 2]
        if self.together:
            try:
                both = self._pair_at_once(number, order)
            except WorkersFailed as failed:
                # Each of them fitted alone, when it was counted.
                if number > 1 or failed.fault.code != Reason.OUT_OF_MEMORY:
                    raise
                self.together = False
        if not self.together:
            both = one_after_the_other(number, self.sides, order, self.timing, self._far())
        # Not steady is no fault here: alternation takes the drift out, and a step that keeps
        # compiling is counted.
        head, base = (replace(launch.measured(number), steady="") for launch in both)
        return LaunchPair(head, base, any(launch.timed_a_compiler for launch in both))

    def _far(self) -> bool:
        """Tell whether the next pair reaches far, as the first ones do."""
        return len(self.sides[HEAD].launches) < FAR_PAIRS

    def _take(self, pair: LaunchPair) -> None:
        """Count a pair. One waits for the next if it compiled in a timed block, which one side
        alone does, or on a GPU if its blocks are out of line: if that is so, too, it was no
        accident and both count; else the first is only kept.
        """
        disturbed = self.aside
        odd = pair.compiled or is_gpu(self.case.device) and out_of_line(pair.head, pair.base)
        # Where steps are asked for, what is in one block alone is what is looked for.
        may_wait = odd and not self.timing.steps and len(self.again) < MOST_AGAIN
        if disturbed is None and may_wait:
            self.aside = pair
            return
        if disturbed and not odd:
            self.again.append(disturbed)
        elif disturbed:
            self._count_pair(disturbed)
        self._count_pair(pair)
        self.aside = None

    def _keep(self) -> None:
        """Keep what there is; a pair that waits for the next one, too."""
        waits = (self.aside,) if self.aside else ()
        self.wanted.keep(replace(self.comparison(), again=(*self.again, *waits)))

    def _count_pair(self, pair: LaunchPair) -> None:
        index = len(self.sides[HEAD].launches) + 1
        if index <= MOST_PAIRS:
            for workers, launch in zip(self.sides, (pair.head, pair.base), strict=True):
                workers.launches.append(replace(launch, index=index))

    def _pair_at_once(self, number: int, order: tuple[int, ...]) -> list[RunningLaunch]:
        pair = self.following.pop(0) if self.following else Pair(number, self.sides, self.timing)
        try:
            for launch in pair.launches:
                launch.hello()
            self._start_following(number)
            pair.build(self._both_fit())
            pair.run(order, self._nobody_imports, self._far())
        except WorkersFailed:
            # Launches one after the other may need its memory; and the pairs that follow would
            # import beside timed blocks.
            for launch in (launch for each in (pair, *self.following) for launch in each.launches):
                launch.group.close()
            self.following = []
            raise
        return pair.launches

    def _start_following(self, number: int) -> None:
        """Start the pairs behind ``number``: ranks of the next one, agents of a second; or, where
        there will hardly be another one, the next case's first launch.
        """
        if self._hardly_another():
            self.sides[HEAD].start_ahead(COUNTING)
            return
        last = min(number + self.timing.ahead, MOST_PAIRS + len(self.again))
        for later in range(number + 1 + len(self.following), last + 1):
            self.following.append(Pair(later, self.sides, self.timing, standby=True))
        for launch in self._next():
            launch.group.release()

    def _hardly_another(self) -> bool:
        """Tell whether the pair that begins is likely the last one: no time is judged, it is enough
        for a step that is the same, or most cases of a CPU end after it.
        """
        comparison = self.comparison()
        ends = comparison.glance and comparison.pairs == mean_on_cpu.LEAST_PAIRS - 1
        untimed = JUDGED_TIME not in judged(self.case)
        alike = comparison.pairs == enough(comparison) - 1 and not unlike(comparison)
        return untimed or alike or ends

    def _next(self) -> list[RunningLaunch]:
        return self.following[0].launches if self.following else []

    def _nobody_imports(self) -> bool:
        standby = [launch for pair in self.following[1:] for launch in pair.launches]
        imported = all(launch.imported() for launch in standby) and self.sides[HEAD].ahead.ready()
        return all(launch.ready() for launch in self._next()) and imported

    def _both_fit(self) -> bool:
        """Tell whether the counted peaks fit the card at the same time; always on a CPU."""
        if not is_gpu(self.case.device):
            return True
        counts = [workers.counts for workers in self.sides]
        # Reserved bytes, since the allocators of both groups take these from one card.
        peaks = [c.information.get("peak_reserved_bytes", 0.0) for c in counts if c]
        total_bytes = self.sides[HEAD].gpu_memory_bytes
        return len(peaks) == len(self.sides) and all(peaks) and sum(peaks) < FULL * total_bytes

    def comparison(self) -> Comparison:
        """Return what is known so far."""
        head, base = (
            workers.evidence(planned_launches=1, gates=judged(self.case)) for workers in self.sides
        )
        return Comparison(
            self.against,
            head,
            base,
            alpha=self.wanted.alpha,
            together=self.together,
            out_of_time=self.out_of_time,
            files=self.wanted.files,
            again=tuple(self.again),
            glance=glances(self.case),
            fresh=self.wanted.fresh,
        )
