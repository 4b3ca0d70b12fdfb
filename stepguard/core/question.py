"""What is asked of the judge: all that it may look at, as one frozen value (judge/rule_book.py)."""

from dataclasses import dataclass
from datetime import date

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Evidence
from stepguard.core.permission import Permission
from stepguard.core.recording import Entry


@dataclass(frozen=True)
class Answer:
    """What a run learned about an alarm: pairs of HEAD and a commit, or why there are none."""

    commit: str = ""  # the commit, and how it was chosen
    pairs: Comparison | None = None
    own: bool = True  # whether it is the recording's own commit, and not a substitute
    same_code: bool = False  # HEAD is that commit: only the machine can differ
    failed: str = ""  # why there are no pairs


@dataclass(frozen=True)
class Question:
    """A case so far. ``now`` is compared with recordings. With ``pairs`` another tree judges, and
    ``now`` is None.
    """

    now: Evidence | None = None
    entry: Entry | None = None  # the case's baseline; None if it has none
    path: str = ""  # the file that should have it
    own: Entry | None = None  # the tree's own baseline, if another branch's judges
    pairs: Comparison | None = None
    answer: Answer | None = None  # to an alarm of recordings
    permissions: tuple[Permission, ...] = ()
    today: date = date.min
    # All that is planned is wanted: the run is recorded, or a commit is compared with itself.
    everything: bool = False
