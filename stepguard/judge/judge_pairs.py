"""Judge an A/B comparison: HEAD's tree and another revision's, measured in pairs.

The first rule of refusal() that applies decides, then work and waste, then the step time by its
pairs (judge/time_rules.py), then other counters. If a measurement is undecided, a counter that is
known to have moved decides.
"""

import math
import operator
from datetime import date
from statistics import fmean
from typing import Any

from msgspec import structs
from msgspec.structs import replace

from stepguard.core.case import says_tokens
from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Evidence
from stepguard.core.metrics import FLOPS, JUDGED_TIME, METRICS, OPERATORS
from stepguard.core.permission import Permission
from stepguard.core.reason_sentences import Failed, Missing, SlowSteps, WorkMoved
from stepguard.core.reasons import Reason
from stepguard.core.recording import Recording, on_same_steps
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.verdict import Decision, MetricVerdict, PairsFinding
from stepguard.explain.causes import explain
from stepguard.judge.comparable import (
    Mismatch,
    Tag,
    between_environments,
    changed,
    comparable,
    conditions_of,
)
from stepguard.judge.compare_metric import compare, with_fallen
from stepguard.judge.compare_numbers import compare_numbers, known_equal
from stepguard.judge.compare_profiles import straggler
from stepguard.judge.findings import Findings
from stepguard.judge.judge_recordings import moved_counters
from stepguard.judge.moved_places import risen_python
from stepguard.judge.pair_statistics import MOST_PAIRS
from stepguard.judge.soundness import Refusal, measurement_problem, uncompared, undecided_metrics
from stepguard.judge.summarise_evidence import summarise
from stepguard.judge.time_rules import (
    CPU_LIMIT_PCT,
    SLOWER_PAIRS,
    decision,
    judged_kernels,
    margins_of,
    not_enough,
)

# With these faults the other revision may simply lack the case. Then HEAD is not to blame.
_LACKS = (Reason.BAD_WORKLOAD, Reason.RAISED)
# These must be equal on both sides, or their times cannot be compared.
WORK = ("tokens_per_step", FLOPS)
# A first pair below this log-ratio may be of a FASTER step, which pays for a price that rose.
MAY_PAY = math.log1p(-0.5 / 100)
MOST_NAMED = 8  # slow steps


def findings_of(comparison: Comparison) -> Findings:
    """Return what the rules say of HEAD's tree against the other tree."""
    refused = refusal(comparison)
    if refused is None:
        return _compared(comparison)
    untimed = refused.reason is Reason.NOTHING_MEASURED and not comparison.head.launches
    asked = untimed or refused.status is Status.INCONCLUSIVE
    known = _known(comparison) if asked else ()
    if any(metric.status is Status.CHANGED for metric in known):
        return _findings(comparison, known, otherwise=refused)
    return _findings(comparison, _shown(comparison, refused, known), whole=refused)


def refusal(comparison: Comparison) -> Refusal | None:
    """Return why the two trees cannot be compared; None if they can."""
    # Other work comes before soundness: the counting pass shows it, without a pair.
    asked = (_failed, _other_work, _unsound, _unknown_work)
    return next(filter(None, (refusal_of(comparison) for refusal_of in asked)), None)


def pairs_finding(comparison: Comparison, decided: Decision) -> PairsFinding:
    """Return the decision with all that it is based on, for a verdict."""
    ended = decided.final and not comparison.out_of_time
    gated = JUDGED_TIME in comparison.head.gates
    most = 0 if ended else MOST_PAIRS if gated else SLOWER_PAIRS
    moved = decided.status in (Status.SLOWER, Status.FASTER)
    return PairsFinding(
        decided,
        margins_of(comparison, decided),
        comparison.alpha,
        comparison.together,
        most,
        len(comparison.again),
        "" if moved else not_enough(comparison),  # why `same` took long; not if the time moved
    )


def wants_another_pair(
    comparison: Comparison,
    permissions: tuple[Permission, ...] = (),
    today: date = date.min,
    every: bool = False,
) -> bool:
    """Tell whether another pair should be measured: it may decide, and no counter fails. ``every``:
    it is wanted all the same, since pairs of a commit with itself show its noise.
    """
    if comparison.pairs:
        decided = decision(comparison)
        if decided is None or refusal(comparison):
            return False
        if every and JUDGED_TIME in comparison.head.gates:
            return True
        possible = not decided.final
    else:  # without a pair there are no launches, so only these two refusals can be known
        possible = not (_failed(comparison) or _other_work(comparison))
    return possible and not _fails_by_counters(comparison, permissions, today)


