"""Match the kernels of two profiles, the surest way first.

Kernels that are left on only one side were added or removed. If kernels are left on both sides in
the same place, the new ones replaced the old ones: "instead of" says more than "new" and "gone".

The compiler numbers the kernels that it generates, so one kernel more changes the names of all
later ones. Kernels that differ only in that number are matched in launch order, if they are
launched equally often.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stepguard.core.profile import KernelRow, Profile, mean
from stepguard.trace.kernel_classes import COMMUNICATION


class How(StrEnum):
    """How rows were found to belong together."""

    SAME = "same"  # name, launch shape and phase
    SHAPE = "shape"  # name and phase, but another launch shape
    RENAMED = "renamed"  # phase, and name without what differs from build to build
    MOVED = "moved"  # name, but another phase
    OPERATOR = "operator"  # launched by the same operator in the same phase
    ATTENTION = "attention"  # attention in the same phase, fused or as several kernels
    CLASS = "class"  # the same class in the same phase
    ALONE = "alone"  # only on one side


@dataclass(frozen=True)
class Match:
    """Rows that belong together."""

    how: How
    before: tuple[KernelRow, ...]
    after: tuple[KernelRow, ...]

    @property
    def rows(self) -> tuple[KernelRow, ...]:
        """Return all rows, those of the later side first."""
        return self.after + self.before

    @property
    def other_names(self) -> bool:
        """Tell whether names differ, and not only by the compiler's number or a product's tile."""
        names = {row.canonical if _numbered(row) else row.name for row in self.rows}
        return len(names) > 1

    @property
    def more_calls(self) -> float:
        """Return how many more launches there are than before, in a step."""
        return sum(mean(r.calls) for r in self.after) - sum(mean(r.calls) for r in self.before)

    @property
    def more_us(self) -> float:
        """Return by how many us a step they take longer than before."""
        return sum(mean(r.us) for r in self.after) - sum(mean(r.us) for r in self.before)

    @property
    def other_work(self) -> bool:
        """Tell whether a launch computes more or less than before. A grid may not show that."""
        old, new = ({row.work.flops for row in side} for side in (self.before, self.after))
        return 0.0 not in old | new and old != new


_Key = Callable[[KernelRow], tuple[object, ...] | None]
_Group = tuple[list[KernelRow], list[KernelRow]]
_ALIKE = 0.25  # launches or time that came may differ by this share from what went
_BATCHED = ("aten::bmm", "aten::baddbmm")


def _numbered(row: KernelRow) -> bool:
    """Tell whether the name is the canonical one and a number, as the compiler makes it."""
    return row.name.removeprefix(f"{row.canonical}_").isdigit()


def _named(*fields: str, numbered: bool = False) -> _Key:
    """Return a key function for kernels with (or without) a number in their name."""

    def key(row: KernelRow) -> tuple[object, ...] | None:
        if _numbered(row) is not numbered:
            return None
        # Rounded: two profiles may have different numbers of steps, and a recorded one has only
        # five digits.
        values = (
            round(mean(row.calls), 2) if field == "calls" else getattr(row, field)
            for field in fields
        )
        return (row.canonical if numbered else row.name, *values)

    return key


def _attends(row: KernelRow) -> bool:
    """Tell whether a kernel is attention, a product of each head, or not the loss's softmax."""
    softmax = "softmax" in row.name and "log_softmax" not in row.name
    return row.kind == "attention" or row.operator in _BATCHED or softmax


