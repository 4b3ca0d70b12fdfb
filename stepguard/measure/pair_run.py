"""Compare HEAD's tree with another one (A/B) by pairs of launches of one case, on one machine.

The first launches of both trees count, and then are the first pair. Then come the
other pairs (pair.py). A pair ends with a profile of each launch if kernels differ
(changed_kernels.py). If the two trees do not fit into memory together, their launches run one after
the other.

No launch imports beside a timed block. A launch imports torch in its agent, and then the compiler
and the workload in its ranks. Together that takes longer than building a pair. So while a pair is
built, the ranks of the next pair and the agents of the one after it import.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from stepguard.core.case import Case
from stepguard.core.comparison import Comparison, LaunchPair, judged
from stepguard.core.device import is_gpu
from stepguard.core.margins import ALPHA
from stepguard.core.question import Question
from stepguard.core.reasons import Reason
from stepguard.judge.pair_statistics import out_of_line
from stepguard.judge.rule_book import Need, need
from stepguard.judge.rules import decision
from stepguard.judge.sequential_plan import MOST_PAIRS
from stepguard.measure.case_workers import Bench, CaseWorkers, Progress, Ticker, watch
from stepguard.measure.pair import (
    BASE,
    FIRST,
    HEAD,
    ORDERS,
    PAIR_TIMINGS,
    FirstPair,
    Pair,
    PairTiming,
    both_fit,
    count_alone,
    count_once_more,
    one_after_the_other,
)
from stepguard.measure.running_launch import RunningLaunch, WorkersFailed


class FollowingPairs:
    """The pairs of a case that are to come, as far as they have started. They import while another
    one is built or counted: the next one in its ranks, and the one after it only in its agents.
    """

    def __init__(self, sides: Sequence[CaseWorkers], timing: PairTiming) -> None:
        self._sides, self._timing = sides, timing
        self._pairs: list[Pair] = []

    def begin_anew(self) -> None:
        """Let the first pair import, and no other."""
        self.close()
        self._pairs = [Pair(1, self._sides, self._timing)]

    def start(self, number: int, most: int) -> None:
        """Let the ranks of the pair after ``number`` import, and the agents of the one after that.
        ``most`` is the highest number that may come.
        """
        last = min(number + self._timing.ahead, most)
        for later in range(number + 1 + len(self._pairs), last + 1):
            self._pairs.append(Pair(later, self._sides, self._timing, standby=True))
        for launch in self._pairs[0].launches if self._pairs else []:
            launch.release()

    def take(self, number: int) -> Pair:
        """Return the next pair, which has that number, whether it has started or not."""
        return self._pairs.pop(0) if self._pairs else Pair(number, self._sides, self._timing)

    def nobody_imports(self) -> bool:
        """Tell whether all of them have imported, and the next case's launches have, too."""
        launches = (launch for pair in self._pairs for launch in pair.launches)
        return all(launch.ready() for launch in launches) and self._sides[HEAD].ahead.ready()

    def close(self, *others: Pair) -> None:
        """End all of them, and the launches of ``others``."""
        for launch in (launch for pair in (*others, *self._pairs) for launch in pair.launches):
            launch.group.close()
        self._pairs = []


COUNTING = "counting launch"  # has the GPUs to itself
MOST_REPLACED = 3  # pairs that may be replaced; with more the machine is noisy, and they count


def _need(pairs: Comparison) -> Need:
    return need(Question(pairs=pairs))


@dataclass(frozen=True)
class PairsWanted:
    """How many pairs to measure, and at which level they are judged."""

    budget_s: float  # for all pairs; no pair begins after it, except for the first
    need: Callable[[Comparison], Need] = _need  # what the judge needs next
    alpha: float = ALPHA  # the case's level, given the number of cases in its run
    # Stores the comparison after each pair, so that a run that is ended early leaves its pairs.
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
    comparison.

    Failures of a workload, a worker or the machine raise nothing: they are faults in the evidence
    of their side. If the run is ended meanwhile, that is a fault of both sides.
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
    return run.comparison()


