"""Plan the launches of one case in one tree, run them one after the other, and return evidence.

While a launch compiles and warms up, the next one starts and imports torch, if it will likely be
wanted. The first judged block waits until that import has ended. A launch that is not wanted after
all is ended. During the launch that is likely the last one, the next case's first launch imports.
"""

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stepguard.core.case import Case
from stepguard.core.comparison import gates_times
from stepguard.core.device import is_gpu
from stepguard.core.evidence import Block, Difference, Evidence
from stepguard.core.metrics import METRICS
from stepguard.core.question import Question
from stepguard.judge.rule_book import Need
from stepguard.judge.rule_book import need as judges_need
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.measure.case_workers import Bench, CaseWorkers, Progress, Ticker, watch
from stepguard.measure.combine_ranks import Answers
from stepguard.measure.pair import build_alone, count_once_more, let_count
from stepguard.measure.running_launch import COMPILE_LIMIT_S, RunningLaunch, block_steps
from stepguard.measure.warm_up import Protocol, protocol_of

PROFILE_LEAD_S = 0.5  # steps before the profile: a difference may have left other clocks
FIRST = "launch 1"
LIMIT_S = 120.0  # in addition to three times the expected time of the segments
FEW_PAIRS = 4  # of a first series that may be enough; an even number
DIFFERENCES = ("sync_overhead",)


def measure_launches(
    case: Case,
    bench: Bench,
    progress: Progress = lambda text: None,
    need: Callable[[Evidence], Need] = lambda so_far: judges_need(
        Question(so_far, everything=True)
    ),
    certain: Callable[[Evidence, Difference], bool] | None = None,
) -> Evidence:
    """Run the launches that the judge needs, and return the evidence. Segments of a difference end
    once it is ``certain``; the evidence does not contain it yet. Failures of a workload or a worker
    raise nothing: they are faults in the evidence. So is the end of the run meanwhile.
    """
    ticker = Ticker(progress)
    with contextlib.ExitStack() as stack:
        monitor, unfit = watch(case, bench, stack, ticker)
        workers = CaseWorkers(case, bench, ticker, monitor, stack)
        run = _CaseRun(workers, need, certain)
        if unfit:
            run.workers.faults.append(unfit)
        else:
            run.measure()
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
        need: Callable[[Evidence], Need],
        certain: Callable[[Evidence, Difference], bool] | None,
    ) -> None:
        self._need, self._certain = need, certain
        self.case, self.workers = workers.case, workers
        self.least_launches = self.case.launches  # to be timed; fewer once those are enough
        self.protocol = protocol_of(self.case)
        # Labels of the planned launches to come. The first one counts and measures differences.
        self._planned = [FIRST, *(f"launch {n}" for n in range(2, self.case.launches + 1))]
        self._importing: dict[str, RunningLaunch] = {}  # by label
        self.differences: list[Difference] = []

    def measure(self) -> None:
        """Run the planned launches. After a failure stop."""
        try:
            while (need := self._need(self.evidence())).counters or need.launch:
                if need.counters:
                    count_once_more(self.workers, self.protocol, need.counters, "counting launch")
                else:
                    self._run(self._planned.pop(0), last=need.last)
            self.least_launches = len(self.workers.launches)  # they are enough
            while self._importing:  # it is not wanted after all
                self._importing.popitem()[1].group.close()
        except LaunchFailed as failed:
            self.workers.faults.append(failed.fault)
        except KeyboardInterrupt as interrupt:
            self.workers.note_end(interrupt)

    def _start(self, label: str) -> RunningLaunch:
        """Start a launch and return it. It imports meanwhile."""
        return RunningLaunch(self.workers, label, self.protocol)

    def _run(self, label: str, last: bool) -> None:
        """Run one launch to its end. Meanwhile the next one imports: this case's, or the next
        case's if it is likely the ``last``.
        """
        launch, case = self._importing.pop(label, None) or self._start(label), self.case
        counts = label == FIRST and any(METRICS[name].kind == "counter" for name in case.gates)
        launch.hello()
        if last:
            self.workers.start_ahead(FIRST)
        elif self._planned:
            following = self._planned[0]
            self._importing[following] = self._start(following)
        waiting = [launch.ready for launch in self._importing.values()] + [self.workers.ahead.ready]
        RunningLaunch.expect(launch)
        launch.build()
        if counts:
            launch = let_count(launch)
        # The compiler tried kernels on memory of its own, and counting took some, which the
        # allocator still caches. Other launches have no such memory. The warm-up lasts until the
        # step has what it needs, and until a card that idled meanwhile is warm.
        launch.park()
        # A launch waits for the others' imports only if times are judged: a busy host changes no
        # count.
        timed = gates_times(case)
        launch.warm_up(until=lambda: not timed or all(ready() for ready in waiting))
        self._time(launch)
        for name in DIFFERENCES:
            if label == FIRST and f"{name}_pct" in case.gates:
                self._measure_difference(name, launch)
        if counts:
            if is_gpu(case.device):
                launch.profile(block_steps(PROFILE_LEAD_S, launch.warmup.step_s))
                launch.read_kernels()
            launch.locate()
        launch.leave()
        launches = self.workers.launches
        launches[-1] = launch.measured(len(launches))  # now with all that followed its blocks

    def _measure_difference(self, name: str, launch: RunningLaunch) -> None:
        certain = self._certain
        wanted = self.case.difference_pairs
        found = measure_difference(
            name, launch, wanted, certain and (lambda so_far: certain(self.evidence(), so_far))
        )
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


