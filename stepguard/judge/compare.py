"""One metric of a case against its recordings: a time, a count, a difference. Pure."""

from dataclasses import replace

import msgspec

from stepguard.baseline_model import Recording
from stepguard.evidence import Evidence
from stepguard.judge.limits import DIFFERENCE_LIMIT_PCT, Screen, paired, screen
from stepguard.metrics import METRICS, format_value
from stepguard.site import Site, added
from stepguard.verdict import MetricVerdict, Reason, Status

NOTE_ITEMS = 3  # how many moved operators a note names
PRODUCTS = ("mm", "attention", "convolution")  # what a step is made of; its views only follow


def compare(name: str, evidence: Evidence, recordings: list[Recording]) -> MetricVerdict:
    """The metric's verdict against comparable recordings of one epoch, oldest first."""
    metric, gated = METRICS[name], name in evidence.gates
    new = evidence.values()[name]
    if metric.kind == "time":
        return _compare_time(name, new, screen_of(name, evidence, recordings), gated)
    if metric.kind == "difference":
        return _compare_difference(name, evidence, recordings[-1], gated)
    if metric.kind == "information":
        past = recordings[-1].information.get(name)
        found = _verdict(name, Status.SAME, Reason.NOT_JUDGED, past, new, gated=False)
        noted = {"rank_skew_pct": straggler, "scaling_efficiency_pct": alone}.get(name)
        return replace(found, note=noted(evidence)) if noted else found
    if name == "tokens_per_step":
        tokens = recordings[-1].tokens_per_step  # equal, or judge() had stopped
        return _verdict(name, Status.SAME, Reason.EQUAL, tokens, new, gated=gated)
    old = _recorded_count(name, recordings)
    if old is None:
        reason = Reason.METRIC_NOT_RECORDED
        return _verdict(name, Status.NO_BASELINE, reason, None, new, gated=gated)
    found, note = _compare_counter(name, old, new, gated), _moved(name, evidence, recordings[-1])
    if found.reason is Reason.EQUAL and note and metric.parts:
        # As many operators, but other ones: an improvement would hide what was added beside it.
        found = replace(found, status=Status.CHANGED, reason=Reason.WORK_MOVED)
    found = _compare_ranks(name, evidence, recordings, found)
    sites = _moved_sites(name, evidence, recordings[-1], new < old)
    if found.reason is Reason.EQUAL:  # still worth saying: one stands elsewhere now
        return replace(found, sites=sites)
    return replace(found, note=", ".join(filter(None, (found.note, note))), sites=sites)


def straggler(evidence: Evidence) -> str:
    """Which rank is the slowest, where ranks were measured without exchange."""
    return next((d.straggler() for d in evidence.differences if d.name == "exposed_comm"), "")


def alone(evidence: Evidence) -> str:
    """What one rank takes alone, where it was measured, and whether that was steady."""
    one = evidence.one_rank
    if one is None:
        return ""
    return f"one rank alone takes {one.step_ms:.2f} ms" + (one.steady and f", {one.steady}")


def _recorded_count(name: str, recordings: list[Recording]) -> int | None:
    """The newest recording's count; the epoch's lowest where a metric has slack, so that small
    rises do not add up, one recording at a time.
    """
    newest = recordings[-1].counters.get(name)
    if newest is None or not METRICS[name].slack_pct:
        return newest
    return min(recording.counters.get(name, newest) for recording in recordings)


def screen_of(name: str, evidence: Evidence, recordings: list[Recording]) -> Screen | None:
    """The comparison of a time with the recordings that hold it; None if none does."""
    past = [recording.times_ms[name] for recording in recordings if recording.times_ms.get(name)]
    if not past:
        return None
    return screen([getattr(launch, name) for launch in evidence.launches], past)


def _against(limit_pct: float, change_pct: float, noisy: bool) -> tuple[Status, Reason]:
    """What a change says against a limit, either way."""
    if noisy:
        return Status.INCONCLUSIVE, Reason.TOO_NOISY
    if abs(change_pct) <= limit_pct:
        return Status.SAME, Reason.WITHIN_LIMIT
    return (Status.SLOWER if change_pct > 0 else Status.FASTER), Reason.BEYOND_LIMIT


def _compare_time(name: str, new: float, found: Screen | None, gated: bool) -> MetricVerdict:
    if found is None:
        reason = Reason.METRIC_NOT_RECORDED
        return _verdict(name, Status.NO_BASELINE, reason, None, new, gated=gated)
    status, reason = _against(found.limit_pct, found.change_pct, found.noisy)
    return MetricVerdict(
        name,
        status,
        reason,
        old=new / (1 + found.change_pct / 100),
        new=new,
        change_pct=found.change_pct,
        limit_pct=found.limit_pct,
        noise_pct=found.se_pct,
        gated=gated,
    )


