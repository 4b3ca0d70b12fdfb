"""Compare the numbers of two steps: do they compute the same?

Changes of a step's form move its numbers a little, since sums have another order. Each limit is 1.5
to 13 times the most that 21 to 24 such changes moved a number. They were measured on an H200 and on
a CPU, at three times of training (benchmarks/data/numbers_*_2026-11-29.json).
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from stepguard.core.metrics import NUMBERS, OPERATORS
from stepguard.core.reason_sentences import MovedNumbers
from stepguard.core.reasons import Reason
from stepguard.core.recording import Recording
from stepguard.core.status import Status
from stepguard.core.step_numbers import (
    GRADIENT,
    LOSS,
    THIRDS,
    UPDATE,
    UPDATES,
    WHOLE,
    StepNumbers,
    Steps,
)
from stepguard.core.text import listed
from stepguard.core.verdict import MetricVerdict, PartMove

# A number may move by this share of itself: where bf16, fp16 or tf32 rounds, and in single
# precision. Honest changes of form moved gradients by 0.014 and 3.7e-6, losses by 1.3e-4 and
# 2.2e-7, the norm before the optimizer by 0.0038 and 1.2e-6, all updates together by 0.0024 and
# 1.5e-7, one parameter's by 0.14 and 1e-5: of a gradient that is rounding AdamW makes a whole step.
# An AdamW that was compiled moved all updates by 1e-5, and the next loss by 2.8e-6.
LIMITS = {
    GRADIENT: (0.03, 3e-5),
    LOSS: (2e-4, 6e-6),
    WHOLE: (0.01, 8e-6),
    UPDATES: (0.006, 2e-5),
    UPDATE: (0.3, 3e-5),
}
# A number counts as at least this share of the norm of all of its kind: the bias of attention's key
# has no gradient but rounding.
FLOOR_SHARE = 1e-3
SHOWN = 3  # moves
_LAYER = re.compile(r"\.\d+\.")


@dataclass(frozen=True)
class Move:
    """A number that moved."""

    name: str
    third: int | None  # of a parameter's gradient
    step: int
    old: float | None
    new: float | None
    size: float  # in limits

    @property
    def kind(self) -> str:
        """Return the key of its limits."""
        return _kind(self.name)

    @property
    def where(self) -> str:
        """Return the part of a gradient, and the step if the number is not finite there."""
        third = f" ({THIRDS[self.third]} third)" if self.third is not None else ""
        return third + (f" of step {self.step}" if None in (self.old, self.new) else "")


def compare_numbers(now: Recording, past: Recording, gated: bool) -> MetricVerdict:
    """Return the verdict on the numbers of two steps. A side may not have looked for them."""
    if NUMBERS not in now.counters or NUMBERS not in past.counters:
        looked = now.counters.get(NUMBERS)
        return MetricVerdict(
            NUMBERS, Status.NO_BASELINE, Reason.NOT_RECORDED, new=looked, gated=gated
        )
    new, old = now.numbers or StepNumbers(), past.numbers or StepNumbers()
    counts = past.counters[NUMBERS], now.counters[NUMBERS]
    options, figures = tuple(_options(now, past)), None
    said = Status.CHANGED, Reason.WORK_MOVED
    if apart := new.apart or old.apart:
        figures = MovedNumbers(why=apart, revision="" if new.apart else "before")
        said = said if options else (Status.SAME, Reason.NOT_JUDGED)  # options are no chance
    elif counts[0] and not counts[1]:
        figures = MovedNumbers(why="no loss and no gradient is seen any more")
    elif moves := moved_numbers(new, old):
        figures = MovedNumbers(moved=tuple(shown(moves)))
    elif not options and (lost := _lost(new.of_steps, old.of_steps)):
        figures = MovedNumbers(why=f"not seen any more: {listed(lost, SHOWN)}")
        # An optimizer that is compiled calls its operators where the compiler is off.
        as_many = now.counters.get(OPERATORS, 0) >= past.counters.get(OPERATORS, 0)
        if as_many or lost == [WHOLE]:  # a step may ask for gradients, and leave none behind
            said = Status.SAME, Reason.NOT_JUDGED
    elif not options:
        known = old.listed or not any(counts)
        said = Status.SAME, Reason.EQUAL if known else Reason.NOT_RECORDED
    return MetricVerdict(NUMBERS, *said, *counts, moved=options, gated=gated, figures=figures)


def known_equal(metric: MetricVerdict | None) -> bool:
    """Tell whether a case's numbers were compared and are the same."""
    return metric is not None and metric.reason is Reason.EQUAL and bool(metric.new)


