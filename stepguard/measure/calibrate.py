"""HEAD against itself: the pairs by which a machine's own noise is known."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from stepguard.case import Case
from stepguard.comparison import JUDGED_TIME, Comparison
from stepguard.git.worktree import Tree
from stepguard.judge.calibration import CalibratedCase, calibrated, refusal
from stepguard.judge.noise import Noise, noise_of
from stepguard.judge.sequential_plan import MIN_PAIRS
from stepguard.measure.ab import PAIR_TIMINGS
from stepguard.measure.confirm import compare_with
from stepguard.measure.progress import Progress
from stepguard.measure.workers import Bench

ToldPair = Callable[[int, float, float], None]  # pairs so far, the last one's d in %, s a pair


class NotCalibrated(Exception):
    """The pairs are no calibration; one sentence says why. Nothing is kept but they themselves."""

    def __init__(self, why: str, comparison: Comparison) -> None:
        super().__init__(why)
        self.comparison = comparison


@dataclass(frozen=True)
class Calibration:
    """What pairs of the same code told."""

    comparison: Comparison
    noise: Noise
    pair_s: float
    entry: CalibratedCase


@dataclass
class _Counting:
    """Wants pairs until there are enough, and keeps the time: that of the counting passes, which
    come before the first pair, is no pair's.
    """

    enough: int
    told: ToldPair
    counted_s: float = 0.0
    pair_s: float = 0.0  # on average, so far

    def more(self, found: Comparison) -> bool:
        """Whether another pair is wanted."""
        if not found.pairs:
            self.counted_s = found.wall_s
        else:
            self.pair_s = (found.wall_s - self.counted_s) / found.pairs
            self.told(found.pairs, 100 * found.log_ratios()[-1], self.pair_s)
        return found.pairs < self.enough


def calibrate(
    case: Case,
    bench: Bench,
    tree: Tree,
    pairs: int,
    budget_s: float,
    progress: Progress,
    told: ToldPair = lambda pairs, last_pct, pair_s: None,
) -> Calibration:
    """Pairs of HEAD and ``tree``, which holds the same commit: ``pairs`` of them, or as many as
    ``budget_s`` allows. Raises NotCalibrated if they are none to rely on.
    """
    counting = _Counting(pairs, told)
    # What else the case gates says nothing of noise, but work that differs says that all is vain.
    timed = replace(case, gates=(JUDGED_TIME, "flops_per_step"))
    found = compare_with(timed, bench, tree, progress, budget_s, wants_another=counting.more)
    if why := refusal(found):
        if found.out_of_time and found.pairs < MIN_PAIRS:
            minutes = math.ceil((counting.counted_s + (MIN_PAIRS + 1) * counting.pair_s) / 60)
            why += f"; a pair takes {counting.pair_s:.0f} s, give a case {minutes} min: --budget"
        raise NotCalibrated(why, found)
    try:
        noise = noise_of(found)
    except ValueError as error:
        raise NotCalibrated(str(error), found) from None
    entry = calibrated(found, noise, counting.pair_s, PAIR_TIMINGS[case.device].as_dict())
    return Calibration(found, noise, counting.pair_s, entry)
