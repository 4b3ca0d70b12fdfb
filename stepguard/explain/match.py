"""Match the kernels of two profiles, the surest way first.

What is left of one side where nothing is left of the other was added or removed; what is left of
both in the same place was replaced: "new" beside "gone" would say less than "instead of".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stepguard.profile import KernelRow


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
    def other_work(self) -> bool:
        """Tell whether a launch is known to compute more or less than before: of a kernel that
        stays on its multiprocessors the grid does not say so.
        """
        old, new = ({row.work.flops for row in side} for side in (self.before, self.after))
        return 0.0 not in old | new and old != new


_Key = Callable[[KernelRow], tuple[object, ...] | None]
_BATCHED = ("aten::bmm", "aten::baddbmm")


def _attends(row: KernelRow) -> bool:
    """Tell whether a kernel is attention or one of its steps: a product for each head, a softmax
    that is not the loss's.
    """
    softmax = "softmax" in row.name and "log_softmax" not in row.name
    return row.kind == "attention" or row.operator in _BATCHED or softmax


_PASSES: tuple[tuple[How, _Key], ...] = (
    (How.SAME, lambda row: (row.name, row.grid, row.block, row.phase)),
    (How.SHAPE, lambda row: (row.name, row.phase)),
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
    found: list[Match] = []
    left = list(before), list(after)
    for how, key in _PASSES:
        groups: dict[tuple[object, ...], tuple[list[KernelRow], list[KernelRow]]] = {}
        for side in (0, 1):
            for row in left[side]:
                if (place := key(row)) is not None:
                    groups.setdefault(place, ([], []))[side].append(row)
        both = [group for group in groups.values() if group[0] and group[1]]
        found += [Match(how, tuple(ours), tuple(theirs)) for ours, theirs in both]
        taken = {id(row) for group in both for side in group for row in side}
        left = tuple([row for row in rows if id(row) not in taken] for rows in left)  # type: ignore[assignment]
    found += [Match(How.ALONE, (row,), ()) for row in left[0]]
    found += [Match(How.ALONE, (), (row,)) for row in left[1]]
    return found
