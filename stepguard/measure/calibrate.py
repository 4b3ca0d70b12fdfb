"""HEAD against itself: the pairs that show a machine's own noise."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from stepguard.case import Case
from stepguard.comparison import JUDGED_TIME, Comparison
from stepguard.git.worktree import Tree
from stepguard.judge.calibration import (
    CalibratedCase,
    PairNoise,
    calibrated,
    pair_noise,
    refusal,
)
from stepguard.judge.sequential_plan import MIN_PAIRS
from stepguard.measure.ab import PAIR_TIMINGS
from stepguard.measure.confirm import compare_with
from stepguard.measure.progress import Progress
from stepguard.measure.workers import Bench


class NotCalibrated(Exception):
    """The pairs are no calibration; one sentence says why. Nothing is kept but they themselves."""

    def __init__(self, why: str, comparison: Comparison) -> None:
        super().__init__(why)
        self.comparison = comparison


@dataclass(frozen=True)
class Calibration:
    """The pairs of the same code, their noise, and what is kept of it."""

    comparison: Comparison
    noise: PairNoise
    entry: CalibratedCase


def calibrate(
    case: Case,
    bench: Bench,
    tree: Tree,
    pairs: int,
    budget_s: float,
    progress: Progress,
    completed: Callable[[Comparison], None] = lambda comparison: None,
) -> Calibration:
    """Measure HEAD beside ``tree``, which holds the same commit: ``pairs`` pairs, or as many as
    ``budget_s`` allows; ``completed`` is called after each.

    Raises NotCalibrated if they cannot be relied on.
    """
    counted_s = pair_s = 0.0  # the counting passes before the first pair are no pair's time

    def wants_another_pair(found: Comparison) -> bool:
        nonlocal counted_s, pair_s
        if found.pairs:
            pair_s = (found.wall_s - counted_s) / found.pairs
            completed(found)
        else:
            counted_s = found.wall_s
        return found.pairs < pairs

    # What else the case gates says nothing of noise, but FLOPs that differ say that all is vain.
    timed = replace(case, gates=(JUDGED_TIME, "flops_per_step"))
    found = compare_with(timed, bench, tree, progress, budget_s, wants_another=wants_another_pair)
    if why := refusal(found):
        if found.out_of_time and found.pairs < MIN_PAIRS:
            minutes = math.ceil((counted_s + (MIN_PAIRS + 1) * pair_s) / 60)
            why += f"; a pair takes {pair_s:.0f} s, give a case {minutes} min: --budget"
        raise NotCalibrated(why, found)
    try:
        noise = pair_noise(found)
    except ValueError as error:
        raise NotCalibrated(str(error), found) from None
    entry = calibrated(found, noise, pair_s, PAIR_TIMINGS[case.device].as_dict())
    return Calibration(found, noise, entry)
