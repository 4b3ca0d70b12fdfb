"""Figures: the values in a reason's sentence. Each sentence has a type.

A verdict and a run's document hold them as data. reasons.py says which reason has which.
"""

from typing import ClassVar, Literal

import msgspec

from stepguard.core.site import Site
from stepguard.core.text import counted


class Sentence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag=True):
    """The figures of one sentence. ``says`` is the sentence, with fields in it."""

    says: ClassVar[str]
    revision: str = ""  # the other revision, if the sentence is about its measurement
    launch: str = ""  # "launch 2", if the sentence is about one launch

    @property
    def text(self) -> str:
        """Return the sentence alone."""
        return self.says.format(**{name: getattr(self, name) for name in self.__struct_fields__})

    @property
    def sentence(self) -> str:
        """Return the sentence, preceded by the revision and the launch that it is about."""
        return ": ".join(filter(None, (self.revision, self.launch, self.text)))


class Said(Sentence, frozen=True):
    """A sentence of a document of schema 2, which has no figures."""

    says = "{message}"
    message: str


class Failed(Sentence, frozen=True):
    """A worker or the machine failed."""

    says = "{message}"
    message: str
    site: Site | None = None  # where it was raised


class NoneMeasured(Sentence, frozen=True):
    """There is no launch, no block or no pair of blocks."""

    says = "no {what} was measured"
    what: str


class TooFewLaunches(Sentence, frozen=True):
    """There are fewer launches than the case asks for."""

    says = "{launches} of {planned} launches"
    launches: int
    planned: int


class Unpaired(Sentence, frozen=True):
    """The two revisions have different numbers of launches."""

    says = "{head} launches of HEAD, {base} of {other}: they are not in pairs"
    head: int
    base: int
    other: str


class BlockWithoutTimes(Sentence, frozen=True):
    """A block lacks the time of a step."""

    says = "a block of {steps} steps has {times} times"
    steps: int
    times: int


class BadTime(Sentence, frozen=True):
    """A time is not a positive finite number."""

    says = "{what} has a time of {ms} ms"
    what: str  # a block, or a difference
    ms: str  # as text: JSON has no such number


class EventsGap(Sentence, frozen=True):
    """The wall clock and the events of a block disagree."""

    says = "rank {rank}: wall clock {wall_ms:.2f} ms, events {events_ms:.2f} ms"
    rank: int
    wall_ms: float
    events_ms: float


class HostGap(Sentence, frozen=True):
    """The ranks' clock and the host's disagree."""

    says = "the ranks' clock {wall_ms:.0f} ms, the host's {outside_ms:.0f} ms"
    wall_ms: float
    outside_ms: float


ClockGap = EventsGap | HostGap


class RepeatedGap(Sentence, frozen=True):
    """Clocks disagree in too many launches."""

    blocks: int
    launches: int
    first: ClockGap

    @property
    def text(self) -> str:
        return f"{self.blocks} blocks in {self.launches} launches, {self.first.text}"


class BelowFloor(Sentence, frozen=True):
    """A step takes less time than its FLOPs need."""

    says = "{step_ms:.3f} ms a step, but the GPU's peak allows no less than {floor_ms:.3f} ms"
    step_ms: float
    floor_ms: float


class Undecided(Sentence, frozen=True):
    """A warm-up or a metric without a result."""

    says = "{why}"
    why: str


class NoGates(Sentence, frozen=True):
    """A case gates nothing."""

    says = "the case gates no metric"


class NotMeasured(Sentence, frozen=True):
    """A gated metric is missing."""

    says = "{metric} was not measured"
    metric: str


class UnknownWork(Sentence, frozen=True):
    """The work of a step is unknown."""

    metric: str
    whose: str  # "HEAD", or the other revision
    why: str

    @property
    def text(self) -> str:
        why = f": {self.why}" if self.why else ""
        return f"{self.metric} of {self.whose} is not known{why}"


STEPS_DIFFER = "steps differ"  # how the reason begins if a counter was counted in each step


class Unstable(Sentence, frozen=True):
    """A counter differs between steps, or could not be counted."""

    metric: str
    why: str
    sites: tuple[Site, ...]

    @property
    def text(self) -> str:
        where = "".join(f": {site.count:+,d} {site.described()}" for site in self.sites[:1])
        return f"{self.metric}: {self.why}{where}"


class NotRecorded(Sentence, frozen=True):
    """A case has no recording."""

    path: str = ""  # the file without it, if known

    @property
    def text(self) -> str:
        return "no recording for this machine" + (f" in {self.path}" if self.path else "")


