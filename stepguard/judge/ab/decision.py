"""Rules of an A/B comparison: HEAD's tree and another revision's, measured in pairs.

In order, and the first that applies decides: the machine or HEAD's step failed; the other tree
cannot run the case; the two do not do the same work; a measurement contradicts itself or is not
whole; then counters one by one, and the step time by its pairs (`pairs.py`), the worst metric
deciding. Where something is undecided, a counter that is known to have moved decides. On a GPU a
time that is decided is explained by counters, not judged: an honest optimization calls other
operators.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from msgspec import structs
from msgspec.structs import replace

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Evidence
from stepguard.core.explanation import Explanation
from stepguard.core.figures import (
    Failed,
    OfCase,
    OtherWork,
    OtherWorkOfRanks,
    UnknownWork,
    Unpaired,
)
from stepguard.core.margins import Margins
from stepguard.core.metrics import JUDGED_TIME, METRICS
from stepguard.core.recording import Recording
from stepguard.core.verdict import (
    Decision,
    MetricVerdict,
    PairsFinding,
    Reason,
    Status,
    Verdict,
)
from stepguard.explain.causes import explain
from stepguard.judge.ab.by_profile import other_kernels, straggler
from stepguard.judge.ab.identical import identical, not_enough
from stepguard.judge.ab.pairs import decide
from stepguard.judge.ab.sequential_plan import EXPLAINED_PAIRS, MIN_PAIRS, MOST_PAIRS
from stepguard.judge.counters import compare
from stepguard.judge.screen import moved_counters
from stepguard.judge.series import judged_within, of_pairs
from stepguard.judge.soundness import measurement_problem, uncompared, undecided_metrics
from stepguard.judge.summary import summarise

# Another revision's tree may well lack the case, without anybody having made HEAD worse.
_LACKS = (Reason.BAD_WORKLOAD, Reason.RAISED)
# Has to be equal on both sides, or their times say nothing.
WORK = ("tokens_per_step", "flops_per_step")
# What no time pays for: another exchange, a step that at last runs out of memory.
PRICELESS = ("collective_bytes_per_step", "leaked_bytes_per_step")
# What the compiler's kernels cost on a GPU is in the launches and in the time: a step without its
# graph break has one more of 360, and is a gain.
GENERATED = "generated_kernels"
# Pairs of a CPU's time that the case does not gate: two that show no slowdown on average end it, so
# do eight that leave it in doubt.
LEAST_GLANCED, MOST_GLANCED = 2, 8

_REASONS = {
    Status.SLOWER: Reason.BEYOND_MARGIN,
    Status.FASTER: Reason.BEYOND_MARGIN,
    Status.SAME: Reason.WITHIN_MARGINS,
    Status.INCONCLUSIVE: Reason.UNDECIDED,
}


def judge_ab(comparison: Comparison) -> Verdict:
    """Return the verdict on HEAD's tree against the other one."""
    found = problem(comparison)
    if found is None:
        return _compared(comparison)
    return found if found.status is not Status.INCONCLUSIVE else _risen(comparison) or found


def problem(comparison: Comparison) -> Verdict | None:
    """Return the verdict where the two cannot be compared; None if they can."""
    # Other work before what is not sound: it is known from the counting pass, without a pair.
    return (
        _failed(comparison)
        or _other_work(comparison)
        or _unsound(comparison)
        or _unknown_work(comparison)
    )


def decision(comparison: Comparison) -> Decision | None:
    """Decide the step time by the pairs so far; None if it is not judged, or no pair has times."""
    launches = (*comparison.head.launches, *comparison.base.launches)
    timed = comparison.pairs and all(launch.has_times() for launch in launches)
    if JUDGED_TIME not in comparison.head.gates or not timed:
        return None
    found = by_plan(comparison)
    if identical(comparison):
        return replace(found, status=Status.SAME, final=True)
    return _glanced(found, comparison.margins) if comparison.glance else found


def by_plan(comparison: Comparison) -> Decision:
    """Decide the step time by the sequential plan alone."""
    ratios = comparison.log_ratios()
    few = EXPLAINED_PAIRS <= len(ratios) < MIN_PAIRS
    explained = few and other_kernels(_explanation(comparison), math.expm1(fmean(ratios)))
    return decide(
        ratios,
        comparison.margins,
        replaced=[one.log_ratio for one in comparison.again if not one.compiled],
        last=comparison.out_of_time,
        fewest=EXPLAINED_PAIRS if explained else MIN_PAIRS,
        alpha=comparison.alpha,
    )


def _glanced(found: Decision, margins: Margins) -> Decision:
    """End early what only a slowdown decides: as soon as the pairs' mean shows none, and where it
    is in doubt after a few, unless the mean itself would matter. Nothing but `same` comes of it, so
    that no rate rises; and not of fewer, whatever ended them, since any slowdown is in doubt then.
    """
    none_seen = found.pairs >= LEAST_GLANCED and found.estimate_pct <= margins.ignore_pct
    enough = found.pairs >= MOST_GLANCED
    ended = none_seen or (enough and found.estimate_pct <= margins.matter_pct)
    if not ended or found.status is not Status.INCONCLUSIVE:
        return found
    return replace(found, status=Status.SAME, final=True)