class _PairRun:
    def __init__(
        self, case: Case, sides: Sequence[CaseWorkers], against: str, wanted: PairsWanted
    ) -> None:
        self.case, self.sides, self.against, self.wanted = case, sides, against, wanted
        self.timing = PAIR_TIMINGS[case.device]
        self.together, self.out_of_time = True, False
        self.replaced: list[LaunchPair] = []
        self.waiting: LaunchPair | None = None  # a disturbed pair; the next pair says if it counts
        self.following = FollowingPairs(sides, self.timing)

    def measure(self) -> None:
        """Run the first launches and pairs. After a failure stop, and note it on its side. If the
        run is ended meanwhile, stop as well, and note it on both sides.
        """
        try:
            number = 1
            if first := self._first_launches():
                number += 1
                self._take(first)
                self._keep()
            while need := self._need():
                if need.counters:
                    side = self.sides[BASE if need.of_base else HEAD]
                    count_once_more(side, self.timing.warmup, need.counters, COUNTING)
                    continue
                took_s = time.monotonic() - self.sides[HEAD].began
                if number > 1 and took_s > self.wanted.budget_s:
                    self.out_of_time = True
                    return
                self._take(self._pair(number, need))
                self._keep()
                number += 1
        except WorkersFailed as failed:
            failed.workers.faults.append(failed.fault)
        except KeyboardInterrupt as interrupt:
            for side in self.sides:
                side.note_end(interrupt)
        finally:
            if self.waiting:  # no pair came after this one, so it counts
                self._count_pair(self.waiting)

    def _first_launches(self) -> LaunchPair | None:
        """Run each tree's first launch, and count. Return them as the first pair. None if they may
        not be timed, if none is wanted, or if memory is too small for both.
        """
        pair = FirstPair(self.sides, self.timing)
        try:
            for launch in pair.launches:
                launch.hello()
            if is_gpu(self.case.device):  # the counts say if there will be another pair
                self.sides[HEAD].start_ahead(FIRST, self.sides[BASE])
            pair.run_first_steps()
            pair.run_base()
            if both_fit(self.sides):
                return self._count_and_time(pair, ORDERS[0])
        except WorkersFailed as failed:
            if failed.fault.code != Reason.OUT_OF_MEMORY:
                raise
        self.following.close(pair)  # each of them fits alone
        self._count_alone()
        return None

    def _count_and_time(self, pair: FirstPair, order: tuple[int, ...]) -> LaunchPair | None:
        """Count both launches. Then time them as the first pair, unless that is not wanted or they
        may not be timed. Return the pair if it was timed.
        """
        if not pair.may_be_timed:
            self.following.begin_anew()  # a busy host changes no count
        pair.count(order)
        if any(launch.ended for launch in pair.launches):
            # Without the compiler the step needs the memory that the other launch has.
            pair.leave()
            self._count_alone()
            return None
        need = self._need()  # counters that are not settled end no case
        if not (pair.may_be_timed and need):
            pair.locate()
            pair.leave()
            return None
        self._start_following(1, need)
        pair.run(order, self.following.nobody_imports)
        if need.profiled:
            pair.profile(order)
        pair.locate()
        pair.leave()
        return self._measured(1, pair.launches)

    def _count_alone(self) -> None:
        """Count each tree in a launch that has the GPUs to itself."""
        for side in self.sides:
            count_alone(side, self.timing.warmup, COUNTING)

    def _pair(self, number: int, need: Need) -> LaunchPair:
        """Measure a pair. Raises WorkersFailed."""
        order = ORDERS[(number - 1) % 2]
        if self.together:
            try:
                both = self._pair_at_once(number, order, need)
            except WorkersFailed as failed:
                # Only the first pair may find that the two trees do not fit together. Each of them
                # fitted alone when it was counted.
                if number > 1 or failed.fault.code != Reason.OUT_OF_MEMORY:
                    raise
                self.together = False
        if not self.together:
            both = one_after_the_other(number, self.sides, order, self.timing)
        return self._measured(number, both)

    def _measured(self, number: int, both: Sequence[RunningLaunch]) -> LaunchPair:
        # An unsteady launch is no fault here: both sides run in turns and drift alike. If a step
        # keeps compiling, that is counted.
        head, base = (replace(launch.measured(number), steady="") for launch in both)
        return LaunchPair(head, base, any(launch.timed_a_compiler for launch in both))

    def _need(self) -> Need:
        return self.wanted.need(self.comparison())

    def _take(self, pair: LaunchPair) -> None:
        """Count a pair, or let it wait for the next one. It waits if one side compiled in a timed
        block, or, on a GPU, if its blocks are out of line. If the next pair is like that, too, both
        count, since it was no accident. Else the next pair replaces the waiting one, which is only
        kept for the record.
        """
        disturbed = self.waiting
        odd = pair.compiled or is_gpu(self.case.device) and out_of_line(pair.head, pair.base)
        may_wait = odd and len(self.replaced) < MOST_REPLACED
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
        """Keep all pairs, also one that waits for the next pair. Show what they say so far."""
        if decided := decision(self.comparison()):
            self.sides[HEAD].progress.known = f"; step_ms {decided.so_far}"
        waits = (self.waiting,) if self.waiting else ()
        self.wanted.keep(replace(self.comparison(), again=(*self.replaced, *waits)))

    def _count_pair(self, pair: LaunchPair) -> None:
        index = len(self.sides[HEAD].launches) + 1
        if index <= MOST_PAIRS:
            for workers, launch in zip(self.sides, (pair.head, pair.base), strict=True):
                workers.launches.append(replace(launch, index=index))

    def _pair_at_once(self, number: int, order: tuple[int, ...], need: Need) -> list[RunningLaunch]:
        pair = self.following.take(number)
        try:
            for launch in pair.launches:
                launch.hello()
            self._start_following(number, need)
            pair.build(both_fit(self.sides))
            pair.run(order, self.following.nobody_imports)
            if self.waiting is None and need.profiled:
                pair.profile(order)
            pair.leave()
        except WorkersFailed:
            # This pair may hold the memory that launches one after the other need. The following
            # pairs would import beside timed blocks.
            self.following.close(pair)
            raise
        return pair.launches

    def _start_following(self, number: int, need: Need) -> None:
        """Start the pairs after ``number``. If that is likely the last one, start the next case's
        first launches instead.
        """
        if need.last:
            self.sides[HEAD].start_ahead(FIRST, self.sides[BASE])
            return
        self.following.start(number, MOST_PAIRS + len(self.replaced))

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
            again=tuple(self.replaced),
        )
