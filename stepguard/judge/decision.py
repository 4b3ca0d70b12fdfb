"""Rules of an A/B comparison: HEAD's tree and another revision's, measured in pairs.

In order, and the first that applies decides: the machine or HEAD's step failed; the other tree
cannot run the case; the two do not do the same work; a measurement contradicts itself or is not
whole; then counters one by one, and the step time by its pairs (judge/rules/), the worst metric
deciding. Where something is undecided, a counter that is known to have moved decides. On a GPU a
time that is decided is explained by counters, not judged: an honest optimization calls other
operators.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Any

from msgspec import structs
from msgspec.structs import replace

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Evidence
from stepguard.core.figures import (
    Failed,
    OtherWork,
    OtherWorkOfRanks,
    SlowSteps,
    UnknownWork,
    Unpaired,
)
from stepguard.core.metrics import GRAPH_NODES, GROWING_LINES, JUDGED_TIME, METRICS
from stepguard.core.permission import Permission
from stepguard.core.reasons import Reason
from stepguard.core.recording import Recording
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.verdict import Decision, MetricVerdict, PairsFinding, Verdict
from stepguard.judge.by_profile import straggler
from stepguard.judge.counters import compare
from stepguard.judge.findings import Findings, Permits, verdict_of
from stepguard.judge.moved_places import risen_python
from stepguard.judge.rules import decision, mean_on_cpu
from stepguard.judge.rules.identical_step import not_enough
from stepguard.judge.rules.mean_of_pairs import explanation
from stepguard.judge.screen import moved_counters
from stepguard.judge.sequential_plan import MOST_PAIRS
from stepguard.judge.series import REASONS, of_launches, of_pairs
from stepguard.judge.soundness import (
    Refusal,
    measurement_problem,
    uncompared,
    undecided_metrics,
)
from stepguard.judge.summary import summarise

# Another revision's tree may well lack the case, without anybody having made HEAD worse.
_LACKS = (Reason.BAD_WORKLOAD, Reason.RAISED)
# Has to be equal on both sides, or their times say nothing.
WORK = ("tokens_per_step", "flops_per_step")
# What no time pays for: another exchange, a step that at last runs out of memory.
PRICELESS = ("collective_bytes_per_step", "leaked_bytes_per_step", GRAPH_NODES, GROWING_LINES)
# What the compiler's kernels cost on a GPU is in the launches and in the time: a step without its
# graph break has one more of 360, and is a gain.
GENERATED = "generated_kernels"


def judge_ab(
    comparison: Comparison, permissions: Iterable[Permission] = (), today: date = date.min
) -> Verdict:
    """Return the verdict on HEAD's tree against the other one."""
    found = findings_of(comparison)
    return verdict_of(found, Permits.of(found, permissions, today))


def findings_of(comparison: Comparison) -> Findings:
    """Return what the rules find of HEAD's tree against the other one."""
    refused = refusal(comparison)
    if refused is None:
        return _compared(comparison)
    if refused.status is Status.INCONCLUSIVE and (risen := _risen(comparison)):
        return risen
    return _findings(comparison, _shown(comparison, refused), whole=refused)


def refusal(comparison: Comparison) -> Refusal | None:
    """Return why the two cannot be compared; None if they can."""
    # Other work before what is not sound: it is known from the counting pass, without a pair.
    asked = (_failed, _other_work, _unsound, _unknown_work)
    return next(filter(None, (one(comparison) for one in asked)), None)


def pairs_finding(comparison: Comparison, found: Decision) -> PairsFinding:
    """Return the decision with all that it rests on."""
    ended = found.final and not comparison.out_of_time
    few = comparison.glance and found.pairs <= mean_on_cpu.MOST_PAIRS
    most = 0 if ended else mean_on_cpu.MOST_PAIRS if few else MOST_PAIRS
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
    return found is not None and not found.final and refusal(comparison) is None


def wants_every_pair(comparison: Comparison) -> bool:
    """Tell whether another pair of a commit with itself should be measured: as many as the plan
    has. There is nothing to decide early, and each says more of the machine's noise.
    """
    if not comparison.pairs or comparison.glance:
        return wants_another_pair(comparison)
    return decision(comparison) is not None and refusal(comparison) is None


def _failed(comparison: Comparison) -> Refusal | None:
    """Return HEAD's fault, or else the other tree's; first, since launches are missing then."""
    if comparison.head.faults:
        return _broken(comparison, comparison.head)
    if not comparison.base.faults:
        return None
    fault = comparison.base.faults[0]
    if fault.code not in _LACKS:
        return _broken(comparison, comparison.base)
    lacks = Failed(revision=comparison.named, message=fault.message)
    return Refusal(Status.NOT_COMPARABLE, Reason.BASE_LACKS, lacks, fault.detail)


def _unsound(comparison: Comparison) -> Refusal | None:
    for evidence in (comparison.head, comparison.base):
        if found := _broken(comparison, evidence):
            return found
    head, base = len(comparison.head.launches), len(comparison.base.launches)
    if head == base:
        return None
    unpaired = Unpaired(head=head, base=base, other=comparison.named)
    return Refusal(Status.BROKEN, Reason.NOTHING_MEASURED, unpaired)


def _broken(comparison: Comparison, evidence: Evidence) -> Refusal | None:
    """Return why one side's evidence is not sound by itself."""
    found = measurement_problem(evidence)
    if found is None or evidence is comparison.head:
        return found
    figures = structs.replace(found.figures, revision=comparison.named)
    return Refusal(found.status, found.reason, figures, found.detail)


