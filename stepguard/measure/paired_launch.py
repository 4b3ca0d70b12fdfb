"""One live worker group that takes turns with another: its start, its blocks, its end."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from stepguard.evidence import Block, Fault, Launch
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.measure.blocks import Ask, Tainted, block_limit_s, block_of, block_steps, keep
from stepguard.measure.warmup import Protocol, WarmUp
from stepguard.measure.workers import COMPILE_LIMIT_S, Answers, CaseWorkers


@dataclass(frozen=True)
class PairTiming:
    """How long a group runs when its turn comes, in seconds."""

    lead_s: float  # untimed, before each block: allocations return, clocks settle
    block_s: float
    # Interleaving takes the drift out, so that the warm-up need not wait for the last of it.
    warmup: Protocol
    ahead: int = 2  # pairs that import while one is built; few cores have enough to do with one
    steps: range = range(0)  # that blocks have to time; empty: whichever come
    # Untimed steps lie between the two blocks. With ``early`` both begin by so many steps earlier,
    # so that a pair times what the one before it did not.
    early: bool = False

    def of_pair(self, number: int) -> "PairTiming":
        """That of the pair of this number."""
        return replace(self, early=number % 2 == 0)

    def as_dict(self) -> dict[str, float]:
        """What the noise of pairs depends on: a calibration holds for a turn like this. ``steps``
        are no part of it: they only make blocks longer.
        """
        return {
            "lead_s": self.lead_s,
            "block_s": self.block_s,
            "warmup_min_s": self.warmup.warmup_min_s,
            "same_steps": 1.0,  # of both sides; turns over unequal ones were noisier
        }


@dataclass
class Side:
    """One tree's part: where it is measured, and what was measured so far."""

    name: str
    station: CaseWorkers
    launches: list[Launch] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)


class SideFailed(Exception):
    """A launch that failed, and whose it was."""

    def __init__(self, side: Side, fault: Fault) -> None:
        super().__init__(fault.message)
        self.side, self.fault = side, fault


class PairedLaunch:
    """One group of a pair, from its start until it leaves. What fails raises SideFailed."""

    def __init__(self, side: Side, label: str, turn: PairTiming, held: bool = False) -> None:
        self.side, self.label, self.turn = side, label, turn
        self.group = side.station.start(label, held=held)
        self.ask = side.station.asker(self.group)
        self.progress = side.station.progress
        self.began = time.monotonic()
        self.compile_s = 0.0
        self.warmup: WarmUp | None = None
        self.ran = 0  # steps since the first one
        self.lead = self.steps = 0  # untimed and timed, alike in a pair; known with the warm-up
        self.blocks: list[Block] = []
        self.discarded: list[Block] = []

    @contextlib.contextmanager
    def _blamed(self) -> Iterator[None]:
        try:
            yield
        except LaunchFailed as failed:
            raise SideFailed(self.side, failed.fault) from None

    def hello(self) -> None:
        """Wait until it has imported all; its time runs from then on."""
        self.progress(f"{self.label}: start")
        with self._blamed():
            self.group.hello(self.progress.tick)
        self.began = self.group.began = time.monotonic()

    def stands(self) -> bool:
        """Whether its torchrun has imported, without waiting."""
        with self._blamed():
            return self.group.stands()

    def ready(self) -> bool:
        """Whether it has imported all, without waiting."""
        with self._blamed():
            return self.group.ready()

    def first_step(self, ask: Ask | None = None) -> None:
        """Build the workload and run its first step; ``ask`` is for another thread than the main
        one, which alone samples the machine and tells progress.
        """
        chosen = ask or self.ask
        with self._blamed():
            self.side.station.prepare(self.group, chosen)
            first = chosen("first_step", limit_s=COMPILE_LIMIT_S)
            self.compile_s = max(rank["compile_s"] for rank in first)

    def count(self) -> None:
        """The counting pass, whose figures are the side's."""
        with self._blamed():
            self.side.station.count(self.ask, time.monotonic)

    def warm_up(self, other: "PairedLaunch | None" = None) -> None:
        """Until steady, or the warm-up's time is over; after ``other``, which has warmed up, by its
        windows at first. Blocks are then as long as the faster one of the two needs.
        """
        windows = other.warmup.windows if other and other.warmup else ()
        with self._blamed():
            self.warmup = self.side.station.warm_up(
                self.ask,
                self.label,
                self.turn.warmup,
                windows=windows,
                most=self.turn.steps.start // 2,
            )
        self.ran = self.warmup.steps
        self.lead = max(1, round(self.turn.lead_s / self.warmup.step_s))
        self.steps = block_steps(self.turn.block_s, self.warmup.step_s)
        self.steps = max(self.steps, (len(self.turn.steps) + 1) // 2)
        if other and other.blocks:  # it has ended
            self.lead, self.steps = other.lead, other.steps
        elif other:
            self.lead = other.lead = max(self.lead, other.lead)
            self.steps = other.steps = max(self.steps, other.steps)

    def park(self) -> None:
        """Give the cached memory back and idle until asked again."""
        with self._blamed():
            self.ask("park")

    def block(self, other: "PairedLaunch | None") -> None:
        """Untimed steps, then a timed block of those steps that ``other`` timed in its block of
        this number, if it has; measured again where the machine was disturbed.
        """
        number, begin = len(self.blocks), self.ran + self.lead
        if number == 0:
            begin = max(begin, self.turn.steps.start - self.lead * self.turn.early)
        if other and len(other.blocks) > number:
            begin = max(begin, other.blocks[number].ran or 0)
        elif other:
            begin = max(begin, other.ran + self.lead)
        self._lead(begin)
        annotate = self.side.station.annotate()
        while True:
            self.progress(f"{self.label}: block {number + 1}/2 of {self.steps} steps")
            ran = self.ran
            ranks = self._run(self.steps)
            block = annotate(block_of(ranks, self.steps, ran), ranks)
            try:
                if keep(block, self.discarded, self.turn.warmup.retries):
                    self.blocks.append(block)
                    return
            except Tainted as tainted:
                raise SideFailed(self.side, tainted.fault(f"{self.label}, block")) from None

    def leave(self) -> None:
        """End it in order."""
        with self._blamed():
            self.side.station.leave(self.group, self.ask)

    def measured(self, index: int) -> Launch:
        """What it ran, as the side's launch ``index``."""
        assert self.warmup is not None
        return Launch(
            index=index,
            blocks=tuple(self.blocks),
            compile_s=self.compile_s,
            warmup_s=self.warmup.seconds,
            warmup_steps=self.warmup.steps,
            steady="",  # turns take the drift out; a step that keeps compiling is counted
            wall_s=time.monotonic() - self.began,
            discarded=tuple(self.discarded),
        )

    def _lead(self, begin: int) -> None:
        """Untimed steps up to that one, in pieces as long as a block at most."""
        if begin - self.ran > self.steps:
            self.progress(f"{self.label}: {begin - self.ran} steps that are not timed")
        while self.ran < begin:
            self._run(min(self.steps, begin - self.ran))

    def _run(self, steps: int) -> Answers:
        assert self.warmup is not None
        with self._blamed():
            ranks = self.ask("block", steps=steps, limit_s=block_limit_s(steps, self.warmup.step_s))
        self.ran += steps
        return ranks


def build_alone(live: PairedLaunch) -> None:
    """Import, build and first step of a group that has the GPUs to itself."""
    live.hello()
    expect(live)
    live.progress(f"{live.label}: build and first step")
    live.first_step()


def expect(*lives: PairedLaunch) -> None:
    """These groups may be on the GPUs from now on."""
    lives[0].side.station.expect(*(live.group for live in lives))
