"""The rules that make a verdict of evidence and baseline. Pure: no I/O, no clock, no torch.

In order, and the first that applies decides: the machine or a worker failed; the measurement
contradicts itself or the hardware; something that is gated is missing; there is nothing to compare
with; what is there cannot be compared; then every metric on its own, the worst one deciding.
"""

from collections.abc import Mapping, Sequence

from stepguard.baseline_model import Entry, Epoch, Recording
from stepguard.evidence import Evidence, Launch
from stepguard.judge.compare import compare, screen_of
from stepguard.judge.limits import DEFAULT_LIMIT_PCT, DIFFERENCE_LIMIT_PCT
from stepguard.metrics import METRICS
from stepguard.verdict import MetricVerdict, Reason, Status, Verdict, worst_of

DRIFT_POINTS = 2 * DIFFERENCE_LIMIT_PCT  # of a step, that a difference may move in an epoch

_UNFIT = {
    Reason.FOREIGN_PROCESS,
    Reason.GPU_LOCKED,
    Reason.THROTTLED,
    Reason.MACHINE_UNREADABLE,
    Reason.RANKS_DIFFER,
    Reason.TOO_FEW_GPUS,
}


def judge(evidence: Evidence, entry: Entry | None) -> Verdict:
    """The case's verdict. ``entry`` is its baseline, or None when it has none."""
    problem = measurement_problem(evidence)
    if problem is not None:
        status, reason, message, detail = problem
        if status is Status.INCONCLUSIVE and (risen := _risen(evidence, entry)):
            return risen
        shown = _uncompared(evidence, status, reason) if evidence.launches else ()
        return Verdict(evidence.case_id, status, reason, message, detail, shown)
    epoch = entry.epochs[-1] if entry and entry.epochs else None
    if entry is None or epoch is None:
        return _without_comparison(evidence, Status.NO_BASELINE, Reason.NOT_RECORDED)
    if entry.case != evidence.case:
        difference = _differences(entry.case, evidence.case)
        return _without_comparison(
            evidence, Status.NOT_COMPARABLE, Reason.OTHER_PARAMETERS, difference
        )
    recordings = comparable(epoch, evidence)
    if not recordings:
        return _other_software(evidence, epoch)
    tokens = recordings[-1].tokens_per_step
    if tokens != evidence.tokens_per_step:
        message = f"recorded with {tokens} tokens a step, now {evidence.tokens_per_step}"
        return _without_comparison(evidence, Status.NOT_COMPARABLE, Reason.OTHER_TOKENS, message)
    metrics = tuple(compare(name, evidence, recordings) for name in _shown(evidence))
    return _compared(evidence, metrics, recordings)


def _compared(
    evidence: Evidence, metrics: tuple[MetricVerdict, ...], recordings: list[Recording]
) -> Verdict:
    """The case's verdict: its worst gated metric's."""
    worst = worst_of(metrics)
    assert worst is not None
    return Verdict(
        evidence.case_id, worst.status, worst.reason, metrics=metrics, recordings=len(recordings)
    )


def _risen(evidence: Evidence, entry: Entry | None) -> Verdict | None:
    """CHANGED, if counters that are known moved although others, or the times, are not decided: a
    step that recompiles for ever is neither steady nor the same twice, and that is why.
    """
    if entry is None or not entry.epochs or entry.case != evidence.case:
        return None
    recordings = comparable(entry.epochs[-1], evidence)
    if not recordings or recordings[-1].tokens_per_step != evidence.tokens_per_step:
        return None
    counters = [name for name in _shown(evidence) if METRICS[name].kind == "counter"]
    found = (compare(name, evidence, recordings) for name in counters)
    moved = tuple(m for m in found if m.gated and m.status is Status.CHANGED)
    return (
        _compared(evidence, (*moved, *undecided_metrics(evidence)), recordings) if moved else None
    )