class Changed(Sentence, frozen=True):
    """Parameters or software that differ: (name, old, new)."""

    changes: tuple[tuple[str, str, str], ...]

    @property
    def text(self) -> str:
        """Return "batch 32 -> 64, seq 512 -> 1024"."""
        return ", ".join(f"{name} {old} -> {new}" for name, old, new in self.changes)


class OtherTokens(Sentence, frozen=True):
    """A step reads another number of tokens than the recorded one."""

    says = "recorded with {old} tokens a step, now {new}"
    old: int
    new: int


class OtherWork(Sentence, frozen=True):
    """A step does other work than the other revision's."""

    metric: str
    other: str  # the other revision
    old: float
    new: float
    alarm: str = ""  # the status that recordings gave; a step of other work cannot have it

    @property
    def text(self) -> str:
        change = f" ({100 * (self.new / self.old - 1):+.2f} %)" if self.old else ""
        figures = f"{self.metric} {self.old:,.0f} in {self.other}, now {self.new:,.0f}{change}"
        return _at_other_work(self.alarm, figures)


class OtherWorkOfRanks(Sentence, frozen=True):
    """Ranks do other work than the other revision's. A side is empty if its ranks do the same."""

    metric: str
    other: str
    old: tuple[int, ...]
    new: tuple[int, ...]
    alarm: str = ""

    @property
    def text(self) -> str:
        old, new = (
            ", ".join(f"{count:,}" for count in ranks) or "alike" for ranks in (self.old, self.new)
        )
        figures = f"{self.metric} by rank {old} in {self.other}, now {new}"
        return _at_other_work(self.alarm, figures)


def _at_other_work(alarm: str, text: str) -> str:
    return f"{alarm}, but the step does other work: {text}" if alarm else text


class OwnLimit(Sentence, frozen=True):
    """The recordings that the limit of a time comes from."""

    own_card: bool
    compared: int

    @property
    def text(self) -> str:
        of = counted(self.compared, "recording" if self.own_card else "other card")
        return f"the limit is that of {of}{' of this card' if self.own_card else ''}"


class NoAnswer(Sentence, frozen=True):
    """No pairs answer the alarm."""

    says = "{why}"
    why: str  # empty if the commit's text says it


class NotTimed(Sentence, frozen=True):
    """Steps that the run timed and the pairs did not."""

    says = "the pairs did not time {missed} of the steps that the run timed"
    missed: int


class OtherCommit(Sentence, frozen=True):
    """The pairs used another commit than the recording's."""

    says = "the pairs used another commit, which is as slow"


class TooFar(Sentence, frozen=True):
    """A time moved by more than a change of machine explains."""

    says = (
        "the pairs see no change, but other cards and clocks change a time by {limit_pct:g} % at "
        "most"
    )
    limit_pct: float


class SlowSteps(Sentence, frozen=True):
    """Steps that are slower within launches, in all launches."""

    kind: Literal["late", "periodic", "growing"]
    begin: int  # the first slow step that was timed, counted from 0
    after: int  # for a late slowdown the last step timed before; for one that grows the last step
    period: int  # steps between two slow steps; 0 if it is late, or returned only once
    slower_pct: float
    slower_ms: float

    @property
    def text(self) -> str:
        """Return "from step 150 on +12.0 % (+5.2 ms)"."""
        size = f"{self.slower_pct:+.1f} % ({self.slower_ms:+.3g} ms)"
        if self.kind == "growing":
            return f"grows from step to step, {size} from step {self.begin} to {self.after}"
        if self.kind == "late":
            untimed = self.begin - self.after > 1
            between = f" (or one since {self.after}, not timed)" if untimed else ""
            return f"from step {self.begin}{between} on {size}"
        if not self.period:
            return f"at step {self.begin} of each launch {size}"
        return f"every {self.period} steps, first at step {self.begin}, {size}"


class OverSteps(Sentence, frozen=True):
    """A count is of several steps together, since steps differ."""

    says = "in {steps} steps together"
    steps: int


OfCase = (
    Said
    | Failed
    | NoneMeasured
    | TooFewLaunches
    | Unpaired
    | BlockWithoutTimes
    | BadTime
    | EventsGap
    | HostGap
    | RepeatedGap
    | BelowFloor
    | Undecided
    | NoGates
    | NotMeasured
    | UnknownWork
    | Unstable
    | NotRecorded
    | Changed
    | OtherTokens
    | OtherWork
    | OtherWorkOfRanks
)
OfMetric = Undecided | OwnLimit | OverSteps
OfConfirmation = NoAnswer | NotTimed | OtherCommit | TooFar
