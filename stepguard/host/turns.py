"""Measures one case in two trees that take turns on the same machine: pairs of live worker groups.

Each tree's counting pass comes first, in a launch of its own, which also fills the compile cache
that both share. Then pair after pair, each of two fresh groups: they are built at the same time,
warmed up, and run a block each in the order base, head, head, base (the next pair the other way
round), so that a card that drifts does so for both. While one runs, the other is parked: it waits
on the host and has given its cached memory back. Where memory does not hold both all the same, the
two are launched one after the other.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime

from stepguard.case import Case
from stepguard.comparison import Comparison, judged
from stepguard.evidence import Block, Evidence, Fault, Launch
from stepguard.host.blocks import Ask, Tainted, annotated, block_of, keep
from stepguard.host.launch import LaunchFailed, WorkerGroup
from stepguard.host.station import COMPILE_LIMIT_S, Bench, Station, Unfit, watch
from stepguard.host.ticker import Ticker
from stepguard.host.warmup import Protocol, WarmUp
from stepguard.looks import PLAN
from stepguard.terms import TermsOf, default_terms
from stepguard.verdict import Reason

HEAD, BASE = 0, 1
SIDES = ("head", "base")
ORDERS = ((BASE, HEAD, HEAD, BASE), (HEAD, BASE, BASE, HEAD))
BLOCK_LIMIT_S = 120.0
FULL = 0.9  # of the card's memory: with more, two groups are not built at the same time


@dataclass(frozen=True)
class Turn:
    """How long a group runs when its turn comes, in seconds."""

    lead_s: float  # untimed: allocations return, clocks settle
    block_s: float
    # Interleaving takes the drift out, so that the warm-up need not wait for the last of it.
    warmup: Protocol


TURNS = {
    "cuda": Turn(0.5, 2.0, Protocol(4.0, 20.0, 1.0, 0.01, blocks=2, block_s=2.0)),
    "cpu": Turn(0.1, 0.5, Protocol(0.5, 2.0, 0.25, 0.1, blocks=2, block_s=0.5)),
}


@dataclass
class _Side:
    """One tree's part: where it is measured, and what was measured so far."""

    name: str
    station: Station
    launches: list[Launch] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


@dataclass
class _Live:
    """One group of a pair, from its start until it leaves."""

    side: _Side
    group: WorkerGroup
    ask: Ask
    began: float
    compile_s: float = 0.0
    warmup: WarmUp | None = None
    blocks: list[Block] = field(default_factory=list)
    discarded: list[Block] = field(default_factory=list)

    @property
    def label(self) -> str:
        return self.group.spec.label