def undecided_metrics(evidence: Evidence) -> tuple[MetricVerdict, ...]:
    """Gated metrics of which evidence that is whole otherwise says nothing, and why."""
    unstable = evidence.counts.unstable if evidence.counts else {}
    unsteady = next((launch.steady for launch in evidence.launches if launch.steady), "")
    why = {name: (Reason.COUNT_UNSTABLE, unstable[name]) for name in unstable}
    if unsteady:
        times = [name for name, metric in METRICS.items() if metric.kind == "time"]
        why |= {name: (Reason.NOT_STEADY, unsteady) for name in times}
    return tuple(
        MetricVerdict(name, Status.INCONCLUSIVE, why[name][0], note=why[name][1])
        for name in evidence.gates
        if name in why
    )


def comparable(epoch: Epoch, evidence: Evidence) -> list[Recording]:
    """The epoch's recordings that were made under the evidence's software, oldest first."""
    software = evidence.software_key()
    return [recording for recording in epoch.recordings if recording.software == software]


def wants_another_launch(evidence: Evidence, entry: Entry | None) -> bool:
    """Whether another launch could turn the screen's answer; only asked of sound evidence."""
    if measurement_problem(evidence) is not None or entry is None or not entry.epochs:
        return False
    recordings = comparable(entry.epochs[-1], evidence)
    if not recordings:
        return False
    times = [name for name in evidence.gates if METRICS[name].kind == "time"]
    screens = [found for name in times if (found := screen_of(name, evidence, recordings))]
    return any(found.close or found.noisy for found in screens)


Problem = tuple[Status, Reason, str, str]


def measurement_problem(evidence: Evidence) -> Problem | None:
    """Why this evidence cannot be judged or recorded, baseline aside; None if it is sound."""
    for fault in evidence.faults:
        reason = Reason[fault.code]
        status = Status.UNFIT if reason in _UNFIT else Status.BROKEN
        launch = fault.during.partition(",")[0]  # the message says where in it
        return status, reason, f"{launch}: {fault.message}".lstrip(": "), fault.detail
    if not evidence.launches or evidence.fingerprint is None:
        return Status.BROKEN, Reason.NOTHING_MEASURED, "no launch was measured", ""
    count, planned = len(evidence.launches), evidence.planned_launches
    if count < planned:
        return Status.BROKEN, Reason.TOO_FEW_LAUNCHES, f"{count} of {planned} launches", ""
    return _contradiction(evidence) or _undecided(evidence)


def _contradiction(evidence: Evidence) -> Problem | None:
    launches = [(f"launch {launch.index}", launch) for launch in evidence.launches]
    launches += [("one-rank launch", evidence.one_rank)] if evidence.one_rank else []
    for label, launch in launches:
        if not launch.blocks:
            message = f"{label} has no block"
            return Status.BROKEN, Reason.NOTHING_MEASURED, message, ""
        for block in launch.blocks:
            if message := block.no_time():
                return Status.BROKEN, Reason.NOTHING_MEASURED, f"{label}: {message}", ""
            if message := block.clocks_disagree():
                return Status.BROKEN, Reason.CLOCKS_DISAGREE, f"{label}: {message}", ""
    if message := _clocks_apart([launch for _, launch in launches]):
        return Status.BROKEN, Reason.CLOCKS_DISAGREE, message, ""
    for difference in evidence.differences:
        if message := difference.no_time():
            return Status.BROKEN, Reason.NOTHING_MEASURED, message, ""
        if f"{difference.name}_pct" in evidence.gates and (message := difference.contradiction()):
            return Status.BROKEN, Reason.CONTRADICTION, message, ""
    floor, found = evidence.floor_ms(), evidence.values()["step_ms"]
    if floor is not None and found < floor:
        message = f"{found:.3f} ms a step, but the GPU's peak allows no less than {floor:.3f} ms"
        return Status.BROKEN, Reason.FASTER_THAN_PHYSICS, message, ""
    return None


