"""The rules that make a verdict of two trees that took turns. Pure: no I/O, no clock, no torch.

In order, and the first that applies decides: the machine or HEAD's step failed; the other tree
cannot run the case; the two do not do the same work; a measurement contradicts itself or is not
whole; then counters to the unit, and the step time by its pairs (`pairs.py`), the worst metric
deciding. Where something is undecided, a counter that is known to have moved decides.
"""

from collections.abc import Sequence
from dataclasses import replace

from stepguard.comparison import JUDGED_TIME, Comparison
from stepguard.evidence import Evidence
from stepguard.judge.compare import compare
from stepguard.judge.pairs import Decision, benjamini_hochberg, decide
from stepguard.judge.screen import measurement_problem, undecided_metrics
from stepguard.judge.sequential_plan import SEQUENTIAL_PLAN
from stepguard.metrics import METRICS
from stepguard.recording import summary_of
from stepguard.verdict import MetricVerdict, Reason, Status, Verdict, worst_of

# What another revision's tree may well do, without anybody having changed HEAD for the worse.
_LACKS = (Reason.BAD_WORKLOAD.name, Reason.RAISED.name, Reason.OTHER_TREE.name)
# Equal on both sides, or their times say nothing.
WORK = {"tokens_per_step": Reason.OTHER_TOKENS, "flops_per_step": Reason.OTHER_FLOPS}
FALSE_DISCOVERIES = 0.01  # of the claims of a run, at most so many are false on average

_SAYS = {
    Status.SLOWER: Reason.BEYOND_MARGIN,
    Status.FASTER: Reason.BEYOND_MARGIN,
    Status.SAME: Reason.WITHIN_MARGINS,
    Status.INCONCLUSIVE: Reason.UNDECIDED,
}


def judge_ab(comparison: Comparison) -> Verdict:
    """The verdict on HEAD's tree against the other one."""
    found = problem(comparison)
    if found is None:
        return _compared(comparison)
    return found if found.status is not Status.INCONCLUSIVE else _risen(comparison) or found


def problem(comparison: Comparison) -> Verdict | None:
    """The verdict where the two cannot be compared; None if they can."""
    return (
        _failed(comparison)
        or _other_work(comparison)
        or _unsound(comparison)
        or _unknown_work(comparison)
    )


def decision(comparison: Comparison, name: str = JUDGED_TIME) -> Decision | None:
    """What the pairs so far say of a time; None if times are not judged, or there is no pair, or
    one without times.
    """
    launches = (*comparison.head.launches, *comparison.base.launches)
    timed = comparison.pairs and all(launch.has_times() for launch in launches)
    if JUDGED_TIME not in comparison.head.gates or not timed:
        return None
    return decide(
        comparison.log_ratios(name),
        comparison.margins,
        comparison.prior,
        last=comparison.out_of_time,
    )


def wants_another_pair(comparison: Comparison, name: str = JUDGED_TIME) -> bool:
    """Whether another pair should be measured: there is none, or that time is judged and not
    decided yet. What cannot be compared is not worth another one.
    """
    if not comparison.pairs:
        return not (_failed(comparison) or _other_work(comparison))
    found = decision(comparison, name)
    return found is not None and found.wants_more and problem(comparison) is None


def _failed(comparison: Comparison) -> Verdict | None:
    """HEAD's fault, or else the other tree's: neither has its launches then, so faults go first."""
    if comparison.head.faults:
        return _broken(comparison, comparison.head)
    if not comparison.base.faults:
        return None
    fault = comparison.base.faults[0]
    if fault.code not in _LACKS:
        return _broken(comparison, comparison.base)
    message = f"{_named(comparison)}: {fault.message}"
    return _verdict(comparison, Status.NOT_COMPARABLE, Reason.BASE_LACKS, message, fault.detail)


def _unsound(comparison: Comparison) -> Verdict | None:
    for evidence in (comparison.head, comparison.base):
        if found := _broken(comparison, evidence):
            return found
    head, base = len(comparison.head.launches), len(comparison.base.launches)
    if head == base:
        return None
    message = f"{head} launches of HEAD, {base} of {_named(comparison)}: they are not in pairs"
    return _verdict(comparison, Status.BROKEN, Reason.TOO_FEW_LAUNCHES, message)


def _broken(comparison: Comparison, evidence: Evidence) -> Verdict | None:
    """What is wrong with one side's evidence by itself."""
    found = measurement_problem(evidence)
    if found is None:
        return None
    status, reason, message, detail = found
    if evidence is comparison.base:
        message = f"{_named(comparison)}: {message}"
    return _verdict(comparison, status, reason, message, detail)


def _named(comparison: Comparison) -> str:
    full, asked = comparison.base.commit, comparison.against
    return full[:12] if full.startswith(asked) else f"{asked} ({full[:12]})"


def _verdict(
    comparison: Comparison, status: Status, reason: Reason, message: str, detail: str = ""
) -> Verdict:
    """A verdict on the case as a whole; HEAD's figures are shown if there are any."""
    shown = _shown(comparison.head, status, reason) if comparison.pairs else ()
    return Verdict(
        comparison.head.case_id,
        status,
        reason,
        message,
        detail,
        shown,
        against=_named(comparison),
    )


def _other_work(comparison: Comparison) -> Verdict | None:
    """Tokens and FLOPs must be equal: a step that does less is not faster, it is another one."""
    now, then = comparison.head.values(), comparison.base.values()
    for name, reason in WORK.items():
        if name in now and name in then and now[name] != then[name]:
            message = f"{name} {then[name]:,} in {_named(comparison)}, now {now[name]:,}"
            return _verdict(comparison, Status.NOT_COMPARABLE, reason, message)
        here, there = (_by_rank(side, name) for side in (comparison.head, comparison.base))
        if here != there:  # as much on the busiest rank, and another does less or more
            message = f"{name} by rank {there} in {_named(comparison)}, now {here}"
            return _verdict(comparison, Status.NOT_COMPARABLE, reason, message)
    return None


