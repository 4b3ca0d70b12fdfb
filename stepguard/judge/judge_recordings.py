"""The screen: compare a run with the recordings of its case. If the run is sound and has comparable
recordings, each metric is judged by itself, and the worst decides.
"""

from collections.abc import Sequence
from functools import partial

from stepguard.core.evidence import Evidence
from stepguard.core.metrics import JUDGED_TIME, METRICS
from stepguard.core.reason_sentences import NotRecorded, OfCase, WorkMoved
from stepguard.core.reasons import Reason
from stepguard.core.recording import Entry, Epoch, Recording, without_labels
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict
from stepguard.judge.comparable import (
    SOFTWARE,
    Tag,
    changed,
    comparable,
    conditions_of,
    conditions_recorded,
)
from stepguard.judge.compare_metric import compare, with_fallen
from stepguard.judge.compare_profiles import against_recordings
from stepguard.judge.findings import Findings, verdict_of
from stepguard.judge.soundness import Refusal, measurement_problem, uncompared, undecided_metrics
from stepguard.judge.summarise_evidence import summarise


def screen(evidence: Evidence, entry: Entry | None, path: str = "") -> Findings:
    """Return what the recordings of ``entry`` say. Without it the refusal names ``path``."""
    now, gates = summarise(evidence), evidence.gates
    # Soundness comes first: a measurement that is not sound cannot be compared with any level.
    if problem := measurement_problem(evidence):
        risen = _risen(evidence, now, entry, problem)
        return risen or _refused(evidence, problem, now if evidence.launches else None)
    past, refused = _past(evidence, now, entry, path)
    if refused:
        return _refused(evidence, refused, now)
    values = now.values()
    why, kernels_moved = against_recordings(evidence.counted.profile, now, past)
    libraries = ({Tag.LIBRARIES: one.libraries or {}} for one in (past[-1], now))
    asked = partial(compare, now=now, past=past, gates=gates, recorded=True, longer=kernels_moved)
    return Findings(
        evidence.case_id,
        with_fallen([asked(name) for name in METRICS if name in values]),
        recordings=len(past),
        explanation=why,
        libraries=changed(comparable(*libraries)).text,
    )


def _refused(evidence: Evidence, why: Refusal, now: Recording | None) -> Findings:
    """Return the findings for a case that is judged as a whole. What was measured is shown."""
    shown = uncompared(now, evidence.gates, why.status, why.reason) if now else ()
    return Findings(evidence.case_id, shown, why)


def _past(
    evidence: Evidence, now: Recording, entry: Entry | None, path: str = ""
) -> tuple[list[Recording], Refusal | None]:
    """Return the recordings to compare the evidence with, and why there are none (or None)."""
    if entry is None:
        return [], Refusal(Status.NO_BASELINE, Reason.NOT_RECORDED, NotRecorded(path=path))
    conditions = conditions_of(evidence)
    if entry.case != evidence.case:
        other = comparable({Tag.CASE: entry.case}, {Tag.CASE: evidence.case})
        return [], _other(Reason.OTHER_CONDITIONS, changed(other))
    # Only the last epoch counts: earlier epochs are from before a change that was accepted.
    past = alike(entry.level, evidence)
    if not past:
        other = comparable(conditions_recorded(entry.newest), conditions, SOFTWARE)
        return [], _other(Reason.OTHER_CONDITIONS, changed(other))
    # The case's parameters are equal, so the workload itself changed. Times of other work cannot be
    # compared.
    tokens = past[-1].tokens_per_step
    if tokens != now.tokens_per_step:
        name, old, new = "tokens_per_step", (tokens,), (now.tokens_per_step,)
        moved = WorkMoved(metric=name, other="the recording", old=old, new=new)
        return [], _other(Reason.WORK_MOVED, moved)
    return past, None


def _other(reason: Reason, figures: OfCase) -> Refusal:
    return Refusal(Status.NOT_COMPARABLE, reason, figures)


def _risen(
    evidence: Evidence, now: Recording, entry: Entry | None, problem: Refusal
) -> Findings | None:
    """Return findings with CHANGED if a known counter moved, although other counters or the times
    are undecided; else None. Example: a step that recompiles for ever never gets steady, and its
    recompiles are the cause.
    """
    if problem.status is not Status.INCONCLUSIVE:
        return None
    past, _ = _past(evidence, now, entry)
    moved = moved_counters(now, past, evidence.gates) if past else ()
    if not moved:
        return None
    metrics = (*moved, *undecided_metrics(evidence))
    return Findings(evidence.case_id, metrics, otherwise=problem, recordings=len(past))


def moved_counters(
    now: Recording, past: Sequence[Recording], gates: Sequence[str]
) -> tuple[MetricVerdict, ...]:
    """Return the gated counters that both sides know and that are CHANGED."""
    known = now.counters.keys() & past[-1].counters.keys()
    metrics = with_fallen([compare(name, now, past, gates) for name in METRICS if name in known])
    return tuple(one for one in metrics if one.gated and one.status is Status.CHANGED)


def alike(epoch: Epoch, evidence: Evidence) -> list[Recording]:
    """Return the epoch's recordings under the same software as the evidence, oldest first."""
    now = conditions_of(evidence)
    return [
        without_labels(recording)
        for recording in epoch.recordings
        if not comparable(conditions_recorded(recording), now, SOFTWARE)
    ]


def enough_launches(evidence: Evidence, entry: Entry) -> bool:
    """Tell whether the launches so far are enough: nothing moved, or the time only informs."""
    if JUDGED_TIME not in evidence.gates:
        return True
    verdict = verdict_of(screen(evidence, entry))
    time = next((metric for metric in verdict.metrics if metric.metric == JUDGED_TIME), None)
    if verdict.status is not Status.SAME or time is None:
        return False
    # If clocks disagree in a block, another launch may have such a block, too. Events then miss
    # work, and the case is BROKEN.
    if any(block.clock_gap() for launch in evidence.launches for block in launch.discarded):
        return False
    assert time.change_pct is not None and time.limit_pct is not None
    return abs(time.change_pct) <= time.limit_pct / 2
