"""The time to a launch's first step. Pairs judge it if a case gates it.

Each tree's first launch has filled the compile cache that all launches share. So this is the
time of a warm start: the build of the workload, and what the compiler does with a full cache.
"""

import math
from statistics import fmean

from stepguard.core.comparison import Comparison
from stepguard.core.margins import Margins
from stepguard.core.metrics import FIRST_STEP
from stepguard.core.verdict import Decision, MetricVerdict, PairsFinding
from stepguard.judge.pair_statistics import decide, figures
from stepguard.judge.sequential_plan import MOST_PAIRS

# A start reads files and asks the compiler. So it scatters by several percent, also on a GPU.
FIRST_STEP_MARGINS = Margins(5.0, 20.0)
# This share of the case's level. It is small, so that the case's error rate hardly rises.
LEVEL_SHARE = 0.1


def decision(comparison: Comparison) -> Decision | None:
    """Decide the time to the first step by the sequential plan; None if the case does not gate it,
    or there is no pair.
    """
    if FIRST_STEP not in comparison.head.gates or not comparison.pairs:
        return None
    both = comparison.paired_launches()
    ratios = [_log_s(head.compile_s) - _log_s(base.compile_s) for head, base in both]
    measured = figures(ratios, FIRST_STEP_MARGINS, alpha=LEVEL_SHARE * comparison.alpha)
    return decide(measured, last=comparison.out_of_time)


def verdict(comparison: Comparison, decided: Decision) -> MetricVerdict:
    """Return what the pairs say of the time to the first step, in seconds. The new time is the
    geometric mean over HEAD's launches. The old time follows from it and the pairs' ratio.
    """
    new = math.exp(fmean(_log_s(launch.compile_s) for launch in comparison.head.launches))
    ended = decided.final and not comparison.out_of_time
    return MetricVerdict(
        FIRST_STEP,
        decided.status,
        decided.reason,
        new / (1 + decided.estimate_pct / 100),
        new,
        decided.estimate_pct,
        FIRST_STEP_MARGINS.ignore_pct,
        noise_pct=decided.sd_pct,
        pairs=PairsFinding(
            decided,
            FIRST_STEP_MARGINS,
            LEVEL_SHARE * comparison.alpha,
            comparison.together,
            0 if ended else MOST_PAIRS,
        ),
    )


def _log_s(seconds: float) -> float:
    return math.log(max(seconds, 1e-6))  # a step that takes no time has no logarithm