def measure_turns(
    case: Case,
    benches: tuple[Bench, Bench],
    against: str,
    progress: Callable[[str], None],
    wants_more: Callable[[Comparison], bool],
    budget_s: float,
    terms: TermsOf = default_terms,
) -> Comparison:
    """Pairs of ``benches`` (HEAD's tree, the other one), until ``wants_more`` says that it is
    enough or ``budget_s`` seconds are over; the pair that runs then is completed.

    ``terms`` says by what they are judged, once HEAD's side told on what it runs. Never raises for
    what a workload, a worker or the machine does: that is a fault in the evidence of the side that
    it befell.
    """
    run = _Turns(case, benches, against, progress, terms)
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
        terms: TermsOf,
    ) -> None:
        self.case, self.against, self.terms = case, against, terms
        self.progress, self.turn = Ticker(progress), TURNS[case.device]
        self.began, self.date = time.monotonic(), datetime.now(UTC).isoformat(timespec="seconds")
        self.stack = contextlib.ExitStack()
        self.sides = [
            _Side(name, Station(case, bench, self.progress, None, self.stack))
            for name, bench in zip(SIDES, benches, strict=True)
        ]
        self.together, self.out_of_time = True, False
        self.following: list[_Live] = []  # the next pair, importing while this one warms up

    def measure(self, wants_more: Callable[[Comparison], bool], budget_s: float) -> None:
        """Counting passes and pairs; what fails is noted on its side, and ends it."""
        side = self.sides[HEAD]
        try:
            monitor = watch(self.case, side.station.bench, self.stack, self.progress)
            self.began = time.monotonic()  # a wait for the GPU is none of the budget
            for side in self.sides:
                side.station.monitor = monitor
                self._count(side)
        except (LaunchFailed, Unfit) as failed:
            side.faults.append(failed.fault)
            return
        while len(self.sides[HEAD].launches) < PLAN[-1].pairs and wants_more(self.comparison()):
            if self.sides[HEAD].launches and time.monotonic() - self.began > budget_s:
                self.out_of_time = True
                return
            if not self._pair():
                return

    def _count(self, side: _Side) -> None:
        live = self._start(side, "counting launch")
        self._build(live)
        side.station.count(live.ask, time.monotonic)
        side.station.leave(live.group, live.ask)

    def _pair(self) -> bool:
        """Whether another pair was measured; if not, why stands in a side's faults."""
        index = len(self.sides[HEAD].launches)
        order = ORDERS[index % 2]
        try:
            both = self._live_pair(index, order) if self.together else self._in_turn(index, order)
        except _Failed as failed:
            fault = failed.fault
            first = self.together and not index
            if first and fault.code == Reason.OUT_OF_MEMORY.name:
                self.together = False  # each of them fitted alone, when it was counted
                return self._pair()
            failed.side.faults.append(fault)
            return False
        for live in both:
            live.side.launches.append(self._launch(live, index + 1))
        return True

    def _live_pair(self, index: int, order: Sequence[int]) -> list[_Live]:
        both = self.following or self._start_both(index)
        try:
            return self._take_turns(both, index, order)
        except _Failed:
            for live in both:
                live.group.close()  # its memory, too: launches one after the other may need it
            raise

    def _take_turns(self, both: list[_Live], index: int, order: Sequence[int]) -> list[_Live]:
        self._build_both(both)
        self.following = self._start_both(index + 1) if index + 1 < PLAN[-1].pairs else []
        first, second = both[order[0]], both[order[1]]
        self._warm_up(second)
        self._park(second)
        self._warm_up(first, self._following_ready)
        for before, now in zip([order[0], *order], order, strict=False):
            if before != now:
                self._park(both[before])
                self._run(both[now], self._steps(both[now], self.turn.lead_s))
            self._block(both[now])
        for live in both:
            with _blamed(live):
                live.side.station.leave(live.group, live.ask)
        return both

    def _start_both(self, index: int) -> list[_Live]:
        return [self._start(side, f"pair {index + 1} {side.name}") for side in self.sides]

    def _following_ready(self) -> bool:
        """Whether the next pair has imported all: it must not do so beside a timed block."""
        for live in self.following:
            with _blamed(live):
                if not live.group.ready():
                    return False
        return True

    def _in_turn(self, index: int, order: Sequence[int]) -> list[_Live]:
        """A launch of each side, the one after the other has ended."""
        both = []
        for which in order[:2]:
            live = self._start(self.sides[which], f"pair {index + 1} {SIDES[which]}")
            with _blamed(live):
                self._build(live)
            self._warm_up(live)
            self._block(live)
            self._block(live)
            with _blamed(live):
                live.side.station.leave(live.group, live.ask)
            both.append(live)
        return both

    def _start(self, side: _Side, label: str) -> _Live:
        group = side.station.start(label)
        return _Live(side, group, side.station.asker(group), time.monotonic())

    def _expect(self, *both: _Live) -> None:
        if monitor := both[0].side.station.monitor:
            monitor.expect(*(live.group.pids for live in both))

    def _build(self, live: _Live) -> None:
        self.progress(f"{live.label}: start")
        live.group.hello(self.progress.tick)
        self._expect(live)
        self.progress(f"{live.label}: build and first step")
        self._first_step(live, live.ask)

    def _first_step(self, live: _Live, ask: Ask) -> None:
        live.side.station.prepare(live.group, ask)
        first = ask("first_step", limit_s=COMPILE_LIMIT_S)
        live.compile_s = max(rank["compile_s"] for rank in first)

    def _build_both(self, both: list[_Live]) -> None:
        """Both groups import and build at the same time, where memory allows; then one parks."""
        for live in both:
            self.progress(f"{live.label}: start")
            with _blamed(live):
                live.group.hello(self.progress.tick)
            live.began = live.group.began = time.monotonic()  # no limit runs while it waits
        self._expect(*both)
        self.progress(f"pair of {both[0].label.removesuffix(' head')}: build and first step")
        if self._both_fit():
            self._at_once(both)
        else:
            for live in both:
                with _blamed(live):
                    self._first_step(live, live.ask)
                    live.ask("park")

    def _at_once(self, both: list[_Live]) -> None:
        # Not in a with: leaving one waits for the threads, and they for groups that only the
        # caller's stack closes.
        pool = ThreadPoolExecutor(len(both))
        quiet = [_quietly(live.group) for live in both]
        futures = [pool.submit(self._first_step, *task) for task in zip(both, quiet, strict=True)]
        pool.shutdown(wait=False)
        while not all(future.done() for future in futures):
            self.progress.tick()
            time.sleep(0.02)
        for live, future in zip(both, futures, strict=True):
            with _blamed(live):
                future.result()
        for live in both:
            self._park(live)

    def _both_fit(self) -> bool:
        """Whether the peaks that were counted fit the card at the same time; always on a CPU."""
        if self.case.device != "cuda":
            return True
        counts = [side.station.counts for side in self.sides]
        peaks = [c.information.get("peak_reserved_bytes", 0.0) for c in counts if c]
        total = min(rank.get("memory_bytes", 0) for rank in self.sides[HEAD].station.prepared)
        return len(peaks) == len(self.sides) and all(peaks) and sum(peaks) < FULL * total

    def _warm_up(self, live: _Live, following: Callable[[], bool] = lambda: True) -> None:
        with _blamed(live):
            live.warmup = live.side.station.warm_up(
                live.ask, live.label, self.turn.warmup, following
            )

    def _park(self, live: _Live) -> None:
        with _blamed(live):
            live.ask("park")

    def _steps(self, live: _Live, seconds: float) -> int:
        assert live.warmup is not None
        return max(1, round(seconds / live.warmup.step_s))

    def _run(self, live: _Live, steps: int) -> list[dict[str, object]]:
        assert live.warmup is not None
        with _blamed(live):
            limit_s = BLOCK_LIMIT_S + 10 * steps * live.warmup.step_s
            return live.ask("block", steps=steps, limit_s=limit_s)

    def _block(self, live: _Live) -> None:
        """A timed block; measured again where the machine was disturbed."""
        steps = max(4, self._steps(live, self.turn.block_s))
        annotate = live.side.station.annotate()
        while True:
            self.progress(f"{live.label}: block {len(live.blocks) + 1}/2 of {steps} steps")
            ranks = self._run(live, steps)
            block = annotated(block_of(ranks, steps), ranks, annotate)
            try:
                if keep(block, live.discarded, self.turn.warmup.retries):
                    live.blocks.append(block)
                    return
            except Tainted as tainted:
                raise _Failed(live.side, tainted.fault(f"{live.label}, block")) from None

    def _launch(self, live: _Live, index: int) -> Launch:
        assert live.warmup is not None
        return Launch(
            index=index,
            blocks=tuple(live.blocks),
            compile_s=live.compile_s,
            warmup_s=live.warmup.seconds,
            warmup_steps=live.warmup.steps,
            steady="",  # turns take the drift out; a step that keeps compiling is counted
            wall_s=time.monotonic() - live.began,
            discarded=tuple(live.discarded),
        )

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

    def _evidence(self, side: _Side) -> Evidence:
        bench, gates = side.station.bench, judged(self.case)
        return Evidence(
            case_id=self.case.id,
            case=self.case.as_dict(),
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


class _Failed(Exception):
    """A launch that failed, and whose it was."""

    def __init__(self, side: _Side, fault: Fault) -> None:
        super().__init__(fault.message)
        self.side, self.fault = side, fault


@contextlib.contextmanager
def _blamed(live: _Live):  # type: ignore[no-untyped-def]
    try:
        yield
    except LaunchFailed as failed:
        raise _Failed(live.side, failed.fault) from None


def _quietly(group: WorkerGroup) -> Ask:
    """Asks from another thread: only the main one samples the machine and tells progress."""

    def ask(command: str, *, limit_s: float = BLOCK_LIMIT_S, **arguments: object):  # type: ignore[no-untyped-def]
        nothing = lambda *told: None  # noqa: E731
        return group.request(command, limit_s=limit_s, poll=nothing, progress=nothing, **arguments)

    return ask