def _fails_by_counters(
    comparison: Comparison, permissions: tuple[Permission, ...], today: date
) -> bool:
    """Tell whether counters fail the case, whatever more pairs would say. If a GPU's time is
    judged, a price waits for the first pair, and for the others if the step may be FASTER.
    """
    head, base = comparison.head, comparison.base
    moved = moved_counters(summarise(head), [summarise(base)], head.gates)
    failing = tuple(one for metric in moved if (one := _beside(metric, comparison)).decides)
    found = Findings(head.case_id, failing, permissions=permissions, today=today)
    metrics, _ = found.permitted()
    roles = {metric.role for metric in metrics if metric.decides}
    if roles != {"price"} or not _time_explains(comparison):
        return bool(roles)
    return any(first >= MAY_PAY for first in comparison.log_ratios()[:1])


def _time_explains(comparison: Comparison) -> bool:
    """Tell whether pairs judge a GPU's time, which contains what amounts and prices cost."""
    return comparison.head.on_gpu and JUDGED_TIME in comparison.head.gates


def _failed(comparison: Comparison) -> Refusal | None:
    """Return HEAD's fault, or else the other tree's: it explains why launches are missing."""
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
        if refused := _broken(comparison, evidence):
            return refused
    head, base = len(comparison.head.launches), len(comparison.base.launches)
    if head == base:
        return None
    sides = f"HEAD has {head} launches, {comparison.named} {base}"
    found, needed = min(head, base), max(head, base)
    unpaired = Missing(what="pairs of launches", found=found, needed=needed, why=sides)
    return Refusal(Status.BROKEN, Reason.NOTHING_MEASURED, unpaired)


def _broken(comparison: Comparison, evidence: Evidence) -> Refusal | None:
    refused = measurement_problem(evidence)
    if refused is None or evidence is comparison.head:
        return refused
    figures = structs.replace(refused.figures, revision=comparison.named)
    return Refusal(refused.status, refused.reason, figures, refused.detail)


def _other_work(comparison: Comparison) -> Refusal | None:
    """Refuse unequal tokens or FLOPs: a step that does less is another step, not a faster one."""
    head, base = on_same_steps(summarise(comparison.head), summarise(comparison.base))
    now, then = head.values(), base.values()
    old: tuple[float, ...]
    new: tuple[float, ...]
    for name in WORK:
        if name not in now or name not in then:
            continue
        # Other software may count the same step otherwise, and its FLOPs only explain.
        if name == FLOPS and other_software(comparison):
            continue
        if now[name] != then[name]:
            old, new = (then[name],), (now[name],)
        else:  # the busiest rank may do as much as before, and another rank not
            old, new = (tuple(side.differing_ranks().get(name, ())) for side in (base, head))
        if new != old and not (name == FLOPS and _less_of_the_same(head, base, old, new)):
            work = WorkMoved(metric=name, other=comparison.named, old=old, new=new)
            return Refusal(Status.CHANGED, Reason.WORK_MOVED, work)
    return None


def _less_of_the_same(
    head: Recording, base: Recording, old: tuple[float, ...], new: tuple[float, ...]
) -> bool:
    """Tell whether HEAD does less on each rank, and is known to compute the same numbers."""
    if len(old) != len(new) or not all(map(operator.lt, new, old)):
        return False
    return known_equal(compare_numbers(head, base, True))


def _unknown_work(comparison: Comparison) -> Refusal | None:
    """Refuse a comparison if a side's tokens or FLOPs are unknown: equal code does equal work."""
    for evidence, whose in ((comparison.head, "HEAD"), (comparison.base, comparison.named)):
        values = summarise(evidence).values()
        needed = WORK if says_tokens(evidence.case) else WORK[1:]
        for name in (name for name in needed if name not in values):
            why = evidence.counted.unstable.get(name, "")
            unknown = Missing(what=f"values of {name} of {whose}", why=why)
            return Refusal(Status.BROKEN, Reason.NOTHING_MEASURED, unknown)
    return None