def _other_work(comparison: Comparison) -> Refusal | None:
    """Refuse unequal tokens and FLOPs: a step that does less is not faster, it is another one."""
    head, base = summarise(comparison.head), summarise(comparison.base)
    now, then = head.values(), base.values()
    for name in WORK:
        work: OtherWork | OtherWorkOfRanks
        if name in now and name in then and now[name] != then[name]:
            work = OtherWork(metric=name, other=comparison.named, old=then[name], new=now[name])
            return Refusal(Status.CHANGED, Reason.WORK_MOVED, work)
        new, old = (tuple(side.unlike_ranks().get(name, ())) for side in (head, base))
        if new != old:  # as much on the busiest rank, and another does less or more
            work = OtherWorkOfRanks(metric=name, other=comparison.named, old=old, new=new)
            return Refusal(Status.CHANGED, Reason.WORK_MOVED, work)
    return None


def _unknown_work(comparison: Comparison) -> Refusal | None:
    """Refuse work that is not known to be equal, also where the case does not gate it."""
    for evidence, whose in ((comparison.head, "HEAD"), (comparison.base, comparison.named)):
        values = summarise(evidence).values()
        for name in (name for name in WORK if name not in values):
            why = evidence.counted.unstable.get(name, "")
            unknown = UnknownWork(metric=name, whose=whose, why=why)
            return Refusal(Status.BROKEN, Reason.METRIC_MISSING, unknown)
    return None


def _shown(comparison: Comparison, refused: Refusal) -> tuple[MetricVerdict, ...]:
    """Return HEAD's figures where there are any; at other work the counters of both sides say which
    work it is, and where.
    """
    head, gates = summarise(comparison.head), comparison.head.gates
    status, reason = refused.status, refused.reason
    shown = uncompared(head, gates, status, reason) if comparison.pairs else ()
    if reason is not Reason.WORK_MOVED:
        return shown
    base = summarise(comparison.base)
    known = head.counters.keys() & base.counters.keys()
    compared = tuple(compare(name, head, [base], gates) for name in METRICS if name in known)
    return (*(one for one in shown if one.metric not in known), *compared)


def _risen(comparison: Comparison) -> Findings | None:
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
    return _findings(comparison, (*moved, *unknown.values()))


def _compared(comparison: Comparison) -> Findings:
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
    p_value = found.p_value if found else None
    return _findings(comparison, metrics, p_value=p_value, **why(comparison))


def _findings(
    comparison: Comparison, metrics: tuple[MetricVerdict, ...], **others: Any
) -> Findings:
    head = comparison.head
    sound = measurement_problem(head) is None
    return Findings(head.case_id, metrics, sound=sound, against=comparison.named, **others)


def why(comparison: Comparison) -> dict[str, Any]:
    """Return what the profiles of both sides say, as fields of a verdict."""
    head, base = comparison.head.counted, comparison.base.counted
    return {
        "explanation": explanation(comparison),
        "straggler": straggler(base.parts_by_rank, head.parts_by_rank),
    }


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
    if found is None:
        change = 100 * (new / old - 1) if old else None
        shown = Status.SAME, Reason.NOT_JUDGED, old, new, change
        return MetricVerdict(JUDGED_TIME, *shown, gated=False)
    said = time_by_pairs(comparison, found)
    return MetricVerdict(
        JUDGED_TIME,
        said.status,
        said.reason,
        said.old,
        said.new,
        said.change_pct,
        said.limit_pct,
        noise_pct=found.sd_pct,
        sites=_risen_python(comparison, found),
        pairs=pairs_finding(comparison, found),
        slow_steps=said.slow_steps,
    )


def _risen_python(comparison: Comparison, found: Decision) -> tuple[Site, ...]:
    """Return the functions that run more lines of Python, where HEAD's step may be slower for it.
    They explain: a time alone decides.
    """
    if found.status not in (Status.SLOWER, Status.INCONCLUSIVE) or found.estimate_pct <= 0:
        return ()
    return risen_python(comparison.head.counted, comparison.base.counted)


@dataclass(frozen=True)
class TimeByPairs:
    """What pairs say of the step time; by their ratio, so that old, new and change agree."""

    status: Status
    reason: Reason
    new: float
    change_pct: float
    limit_pct: float
    slow_steps: SlowSteps | None

    @property
    def old(self) -> float:
        """Return the other tree's step time, in ms."""
        return self.new / (1 + self.change_pct / 100)


def time_by_pairs(comparison: Comparison, found: Decision) -> TimeByPairs:
    """Return what a decision says of the step time. Steps that are slower within launches are its
    reason where it passes; they are by both sides then.
    """
    margins, reason, pct = comparison.margins, found.reason, found.estimate_pct
    slow = of_pairs(comparison) if found.status is Status.SLOWER else None
    pattern = slow or of_launches(comparison.head.launches)
    if slow:
        pct = max(pct, 100 * math.expm1(slow.adds))
    elif pattern and found.status is Status.SAME:
        reason = REASONS[pattern.kind]
    return TimeByPairs(
        found.status,
        reason,
        summarise(comparison.head).values()[JUDGED_TIME],
        pct,
        # What `same` says is that the change is below the matter margin.
        margins.matter_pct if found.status is Status.SAME else margins.ignore_pct,
        pattern.figures() if pattern else None,
    )
