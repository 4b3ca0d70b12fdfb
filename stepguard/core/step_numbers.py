"""The numbers that a launch's first steps compute. Two steps may do as much work, and compute
something else.

worker/counters/numbers.py takes them, judge/compare_numbers.py says how far they may move.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Annotated

import msgspec

from stepguard.core.strict_json import DocumentPart

LOSS = "loss"
WHOLE = "all gradients before the optimizer"
GRADIENT = "gradient of "
UPDATES = "update of all parameters"
UPDATE = "update of "

# Of a parameter's gradient. Query, key and value are often one parameter, and a wrong scale of
# attention moves no other norm by as much as that of key and query.
THIRDS = ("first", "second", "last")

# None: the number is not finite.
Parts = Annotated[list[float | None], msgspec.Meta(min_length=1, max_length=len(THIRDS))]
Steps = Annotated[list[Parts], msgspec.Meta(min_length=1, max_length=8)]


class StepNumbers(DocumentPart, frozen=True, kw_only=True):
    """The losses and norms of some steps."""

    # Each number's name, and of each step the norm of each part. Parameters are in the order of
    # their modules, which a JSON object would not keep.
    listed: list[tuple[str, Steps]] = []
    # All floating-point products of the eager step are in single precision, or in a better one.
    single: bool = False
    apart: str = ""  # why they cannot be compared: launches of one tree have other numbers

    @property
    def of_steps(self) -> dict[str, Steps]:
        """Return by name of each step the norm of each part."""
        return dict(self.listed)

    @property
    def first_not_finite(self) -> str:
        """Return the first number that is not finite and stays so, "gradient of wte.weight in step
        2"; else empty. A scaler of losses leaves out steps whose gradients overflow.
        """
        found = [
            (next(step for step, parts in enumerate(steps, 1) if None in parts), name)
            for name, steps in self.listed
            if None in steps[-1]
        ]
        return "{1} in step {0}".format(*min(found, key=lambda each: each[0])) if found else ""


def over_ranks(ranks: Sequence[StepNumbers | None]) -> StepNumbers | None:
    """Return the numbers of all ranks as one: the mean loss, and the root of the mean of squared
    norms, so that it does not matter which rank has which share of a parameter, or all of it: a
    loss that a rank lacks is left out, a norm is zero. None if a rank has no numbers.
    """
    each = [one for one in ranks if one is not None]
    if len(each) < len(ranks):
        return None
    if len(each) == 1:
        return each[0]
    by_rank = [one.of_steps for one in each]
    names = dict.fromkeys(name for of_rank in by_rank for name in of_rank)
    return StepNumbers(
        listed=[
            (
                name,
                [
                    [_together(name, parts, len(each)) for parts in zip(*steps, strict=False)]
                    for steps in zip(*(it[name] for it in by_rank if name in it), strict=False)
                ],
            )
            for name in names
        ],
        single=all(one.single for one in each),
    )


def _together(name: str, known: tuple[float | None, ...], ranks: int) -> float | None:
    finite = [number for number in known if number is not None]
    if len(finite) < len(known):
        return None
    if name == LOSS:
        return fmean(finite)
    return math.sqrt(sum(number**2 for number in finite) / ranks)
