"""Measure a case: ask the judge what it needs, and let launches run until it needs nothing.

``measure`` is the main path. plan.py says what happens next, the driver does it, and the judge's
``need`` is asked with all that is known by then.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any

from stepguard.core.case import Case
from stepguard.core.comparison import Comparison, LaunchPair, Question, gates_times, judged
from stepguard.core.device import is_gpu
from stepguard.core.evidence import Block, Difference
from stepguard.core.margins import ALPHA
from stepguard.core.metrics import METRICS
from stepguard.core.reasons import Reason
from stepguard.judge.pair_statistics import MOST_PAIRS
from stepguard.judge.rule_book import need
from stepguard.judge.soundness import Pairs
from stepguard.judge.time_rules import decision
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.measure import turns
from stepguard.measure.case_workers import Ahead, Bench, CaseWorkers, Progress, Ticker, watch
from stepguard.measure.combine_ranks import Answers
from stepguard.measure.plan import (
    BASE,
    HEAD,
    Do,
    Next,
    SoFar,
    Stage,
    imports,
    next_action,
    order_of,
)
from stepguard.measure.running_launch import COMPILE_LIMIT_S, RunningLaunch, WorkersFailed
from stepguard.measure.warm_up import protocol_of

SEGMENTS_LIMIT_S = 120.0  # in addition to three times their expected time
PROFILE_LEAD_S = 0.5  # steps before a profile: what came before may have left other clocks
DIFFERENCE = "sync_overhead"  # the only one that is measured
FIRST = "first launch"  # of each of two trees
NAMES = ("head", "base")


@dataclass(frozen=True)
class Pairing:
    """How a case is compared with another tree, in pairs."""

    bench: Bench  # of the other tree
    against: str  # its revision and its interpreter, as they were asked for
    alpha: float = ALPHA  # the case's level, given the number of cases in its run
    budget_s: float = inf  # for all pairs; no pair begins after it, except for the first


def measure(
    case: Case,
    bench: Bench,
    asked: Question,
    progress: Progress = lambda text: None,
    beside: Pairing | None = None,
    keep: Callable[[Comparison], Comparison] = lambda pairs: pairs,
) -> Question:
    """Measure a case in the tree of ``bench``, or in pairs ``beside`` another tree, until the judge
    needs nothing more. Return the question, which has the evidence now.

    Failures of a workload, a worker or the machine raise nothing: they are faults in the evidence.
    So is the end of the run meanwhile. ``keep`` stores the pairs so far after each of them, so that
    a run that is killed leaves them. A fault that it adds to them, of a tree that was edited, ends
    the case.
    """
    ticker = Ticker(progress)
    with contextlib.ExitStack() as stack:
        monitor, unfit = watch(case, bench, stack, ticker)
        ahead = Ahead()
        stack.callback(ahead.close)
        benches = (bench, beside.bench) if beside else (bench,)
        sides = [CaseWorkers(case, one, ticker, monitor, stack, ahead) for one in benches]
        driver = Driver(case, sides, asked, ahead, beside, keep)
        if unfit:
            sides[HEAD].faults.append(unfit)
            return driver.question()
        try:
            while (action := next_action(driver.state())).do is not Do.STOP:
                driver.do(action)
            driver.stop(action.late)
        except WorkersFailed as failed:
            failed.workers.faults.append(failed.fault)
        except KeyboardInterrupt as interrupt:
            for side in sides:
                side.note_end(interrupt)
        driver.end_pairs()
        return driver.question()


class Driver:
    """The launches of a case that are alive, and what is known of the case."""

    def __init__(
        self,
        case: Case,
        sides: Sequence[CaseWorkers],
        asked: Question,
        ahead: Ahead,
        beside: Pairing | None,
        keep: Callable[[Comparison], Comparison],
    ) -> None:
        self._case, self._sides, self._asked = case, sides, asked
        self._ahead, self._beside, self._keep = ahead, beside, keep
        self._protocol = protocol_of(case, in_pairs=beside is not None)
        counts = beside or any(METRICS[name].kind == "counter" for name in case.gates)
        uncounted = tuple(range(len(sides))) if counts else ()
        self._state = SoFar(trees=len(sides), uncounted=uncounted)
        self._alive: dict[int, RunningLaunch] = {}  # by tree
        self._first = False  # those alive are the first ones, which count
        self._ran: dict[int, RunningLaunch] = {}  # of a pair that is not complete, by tree
        self._pairs = Pairs()
        self._differences: tuple[Difference, ...] = ()
        self._enough = False  # of one tree: fewer launches than planned
        self._late = False  # more pairs were wanted

    def state(self) -> SoFar:
        """Ask the judge what is needed. Return that, and how far the case is."""
        state, beside = self._state, self._beside
        if state.stage in (Stage.NONE, Stage.COUNTED) and not (beside and state.uncounted):
            state.need = need(self.question())
        took_s = time.monotonic() - self._sides[HEAD].began
        state.room = not beside or turns.both_fit(self._sides)
        state.waiting = self._pairs.waiting is not None
        state.late = beside is not None and took_s > beside.budget_s
        state.done = next(iter(self._ran), None)
        return state

    def do(self, action: Next) -> None:
        """Do what comes next. Raises WorkersFailed, unless two launches can run alone instead."""
        try:
            match action.do:
                case Do.START:
                    self._start(action.trees)
                case Do.COUNT:
                    self._count()
                case Do.TIME:
                    self._time(action.profiled)
                case Do.END:
                    self._end()
                case Do.DROP:
                    self._drop()
                case Do.COUNT_ALONE:
                    self._count_alone(action.trees[0], action.counters)
        except WorkersFailed as failed:
            alone = len(self._alive) < 2 or self._state.number > 1
            if alone or failed.fault.code != Reason.OUT_OF_MEMORY:
                raise
            self._drop()

    def stop(self, late: bool) -> None:
        """Note that what was measured is enough, or that time is up."""
        self._enough, self._late = True, late

    def end_pairs(self) -> None:
        """Count a pair that waits for a next one: none comes."""
        self._count_pairs(self._pairs.ended())

    def question(self) -> Question:
        """Return the question, with what is known so far."""
        case, head = self._case, self._sides[HEAD]
        if self._beside is None:
            planned = len(head.launches) if self._enough else case.launches
            now = head.evidence(
                planned_launches=planned,
                gates=case.gates,
                extended=case.extended,
                differences=self._differences,
            )
            return replace(self._asked, now=now)
        sides = [side.evidence(planned_launches=1, gates=judged(case)) for side in self._sides]
        pairs = Comparison(
            self._beside.against,
            sides[HEAD],
            sides[BASE],
            alpha=self._beside.alpha,
            together=self._state.together,
            out_of_time=self._late,
            again=self._pairs.replaced,
            python=python.asked if (python := self._beside.bench.python) else "",
        )
        return replace(self._asked, pairs=pairs)

    def _start(self, trees: Sequence[int]) -> None:
        self._first = bool(self._state.uncounted)
        self._alive = {tree: self._launch(tree) for tree in trees}
        for launch in self._alive.values():
            launch.hello()
        self._import_ahead()
        turns.build(self._alive, self._label(), self._first)
        self._state.stage = Stage.BUILT

    def _count(self) -> None:
        """Count in each launch. If one of two ended for want of memory, both trees count alone."""
        self._import_ahead()
        turns.count(self._alive, self._order())
        state = self._state
        state.stage = Stage.COUNTED
        state.crowded = len(self._alive) > 1 and any(one.ended for one in self._alive.values())
        if not state.crowded:
            state.uncounted = ()

    def _time(self, profiled: bool) -> None:
        self._import_ahead()
        order, lead_s, in_pairs = self._order(), self._protocol.lead_s, self._beside is not None
        # A busy host changes no count.
        quiet = self._quiet if in_pairs or gates_times(self._case) else lambda: True
        other = next(iter(self._ran.values()), None)
        turns.run_blocks(self._alive, order, self._protocol, self._label(), quiet, other)
        if not in_pairs:
            launches, launch = self._sides[HEAD].launches, self._alive[HEAD]
            # The blocks are kept even if the rest of the launch fails.
            launches.append(launch.measured(len(launches) + 1))
            if self._state.number == 1 and f"{DIFFERENCE}_pct" in self._case.gates:
                self._differences = (measure_difference(launch, self._case.difference_pairs),)
            profiled, lead_s = self._first and is_gpu(self._case.device), PROFILE_LEAD_S
        if profiled:
            turns.profile(self._alive, order, lead_s, self._label())
        self._state.stage = Stage.TIMED

    def _end(self) -> None:
        if self._first and not self._state.crowded:
            turns.locate(self._alive)
        first, *others = self._alive.values()
        first.leave(*others)
        timed, ended, self._alive = self._state.stage is Stage.TIMED, self._alive, {}
        self._state.stage = Stage.NONE
        if timed and self._beside is None:
            launches = self._sides[HEAD].launches
            launches[-1] = first.measured(len(launches))  # now with all that followed its blocks
            self._state.number += 1
        elif timed:
            self._ran |= ended
            if len(self._ran) == len(self._sides):
                both, self._ran = self._ran, {}
                self._take_pair(both)

    def _take_pair(self, both: Mapping[int, RunningLaunch]) -> None:
        """Take a pair whose launches have run. Store all pairs, also one that waits."""
        number = self._state.number
        # An unsteady launch is no fault here: both sides run in turns and drift alike. If a step
        # keeps compiling, that is counted.
        head, base = (replace(both[one].measured(number), steady="") for one in (HEAD, BASE))
        pair = LaunchPair(head, base, any(one.timed_a_compiler for one in both.values()))
        self._count_pairs(self._pairs.take(pair, is_gpu(self._case.device)))
        self._state.number += 1
        pairs = self.question().pairs
        assert pairs is not None, "two trees are compared in pairs"
        if decided := decision(pairs):
            self._sides[HEAD].progress.known = f"; step_ms {decided.so_far}"
        waits = (self._pairs.waiting,) if self._pairs.waiting else ()
        kept = self._keep(replace(pairs, again=(*pairs.again, *waits)))
        self._sides[HEAD].faults.extend(kept.head.faults[len(pairs.head.faults) :])

    def _count_pairs(self, pairs: Pairs) -> None:
        self._pairs = pairs
        each = zip(*((one.head, one.base) for one in pairs.counted[:MOST_PAIRS]), strict=True)
        for side, launches in zip(self._sides, each, strict=False):
            side.launches = [replace(one, index=i) for i, one in enumerate(launches, start=1)]

    def _drop(self) -> None:
        """Kill the launches, which have no memory beside each other, and those that import."""
        for launch in self._alive.values():
            launch.group.close()
        self._ahead.close()
        self._alive = {}
        state = self._state
        state.stage, state.crowded = Stage.NONE, bool(state.uncounted)
        # What counted has more in memory than the launches of later pairs.
        state.together = state.together and self._first

    def _count_alone(self, tree: int, names: tuple[str, ...]) -> None:
        turns.count_alone(self._sides[tree], self._protocol, names)
        state = self._state
        state.uncounted = tuple(one for one in state.uncounted if one != tree)

    def _order(self) -> tuple[int, ...]:
        if self._beside is None:
            return (HEAD,) * self._protocol.blocks
        return tuple(tree for tree in order_of(self._state.number) if tree in self._alive)

    def _label(self) -> str:
        if self._beside is None:
            return f"launch {self._state.number}"
        return FIRST if self._first else f"pair {self._state.number}"

    def _label_of(self, number: int, tree: int) -> str:
        return f"pair {number} {NAMES[tree]}" if self._beside else f"launch {number}"

    def _launch(self, tree: int) -> RunningLaunch:
        label = self._label() if self._first else self._label_of(self._state.number, tree)
        return RunningLaunch(self._sides[tree], label, self._protocol)

    def _import_ahead(self) -> None:
        head = self._sides[HEAD]
        most = MOST_PAIRS + len(self._pairs.replaced) if self._beside else self._case.launches
        on_gpu, at_once = is_gpu(self._case.device), self._protocol.ahead
        numbers, next_case = imports(self._state, on_gpu, at_once, most)
        ahead, environment = head.bench.ahead, head.bench.environment
        if next_case and ahead.case:
            label = FIRST if self._beside else self._label_of(1, HEAD)
            specs = [side.spec(label, ahead.case) for side in self._sides]
            if not any(spec.launcher for spec in specs):  # a scheduler starts one job at a time
                ahead.begin(specs, environment)
        if numbers:
            specs = [
                side.spec(self._label_of(number, tree))
                for number in numbers
                for tree, side in enumerate(self._sides)
            ]
            self._ahead.begin(specs, environment)
            self._ahead.release(specs[: len(self._sides)])

    def _quiet(self) -> bool:
        return self._ahead.ready() and self._sides[HEAD].bench.ahead.ready()


def ask_ranks(
    case: Case, bench: Bench, progress: Progress, function: str, **arguments: Any
) -> Answers:
    """Return what "module:function" returns in each rank of a launch of its own, after its first
    step. Raises LaunchFailed with the cause.
    """
    ticker = Ticker(progress)
    with contextlib.ExitStack() as stack:
        monitor, unfit = watch(case, bench, stack, ticker)
        if unfit:
            raise LaunchFailed(unfit)
        workers = CaseWorkers(case, bench, ticker, monitor, stack)
        label = function.partition(":")[2].replace("_", " ")
        launch = RunningLaunch(workers, f"{label} launch", protocol_of(case))
        turns.build_alone(launch)
        answers = launch.ask(
            "call", limit_s=COMPILE_LIMIT_S, function=function, arguments=arguments
        )
        launch.leave()
    return [answer.returned for answer in answers]


def measure_difference(launch: RunningLaunch, pairs_wanted: int) -> Difference:
    """Measure segments of the plain variant (P) and the other one (V) as P V V P, series after
    series, until there are ``pairs_wanted`` pairs. The launch must have warmed up.

    A series in which the machine was disturbed is repeated. Raises LaunchFailed if that happens
    more often than the protocol's ``retries``.
    """
    words, protocol, step_s = "sync overhead", launch.protocol, launch.warmup.step_s
    steps = max(4, round(protocol.segment_s / step_s))
    pairs: list[tuple[float, float]] = []
    discarded: list[Block] = []
    while (left := pairs_wanted - len(pairs)) > 0:
        in_a_series = protocol.pairs_in_a_series
        # The first segment of a series does not count, since a pause came before it. Before the
        # first series more segments run. The warm-up has pauses and segments have none, so the
        # clocks settle anew: without these segments the first pair was 0.4 to 0.9 % too high.
        lead = 1 if pairs else protocol.settling_segments
        order = [0] * lead + [0, 1, 1, 0] * (in_a_series // 2)
        left_s = -(-left // in_a_series) * len(order) * steps * step_s
        launch.show(f"{words}, {len(pairs)} of {pairs_wanted} pairs, {left_s:.0f} s to go")
        measure = partial(_series, launch, order, steps)
        _, ranks = launch.undisturbed(measure, discarded, words)
        pairs += pairs_of(ranks, order, lead)
    return Difference(DIFFERENCE, tuple(pairs))


def _series(launch: RunningLaunch, order: Sequence[int], steps: int) -> tuple[Block, Answers]:
    seconds = len(order) * steps * launch.warmup.step_s
    ranks = launch.ask(
        "alternate", limit_s=SEGMENTS_LIMIT_S + 3 * seconds, order=order, steps=steps
    )
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
