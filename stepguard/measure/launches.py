"""Plan the launches of one case in one tree, run them one after the other, and return evidence.

While a launch compiles and warms up, the next one starts and imports torch, if it will likely be
wanted. The first judged block waits until that import has ended. A launch that is not wanted after
all is ended. During the launch that is likely the last one, the next case's first launch imports.
"""

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from stepguard.core.case import Case
from stepguard.core.comparison import gates_times
from stepguard.core.device import is_gpu
from stepguard.core.evidence import Difference, Evidence
from stepguard.core.metrics import JUDGED_TIME, METRICS
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.measure.case_workers import Bench, CaseWorkers, Progress, Ticker, watch
from stepguard.measure.combine_ranks import Answers
from stepguard.measure.differences import DIFFERENCES, measure_difference
from stepguard.measure.launch_durations import protocol_of
from stepguard.measure.pair import build_alone, count_once_more, let_count
from stepguard.measure.running_launch import COMPILE_LIMIT_S, RunningLaunch, block_steps

PROFILE_LEAD_S = 0.5  # steps before the profile: a difference may have left other clocks
FIRST = "launch 1"


@dataclass(frozen=True)
class PlannedLaunch:
    """A launch, and what it does: time blocks, count, measure differences."""

    label: str
    timed: bool
    count: bool
    differences: tuple[str, ...] = ()

    @property
    def only_timed(self) -> bool:
        """Tell whether the launch only adds times to those of the case's other launches."""
        return self.timed and not (self.count or self.differences)


@dataclass(frozen=True)
class Enough:
    """Tells whether what was measured so far is enough: more would hardly change the verdict."""

    launches: Callable[[Evidence], bool]
    # Of segments. The evidence does not contain the difference yet.
    pairs: Callable[[Evidence, Difference], bool]


def planned_launches(case: Case) -> list[PlannedLaunch]:
    """Return the launches of a case, in order.

    The first launch counts, then times blocks, then measures differences.
    """
    counted = any(METRICS[name].kind == "counter" for name in case.gates)
    compared = tuple(name for name in DIFFERENCES if f"{name}_pct" in case.gates)
    planned = [PlannedLaunch(FIRST, True, counted, compared)]
    for number in range(2, case.launches + 1):
        planned.append(PlannedLaunch(f"launch {number}", True, False))
    return planned


def measure_launches(
    case: Case,
    bench: Bench,
    progress: Progress = lambda text: None,
    wants_another: Callable[[Evidence], bool] = lambda evidence: False,
    enough: Enough | None = None,
    doubtful: Callable[[Evidence], Collection[str]] = lambda evidence: (),
) -> Evidence:
    """Run all launches of a case, and return the evidence. One more launch counts what is
    ``doubtful`` of the counts. ``wants_another`` is asked after the
    planned launches, and after each further one. If ``enough`` says so, the rest of the planned
    launches is left out, unless they do more than time blocks. Failures of a workload or a worker
    raise nothing: they are faults in the evidence. So is the end of the run meanwhile.
    """
    ticker = Ticker(progress)
    with contextlib.ExitStack() as stack:
        monitor, unfit = watch(case, bench, stack, ticker)
        workers = CaseWorkers(case, bench, ticker, monitor, stack)
        run = _CaseRun(workers, bench.more_launches, enough, doubtful)
        if unfit:
            run.workers.faults.append(unfit)
        else:
            run.measure(wants_another)
    return run.evidence()


def ask_ranks(
    case: Case, bench: Bench, progress: Progress, function: str, **arguments: Any
) -> Answers:
    """Return what "module:function" returns in each rank (worker/rank_session.py, do_call). A
    launch of its own calls it after its first step.

    Raises LaunchFailed with the cause.
    """
    ticker = Ticker(progress)
    with contextlib.ExitStack() as stack:
        monitor, unfit = watch(case, bench, stack, ticker)
        if unfit:
            raise LaunchFailed(unfit)
        workers = CaseWorkers(case, bench, ticker, monitor, stack)
        label = function.partition(":")[2].replace("_", " ")
        launch = RunningLaunch(workers, f"{label} launch", protocol_of(case))
        build_alone(launch)
        answers = launch.ask(
            "call", limit_s=COMPILE_LIMIT_S, function=function, arguments=arguments
        )
        launch.leave()
    return [answer.returned for answer in answers]


