"""An explanation: why one profile's step takes longer than another's. Its causes add up to the
difference.

explain/ makes it, report/ puts it into words.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec.structs import replace

from stepguard.core.profile import MachineCode, Work
from stepguard.core.site import Site
from stepguard.core.strict_json import DocumentPart

MOST_CAUSES = 40  # in a verdict's explanation
MOST_NAMES = 20  # kernels of a cause on one side, and launch shapes


class Unlike(StrEnum):
    """Why two profiles cannot be compared."""

    GPU = "gpu"
    RANKS = "ranks"
    LOST = "lost records"
    NO_STEPS = "no steps"
    FOREIGN = "foreign"


class Refused(DocumentPart, frozen=True):
    """One reason, with the values of both sides."""

    reason: Unlike
    before: str
    after: str


class Kind(StrEnum):
    """The kind of a cause."""

    IDLE = "idle"
    CALLS = "calls"  # a kernel is launched more or less often
    TIME = "time"  # each launch takes longer or shorter
    SHAPE = "shape"  # another launch shape
    REPLACED = "replaced"
    ADDED = "added"
    REMOVED = "removed"
    MOVED = "moved"  # came and went within one phase, or changed its phase
    CLOCK = "clock"  # several classes changed by one ratio
    COMMUNICATION = "exposed communication"
    COPIES = "exposed copies"
    OVERLAP = "overlap"  # kernels run beside each other more, or less


class Side(DocumentPart, frozen=True):
    """What a cause consists of on one side."""

    names: tuple[str, ...]  # kernels, the longest first
    calls: float  # a step
    us: float  # a step
    shapes: tuple[tuple[int, ...], ...] = ()  # grids
    begin_us: float | None = None  # time in the file, where to look
    work: Work = Work()  # the mean of a launch; unknown if that of one launch is
    # Unset, and then not written, unless the side is one kernel whose machine code is known.
    machine_code: MachineCode | msgspec.UnsetType = msgspec.UNSET


class Cause(DocumentPart, frozen=True):
    """One term of the difference."""

    kind: Kind
    us: float  # its share of the step's difference
    what: str  # a kernel, a class, a CUDA call or a cause of idle time
    phase: str
    place: str  # source line or operators; empty if the profile has none
    before: Side
    after: Side
    # The line of the operator that launches its kernels; of a backward kernel the line of its
    # forward operator. Unset, and then not written, if several lines may be it.
    line: Site | msgspec.UnsetType = msgspec.UNSET


Causes = Annotated[tuple[Cause, ...], msgspec.Meta(max_length=MOST_CAUSES)]


class Explanation(DocumentPart, frozen=True):
    """Why ``after`` takes longer than ``before``. The causes are sorted by their time."""

    refused: tuple[Refused, ...]
    before_us: float = 0.0  # a step
    after_us: float = 0.0
    causes: Causes = ()
    scatter_us: float = 0.0  # the sum of all that is within the scatter of steps
    scatter_parts: tuple[tuple[str, float], ...] = ()  # ... by class or part, the largest first
    scatter_known: bool = True  # False if a side has one step: then all differences are causes
    calls: tuple[tuple[str, float, float], ...] = ()  # CUDA calls a step that changed
    software: tuple[tuple[str, str, str], ...] = ()  # versions that differ
    # Kernels with other machine code whose time is within the scatter. An autotuned kernel in
    # another form is one of them, so no rule reads this. Unset, and then not written, if there are
    # none.
    other_machine_code: Causes | msgspec.UnsetType = msgspec.UNSET
    smaller: int = 0  # causes beyond MOST_CAUSES ...
    smaller_us: float = 0.0  # ... and their sum

    @property
    def change_us(self) -> float:
        """Return the difference of the steps, in us."""
        return self.after_us - self.before_us

    @property
    def explained_us(self) -> float:
        """Return the sum of the causes, in us."""
        return sum(cause.us for cause in self.causes) + self.smaller_us

    def bounded(self) -> "Explanation":
        """Return it with the MOST_CAUSES largest causes and the sum of the others."""
        kept, smaller = self.causes[:MOST_CAUSES], self.causes[MOST_CAUSES:]
        return replace(
            self,
            causes=tuple(map(_bounded, kept)),
            other_machine_code=(self.other_machine_code or ())[:MOST_CAUSES] or msgspec.UNSET,
            smaller=self.smaller + len(smaller),
            smaller_us=self.smaller_us + sum(cause.us for cause in smaller),
        )


def _bounded(cause: Cause) -> Cause:
    before, after = (
        replace(side, names=side.names[:MOST_NAMES], shapes=side.shapes[:MOST_NAMES])
        for side in (cause.before, cause.after)
    )
    return replace(cause, before=before, after=after)