def _shown(
    comparison: Comparison, refused: Refusal, known: tuple[MetricVerdict, ...]
) -> tuple[MetricVerdict, ...]:
    """Return what is ``known`` of both sides, and HEAD's other figures, to be shown without a
    comparison; none without a pair. If the work differs, the counters of both sides are compared,
    too: they show what differs, and where.
    """
    head, gates = summarise(comparison.head), comparison.head.gates
    status, reason = refused.status, refused.reason
    shown = uncompared(head, gates, status, reason) if comparison.pairs else ()
    if reason is Reason.WORK_MOVED:
        base = summarise(comparison.base)
        both = head.counters.keys() & base.counters.keys()
        known = tuple(compare(name, head, [base], gates) for name in METRICS if name in both)
    valued = {metric.metric: metric for metric in known if metric.new is not None}
    return (*(valued.pop(metric.metric, metric) for metric in shown), *valued.values())


def _known(comparison: Comparison) -> tuple[MetricVerdict, ...]:
    """Return what is known of both sides although the case is undecided."""
    sides = (comparison.head, comparison.base)
    timed = any(side.launches for side in sides)
    problems = [measurement_problem(side) for side in sides if timed]
    # A side that is BROKEN or UNFIT has no counts to trust.
    if any(refused and refused.status is not Status.INCONCLUSIVE for refused in problems):
        return ()
    head, base = sides
    now, then, decided = summarise(head), summarise(base), decision(comparison)
    judged_time = Status.INCONCLUSIVE if _time_explains(comparison) else None
    moved = moved_counters(now, [then], head.gates)
    beside = [_beside(one, comparison, judged_time) for one in moved]
    undecided_time = decided and decided.status is Status.INCONCLUSIVE
    time = [_time(comparison, decided, now, then)] if undecided_time else []
    # If both sides are undecided, HEAD's reason is shown.
    undecided = (*time, *undecided_metrics(base), *undecided_metrics(head))
    unknown = {metric.metric: metric for metric in undecided}
    shown = (one for one in beside if timed or one.status is Status.CHANGED)
    return (*shown, *unknown.values())


def _compared(comparison: Comparison) -> Findings:
    now, base = summarise(comparison.head), summarise(comparison.base)
    decided, gates, values = decision(comparison), comparison.head.gates, now.values()
    compared = [
        _time(comparison, decided, now, base)
        if name == JUDGED_TIME
        else compare(name, now, [base], gates)
        for name in METRICS
        if name in values
    ]
    status = _shown_by_time(comparison, decided)
    metrics = tuple(_beside(metric, comparison, status) for metric in with_fallen(compared))
    p_value = decided.p_value if decided else None
    return _findings(comparison, metrics, p_value=p_value, **why(comparison, decided))


def _shown_by_time(comparison: Comparison, decided: Decision | None) -> Status | None:
    """Return what a GPU's time says beside counters; None if no time is judged. A gain that the
    case's margin ignores, or that the steps' mean lacks, shows only in kernels. It pays for no
    price, so it counts as `same`.
    """
    if decided is None or not comparison.head.on_gpu:
        return None
    gain = -max(math.log1p(decided.high_pct / 100), fmean(comparison.log_ratios()))
    ignored = decided.status is Status.FASTER and gain <= comparison.margins.ignore
    return Status.SAME if ignored else decided.status


def _findings(
    comparison: Comparison, metrics: tuple[MetricVerdict, ...], **others: Any
) -> Findings:
    return Findings(
        comparison.head.case_id,
        metrics,
        against=comparison.named,
        libraries=_environments(comparison),
        **others,
    )


def _environments(comparison: Comparison) -> str:
    """Return what differs between two environments, in words; empty if the sides share one."""
    if not comparison.python or not (comparison.head.fingerprint and comparison.base.fingerprint):
        return ""
    return changed(other_software(comparison)).text or "no version and no variable differs"


def other_software(comparison: Comparison) -> tuple[Mismatch, ...]:
    """Return what is known to differ between the sides' environments; empty if nothing is."""
    sides = comparison.base.fingerprint, comparison.head.fingerprint
    if not comparison.python or None in sides:
        return ()
    then, now = (side for side in sides if side)
    return between_environments(then, now)