def _by_rank(evidence: Evidence, name: str) -> str:
    """The counts of ranks that differ, as text; empty where they are equal."""
    each = evidence.counts.by_rank.get(name, ()) if evidence.counts else ()
    return ", ".join(f"{count:,}" for count in each)


def _risen(comparison: Comparison) -> Verdict | None:
    """CHANGED, if counters that are known of both moved although others are not decided; as it is
    against a stored baseline.
    """
    problems = [measurement_problem(side) for side in (comparison.head, comparison.base)]
    if any(one and one[0] is not Status.INCONCLUSIVE for one in problems):
        return None
    head, base = comparison.head, [summary_of(comparison.base)]
    counters = [name for name in head.gates if METRICS[name].kind == "counter"]
    known = head.values().keys() & base[0].counters.keys()
    metrics = (compare(name, head, base) for name in counters if name in known)
    moved = tuple(metric for metric in metrics if metric.status is Status.CHANGED)
    if not moved:
        return None
    nothing = {
        one.metric: one for one in (*undecided_metrics(comparison.base), *undecided_metrics(head))
    }
    blank = Verdict(head.case_id, Status.CHANGED, Reason.WORK_MOVED, against=_named(comparison))
    return blank.with_metrics((*moved, *nothing.values()))


def _unknown_work(comparison: Comparison) -> Verdict | None:
    """Whether the work is equal must be known, also where the case does not gate it."""
    for evidence, whose in ((comparison.head, "HEAD"), (comparison.base, _named(comparison))):
        for name in WORK:
            if name not in evidence.values():
                why = evidence.counts.unstable.get(name, "") if evidence.counts else ""
                message = f"{name} of {whose} is not known" + (why and f": {why}")
                return _verdict(comparison, Status.BROKEN, Reason.METRIC_MISSING, message)
    return None


def _compared(comparison: Comparison) -> Verdict:
    head, base = comparison.head, [summary_of(comparison.base)]
    found = decision(comparison)
    names = [name for name in METRICS if name in head.values()]
    metrics = tuple(
        _time(comparison, name, found)
        if METRICS[name].kind == "time"
        else compare(name, head, base)
        for name in names
    )
    worst = worst_of(metrics)
    assert worst is not None
    return Verdict(
        head.case_id,
        worst.status,
        worst.reason,
        metrics=metrics,
        against=_named(comparison),
        p_value=found.p_value if found else None,
    )


def _time(comparison: Comparison, name: str, found: Decision | None) -> MetricVerdict:
    """A time beside the other tree's; judged if it is the one that is, and the case gates times."""
    new, old = comparison.head.values()[name], comparison.base.values().get(name)
    if found is None or name != JUDGED_TIME:
        change = 100 * (new / old - 1) if old else None
        return MetricVerdict(name, Status.SAME, Reason.NOT_JUDGED, old, new, change, gated=False)
    return MetricVerdict(
        name,
        found.status,
        _SAYS[found.status],
        old=new / (1 + found.estimate_pct / 100),
        new=new,
        change_pct=found.estimate_pct,
        limit_pct=comparison.margins.ignore_pct,
        noise_pct=found.sd_pct,
        note=decision_text(comparison, found),
    )


def decision_text(comparison: Comparison, found: Decision) -> str:
    """The decision in words: interval, pairs, and what could have been found."""
    nothing, matters = comparison.margins.ignore_pct, comparison.margins.matter_pct
    how = "" if comparison.together else ", one launch after the other"
    why = f" ({comparison.why})" if comparison.why else ""
    most = (
        ""
        if found.final and not comparison.out_of_time
        else f" of {SEQUENTIAL_PLAN[-1].pairs} at most"
    )
    return (
        f"[{found.low_pct:+.2f}, {found.high_pct:+.2f}] % over {found.pairs} pairs{most}{how}, "
        f"pair sd {found.sd_pct:.2f} %; margins {nothing:g} and {matters:g} %{why}; "
        f"smallest detectable slowdown {found.smallest_detectable_pct:.2f} %"
    )


def _shown(evidence: Evidence, status: Status, reason: Reason) -> tuple[MetricVerdict, ...]:
    values = evidence.values()
    return tuple(
        MetricVerdict(name, status, reason, new=values[name], gated=name in evidence.gates)
        for name in METRICS
        if name in values
    )


def without_false_discoveries(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The SLOWER verdicts of a run that its false discovery limit does not let stand, as
    INCONCLUSIVE. Every verdict that has a p-value counts among the claims that were tried.
    """
    tried = [verdict for verdict in verdicts if verdict.p_value is not None]
    kept = benjamini_hochberg(
        [v.p_value for v in tried if v.p_value is not None], FALSE_DISCOVERIES
    )
    found = []
    for verdict, stands in zip(tried, kept, strict=True):
        if verdict.status is Status.SLOWER and not stands:
            metrics = tuple(_unproven(m) if m.metric == JUDGED_TIME else m for m in verdict.metrics)
            waivers = tuple(one for one in verdict.waivers if one.waiver.metric != JUDGED_TIME)
            found.append(replace(verdict.with_metrics(metrics), waivers=waivers))
    return found


def _unproven(found: MetricVerdict) -> MetricVerdict:
    """Not known, so that no waiver covers it."""
    return replace(found, status=Status.INCONCLUSIVE, reason=Reason.UNPROVEN, waived_until="")