def moved_numbers(now: StepNumbers, past: StepNumbers) -> list[Move]:
    """Return the numbers that moved beyond their limits, causes first."""

    def order(move: Move) -> tuple[bool, int, bool, float]:
        return not math.isinf(move.size), move.step, move.kind in (UPDATE, UPDATES), -move.size

    return sorted((move for move in moves_of(now, past) if move.size > 1), key=order)


def moves_of(now: StepNumbers, past: StepNumbers) -> Iterator[Move]:
    """Yield by how much of its limit each number moved that both sides have."""
    new, old, fine = now.of_steps, past.of_steps, now.single or past.single
    for kind, limits in LIMITS.items():
        totals = _totals([old[name] for name in _of_kind(old, kind)])
        for name, here, there in _matched(kind, new, old):
            yield from _moves(name, here, there, totals, limits[fine])


def _lost(now: Mapping[str, Steps], past: Mapping[str, Steps]) -> list[str]:
    """Return the past's numbers of a kind that is not seen now: their form may be another."""
    kinds = {*map(_kind, now)}
    return [name for name in past if _kind(name) not in kinds]


def _of_kind(side: Mapping[str, Steps], kind: str) -> list[str]:
    return [name for name in side if _kind(name) == kind]


def _matched(
    kind: str, now: Mapping[str, Steps], past: Mapping[str, Steps]
) -> Iterator[tuple[str, Steps, Steps]]:
    """Yield each number of a kind that both sides have. If parameters have other names, and are as
    many as before, they are taken in their order. Else one that a side lacks has zeros there.
    """
    new, old = _of_kind(now, kind), _of_kind(past, kind)
    if not (new and old):
        return
    if len(new) != len(old) or {*new} == {*old}:
        new = old = [*dict.fromkeys(new + old)]
    for name, other in zip(new, old, strict=True):
        here, there = now.get(name), past.get(other)
        yield name, here or _zeros(there), there or _zeros(here)


def _zeros(like: Steps | None) -> Steps:
    return [[0.0] * len(parts) for parts in like or ()]


def _totals(numbers: Sequence[Steps]) -> list[float]:
    """Return by step the norm of all these numbers together, of those that are finite."""
    return [
        math.hypot(*(number for each in step if each for number in each if number is not None))
        for step in zip_longest(*numbers)
    ]


def _moves(
    name: str, new: Steps, old: Steps, totals: Sequence[float], limit: float
) -> Iterator[Move]:
    """Yield by how much of its limit each part of a number moved, in each step."""
    for step, (here, there) in enumerate(zip(new, old, strict=False)):
        for part, (now, then) in enumerate(zip(here, there, strict=False)):
            size = math.inf
            if now is not None and then is not None:
                allowed = limit * max(abs(then), FLOOR_SHARE * totals[step])
                moved = abs(now - then)
                size = moved / allowed if allowed else math.inf if moved else 0.0
            elif now is then:  # neither is finite
                size = 0.0
            third = part if len(here) == len(THIRDS) else None
            yield Move(name, third, step + 1, then, now, size)


def _kind(name: str) -> str:
    return next(kind for kind in LIMITS if name.startswith(kind))


def _options(now: Recording, past: Recording) -> Iterator[PartMove]:
    """Yield the options of optimizers that only one side has; none if one side stepped none."""
    new, old = (side.detail.get(NUMBERS, {}) for side in (now, past))
    for name in sorted(new.keys() ^ old.keys()) if new and old else ():
        yield PartMove(name, old.get(name, 0), new.get(name, 0))


def shown(moves: Sequence[Move]) -> Iterator[tuple[str, float | None, float | None, int]]:
    """Yield the first moves as a sentence shows them, a model's layers as one, the loss second."""
    layers: dict[str, dict[str, Move]] = {}
    for move in moves:
        layers.setdefault(_LAYER.sub(".*.", move.name), {}).setdefault(move.name, move)
    others = [name for name in layers if name != LOSS]
    for name in [*others[:1], *({LOSS} & layers.keys()), *others[1:]][:SHOWN]:
        most = next(iter(layers[name].values()))
        what = name if len(layers[name]) > 1 else most.name
        yield what + most.where, most.old, most.new, len(layers[name])