_PASSES: tuple[tuple[How, _Key], ...] = (
    (How.SAME, _named("grid", "block", "phase", "calls", numbered=True)),
    # A product's kernel that stays on its multiprocessors has one launch shape for all products, so
    # its work has to agree, too.
    (How.SAME, lambda row: row.key if row.work.flops else None),
    (How.SAME, _named("grid", "block", "phase")),
    (How.RENAMED, _named("grid", "block", "phase", numbered=True)),
    (How.SHAPE, _named("phase", "calls", numbered=True)),
    (How.SHAPE, _named("phase")),
    (How.RENAMED, lambda row: (row.canonical, row.phase)),
    (How.MOVED, lambda row: (row.name, row.grid, row.block)),
    (How.OPERATOR, lambda row: (row.operator, row.phase, row.kind) if row.operator else None),
    # From here on an operator's new kernels may be of another class. Attention may be one fused
    # kernel or several products. The compiler turns those products into operators of their own, and
    # the softmax into its own kernel.
    (How.OPERATOR, lambda row: (row.operator, row.phase) if row.operator else None),
    (How.ATTENTION, lambda row: (row.phase,) if _attends(row) else None),
    (How.CLASS, lambda row: (row.kind, row.phase)),
)


def communicates(row: KernelRow) -> bool:
    """Tell whether a kernel communicates: it waits for ranks beside kernels that compute."""
    return row.kind == COMMUNICATION


def rows_of(profile: Profile) -> tuple[KernelRow, ...]:
    """Return the kernels that compute."""
    return tuple(row for row in profile.kernels if not communicates(row))


def match(before: Sequence[KernelRow], after: Sequence[KernelRow]) -> list[Match]:
    """Return all rows of both sides, each in exactly one match."""
    matches: list[Match] = []
    left = list(before), list(after)
    for how, key in _PASSES:
        groups: dict[tuple[object, ...], _Group] = {}
        for side in (0, 1):
            for row in left[side]:
                if (place := key(row)) is not None:
                    groups.setdefault(place, ([], []))[side].append(row)
        if how in (How.OPERATOR, How.CLASS):
            for place, group in groups.items():
                known = [earlier for earlier in matches if key(earlier.rows[0]) == place]
                if partner := _partner(group, known):
                    matches.remove(partner)
                    group[0].extend(partner.before)
                    group[1].extend(partner.after)
        both = [pair for group in groups.values() if all(group) for pair in _matched(how, *group)]
        matches += both
        taken = {id(row) for pair in both for row in pair.rows}
        left = tuple([row for row in rows if id(row) not in taken] for rows in left)  # type: ignore[assignment]
    matches += [Match(How.ALONE, (row,), ()) for row in left[0]]
    matches += [Match(How.ALONE, (), (row,)) for row in left[1]]
    return matches


def _partner(group: _Group, matches: Sequence[Match]) -> Match | None:
    """Return the match whose kernel the group replaced in some of its launches: it lost about as
    many launches, or as much time, as the group gained, or the reverse. If several fit, return the
    one whose time fits best; None if none fits.
    """
    rest = Match(How.ALONE, tuple(group[0]), tuple(group[1]))
    near = [
        candidate
        for candidate in matches
        if candidate.how in (How.SAME, How.SHAPE, How.RENAMED)
        and candidate.more_calls
        and (
            abs(candidate.more_calls + rest.more_calls) <= _ALIKE * abs(rest.more_calls)
            or abs(candidate.more_us + rest.more_us) <= _ALIKE * abs(rest.more_us)
        )
    ]
    return min(near, key=lambda candidate: abs(candidate.more_us + rest.more_us), default=None)


def _matched(how: How, before: Sequence[KernelRow], after: Sequence[KernelRow]) -> list[Match]:
    """Return the matches of a group: one, or for numbered kernels one for each number."""
    if how not in (How.SAME, How.SHAPE) or not _numbered(before[0]):
        return [Match(how, tuple(before), tuple(after))]
    # Sorted by the number, the only difference between the names. It has no leading zero.
    in_order = (sorted(side, key=lambda row: (len(row.name), row.name)) for side in (before, after))
    return [
        Match(How.RENAMED if how is How.SAME and old.name != new.name else how, (old,), (new,))
        for old, new in zip(*in_order, strict=False)
    ]