def pairs_finding(comparison: Comparison, found: Decision) -> PairsFinding:
    """Return the decision with all that it rests on."""
    ended = found.final and not comparison.out_of_time
    few = comparison.glance and found.pairs <= MOST_GLANCED
    most = 0 if ended else MOST_GLANCED if few else MOST_PAIRS
    moved = found.status in (Status.SLOWER, Status.FASTER)  # then nobody asks
    return PairsFinding(
        found,
        comparison.margins,
        comparison.alpha,
        comparison.together,
        most,
        len(comparison.again),
        comparison.stays,
        "" if moved else not_enough(comparison),
    )


def wants_another_pair(comparison: Comparison) -> bool:
    """Tell whether another pair should be measured: there is none, or the time is judged and not
    decided yet. Sides that cannot be compared are not worth another one.
    """
    # Without a pair evidence has no launches and is not sound yet; only these two can be known.
    if not comparison.pairs:
        return not (_failed(comparison) or _other_work(comparison))
    found = decision(comparison)
    if found is None or found.final or problem(comparison) is not None:
        return False
    return of_pairs(comparison) is None  # else it is SLOWER already


def wants_every_pair(comparison: Comparison) -> bool:
    """Tell whether another pair of a commit with itself should be measured: as many as the plan
    has. There is nothing to decide early, and each says more of the machine's noise.
    """
    if not comparison.pairs or comparison.glance:
        return wants_another_pair(comparison)
    return decision(comparison) is not None and problem(comparison) is None


def _failed(comparison: Comparison) -> Verdict | None:
    """Return HEAD's fault, or else the other tree's; first, since launches are missing then."""
    if comparison.head.faults:
        return _broken(comparison, comparison.head)
    if not comparison.base.faults:
        return None
    fault = comparison.base.faults[0]
    if fault.code not in _LACKS:
        return _broken(comparison, comparison.base)
    lacks = Failed(revision=comparison.named, message=fault.message)
    return _verdict(comparison, Status.NOT_COMPARABLE, Reason.BASE_LACKS, lacks, fault.detail)


def _unsound(comparison: Comparison) -> Verdict | None:
    for evidence in (comparison.head, comparison.base):
        if found := _broken(comparison, evidence):
            return found
    head, base = len(comparison.head.launches), len(comparison.base.launches)
    if head == base:
        return None
    unpaired = Unpaired(head=head, base=base, other=comparison.named)
    return _verdict(comparison, Status.BROKEN, Reason.NOTHING_MEASURED, unpaired)


def _broken(comparison: Comparison, evidence: Evidence) -> Verdict | None:
    """Return the verdict if one side's evidence is not sound by itself."""
    found = measurement_problem(evidence)
    if found is None:
        return None
    figures = found.figures
    if evidence is comparison.base:
        figures = structs.replace(figures, revision=comparison.named)
    return _verdict(comparison, found.status, found.reason, figures, found.detail)


def _verdict(
    comparison: Comparison, status: Status, reason: Reason, figures: OfCase, detail: str = ""
) -> Verdict:
    """Return a verdict on the case as a whole; HEAD's figures are shown if there are any."""
    head = comparison.head
    shown = uncompared(summarise(head), head.gates, status, reason) if comparison.pairs else ()
    return Verdict(head.case_id, status, reason, figures, detail, shown, against=comparison.named)


def _other_work(comparison: Comparison) -> Verdict | None:
    """Refuse unequal tokens and FLOPs: a step that does less is not faster, it is another one. The
    counters beside them say which work it is, and where.
    """
    head, base = summarise(comparison.head), summarise(comparison.base)
    found = _unequal(comparison, head, base)
    if found is None:
        return None
    known = head.counters.keys() & base.counters.keys()
    gates = comparison.head.gates
    compared = tuple(compare(name, head, [base], gates) for name in METRICS if name in known)
    times = tuple(one for one in found.metrics if one.metric not in known)
    return replace(found, metrics=(*times, *compared))


def _unequal(comparison: Comparison, head: Recording, base: Recording) -> Verdict | None:
    now, then = head.values(), base.values()
    for name in WORK:
        work: OtherWork | OtherWorkOfRanks
        if name in now and name in then and now[name] != then[name]:
            work = OtherWork(metric=name, other=comparison.named, old=then[name], new=now[name])
            return _verdict(comparison, Status.CHANGED, Reason.WORK_MOVED, work)
        new, old = (tuple(side.unlike_ranks().get(name, ())) for side in (head, base))
        if new != old:  # as much on the busiest rank, and another does less or more
            work = OtherWorkOfRanks(metric=name, other=comparison.named, old=old, new=new)
            return _verdict(comparison, Status.CHANGED, Reason.WORK_MOVED, work)
    return None


