"""Measures one case in two trees that take turns on the same machine: pairs of live worker groups.

Each tree's counting pass comes first, in a launch of its own, which also fills the compile cache
that both share. Then pair after pair (pair.py), each of two fresh groups, so that a card that
drifts does so for both. Where memory does not hold both, though each fitted alone, the two are
launched one after the other.

Nobody imports beside a timed block. A launch imports torch twice, in torchrun and then in its
ranks: together that takes longer than a pair takes to be built. So while a pair is built the next
one's ranks import, and the torchruns of the one after it.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from stepguard.case import Case
from stepguard.comparison import JUDGED_TIME, Comparison, judged
from stepguard.device import CPU, GPU, is_gpu
from stepguard.evidence import Evidence
from stepguard.judge.sequential_plan import SEQUENTIAL_PLAN
from stepguard.judge.terms import DecisionRule, RuleFor
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.measure.pair import HEAD, ORDERS, SIDES, Pair, one_after_the_other
from stepguard.measure.paired_launch import PairedLaunch, PairTiming, Side, SideFailed, build_alone
from stepguard.measure.progress import Ticker
from stepguard.measure.warmup import Protocol
from stepguard.measure.workers import Bench, CaseWorkers, watch
from stepguard.verdict import Reason

FULL = 0.9  # of the card's memory: with more, two groups are not built at the same time
# On an H200 at its power cap it is the steps that scatter, not the launches, so that only timed
# seconds help, and more pairs are worth more than longer ones, whose spread is known less well.
# 13.5 s of load a pair, 8 of them timed: 8 pairs in two minutes of GPU time, 22 in five.
PAIR_TIMINGS = {
    GPU: PairTiming(0.5, 2.0, Protocol(1.5, 20.0, 0.5, 0.02, blocks=2, block_s=2.0)),
    CPU: PairTiming(0.1, 0.5, Protocol(0.5, 2.0, 0.25, 0.1, blocks=2, block_s=0.5), ahead=1),
}


def measure_ab(
    case: Case,
    benches: tuple[Bench, Bench],
    against: str,
    progress: Callable[[str], None],
    wants_more: Callable[[Comparison], bool],
    budget_s: float,
    terms: RuleFor | None = None,
    steps: range = range(0),
) -> Comparison:
    """Pairs of ``benches`` (HEAD's tree, the other one), until ``wants_more`` says that it is
    enough or ``budget_s`` seconds are over; the pair that runs then is completed.

    ``terms`` says by what they are judged, once HEAD's side told on what it runs; without it, the
    case's margins and the usual prior do. Pairs time all of ``steps``, counted from the first.
    Never raises for what a workload, a worker or the machine does: that is a fault in the evidence
    of the side that it befell.
    """
    run = _Turns(case, benches, against, progress, terms, steps)
    with run.stack:
        run.measure(wants_more, budget_s)
    return run.comparison()


class _Turns:
    def __init__(
        self,
        case: Case,
        benches: tuple[Bench, Bench],
        against: str,
        progress: Callable[[str], None],
        terms: RuleFor | None,
        steps: range,
    ) -> None:
        self.case, self.against = case, against
        self.terms = terms or (lambda evidence: DecisionRule(case.margins))
        self.progress, self.turn = Ticker(progress), replace(PAIR_TIMINGS[case.device], steps=steps)
        self.began, self.date = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
        self.stack = contextlib.ExitStack()
        self.sides = [
            Side(name, CaseWorkers(case, bench, self.progress, None, self.stack))
            for name, bench in zip(SIDES, benches, strict=True)
        ]
        self.together, self.out_of_time = True, False
        self.following: list[Pair] = []  # they import: the next one, and of a second the torchruns

    def measure(self, wants_more: Callable[[Comparison], bool], budget_s: float) -> None:
        """Counting passes and pairs; what fails is noted on its side, and ends it."""
        try:
            self._prepare()
            while len(self.sides[HEAD].launches) < SEQUENTIAL_PLAN[-1].pairs and wants_more(
                self.comparison()
            ):
                if self.sides[HEAD].launches and time.monotonic() - self.began > budget_s:
                    self.out_of_time = True
                    return
                self._pair()
        except SideFailed as failed:
            failed.side.faults.append(failed.fault)

    def _prepare(self) -> None:
        """The machine, then each tree's counting pass."""
        station = self.sides[HEAD].station
        try:
            telemetry = watch(self.case, station.bench, self.stack, self.progress)
        except LaunchFailed as unfit:
            raise SideFailed(self.sides[HEAD], unfit.fault) from None
        self.began = time.monotonic()  # a wait for the GPU is none of the budget
        for side in self.sides:
            side.station.telemetry = telemetry
        # Counts do not mind a busy host: who comes next imports meanwhile.
        counting = [PairedLaunch(side, "counting launch", self.turn) for side in self.sides]
        for live in counting:
            build_alone(live)
            if live is counting[-1]:
                self.following.append(Pair(1, self.sides, self.turn))
            live.count()
            live.leave()

    def _pair(self) -> None:
        """Another pair. Raises SideFailed if there is none."""
        number = len(self.sides[HEAD].launches) + 1
        order = ORDERS[(number - 1) % 2]
        if self.together:
            try:
                both = self._live_pair(number, order)
            except SideFailed as failed:
                # Each of them fitted alone, when it was counted.
                if number > 1 or failed.fault.code != Reason.OUT_OF_MEMORY.name:
                    raise
                self.together = False
        if not self.together:
            both = one_after_the_other(number, self.sides, order, self.turn)
        for live in both:
            live.side.launches.append(live.measured(number))

    def _live_pair(self, number: int, order: tuple[int, ...]) -> list[PairedLaunch]:
        pair = self.following.pop(0) if self.following else Pair(number, self.sides, self.turn)
        try:
            pair.hello()
            self._follow(number)
            pair.build(self._both_fit())
            pair.take_turns(order, self._nobody_imports)
        except SideFailed:
            self._close(pair)  # launches one after the other may need its memory
            raise
        return pair.both

    def _follow(self, number: int) -> None:
        """The pairs behind ``number`` go on: ranks of the next one, torchruns of a second. Where no
        time is judged there will hardly be another one.
        """
        if JUDGED_TIME not in judged(self.case):
            return
        last = min(number + self.turn.ahead, SEQUENTIAL_PLAN[-1].pairs)
        for later in range(number + 1 + len(self.following), last + 1):
            self.following.append(Pair(later, self.sides, self.turn, held=True))
        for pair in self.following[:1]:
            pair.release()

    def _nobody_imports(self) -> bool:
        return all(pair.ready() for pair in self.following[:1]) and all(
            pair.stands() for pair in self.following[1:]
        )

    def _close(self, pair: Pair) -> None:
        """End what runs; the pairs that follow, too, would import beside timed blocks."""
        for one in (pair, *self.following):
            one.close()
        self.following = []

    def _both_fit(self) -> bool:
        """Whether the peaks that were counted fit the card at the same time; always on a CPU."""
        if not is_gpu(self.case.device):
            return True
        counts = [side.station.counts for side in self.sides]
        peaks = [c.information.get("peak_reserved_bytes", 0.0) for c in counts if c]
        total = min(rank.get("memory_bytes", 0) for rank in self.sides[HEAD].station.prepared)
        return len(peaks) == len(self.sides) and all(peaks) and sum(peaks) < FULL * total

    def comparison(self) -> Comparison:
        """What is known so far."""
        head, base = (self._evidence(side) for side in self.sides)
        terms = self.terms(head)
        return Comparison(
            self.against,
            head,
            base,
            margins=terms.margins,
            prior=terms.prior,
            why=terms.why,
            together=self.together,
            out_of_time=self.out_of_time,
            wall_s=time.monotonic() - self.began,
        )

    def _evidence(self, side: Side) -> Evidence:
        bench, gates = side.station.bench, judged(self.case)
        return Evidence(
            case_id=self.case.id,
            case=side.station.identity(),
            date=self.date,
            commit=bench.revision.commit,
            dirty=bench.revision.dirty,
            command=bench.command,
            planned_launches=1,
            gates=gates,
            launches=tuple(side.launches),
            counts=side.station.counts,
            faults=tuple(side.faults),
            wall_s=time.monotonic() - self.began,
            **side.station.told(),
        )
