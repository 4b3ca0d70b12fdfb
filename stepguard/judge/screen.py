"""The screen: the comparison of a run with the stored recordings of its case.

In order, and the first that applies decides: the measurement is not sound; there is nothing to
compare with; what is there cannot be compared; then every metric on its own, the worst deciding.
"""

from collections.abc import Sequence
from dataclasses import replace

from stepguard.core.baseline import Entry, Epoch
from stepguard.core.evidence import Evidence
from stepguard.core.metrics import JUDGED_TIME, METRICS
from stepguard.core.recording import Recording
from stepguard.core.sentences import changed
from stepguard.core.verdict import Facts, MetricVerdict, Reason, Status, Verdict
from stepguard.judge.ab.by_profile import against_recordings, with_alarm
from stepguard.judge.conditions import changes
from stepguard.judge.counters import compare, screen_of
from stepguard.judge.noise_limits import DIFFERENCE_LIMIT_PCT, LEVEL_LIMIT_PCT
from stepguard.judge.series import noticed
from stepguard.judge.soundness import measurement_problem, uncompared, undecided_metrics
from stepguard.judge.summary import notes, summarise

DRIFT_POINTS = 2 * DIFFERENCE_LIMIT_PCT  # of a step, that a difference may move in an epoch


def judge(evidence: Evidence, entry: Entry | None) -> Verdict:
    """Return the case's verdict. ``entry`` is its baseline, or None when it has none."""
    now, gates = summarise(evidence), evidence.gates
    # Before the baseline: a measurement that is not sound says nothing of any level.
    if problem := measurement_problem(evidence):
        if problem.status is Status.INCONCLUSIVE and (risen := _risen(evidence, now, entry)):
            return risen
        status, reason = problem.status, problem.reason
        shown = uncompared(now, gates, status, reason) if evidence.launches else ()
        return Verdict(evidence.case_id, status, reason, problem.facts, problem.detail, shown)
    past, lacks, facts = _past(evidence, now, entry)
    if lacks is not None:
        unknown = lacks is Reason.NOT_RECORDED
        status = Status.NO_BASELINE if unknown else Status.NOT_COMPARABLE
        shown = uncompared(now, gates, status, lacks)
        return Verdict(evidence.case_id, status, lacks, facts, metrics=shown)
    values, explained = now.values(), notes(evidence)
    compared = (compare(name, now, past, gates) for name in METRICS if name in values)
    metrics = tuple(
        noticed(replace(one, facts={**one.facts, **explained.get(one.metric, {})}))
        for one in compared
    )
    why, moved = against_recordings(evidence.counted.profile, past, now.device_uuid)
    judged = with_alarm(metrics) if moved else metrics
    libraries = changed(changes(past[-1].libraries or {}, now.libraries or {}))
    return Verdict.of(
        evidence.case_id, judged, recordings=len(past), explanation=why, libraries=libraries
    )


def _past(
    evidence: Evidence, now: Recording, entry: Entry | None
) -> tuple[list[Recording], Reason | None, Facts]:
    """Return the recordings that the evidence is compared with, or why there are none."""
    if entry is None:
        return [], Reason.NOT_RECORDED, {}
    if entry.case != evidence.case:
        return [], Reason.OTHER_PARAMETERS, {"changes": changes(entry.case, evidence.case)}
    # The last epoch alone: an older level is what an accepted change left behind.
    past = comparable(entry.level, evidence)
    if not past:
        newest = entry.newest.software
        return [], Reason.OTHER_SOFTWARE, {"changes": changes(newest, evidence.software_key())}
    # The case's parameters are equal, so the workload itself was changed; times of other work say
    # nothing.
    tokens = past[-1].tokens_per_step
    if tokens != now.tokens_per_step:
        return [], Reason.OTHER_TOKENS, {"old": tokens, "new": now.tokens_per_step}
    return past, None, {}


def _risen(evidence: Evidence, now: Recording, entry: Entry | None) -> Verdict | None:
    """Return CHANGED, if counters that are known moved although others, or the times, are not
    decided: a step that recompiles for ever is neither steady nor the same twice, and that is why.
    """
    past, *_ = _past(evidence, now, entry)
    if not past:
        return None
    moved = moved_counters(now, past, evidence.gates)
    judged = *moved, *undecided_metrics(evidence)
    return Verdict.of(evidence.case_id, judged, recordings=len(past)) if moved else None


def moved_counters(
    now: Recording, past: Sequence[Recording], gates: Sequence[str]
) -> tuple[MetricVerdict, ...]:
    """Return the gated counters that both sides know and that moved the bad way."""
    known = now.counters.keys() & past[-1].counters.keys()
    names = [name for name in gates if METRICS[name].kind == "counter" and name in known]
    found = (compare(name, now, past, gates) for name in names)
    return tuple(metric for metric in found if metric.status is Status.CHANGED)


def comparable(epoch: Epoch, evidence: Evidence) -> list[Recording]:
    """Return the epoch's recordings made under the evidence's software, oldest first."""
    software = evidence.software_key()
    return [recording for recording in epoch.recordings if recording.software == software]


def wants_another_launch(evidence: Evidence, entry: Entry | None) -> bool:
    """Tell whether another launch could turn the screen's answer; only for sound evidence."""
    # Counters want none: they are exact, and a further launch is not counted.
    if entry is None or JUDGED_TIME not in evidence.gates or measurement_problem(evidence):
        return False
    found = screen_of(summarise(evidence), comparable(entry.level, evidence))
    return found is not None and (found.close or found.noisy)


def drifted(evidence: Evidence, past: Sequence[Recording]) -> tuple[str, float] | None:
    """Return why this evidence, though `same`, must not join the epoch: the metric that is too far
    from how the epoch began, and by how much, in percent or in points of a step.
    """
    # The first alone: against the mean, small steps would move what they are compared with.
    now, first = summarise(evidence), past[:1]
    found = screen_of(now, first) if JUDGED_TIME in evidence.gates else None
    if found is not None and abs(found.change_pct) > LEVEL_LIMIT_PCT:
        return JUDGED_TIME, found.change_pct
    for name in (name for name in evidence.gates if METRICS[name].kind == "difference"):
        then, one = past[0].differences_pct.get(name), now.differences_pct.get(name)
        moved = one.mean - then.mean if one and then else 0.0
        if abs(moved) > DRIFT_POINTS:
            return name, moved
    return None
