"""Rules for a step time that pairs of two trees measured. Each rule is a module. Rules are asked in
order, and the first decision counts. docs/judge.md has a table: their order, what each may say, and
how often it errs.
"""

from collections.abc import Callable
from typing import NamedTuple

from stepguard.core.comparison import Comparison
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.status import Status
from stepguard.core.verdict import Decision
from stepguard.judge.rules import (
    changed_kernels,
    identical_step,
    mean_of_pairs,
    mean_on_cpu,
    pattern_of_head,
    several_times,
    slow_steps,
)


class Rule(NamedTuple):
    """A rule with what it promises."""

    name: str
    decide: Callable[[Comparison], Decision | None]  # None: the rule does not decide
    may_say: tuple[Status, ...]
    errs: str  # how often it errs, and where that was measured


RULES = (
    Rule(
        "a step that is the same",
        identical_step.rule,
        (Status.SAME,),
        "a slowdown that shows in no identity and is as large as the matter margin passes in 32 %: "
        "tests/judge/ab",
    ),
    Rule(
        "several times as long",
        several_times.rule,
        (Status.SLOWER,),
        "unchanged code in under 0.03 %: tests/judge/ab/test_several_times.py",
    ),
    Rule(
        "late and periodic slowdowns",
        slow_steps.rule,
        (Status.SLOWER,),
        "unchanged code in under 0.1 %: tests/judge/test_slowdowns_in_series.py",
    ),
    Rule(
        "a pattern of HEAD alone",
        pattern_of_head.rule,
        (Status.SLOWER, Status.INCONCLUSIVE),
        "unchanged code is SLOWER, or needs more pairs, in none of 2,700 simulated comparisons: "
        "benchmarks/judge_rates.py",
    ),
    Rule(
        "the kernels that differ",
        changed_kernels.rule,
        (Status.SLOWER, Status.FASTER, Status.SAME),
        "kernels that take as long are SLOWER in under 0.02 %; a step slower by the matter "
        "margin passes in at most 8 %: "
        "tests/judge/ab/test_changed_kernels.py",
    ),
    Rule(
        "the mean on a CPU",
        mean_on_cpu.rule,
        (Status.SAME,),
        "it adds no false alarm; a slowdown of 20 % passes in 0 to 41 %: "
        "tests/judge/ab/test_ab_cpu.py",
    ),
    Rule(
        "the sequential plan",
        mean_of_pairs.rule,
        (Status.SLOWER, Status.FASTER, Status.SAME, Status.INCONCLUSIVE),
        "0.1 % and 5 %, see Error rates: tests/judge/ab/test_pair_statistics.py",
    ),
)


def decision(comparison: Comparison) -> Decision | None:
    """Decide the step time by the pairs so far. None if the step time is not gated, if there is no
    pair, or if a launch has no times.
    """
    launches = (*comparison.head.launches, *comparison.base.launches)
    timed = comparison.pairs and all(launch.has_times() for launch in launches)
    if JUDGED_TIME not in comparison.head.gates or not timed:
        return None
    decided = (rule.decide(comparison) for rule in RULES)
    return next(answer for answer in decided if answer is not None)
