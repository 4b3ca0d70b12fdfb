"""Rules for a step time that pairs of two trees measured. They are asked in order, and the first
decision counts. docs/judge.md says what each may say.
"""

from msgspec.structs import replace

from stepguard.core.comparison import Comparison
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.pair_statistics import MOST_PAIRS, by_plan
from stepguard.judge.rules import changed_kernels, on_cpu, same_step


def decision(comparison: Comparison) -> Decision | None:
    """Decide the step time by the pairs so far; None if it is not judged, or not known."""
    launches = (*comparison.head.launches, *comparison.base.launches)
    if not (comparison.pairs and all(launch.has_times() for launch in launches)):
        return None
    if JUDGED_TIME not in comparison.head.gates:
        return None if comparison.head.on_gpu else on_cpu.rule(comparison)
    decided = same_step.rule(comparison) or changed_kernels.rule(comparison) or by_plan(comparison)
    return _with_replaced(comparison, decided)


def _with_replaced(comparison: Comparison, decided: Decision) -> Decision:
    """Return the decision; INCONCLUSIVE if HEAD only passes without the replaced pairs."""
    all_pct = decided.with_replaced_pct
    passes = decided.status in (Status.SAME, Status.FASTER)
    if all_pct is None or not passes or all_pct <= comparison.margins.matter_pct:
        return decided
    last = comparison.out_of_time or comparison.pairs >= MOST_PAIRS
    return replace(decided, status=Status.INCONCLUSIVE, reason=Reason.UNDECIDED, final=last)