def _risen(comparison: Comparison) -> Verdict | None:
    """Return CHANGED, if counters known of both moved although others are not decided."""
    problems = [measurement_problem(side) for side in (comparison.head, comparison.base)]
    # A side that is BROKEN or UNFIT has no counts to trust.
    if any(one and one.status is not Status.INCONCLUSIVE for one in problems):
        return None
    head, base = comparison.head, comparison.base
    moved = moved_counters(summarise(head), [summarise(base)], head.gates)
    if not moved:
        return None
    # HEAD's reason last: where both sides are undecided, it is the one that is shown.
    unknown = {one.metric: one for one in (*undecided_metrics(base), *undecided_metrics(head))}
    return Verdict.of(head.case_id, (*moved, *unknown.values()), against=comparison.named)


def _unknown_work(comparison: Comparison) -> Verdict | None:
    """Refuse work that is not known to be equal, also where the case does not gate it."""
    for evidence, whose in ((comparison.head, "HEAD"), (comparison.base, comparison.named)):
        values = summarise(evidence).values()
        for name in (name for name in WORK if name not in values):
            why = evidence.counted.unstable.get(name, "")
            unknown = UnknownWork(metric=name, whose=whose, why=why)
            return _verdict(comparison, Status.BROKEN, Reason.METRIC_MISSING, unknown)
    return None


def _compared(comparison: Comparison) -> Verdict:
    now, base = summarise(comparison.head), summarise(comparison.base)
    found, gates, values = decision(comparison), comparison.head.gates, now.values()
    compared = (
        _time(comparison, found, now, base)
        if name == JUDGED_TIME
        else compare(name, now, [base], gates)
        for name in METRICS
        if name in values
    )
    decided = found.status if found and comparison.head.on_gpu else None
    metrics = tuple(beside_time(one, decided) for one in compared)
    p_value = _p_value(metrics, found)
    case_id, against = comparison.head.case_id, comparison.named
    return Verdict.of(case_id, metrics, against=against, p_value=p_value, **why(comparison))


def why(comparison: Comparison) -> dict[str, Any]:
    """Return what the profiles of both sides say, as fields of a verdict."""
    head, base = comparison.head.counted, comparison.base.counted
    found = _explanation(comparison)
    return {
        "explanation": found.bounded() if found else None,
        "straggler": straggler(base.parts_by_rank, head.parts_by_rank),
    }


def _explanation(comparison: Comparison) -> Explanation | None:
    """Return why HEAD's step takes longer; None where a side has no profile."""
    before, after = comparison.base.counted.profile, comparison.head.counted.profile
    return explain(before, after) if before and after else None


def _p_value(metrics: Sequence[MetricVerdict], found: Decision | None) -> float | None:
    """Return the p-value of the claim that the step is slower, by its mean or within launches."""
    slow = (one.slow_steps.p_value for one in metrics if one.slow_steps)
    known = [p_value for p_value in slow if p_value is not None]
    return min([*known, found.p_value]) if found else None


def beside_time(found: MetricVerdict, time: Status | None) -> MetricVerdict:
    """Make a counter that moved a notice, where the time on a GPU says what it is worth: any other
    work, also while the pairs do not decide, as many FLOPs or copies of other kinds with it, and
    generated kernels; and a cost that rose only if the step is FASTER. ``time``: None where it is
    not judged.
    """
    if time is None or found.status is not Status.CHANGED or found.metric in PRICELESS:
        return found
    as_many = found.new == found.old and all(new <= old for old, new in found.failing_ranks)
    if METRICS[found.metric].role == "work" or found.metric == GENERATED or as_many:
        return replace(found, status=Status.SAME, reason=Reason.TIME_DECIDES)
    if time is Status.FASTER:
        return replace(found, status=Status.SAME, reason=Reason.PAID_FOR)
    return found


def _time(
    comparison: Comparison, found: Decision | None, now: Recording, base: Recording
) -> MetricVerdict:
    """Compare the step time with the other tree's, by the pairs; shown where it is not gated."""
    new, old = now.values()[JUDGED_TIME], base.values().get(JUDGED_TIME)
    margins = comparison.margins
    if found is None:
        change = 100 * (new / old - 1) if old else None
        shown = Status.SAME, Reason.NOT_JUDGED, old, new, change
        return MetricVerdict(JUDGED_TIME, *shown, gated=False)
    judged = MetricVerdict(
        JUDGED_TIME,
        found.status,
        _own_reason(comparison, found) or _REASONS[found.status],
        # What the pairs say, not the base's own mean, so that old, new and change agree.
        old=new / (1 + found.estimate_pct / 100),
        new=new,
        change_pct=found.estimate_pct,
        # What `same` says is that the change is below the matter margin.
        limit_pct=margins.matter_pct if found.status is Status.SAME else margins.ignore_pct,
        noise_pct=found.sd_pct,
        pairs=pairs_finding(comparison, found),
    )
    return judged_within(comparison, judged)


def _own_reason(comparison: Comparison, found: Decision) -> Reason | None:
    """Return why a time passes that the plan did not decide: its step is the same, or a CPU's."""
    if identical(comparison):
        return Reason.IDENTICAL_STEP
    if not comparison.glance or by_plan(comparison).status is found.status:
        return None
    slower = found.estimate_pct > comparison.margins.ignore_pct
    return Reason.MAYBE_SLOWER if slower else Reason.NO_SLOWDOWN