def _compare_difference(
    name: str, evidence: Evidence, recording: Recording, gated: bool
) -> MetricVerdict:
    """Judged in percentage points of a step: a difference may be zero, and no ratio of it says
    anything. ``change_pct`` and ``noise_pct`` are such points.
    """
    one = next(d for d in evidence.differences if name == f"{d.name}_pct")
    now = paired(one.pairs_ms)
    past = recording.differences_pct.get(name)
    if past is None:
        reason = Reason.METRIC_NOT_RECORDED
        return _verdict(name, Status.NO_BASELINE, reason, None, now.mean_pct, gated)
    moved, limit = now.mean_pct - past.mean, DIFFERENCE_LIMIT_PCT
    status, reason = _against(limit, moved, noisy=not now.half_width_pct <= limit)
    return MetricVerdict(
        name,
        status,
        reason,
        old=past.mean,
        new=now.mean_pct,
        change_pct=moved,
        limit_pct=limit,
        noise_pct=now.half_width_pct,
        gated=gated,
    )


def _compare_counter(name: str, old: float, new: float, gated: bool) -> MetricVerdict:
    metric = METRICS[name]
    if new == old:
        return _verdict(name, Status.SAME, Reason.EQUAL, old, new, gated=gated)
    if metric.role == "work":
        return _verdict(name, Status.CHANGED, Reason.WORK_MOVED, old, new, gated)
    if new < old:
        return _verdict(name, Status.FASTER, Reason.COUNTER_FELL, old, new, gated)
    if new <= old * (1 + metric.slack_pct / 100):
        return _verdict(name, Status.SAME, Reason.WITHIN_LIMIT, old, new, gated)
    return _verdict(name, Status.CHANGED, Reason.COUNTER_ROSE, old, new, gated)


def _compare_ranks(
    name: str, evidence: Evidence, recordings: list[Recording], busiest: MetricVerdict
) -> MetricVerdict:
    """The verdict on the rank that counted most, unless that hides what another rank counts; and
    which ranks it is of, where it is not of all.
    """
    ranks = int(evidence.case["world_size"])
    if ranks == 1:
        return busiest
    assert evidence.counts is not None and busiest.new is not None
    then = _recorded_ranks(name, recordings, ranks)
    now = evidence.counts.by_rank.get(name) or [int(busiest.new)] * ranks
    each = [
        _compare_counter(name, old, new, busiest.gated) for old, new in zip(then, now, strict=True)
    ]
    worst = min(each, key=lambda one: one.status.rank)
    found = worst if worst.status.rank < busiest.status.rank else busiest
    if found.status is Status.SAME:
        return found
    its = [rank for rank, one in enumerate(each) if one.status is found.status]
    if found.status is not Status.CHANGED:
        return replace(found, note=_on(its, ranks))
    failing = [each[rank] for rank in its]
    if found.new == found.old:  # other parts, of as many: of which ranks, is not known
        its, failing = [], [found, *failing]
    pairs = tuple((one.old or 0, one.new or 0) for one in failing)
    return replace(found, note=_on(its, ranks), failing_ranks=pairs)


def _recorded_ranks(name: str, recordings: list[Recording], ranks: int) -> list[int]:
    """What each rank counted in the newest recording; its lowest of the epoch where there is slack.

    Recordings from before ranks were kept apart are left out; the newest of a file never is one.
    """
    counts = [
        recording.by_rank.get(name) or [recording.counters[name]] * ranks
        for recording in recordings
        if recording.by_rank is not msgspec.UNSET and name in recording.counters
    ] or [[recordings[-1].counters[name]] * ranks]
    lowest = [min(each) for each in zip(*counts, strict=True)]
    return lowest if METRICS[name].slack_pct else counts[-1]


def _on(its: list[int], ranks: int) -> str:
    """ "on rank 1", "on ranks 0, 2"; nothing where it is all of them or none by itself."""
    if len(its) in (0, ranks):
        return ""
    return f"on rank{'s' if len(its) > 1 else ''} {', '.join(map(str, its))}"


def _verdict(
    name: str,
    status: Status,
    reason: Reason,
    old: float | None,
    new: float,
    gated: bool = True,
) -> MetricVerdict:
    change = 100 * (new / old - 1) if old else None
    return MetricVerdict(name, status, reason, old=old, new=new, change_pct=change, gated=gated)


def _moved(name: str, evidence: Evidence, recording: Recording) -> str:
    """Which parts of a counter moved, products first: "aten.mm.default 24 -> 25"."""
    assert evidence.counts is not None
    now, then = evidence.counts.detail.get(name, {}), recording.detail.get(name, {})
    if not then and recording.counters.get(name):  # what it was made of is not known
        return ""
    moves = [
        (key, then.get(key, 0), now.get(key, 0))
        for key in sorted(then.keys() | now.keys())
        if then.get(key, 0) != now.get(key, 0)
    ]
    moves.sort(key=lambda m: (not any(p in m[0] for p in PRODUCTS), -abs(m[2] - m[1])))
    shown = [f"{key} {format_value(name, a)} -> {format_value(name, b)}" for key, a, b in moves]
    rest = len(shown) - NOTE_ITEMS
    return ", ".join(shown[:NOTE_ITEMS]) + (f" and {rest} more" if rest > 0 else "")


def _moved_sites(
    name: str, evidence: Evidence, recording: Recording, fell: bool
) -> tuple[Site, ...]:
    """Where what rose stands now, or where what fell stood; allowed places left out."""
    assert evidence.counts is not None
    if not recording.sites.get(name) and recording.counters.get(name):  # where it was is not known
        return ()
    now = [site for site in evidence.counts.sites.get(name, ()) if not site.allowed]
    then = [site for site in recording.sites.get(name, ()) if not site.allowed]
    return added(now, then) if fell else added(then, now)