def why(comparison: Comparison, decided: Decision | None = None) -> dict[str, Any]:
    """Return what the profiles of both sides explain, as fields of Findings."""
    base, head = comparison.base, comparison.head
    # Ranks are compared only if the same rank ran the same case on the same card.
    other = comparable(conditions_of(base), conditions_of(head), (Tag.CASE, Tag.MACHINE, Tag.CARD))
    ranks = base.counted.parts_by_rank, head.counted.parts_by_rank
    before, after = base.counted.profile, head.counted.profile
    judged = judged_kernels(comparison, decided)
    lines = head.counted.sites.get(OPERATORS, ())
    return {
        "explanation": explain(before, after, judged, lines) if before and after else None,
        "straggler": None if other else straggler(*ranks),
    }


def _beside(
    metric: MetricVerdict, comparison: Comparison, time: Status | None = None
) -> MetricVerdict:
    """Return a counter that moved as a notice if the GPU's time shows what it costs: an amount
    whatever the pairs say, since an honest optimization calls other operators, and less of them
    gains nothing by itself; a price that rose only if the step is FASTER. ``time`` is the verdict
    of the pairs; None if no time is judged. If software differs, work and amounts only explain.
    """
    if metric.status not in (Status.CHANGED, Status.FASTER):
        return metric
    paid = metric.status is Status.CHANGED and time is Status.FASTER
    by_time = time is not None and (metric.role == "amount" or metric.role == "price" and paid)
    if by_time or metric.role in ("work", "amount") and other_software(comparison):
        return replace(metric, status=Status.SAME, reason=Reason.TIME_DECIDES)
    return metric


def _time(
    comparison: Comparison, decided: Decision | None, now: Recording, base: Recording
) -> MetricVerdict:
    """Return the step time as the pairs judge it. Without a decision the time is only shown."""
    new, old = now.values()[JUDGED_TIME], base.values().get(JUDGED_TIME)
    if decided is None:
        change = 100 * (new / old - 1) if old else None
        shown = Status.SAME, Reason.NOT_JUDGED, old, new, change
        return MetricVerdict(JUDGED_TIME, *shown, gated=False)
    return time_by_pairs(
        comparison,
        decided,
        noise_pct=decided.sd_pct,
        figures=_slow_steps(comparison),
        sites=_risen_python(comparison, decided),
        pairs=pairs_finding(comparison, decided),
    )


def _risen_python(comparison: Comparison, decided: Decision) -> tuple[Site, ...]:
    """Return the functions that run more lines of Python, if HEAD's step may be slower."""
    if decided.status not in (Status.SLOWER, Status.INCONCLUSIVE) or decided.estimate_pct <= 0:
        return ()
    return risen_python(comparison.head.counted, comparison.base.counted)


def time_by_pairs(comparison: Comparison, decided: Decision, **shown: Any) -> MetricVerdict:
    """Return what a decision says of the step time. ``shown`` are further fields."""
    margins, pct = margins_of(comparison, decided), decided.estimate_pct
    # `same` says that the change is below the matter margin, so that is the limit.
    limit_pct = margins.matter_pct if decided.status is Status.SAME else margins.ignore_pct
    if JUDGED_TIME not in comparison.head.gates:
        limit_pct = CPU_LIMIT_PCT
    new_ms = summarise(comparison.head).values()[JUDGED_TIME]
    return MetricVerdict(
        JUDGED_TIME,
        decided.status,
        decided.reason,
        old=new_ms / (1 + pct / 100),
        new=new_ms,
        change_pct=pct,
        limit_pct=limit_pct,
        **shown,
    )


def _slow_steps(comparison: Comparison) -> SlowSteps | None:
    """Return HEAD's steps that counted for less than they took, if that moved the mean."""
    pairs = comparison.paired_launches()
    plain = [math.log(head.plain_step_ms / base.plain_step_ms) for head, base in pairs]
    hidden = fmean(plain) - fmean(comparison.log_ratios())
    if abs(hidden) <= comparison.margins.ignore:
        return None
    steps = tuple(sorted({step for head, _ in pairs for step in head.slow_steps}))
    pct = 100 * math.expm1(fmean(plain))
    return SlowSteps(steps=steps[:MOST_NAMED], slow=len(steps), plain_pct=pct)
