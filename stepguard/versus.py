"""The rules that make a verdict of two trees that took turns. Pure: no I/O, no clock, no torch.

In order, and the first that applies decides: the machine or HEAD's step failed; the other tree
cannot run the case; the two do not do the same work; then counters to the unit, and the step time
by its pairs (`pairs.py`), the worst metric deciding.
"""

from collections.abc import Sequence
from dataclasses import replace

from stepguard.compare import compare
from stepguard.comparison import JUDGED_TIME, Comparison
from stepguard.evidence import Evidence, Fault
from stepguard.judge import measurement_problem
from stepguard.looks import PLAN
from stepguard.metrics import METRICS
from stepguard.pairs import Decision, benjamini_hochberg, decide
from stepguard.recording import summary_of
from stepguard.verdict import MetricVerdict, Reason, Status, Verdict, worst_of

# What another revision's tree may well do, without anybody having changed HEAD for the worse.
_LACKS = (Reason.BAD_WORKLOAD.name, Reason.RAISED.name, Reason.OTHER_TREE.name)
FALSE_DISCOVERIES = 0.01  # of the claims of a run, at most so many are false on average

_SAYS = {
    Status.SLOWER: Reason.BEYOND_MARGIN,
    Status.FASTER: Reason.BEYOND_MARGIN,
    Status.SAME: Reason.WITHIN_MARGINS,
    Status.INCONCLUSIVE: Reason.UNDECIDED,
}


def judge_turns(comparison: Comparison) -> Verdict:
    """The verdict on HEAD's tree against the other one."""
    return _failed(comparison) or _other_work(comparison) or _compared(comparison)


def decision(comparison: Comparison, name: str = JUDGED_TIME) -> Decision | None:
    """What the pairs so far say of a time; None if times are not judged, or there is no pair."""
    if JUDGED_TIME not in comparison.head.gates or not comparison.pairs:
        return None
    return decide(
        comparison.log_ratios(name),
        comparison.margins,
        comparison.prior,
        last=comparison.out_of_time,
    )


def wants_more(comparison: Comparison) -> bool:
    """Whether another pair should be measured: the times are judged, and not decided yet."""
    found = decision(comparison)
    return found.wants_more if found else comparison.pairs < 1


def _failed(comparison: Comparison) -> Verdict | None:
    for side, evidence in (("", comparison.head), ("base", comparison.base)):
        problem = measurement_problem(evidence)
        if problem is None:
            continue
        status, reason, message, detail = problem
        if side and evidence.faults and evidence.faults[0].code in _LACKS:
            return _not_comparable(comparison, Reason.BASE_LACKS, evidence.faults[0])
        if side:
            message = f"{_named(comparison)}: {message}"
        shown = _shown(comparison.head, status, reason) if comparison.pairs else ()
        return Verdict(evidence.case_id, status, reason, message, detail, shown)
    return None


def _named(comparison: Comparison) -> str:
    commit = comparison.base.commit[:12]
    return (
        comparison.against if comparison.against == commit else f"{comparison.against} ({commit})"
    )


def _not_comparable(comparison: Comparison, reason: Reason, fault: Fault) -> Verdict:
    message = f"{_named(comparison)}: {fault.message}"
    return Verdict(comparison.head.case_id, Status.NOT_COMPARABLE, reason, message, fault.detail)


def _other_work(comparison: Comparison) -> Verdict | None:
    """Tokens and FLOPs must be equal: a step that does less is not faster, it is another one."""
    head, base = comparison.head, comparison.base
    now, then = head.values(), base.values()
    for name, reason in (
        ("tokens_per_step", Reason.OTHER_TOKENS),
        ("flops_per_step", Reason.OTHER_FLOPS),
    ):
        if now.get(name) != then.get(name):
            message = f"{name} {then.get(name):,} in {_named(comparison)}, now {now.get(name):,}"
            shown = _shown(head, Status.NOT_COMPARABLE, reason)
            return Verdict(head.case_id, Status.NOT_COMPARABLE, reason, message, "", shown)
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
        return MetricVerdict(name, Status.SAME, Reason.EQUAL, old, new, change, gated=False)
    return MetricVerdict(
        name,
        found.status,
        _SAYS[found.status],
        old=new / (1 + found.estimate_pct / 100),
        new=new,
        change_pct=found.estimate_pct,
        limit_pct=comparison.margins.ignore_pct,
        noise_pct=found.sd_pct,
        note=told(comparison, found),
    )


def told(comparison: Comparison, found: Decision) -> str:
    """The decision in words: interval, pairs, and what could have been found."""
    nothing, matters = comparison.margins.ignore_pct, comparison.margins.matter_pct
    how = "" if comparison.together else ", one launch after the other"
    why = f" ({comparison.why})" if comparison.why else ""
    most = "" if found.final and not comparison.out_of_time else f" of {PLAN[-1].pairs} at most"
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


def unproven(verdicts: Sequence[Verdict]) -> list[Verdict]:
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
            metrics = tuple(
                replace(m, status=Status.INCONCLUSIVE, reason=Reason.UNPROVEN)
                if m.metric == JUDGED_TIME
                else m
                for m in verdict.metrics
            )
            found.append(
                replace(
                    verdict, status=Status.INCONCLUSIVE, reason=Reason.UNPROVEN, metrics=metrics
                )
            )
    return found
