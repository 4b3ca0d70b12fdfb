"""Figures: the values in a reason's sentence. Each sentence has a type. Below them are sentences
that commands, refusals and the guard share.

A verdict and a run's document hold them as data. reasons.py says which reason has which.
"""

import shlex
from collections.abc import Sequence
from typing import ClassVar

from stepguard.core.margins import Margins
from stepguard.core.site import Site
from stepguard.core.strict_json import DocumentPart
from stepguard.core.text import counted, listed


class Sentence(DocumentPart, frozen=True, kw_only=True, tag=True):
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


class Missing(Sentence, frozen=True):
    """Something was to be measured, and is missing or no positive finite number."""

    what: str  # in the plural: "launches"
    found: int = 0
    needed: int = 0  # 0 if that is not known
    why: str = ""

    @property
    def text(self) -> str:
        amount = f"{self.found} of {self.needed}" if self.needed else "no"
        return f"{amount} {self.what} were measured{f': {self.why}' if self.why else ''}"


class ClockGap(Sentence, frozen=True):
    """Two clocks disagree, or a step takes less time than its FLOPs need."""

    clock: str
    clock_ms: float
    other: str
    other_ms: float
    blocks: int = 1  # in which clocks disagree; the figures are of the first
    launches: int = 1

    @property
    def text(self) -> str:
        many = f"{self.blocks} blocks in {self.launches} launches, " if self.blocks > 1 else ""
        clocks = f"{self.clock} {self.clock_ms:.3f} ms, {self.other} {self.other_ms:.3f} ms"
        return f"{many}{clocks}"


class Undecided(Sentence, frozen=True):
    """A warm-up or a metric without a result."""

    says = "{why}"
    why: str


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


class WorkMoved(Sentence, frozen=True):
    """A step does other work than the recording's, or than the other revision's."""

    metric: str
    other: str  # "the recording", or the other revision
    old: tuple[float, ...]  # of each rank if ranks differ, else one; empty if a side's do not
    new: tuple[float, ...]

    @property
    def text(self) -> str:
        sides = [", ".join(f"{count:,.0f}" for count in side) for side in (self.old, self.new)]
        old, new = (side or "alike" for side in sides)
        return f"{self.moved} {old} in {self.other}, now {new}"

    @property
    def moved(self) -> str:
        """Return "flops_per_step +32.61 %:", what the first line says before the operators."""
        alone = len(self.old) == len(self.new) == 1
        if alone and self.old[0]:
            return f"{self.metric} {100 * (self.new[0] / self.old[0] - 1):+.2f} %:"
        return self.metric if alone else f"{self.metric} by rank"


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


class OtherCommit(Sentence, frozen=True):
    """The pairs used another commit than the recording's."""

    says = "the pairs used another commit, which is as slow"


class SlowSteps(Sentence, frozen=True):
    """Steps that take over MOST_OF_MEDIAN times the median, and count for no more than that."""

    steps: tuple[int, ...]  # the first of them, counted from the launch's first
    slow: int  # how many there are in all launches of HEAD
    plain_pct: float  # the change of the plain mean, in which they count in full

    @property
    def text(self) -> str:
        """Return "slow steps (12, 28, 44) count up to 1.25 medians; in full: +4.10 %"."""
        named = ", ".join(map(str, self.steps)) + (", ..." if self.slow > len(self.steps) else "")
        which = f" ({named})" if named else ""
        return f"slow steps{which} count up to 1.25 medians; in full: {self.plain_pct:+.2f} %"


class OverSteps(Sentence, frozen=True):
    """A count is of several steps together, or most steps' count if launches disagree."""

    steps: int
    counts: tuple[tuple[int, int], ...] = ()  # each count and how many steps have it, most first

    @property
    def text(self) -> str:
        """Return "in 2 steps together", or "in 42 of 50 steps, 1 in 8"."""
        if not self.counts:
            return f"in {self.steps} steps together"
        (_, most), *others = self.counts
        return ", ".join(
            [f"in {most} of {self.steps} steps", *(f"{count:,} in {n}" for count, n in others)]
        )


class MovedNumbers(Sentence, frozen=True):
    """Numbers of the first steps that differ, or why they cannot be compared."""

    # What it is, its old and new value (None: not finite), and of how many layers; the largest
    # moves first.
    moved: tuple[tuple[str, float | None, float | None, int], ...] = ()
    why: str = ""

    @property
    def text(self) -> str:
        """Return "gradient of h.*.bias 0.0121 -> 0.0213 (+76 %) in 12 layers; loss 10.99 -> 0"."""
        return "; ".join([*(_number(*each) for each in self.moved), *filter(None, [self.why])])


def _number(name: str, old: float | None, new: float | None, layers: int) -> str:
    within = f" in {layers} layers" if layers > 1 else ""
    if old is None or new is None:
        sides = ("not finite" if side is None else f"{side:.4g}" for side in (old, new))
        return f"{name} {' -> '.join(sides)}{within}"
    digits = next(n for n in range(4, 18) if f"{old:.{n}g}" != f"{new:.{n}g}" or n == 17)
    pct = 100 * (new / old - 1) if old else 0.0
    by = f" ({f'{pct:+.0f}' if abs(pct) >= 10 else f'{pct:+.2g}'} %)" if old else ""
    return f"{name} {old:.{digits}g} -> {new:.{digits}g}{by}{within}"


OfCase = (
    Said | Failed | Missing | ClockGap | Undecided | Unstable | NotRecorded | Changed | WorkMoved
)
OfMetric = Undecided | OwnLimit | OverSteps | SlowSteps | MovedNumbers
OfConfirmation = Said | NoAnswer | OtherCommit


TREE_CHANGED = "files changed while it was measured: its launches may be of different code"


def changed_in_pytest(change: str) -> str:
    """Return that "name old -> new", which launches inherit, changed since pytest started."""
    return (
        f"{change} since pytest was started, by a conftest, a test or a plugin: what is set there "
        "is no part of the step; set it for the command, or in the workload's module"
    )


def uncommitted(files: Sequence[str]) -> str:
    """Return what differs from a tree's commit, and what mends it; empty if nothing does."""
    text = f"uncommitted changes ({listed(files, 3)})"
    return f"{text}: commit them, or add outputs to .gitignore" if files else ""


def margins_text(margins: Margins) -> str:
    """Return "margins 0.2 and 0.5 %"."""
    return f"margins {both_pct(margins)}"


def both_pct(margins: Margins) -> str:
    """Return "0.2 and 0.5 %"."""
    return f"{margins.ignore_pct:g} and {margins.matter_pct:g} %"


def no_folder(path: str) -> str:
    """Return that a folder of baselines is missing, and the command that makes it."""
    return f"no such folder; to record into a new one: mkdir -p {shlex.quote(path)}"