class _CaseRun:
    def __init__(
        self,
        workers: CaseWorkers,
        more_launches: int,
        enough: Enough | None,
        doubtful: Callable[[Evidence], Collection[str]],
    ) -> None:
        self._doubtful = doubtful
        self.case, self.workers = workers.case, workers
        self.least_launches = self.case.launches  # to be timed; fewer once those are enough
        self.most_launches = self.case.launches + more_launches
        self._enough = enough
        self.protocol = protocol_of(self.case)
        self._planned = planned_launches(self.case)  # the planned launches to come
        self._importing: dict[str, RunningLaunch] = {}  # by label
        self.differences: list[Difference] = []

    def measure(self, wants_another: Callable[[Evidence], bool]) -> None:
        """Run the planned launches, and as many more as are wanted. After a failure stop."""
        try:
            # An unsteady launch decides the verdict, however many launches follow.
            while self._planned and not self._unsteady():
                plan = self._planned.pop(0)
                if self._may_leave_out(plan):
                    continue
                self._run(plan, self._following(wants_another))
                if plan.count and (names := self._doubtful(self.evidence())):
                    count_once_more(self.workers, self.protocol, names, "counting launch")
            self._more_launches(wants_another)
        except LaunchFailed as failed:
            self.workers.faults.append(failed.fault)
        except KeyboardInterrupt as interrupt:
            self.workers.note_end(interrupt)

    def _unsteady(self) -> bool:
        """Tell whether a launch of a case that gates times never got steady."""
        gated = JUDGED_TIME in self.case.gates
        return gated and any(launch.steady for launch in self.workers.launches)

    def _may_leave_out(self, plan: PlannedLaunch) -> bool:
        """Tell whether a planned launch may be left out, since the timed ones are enough."""
        done = len(self.workers.launches)
        if self._enough is None or not done or not plan.only_timed:
            return False
        if not self._enough.launches(replace(self.evidence(), planned_launches=done)):
            return False
        self.least_launches = done
        return True

    def _likely_last(self) -> bool:
        """Tell whether the launch that runs is likely the last: it is the first timed one, and one
        is enough if nothing has changed.
        """
        rest_only_timed = all(plan.only_timed for plan in self._planned)
        first = self._enough is not None and not self.workers.launches
        return not self._planned or first and rest_only_timed

    def _following(self, wants_another: Callable[[Evidence], bool]) -> PlannedLaunch | None:
        """Return the launch of this case that imports while the one before it runs; None if it is
        likely not wanted.
        """
        if self._planned:
            return None if self._likely_last() else self._planned[0]
        return self._one_more(2) if self._may_want(wants_another) else None

    def _more_launches(self, wants_another: Callable[[Evidence], bool]) -> None:
        """Run launches as long as one more is wanted. End a launch that imported for nothing."""
        while self._room(1) and not self._unsteady() and wants_another(self.evidence()):
            self._run(self._one_more(1), self._one_more(2) if self._room(2) else None)
        while self._importing:
            self._importing.popitem()[1].group.close()

    def _room(self, launches: int) -> bool:
        return len(self.workers.launches) + launches <= self.most_launches

    def _may_want(self, wants_another: Callable[[Evidence], bool]) -> bool:
        """Tell whether a launch will likely be wanted after the last planned one, so that it can
        import early. ``wants_another`` is asked as if the launches so far were all planned ones.
        """
        done = len(self.workers.launches)
        so_far = replace(self.evidence(), planned_launches=done)
        return done > 0 and self._room(2) and not self._unsteady() and wants_another(so_far)

    def _one_more(self, ahead: int) -> PlannedLaunch:
        label = f"launch {len(self.workers.launches) + ahead} (close, one more)"
        return PlannedLaunch(label, timed=True, count=False)

    def _start(self, plan: PlannedLaunch) -> RunningLaunch:
        """Start the plan's launch and return it. It imports meanwhile."""
        return RunningLaunch(self.workers, plan.label, self.protocol)

    def _run(self, plan: PlannedLaunch, following: PlannedLaunch | None) -> None:
        """Run one launch to its end. Meanwhile ``following`` imports."""
        launch = self._importing.pop(plan.label, None) or self._start(plan)
        launch.hello()
        if following:
            self._importing[following.label] = self._start(following)
        # The next case starts early even if this case wants another launch.
        if self._likely_last():
            self.workers.start_ahead(FIRST)
        waiting = [launch.ready for launch in self._importing.values()] + [self.workers.ahead.ready]
        RunningLaunch.expect(launch)
        launch.build()
        if plan.count:
            launch = let_count(launch)
        # The compiler tried kernels on memory of its own, and counting took some, which the
        # allocator still caches. Other launches have no such memory. The warm-up lasts until the
        # step has what it needs, and until a card that idled meanwhile is warm.
        launch.park()
        # A launch waits for the others' imports only if times are judged: a busy host changes no
        # count.
        timed = gates_times(self.case)
        launch.warm_up(until=lambda: not timed or all(ready() for ready in waiting))
        if plan.timed:
            self._time(launch)
        for name in plan.differences:
            self._measure_difference(name, launch)
        if plan.count:
            if is_gpu(self.case.device) and plan.timed:
                launch.profile(block_steps(PROFILE_LEAD_S, launch.warmup.step_s))
                launch.read_kernels()
            launch.locate()
        launch.leave()
        launches = self.workers.launches
        if plan.timed:
            launches[-1] = launch.measured(len(launches))  # now with all that followed its blocks

    def _measure_difference(self, name: str, launch: RunningLaunch) -> None:
        asked = self._enough

        def enough(so_far: Difference) -> bool:
            return asked is not None and asked.pairs(self.evidence(), so_far)

        wanted = self.case.difference_pairs
        found = measure_difference(name, launch, wanted, enough if asked else None)
        self.differences.append(found)

    def _time(self, launch: RunningLaunch) -> None:
        steps = block_steps(self.protocol.block_s, launch.warmup.step_s)
        for _ in range(self.protocol.blocks):
            launch.timed_block(steps, of=self.protocol.blocks)
        # The blocks are kept even if the rest of the launch fails.
        launches = self.workers.launches
        launches.append(launch.measured(len(launches) + 1))

    def evidence(self) -> Evidence:
        """Return what is known so far."""
        return self.workers.evidence(
            planned_launches=self.least_launches,
            gates=self.case.gates,
            extended=self.case.extended,
            differences=tuple(self.differences),
        )