def _clocks_apart(launches: Sequence[Launch]) -> str:
    """One sentence if blocks whose clocks disagree were measured again in too many launches. A host
    stalls once in some 300 blocks; work that the events do not see, every so many steps, returns.
    """
    found = [block for launch in launches for block in launch.discarded if block.clocks_disagree()]
    if len(found) <= max(1, len(launches) // 3):
        return ""
    return f"{len(found)} blocks in {len(launches)} launches, {found[0].clocks_disagree()}"


def _undecided(evidence: Evidence) -> Problem | None:
    times_gated = any(METRICS[name].kind == "time" for name in evidence.gates)
    for launch in evidence.launches:
        if launch.steady and times_gated:
            message = f"launch {launch.index}: {launch.steady}"
            return Status.INCONCLUSIVE, Reason.NOT_STEADY, message, ""
    if not evidence.gates:
        return Status.BROKEN, Reason.METRIC_MISSING, "the case gates no metric", ""
    unstable = evidence.counts.unstable if evidence.counts else {}
    values = evidence.values()
    for name in evidence.gates:
        if name not in values and name not in unstable:
            return Status.BROKEN, Reason.METRIC_MISSING, f"{name} was not measured", ""
    sites = evidence.counts.sites if evidence.counts else {}
    # First the one that can say where.
    for name in sorted(set(evidence.gates) & unstable.keys(), key=lambda n: n not in sites):
        places = "".join(f"{site.described()}\n" for site in sites.get(name, ()))
        message = f"{name}: {unstable[name]}"
        return Status.INCONCLUSIVE, Reason.COUNT_UNSTABLE, message, places
    return None


def _shown(evidence: Evidence) -> list[str]:
    """Gated metrics and whatever else was measured, in the table's order."""
    values = evidence.values()
    return [name for name in METRICS if name in values]


def _without_comparison(
    evidence: Evidence, status: Status, reason: Reason, message: str = ""
) -> Verdict:
    metrics = _uncompared(evidence, status, reason)
    return Verdict(evidence.case_id, status, reason, message or reason.value, metrics=metrics)


def _uncompared(evidence: Evidence, status: Status, reason: Reason) -> tuple[MetricVerdict, ...]:
    values = evidence.values()
    return tuple(
        MetricVerdict(name, status, reason, new=values[name], gated=name in evidence.gates)
        for name in _shown(evidence)
    )


def _differences(recorded: Mapping[str, object], now: Mapping[str, object]) -> str:
    """What differs between two cases, flattened: "batch 64 -> 32"."""
    old, new = _flat(recorded), _flat(now)
    keys = [
        key for key in sorted(old | new) if (key in old, old.get(key)) != (key in new, new.get(key))
    ]
    return ", ".join(f"{key} {old.get(key, 'unset')} -> {new.get(key, 'unset')}" for key in keys)


def _flat(case: Mapping[str, object]) -> dict[str, object]:
    params = case.get("params")
    flat = {key: value for key, value in case.items() if key != "params"}
    for key, value in params.items() if isinstance(params, Mapping) else ():
        flat[f"params.{key}" if key in flat else key] = value
    return flat


def _other_software(evidence: Evidence, epoch: Epoch) -> Verdict:
    newest = epoch.recordings[-1].software
    message = _differences(newest, evidence.software_key())
    return _without_comparison(evidence, Status.NOT_COMPARABLE, Reason.OTHER_SOFTWARE, message)


def drifted(evidence: Evidence, recordings: list[Recording]) -> str:
    """Why this evidence, though `same`, must not join the epoch: too far from how it began."""
    for name in (name for name in evidence.gates if METRICS[name].kind == "time"):
        found = screen_of(name, evidence, recordings[:1])
        if found is not None and abs(found.change_pct) > DEFAULT_LIMIT_PCT:
            return f"{name} is {found.change_pct:+.2f} % from the epoch's first recording"
    values = evidence.values()
    for name in (name for name in evidence.gates if METRICS[name].kind == "difference"):
        first = recordings[0].differences_pct.get(name)
        moved = values[name] - first.mean if first and name in values else 0.0
        if abs(moved) > DRIFT_POINTS:
            return f"{name} is {moved:+.2f} points from the epoch's first recording"
    return ""
