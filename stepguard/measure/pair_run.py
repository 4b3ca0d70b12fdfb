"""Compare HEAD's tree with another one (A/B) by pairs of launches of one case, on one machine.

First each tree has a counting launch, which also fills the compile cache that both share. Then come
the pairs (pair.py). If the two trees do not fit into memory together, their launches run one after
the other. The first pairs end with a profile of each launch if kernels differ (changed_kernels.py).

No launch imports beside a timed block. A launch imports torch in its agent, and then the compiler
and the workload in its ranks. Together that takes longer than building a pair. So while a pair is
built, the ranks of the next pair and the agents of the one after it import.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stepguard.core.case import Case
from stepguard.core.comparison import Comparison, LaunchPair, judged, judges_ungated_time
from stepguard.core.device import CPU, GPU, is_gpu
from stepguard.core.evidence import Evidence
from stepguard.core.margins import ALPHA
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.reasons import Reason
from stepguard.judge.judge_pairs import wants_another_pair
from stepguard.judge.pair_statistics import out_of_line
from stepguard.judge.rules import changed_kernels, mean_on_cpu
from stepguard.judge.rules.identical_step import enough, why_not_identical
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

FULL = 0.9  # share of the card's memory; if two groups need more, they are not built together
COUNTING = "counting launch"  # the first launch of a tree
MOST_REPLACED = 3  # pairs that may be replaced; with more the machine is noisy, and they count
# On an H200 at its power cap the steps scatter, not the launches, so only timed seconds help. More
# pairs are better than longer ones, since they also show the scatter. A pair has 13.5 s of load, of
# which 8 s are timed: 8 pairs take two minutes of GPU time, 22 take five.
# A profile of a launch takes 5 s more.
PAIR_TIMINGS = {
    GPU: PairTiming(0.5, 2.0, Protocol(1.5, 20.0, 0.5, 0.02, blocks=2, block_s=2.0), reach_s=11.0),
    CPU: PairTiming(
        0.1, 0.5, Protocol(0.5, 2.0, 0.25, 0.1, blocks=2, block_s=0.5), ahead=1, reach_s=2.0
    ),
}


@dataclass(frozen=True)
class PairsWanted:
    """How many pairs to measure, which steps they time, and at which level they are judged."""

    budget_s: float  # for all pairs; no pair begins after it, except for the first
    wants_another: Callable[[Comparison], bool] = wants_another_pair
    alpha: float = ALPHA  # the case's level, given the number of cases in its run
    steps: range = range(0)  # the steps that blocks must time, counted from the first; empty: any
    # Files in which the trees differ; None: not known. If they are known, few pairs are enough for
    # a step that is the same.
    files: tuple[str, ...] | None = None
    # Returns the comparison of an earlier run whose SLOWER still holds for HEAD's evidence; None if
    # there is none.
    stays: Callable[[Evidence], Comparison | None] = lambda head: None
    fresh: bool = False  # the user wants pairs even if an earlier run said SLOWER
    # Stores the comparison after each pair, so that SLOWER stays even if the run is ended early.
    # Returns the comparison, marked if its tree changed.
    keep: Callable[[Comparison], Comparison] = lambda so_far: so_far


def measure_ab(
    case: Case,
    benches: tuple[Bench, Bench],
    against: str,
    progress: Progress,
    wanted: PairsWanted,
) -> Comparison:
    """Measure pairs of ``benches``: HEAD's tree, and that of the revision ``against``. Return the
    comparison, which may be that of an earlier run.

    Failures of a workload, a worker or the machine raise nothing: they are faults in the evidence
    of their side.
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
        self.replaced: list[LaunchPair] = []
        self.waiting: LaunchPair | None = None  # a disturbed pair; the next pair says if it counts
        # Pairs that import: the next one in its ranks, the one after it only in its agents.
        self.following: list[Pair] = []
        self.stays: Comparison | None = None  # of an earlier run, if nothing has to be measured

    def measure(self) -> None:
        """Run counting launches and pairs. After a failure stop, and note it on its side."""
        try:
            self._count()
            for number in range(1, 1 + MOST_PAIRS + MOST_REPLACED):
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
            if self.waiting:  # no pair came after this one, so it counts
                self._count_pair(self.waiting)

    def _count(self) -> None:
        # A busy host does not change counts. So other launches import while one counts.
        launches = [RunningLaunch(side, COUNTING, self.timing.warmup) for side in self.sides]
        for launch in launches:
            build_alone(launch)
            if launch is launches[-1]:
                self.following.append(Pair(1, self.sides, self.timing))
            launch.count()
            launch.leave()
            # HEAD's counting launch shows its machine and software, which must be those of the
            # earlier run.
            if launch is launches[HEAD] and self._still_slower():
                return

    def _still_slower(self) -> bool:
        """Set ``stays`` to the comparison of an earlier run whose SLOWER still holds, if there is
        one. Tell whether there is.
        """
        head = self.comparison().head
        self.stays = None if head.faults else self.wanted.stays(head)
        return self.stays is not None

    def _pair(self, number: int) -> LaunchPair:
        """Measure a pair. Raises WorkersFailed."""
        order = ORDERS[(number - 1) % 2]
        if self.together:
            try:
                both = self._pair_at_once(number, order)
            except WorkersFailed as failed:
                # Only the first pair may find that the two trees do not fit together. Each of them
                # fitted alone when it was counted.
                if number > 1 or failed.fault.code != Reason.OUT_OF_MEMORY:
                    raise
                self.together = False
        if not self.together:
            both = one_after_the_other(number, self.sides, order, self.timing, self._far())
        # An unsteady launch is no fault here: both sides run in turns and drift alike. If a step
        # keeps compiling, the counting launch counts that.
        head, base = (replace(launch.measured(number), steady="") for launch in both)
        return LaunchPair(head, base, any(launch.timed_a_compiler for launch in both))

    def _far(self) -> bool:
        """Tell whether the next pair times late steps, too, as the first FAR_PAIRS do."""
        return len(self.sides[HEAD].launches) < FAR_PAIRS

    def _take(self, pair: LaunchPair) -> None:
        """Count a pair, or let it wait for the next one. It waits if one side compiled in a timed
        block, or, on a GPU, if its blocks are out of line. If the next pair is like that, too, both
        count, since it was no accident. Else the next pair replaces the waiting one, which is only
        kept for the record.
        """
        disturbed = self.waiting
        odd = pair.compiled or is_gpu(self.case.device) and out_of_line(pair.head, pair.base)
        # If blocks must time certain steps, a slow block may be the slowdown that is searched for.
        may_wait = odd and not self.timing.steps and len(self.replaced) < MOST_REPLACED
        if disturbed is None and may_wait:
            self.waiting = pair
            return
        if disturbed and not odd:
            self.replaced.append(disturbed)
        elif disturbed:
            self._count_pair(disturbed)
        self._count_pair(pair)
        self.waiting = None

    def _keep(self) -> None:
        """Keep all pairs, also one that waits for the next pair."""
        waits = (self.waiting,) if self.waiting else ()
        self.wanted.keep(replace(self.comparison(), again=(*self.replaced, *waits)))

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
            if self.waiting is None and changed_kernels.wants_profiles(self.comparison()):
                pair.profile(order)
            pair.leave()
        except WorkersFailed:
            # This pair may hold the memory that launches one after the other need. The following
            # pairs would import beside timed blocks.
            for launch in (launch for each in (pair, *self.following) for launch in each.launches):
                launch.group.close()
            self.following = []
            raise
        return pair.launches

    def _start_following(self, number: int) -> None:
        """Start the ranks of the pair after ``number``, and the agents of the one after that. If
        ``number`` is likely the last pair, start the next case's first launch instead.
        """
        if self._hardly_another():
            self.sides[HEAD].start_ahead(COUNTING)
            return
        last = min(number + self.timing.ahead, MOST_PAIRS + len(self.replaced))
        for later in range(number + 1 + len(self.following), last + 1):
            self.following.append(Pair(later, self.sides, self.timing, standby=True))
        for launch in self.following[0].launches if self.following else []:
            launch.release()

    def _hardly_another(self) -> bool:
        """Tell whether this pair is likely the last. It is if no time is judged, if it is enough
        for a step that is the same, or if the rule for kernels that differ, or for a CPU, can end
        the case after it.
        """
        comparison = self.comparison()
        ends = comparison.glance and comparison.pairs == mean_on_cpu.LEAST_PAIRS - 1
        untimed = JUDGED_TIME not in judged(self.case)
        alike = comparison.pairs == enough(comparison) - 1 and not why_not_identical(comparison)
        few = comparison.pairs == changed_kernels.LEAST_PAIRS - 1
        return untimed or alike or ends or few and changed_kernels.wants_profiles(comparison)

    def _nobody_imports(self) -> bool:
        # The next pair is still on standby if hardly another pair will come.
        following = (launch for pair in self.following for launch in pair.launches)
        return all(launch.ready() for launch in following) and self.sides[HEAD].ahead.ready()

    def _both_fit(self) -> bool:
        """Tell whether the peak memory of both trees, as counted, fits on the card together. On a
        CPU it always does.
        """
        if not is_gpu(self.case.device):
            return True
        counts = [workers.counts for workers in self.sides]
        # Reserved bytes count, since both groups' allocators take them from one card.
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
            again=tuple(self.replaced),
            glance=judges_ungated_time(self.case),
            fresh=self.wanted.fresh,
        )
