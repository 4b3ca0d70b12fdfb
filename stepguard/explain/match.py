"""Match the kernels of two profiles, the surest way first.

What is left of one side where nothing is left of the other was added or removed; what is left of
both in the same place was replaced: "new" beside "gone" would say less than "instead of".

The compiler numbers the kernels that it generates, so that one more shifts the names of all behind
it. Of those that differ in their number alone the first is the first, as far as they are launched
as often.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stepguard.core.profile import KernelRow, mean


class How(StrEnum):
    """Describe how rows were found to belong together."""

    SAME = "same"  # name, launch shape and phase
    SHAPE = "shape"  # name and phase, in another launch shape
    RENAMED = "renamed"  # name but for what differs from build to build, and phase
    MOVED = "moved"  # name, in another phase
    OPERATOR = "operator"  # launched by the same operator in the same phase
    ATTENTION = "attention"  # fused or in steps, in the same phase
    CLASS = "class"  # of one class in the same phase
    ALONE = "alone"  # on one side only


@dataclass(frozen=True)
class Match:
    """Rows that belong together."""

    how: How
    before: tuple[KernelRow, ...]
    after: tuple[KernelRow, ...]

    @property
    def rows(self) -> tuple[KernelRow, ...]:
        """All rows, those of the later side first."""
        return self.after + self.before

    @property
    def more_calls(self) -> float:
        """Return how many more launches there are than before."""
        return sum(mean(r.calls) for r in self.after) - sum(mean(r.calls) for r in self.before)

    @property
    def more_us(self) -> float:
        """Return by how much they take longer than before."""
        return sum(mean(r.us) for r in self.after) - sum(mean(r.us) for r in self.before)

    @property
    def other_work(self) -> bool:
        """Tell whether a launch is known to compute more or less than before: of a kernel that
        stays on its multiprocessors the grid does not say so.
        """
        old, new = ({row.work.flops for row in side} for side in (self.before, self.after))
        return 0.0 not in old | new and old != new


_Key = Callable[[KernelRow], tuple[object, ...] | None]
_Group = tuple[list[KernelRow], list[KernelRow]]
_ALIKE = 0.25  # of launches or time that came, what went may differ by so much
_BATCHED = ("aten::bmm", "aten::baddbmm")


def _numbered(row: KernelRow) -> bool:
    """Tell whether all that its name has besides what lasts from build to build is a number."""
    return row.name.removeprefix(f"{row.canonical}_").isdigit()


def _named(*fields: str, numbered: bool = False) -> _Key:
    """Return the key of the kernels that have a number, without it, or of those that have none:
    their name, and these fields.
    """

    def key(row: KernelRow) -> tuple[object, ...] | None:
        if _numbered(row) is not numbered:
            return None
        # Two profiles may have other numbers of steps, and a recorded one has five digits.
        calls = round(mean(row.calls), 2)
        values = (calls if field == "calls" else getattr(row, field) for field in fields)
        return (row.canonical if numbered else row.name, *values)

    return key


def _attends(row: KernelRow) -> bool:
    """Tell whether a kernel is attention, a product of each head, or a softmax but the loss's."""
    softmax = "softmax" in row.name and "log_softmax" not in row.name
    return row.kind == "attention" or row.operator in _BATCHED or softmax


_PASSES: tuple[tuple[How, _Key], ...] = (
    (How.SAME, _named("grid", "block", "phase", "calls", numbered=True)),
    # A product's kernel that stays on its multiprocessors has one shape whatever it multiplies.
    (How.SAME, lambda row: row.key if row.work.flops else None),
    (How.SAME, _named("grid", "block", "phase")),
    (How.RENAMED, _named("grid", "block", "phase", numbered=True)),
    (How.SHAPE, _named("phase", "calls", numbered=True)),
    (How.SHAPE, _named("phase")),
    (How.RENAMED, lambda row: (row.canonical, row.phase)),
    (How.MOVED, lambda row: (row.name, row.grid, row.block)),
    (How.OPERATOR, lambda row: (row.operator, row.phase, row.kind) if row.operator else None),
    # Another class in the place of one operator: attention by a fused kernel, or by products; which
    # the compiler makes operators of their own, and of the softmax a kernel of its own.
    (How.OPERATOR, lambda row: (row.operator, row.phase) if row.operator else None),
    (How.ATTENTION, lambda row: (row.phase,) if _attends(row) else None),
    (How.CLASS, lambda row: (row.kind, row.phase)),
)


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
    """Return the kernel that was replaced in some of its launches by what is left of its place: as
    many launches, or about as much time, went from one to the other. Of several the one whose time
    makes up best for what is left.
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
    """Return the matches of a pass' group: one, or of numbered kernels one for each, by number."""
    if how not in (How.SAME, How.SHAPE) or not _numbered(before[0]):
        return [Match(how, tuple(before), tuple(after))]
    # Equal but for the number, which begins with no zero.
    in_order = (sorted(side, key=lambda row: (len(row.name), row.name)) for side in (before, after))
    return [
        Match(How.RENAMED if how is How.SAME and old.name != new.name else how, (old,), (new,))
        for old, new in zip(*in_order, strict=False)
    ]
