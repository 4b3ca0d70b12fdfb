"""What happens next to a case. Pure: the driver tells how far the case is, and does what is said.

A case is measured in one tree, or in two that are compared. Two launches, one of each tree, are a
pair; they run in turns or one after the other. The first launches count. Then the judge says
whether a time is needed, and whether anything will likely follow.
"""

from dataclasses import dataclass
from enum import Enum, auto

from stepguard.judge.rule_book import NOTHING, Need

HEAD, BASE = 0, 1
ORDERS = ((BASE, HEAD, HEAD, BASE), (HEAD, BASE, BASE, HEAD))  # of a pair's blocks


class Do(Enum):
    """What is done with the launches that are alive, or with new ones."""

    START = auto()  # import, build, run the first step
    COUNT = auto()
    TIME = auto()  # warm up, and time blocks in turns
    END = auto()
    DROP = auto()  # kill: there is no memory for both
    COUNT_ALONE = auto()  # in a launch that has the GPUs to itself
    STOP = auto()


class Stage(Enum):
    """How far the launches are that are alive."""

    NONE = auto()  # there are none
    BUILT = auto()
    COUNTED = auto()
    TIMED = auto()


@dataclass(frozen=True)
class Next:
    """What happens next."""

    do: Do
    trees: tuple[int, ...] = ()  # in which a launch starts or counts
    counters: tuple[str, ...] = ()  # to count once more; none: all of them, for the first time
    profiled: bool = False  # each launch that was timed ends with a profile
    late: bool = False  # it stops because time is up


@dataclass
class SoFar:
    """A case so far, as far as it decides what happens next. The driver keeps it."""

    need: Need = NOTHING  # of the judge
    trees: int = 1  # 2: they are compared
    stage: Stage = Stage.NONE
    number: int = 1  # of the pair, or of the launch of one tree, that is alive or comes next
    uncounted: tuple[int, ...] = ()  # trees that are to be counted
    crowded: bool = False  # the first launches had no room to count beside each other
    room: bool = True  # the peaks of all trees fit on the card together
    together: bool = True  # both launches of a pair are alive; else one runs after the other
    done: int | None = None  # the tree whose launch of such a pair has run
    waiting: bool = False  # a disturbed pair waits for this one, which may replace it
    late: bool = False  # the time for pairs is up


def next_action(state: SoFar) -> Next:
    """Return what happens next."""
    stage, need = state.stage, state.need
    if stage is Stage.NONE:
        return _start(state)
    if stage is Stage.BUILT and state.uncounted:
        return Next(Do.COUNT if state.room else Do.DROP)
    useless = state.crowded or not need
    if stage is Stage.TIMED or stage is Stage.COUNTED and useless:
        return Next(Do.END)
    return Next(Do.TIME, profiled=need.profiled and not state.waiting)


def _start(state: SoFar) -> Next:
    need, every = state.need, tuple(range(state.trees))
    if state.uncounted:
        crowded = Next(Do.COUNT_ALONE, state.uncounted[:1])
        return crowded if state.crowded else Next(Do.START, every)
    if state.done is not None:
        return Next(Do.START, (1 - state.done,))
    if need.counters:
        return Next(Do.COUNT_ALONE, (BASE if need.of_base else HEAD,), need.counters)
    if not (need.launch or need.pair):
        return Next(Do.STOP)
    if state.late and state.number > 1:  # there is one pair in any case
        return Next(Do.STOP, late=True)
    return Next(Do.START, every if state.together else order_of(state.number)[:1])


def imports(state: SoFar, on_gpu: bool, ahead: int, most: int) -> tuple[tuple[int, ...], bool]:
    """Return what shall import from now on, while launches are built, so that nothing does while a
    block is timed: the numbers of launches that are likely to come, of ``most``, and whether the
    next case's are. Of the first launch the ranks import, of the others only agents.
    """
    starts, in_pairs = state.stage is Stage.NONE, state.trees > 1
    if in_pairs and state.uncounted:
        # On a GPU the counts say if there will be another pair.
        return (), on_gpu and starts
    # The first pair is known to be one once it has counted.
    if not state.together or not (starts or in_pairs and state.stage is Stage.COUNTED):
        return (), False
    if state.need.last:
        return (), True
    return tuple(range(state.number + 1, min(state.number + ahead, most) + 1)), False


def order_of(number: int) -> tuple[int, ...]:
    """Return the trees in the order of a pair's blocks."""
    return ORDERS[(number - 1) % 2]