def measure_difference(
    name: str,
    launch: RunningLaunch,
    pairs_wanted: int,
    enough: Callable[[Difference], bool] | None = None,
) -> Difference:
    """Measure segments of the plain variant (P) and the other one (V) as P V V P, series after
    series, until there are ``pairs_wanted`` pairs. The launch must have warmed up.

    If a case wants no more pairs than one series has, the first series has FEW_PAIRS, and
    ``enough`` is asked whether these are enough. A case that wants more pairs wants to know the
    difference itself, not only that it did not move: then ``enough`` is not asked.

    A series in which the machine was disturbed is repeated. Raises LaunchFailed if that happens
    more often than the protocol's ``retries``.
    """
    words, protocol, step_s = name.replace("_", " "), launch.protocol, launch.warmup.step_s
    steps = max(4, round(protocol.segment_s / step_s))
    if pairs_wanted > protocol.pairs_in_a_series:
        enough = None
    pairs: list[tuple[float, float]] = []
    discarded: list[Block] = []
    while (left := pairs_wanted - len(pairs)) > 0:
        in_a_series = protocol.pairs_in_a_series
        if enough is not None:  # first FEW_PAIRS, then the rest
            in_a_series = min(FEW_PAIRS, left + left % 2)
        lead, order = _order(protocol, in_a_series, not pairs)
        left_s = -(-left // in_a_series) * len(order) * steps * step_s
        launch.show(f"{words}, {len(pairs)} of {pairs_wanted} pairs, {left_s:.0f} s to go")
        measure = partial(_series, launch, order, steps)
        _, ranks = launch.undisturbed(measure, discarded, words)
        pairs += pairs_of(ranks, order, lead)
        difference = Difference(name, tuple(pairs))
        if enough is not None and enough(difference):
            break
    return difference


def _order(protocol: Protocol, pairs: int, first: bool) -> tuple[int, list[int]]:
    """Return how many segments of a series do not count, and the variants of all its segments."""
    # The first segment of a series does not count, since a pause came before it. Before the first
    # series more segments run. The warm-up has pauses and segments have none, so the clocks settle
    # anew: without these segments the first pair was 0.4 to 0.9 % too high.
    lead = protocol.settling_segments if first else 1
    return lead, [0] * lead + [0, 1, 1, 0] * (pairs // 2)


def _series(launch: RunningLaunch, order: Sequence[int], steps: int) -> tuple[Block, Answers]:
    """Run the segments of one series. Return the block that spans them, and the ranks' answers. The
    block only shows whether the machine was disturbed and whether the clocks agree.
    """
    seconds = len(order) * steps * launch.warmup.step_s
    ranks = launch.ask("alternate", limit_s=LIMIT_S + 3 * seconds, order=order, steps=steps)
    wall_ms = tuple(sum(rank.segments_ms) * steps for rank in ranks)
    outside_ms = ranks[0].outside_ms
    return Block(len(order) * steps, wall_ms, wall_ms, (), outside_ms=outside_ms), ranks


def pairs_of(ranks: Answers, order: Sequence[int], lead: int = 1) -> list[tuple[float, float]]:
    """Return (plain, other) step times in ms for each two neighbouring segments, of the slowest
    rank. The segments' ``order`` is 0 1 1 0 ..., after ``lead`` segments that do not count.
    """
    slowest = [max(times) for times in zip(*(rank.segments_ms for rank in ranks), strict=True)]
    pairs = []
    for first in range(lead, len(order), 2):
        times = {order[index]: slowest[index] for index in (first, first + 1)}
        pairs.append((times[0], times[1]))
    return pairs
