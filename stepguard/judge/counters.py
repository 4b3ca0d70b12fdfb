"""One metric of a case against recordings: a time, a count, a difference.

Both sides have one type: ``now`` is this run's summary, ``past`` are comparable recordings of one
epoch, oldest first, or the other revision's summary alone.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from stepguard.core.figures import OwnLimit
from stepguard.core.metrics import (
    BETWEEN_STEPS,
    COLLECTIVES,
    JUDGED_TIME,
    METRICS,
    OPERATOR_METRICS,
    OPERATORS,
    PEAK,
)
from stepguard.core.reasons import Reason
from stepguard.core.recording import Recording
from stepguard.core.site import Site, added, merge
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, PartMove
from stepguard.judge.noise_limits import DIFFERENCE_LIMIT_PCT, Screen, screen

Said = tuple[Status, Reason]
# Kinds of operators, causes first: products, all other operators, what autograd adds beside them,
# backward operators, views.
OTHER_KIND = 1
_KINDS = {
    0: re.compile(r"attention|convolution|mm(\.|$)"),
    2: re.compile(r"[.:](add|clone|copy|fill|mul|ones_like|sum|zeros_like)_?(\.|$)"),
    3: re.compile(r"backward"),
    4: re.compile(
        r"[.:](_unsafe_view|alias|as_strided|detach|empty\w*|expand|lift_fresh|permute|reshape|"
        r"select|slice|split|squeeze|t|transpose|unbind|unsqueeze|view)(\.|$)"
    ),
}
# Operators that compute nothing. If one of them copies, the copy is an operator of its own. What a
# step keeps through one is counted as bytes. Another library's permute or split is not among them.
_VIEW = re.compile(
    r"^aten(\.|::)(_reshape_alias|_unsafe_view|as_strided|chunk|detach|expand|expand_as|"
    r"flatten|movedim|narrow|permute|reshape|select|slice|split|split_with_sizes|squeeze|t|"
    r"transpose|unbind|unflatten|unsqueeze|view|view_as)$"
)
# Operators whose overloads all compute the same. Overloads of others may sort stably, round, or
# raise to the powers of a tensor.
_ALIKE = re.compile(r"^aten\.(add|arange|eq|full|ge|gt|le|lt|mean|mul|ne|sub|sum)_?$")
_COLLECTIVE = re.compile(r"^_?c10d")
_UNTYPED = "aten._to_copy.default"
_CAST = re.compile(r"(?<=_to_copy)\[\w+\]")  # the type that the cast makes
VIEWS_PCT = 2.0  # of the operator calls; more views than that are work for the host


def compare(
    metric: str,
    now: Recording,
    past: Sequence[Recording],
    gates: Sequence[str],
    recorded: bool = False,
) -> MetricVerdict:
    """Return the metric's verdict. ``now`` must hold the metric. ``recorded``: ``past`` is a
    baseline's; a counter that is newer than the baseline is shown, not compared.
    """
    kind, new, gated = METRICS[metric].kind, now.values()[metric], metric in gates
    known = any(metric in recording.counters for recording in past)
    if recorded and METRICS[metric].new and not known:
        lacks = Status.SAME, Reason.METRIC_NOT_RECORDED
        return MetricVerdict(metric, *lacks, new=new, gated=gated)
    if metric == JUDGED_TIME:
        return _compare_time(new, screen_of(now, past), gated)
    if kind == "difference":
        return _compare_difference(metric, now, past[-1], gated)
    if kind == "counter" and metric != "tokens_per_step":
        return _compare_count(metric, now, past, gated)
    if metric == "tokens_per_step":
        old: float | None = past[-1].tokens_per_step  # equal: other tokens were refused
        said = Status.SAME, Reason.EQUAL
    else:
        old, said = past[-1].information.get(metric), (Status.SAME, Reason.NOT_JUDGED)
    return MetricVerdict(metric, *said, old, new, _change_pct(old, new), gated=gated)


def screen_of(now: Recording, past: Sequence[Recording]) -> Screen | None:
    """Compare the step time with the recordings that have one, by rank 0's card; None if none has
    one.
    """
    by_card: dict[str, list[Sequence[float]]] = {}
    for recording in past:
        if times := recording.times_ms.get(JUDGED_TIME):
            by_card.setdefault(recording.device_uuid, []).append(times)
    own = by_card.get(now.device_uuid, []) if now.device_uuid else []
    return screen(now.times_ms[JUDGED_TIME], own, list(by_card.values())) if by_card else None


def _change_pct(old: float | None, new: float) -> float | None:
    return 100 * (new / old - 1) if old else None


def _not_recorded(metric: str, new: float, gated: bool) -> MetricVerdict:
    lacks = Status.NO_BASELINE, Reason.METRIC_NOT_RECORDED
    return MetricVerdict(metric, *lacks, new=new, gated=gated)


def _compare_time(new: float, screened: Screen | None, gated: bool) -> MetricVerdict:
    if screened is None:
        return _not_recorded(JUDGED_TIME, new, gated)
    return MetricVerdict(
        JUDGED_TIME,
        *_against_limit(screened.change_pct, screened.limit_pct, screened.noisy),
        # The mean over recordings, to which the change refers; no recording need have it.
        old=new / (1 + screened.change_pct / 100),
        new=new,
        change_pct=screened.change_pct,
        limit_pct=screened.limit_pct,
        noise_pct=screened.se_pct,
        gated=gated,
        figures=OwnLimit(own_card=screened.own_card, compared=screened.compared),
    )


def _compare_difference(metric: str, now: Recording, past: Recording, gated: bool) -> MetricVerdict:
    """Judge a difference in percentage points of a step: it may be zero, and then no ratio exists.
    ``change_pct`` and ``noise_pct`` are such points.
    """
    difference, then = now.differences_pct[metric], past.differences_pct.get(metric)
    if then is None:
        return _not_recorded(metric, difference.mean, gated)
    moved, limit = difference.mean - then.mean, DIFFERENCE_LIMIT_PCT
    said = _against_limit(moved, limit, noisy=not difference.half_width <= limit)
    noise = difference.half_width
    old, new = then.mean, difference.mean
    return MetricVerdict(metric, *said, old, new, moved, limit, noise, gated=gated)


def _against_limit(change_pct: float, limit_pct: float, noisy: bool) -> Said:
    """Compare a change with its limit, in both directions."""
    # Noise comes first: beyond the limit it may hide a change, or look like one.
    if noisy:
        return Status.INCONCLUSIVE, Reason.TOO_NOISY
    if abs(change_pct) <= limit_pct:
        return Status.SAME, Reason.WITHIN_LIMIT
    return Status.SLOWER if change_pct > 0 else Status.FASTER, Reason.BEYOND_LIMIT


@dataclass(frozen=True)
class _Count:
    """A count now, the recorded one, and what they say; of some ranks, or of all."""

    old: float
    new: float
    said: Said
    ranks: tuple[int, ...] = ()
    failing: tuple[tuple[float, float], ...] = ()

    @property
    def status(self) -> Status:
        return self.said[0]


def _compare_count(
    metric: str, now: Recording, past: Sequence[Recording], gated: bool
) -> MetricVerdict:
    new, old = now.counters[metric], _recorded_count(metric, past)
    # Without its parts a recording cannot show that one part replaced another.
    lost = METRICS[metric].parts and metric in now.detail and metric not in past[-1].detail
    if old is None or lost and new == old:
        return _not_recorded(metric, new, gated)
    moved = _moved_parts(metric, now, past[-1])
    busiest = _Count(old, new, _by_parts(metric, _judge_count(metric, old, new), moved, old))
    # Parts come first: a part that falls on one rank must not hide another part of another rank.
    judged = _compare_ranks(metric, now, past, busiest)
    reason = judged.said[1]
    # A move within the limit shows no places. An equal count does: a call may have moved to another
    # line.
    shown = reason is not Reason.WITHIN_LIMIT
    return MetricVerdict(
        metric,
        *judged.said,
        judged.old,
        judged.new,
        _change_pct(judged.old, judged.new),
        moved=moved if shown and reason is not Reason.EQUAL else (),
        ranks=judged.ranks,
        sites=_sites(metric, now, past[-1], moved, new - old) if shown else (),
        gated=gated,
        failing_ranks=judged.failing,
    )


def _by_parts(metric: str, said: Said, moved: Sequence[PartMove], calls: int) -> Said:
    """Return what a count says once its parts are looked at."""
    reason = said[1]
    if reason is Reason.EQUAL and moved and METRICS[metric].parts:
        # As many operators as before, but other ones: without this, an improvement could hide an
        # added operator.
        said = Status.CHANGED, Reason.WORK_MOVED
    alike = metric in OPERATOR_METRICS and _computes_as_much(moved, calls)
    if said[1] is Reason.WORK_MOVED and alike:
        return Status.SAME, Reason.WITHIN_LIMIT
    return said


def _sites(
    metric: str, now: Recording, past: Recording, moved: Sequence[PartMove], rise: int
) -> tuple[Site, ...]:
    """Return the places of a count that moved by ``rise``."""
    if metric == OPERATORS:
        return _moved_operators(moved, now, past)
    if metric == PEAK:
        return _calls_at_other_lines(now, past) if rise > 0 else ()
    if metric == COLLECTIVES:
        return _moved_collectives(now, past, rise < 0)
    return _moved_sites(metric, now, past, rise < 0)


def _recorded_count(metric: str, past: Sequence[Recording]) -> int | None:
    """Return the newest recording's count. If the metric may rise a little, return the epoch's
    lowest, so that small rises do not add up over recordings.
    """
    newest = past[-1].counters.get(metric)
    if newest is None or not METRICS[metric].tolerant:
        return newest
    return min(recording.counters.get(metric, newest) for recording in past)


def _judge_count(metric: str, old: float, new: float) -> Said:
    row = METRICS[metric]
    if new == old:
        return Status.SAME, Reason.EQUAL
    if row.role == "work":
        return Status.CHANGED, Reason.WORK_MOVED
    if abs(new - old) < row.floor:
        return Status.SAME, Reason.WITHIN_LIMIT
    # A fall comes before the slack, so that a gain smaller than the slack is FASTER, too.
    if new < old:
        return Status.FASTER, Reason.COUNTER_FELL
    if new <= old * (1 + row.slack_pct / 100):
        return Status.SAME, Reason.WITHIN_LIMIT
    return Status.CHANGED, Reason.COUNTER_ROSE


def _compare_ranks(
    metric: str, now: Recording, past: Sequence[Recording], busiest: _Count
) -> _Count:
    """Return the count of the worst rank, or of the busiest one if none is worse. It names its
    ranks unless all ranks have it.
    """
    new, old = now.unlike_ranks().get(metric), _recorded_ranks(metric, past)
    ranks = len(new or old or ())
    if not ranks:  # one rank, or ranks that are all alike, now and in the recording
        return busiest
    both = zip(
        old or [int(busiest.old)] * ranks,
        new or [int(busiest.new)] * ranks,
        strict=True,
    )
    each = [_Count(then, count, _judge_count(metric, then, count)) for then, count in both]
    worst = min(each, key=lambda count: count.status.rank)
    # Among equally bad ranks the busiest is shown: its figures are the counter's own.
    judged = worst if worst.status.rank < busiest.status.rank else busiest
    if judged.status is Status.SAME:
        return judged
    its = [rank for rank, count in enumerate(each) if count.status is judged.status]
    failing = [each[rank] for rank in its]
    if judged.status is not Status.CHANGED:
        failing = []
    elif judged.new == judged.old:  # other operators, of unknown ranks
        its, failing = [], [judged, *failing]
    counts = tuple((count.old, count.new) for count in failing)
    return _Count(judged.old, judged.new, judged.said, _some(its, ranks), counts)


def _recorded_ranks(metric: str, past: Sequence[Recording]) -> list[int] | None:
    """Return the count of each rank in the newest recording; the epoch's lowest if the metric may
    rise a little. None if no recording has ranks that differ.

    Recordings from before ranks were counted apart are left out. The newest recording of a file is
    never one of those.
    """
    known = [r for r in past if r.by_rank is not msgspec.UNSET and metric in r.counters]
    each = [recording.unlike_ranks().get(metric) for recording in known]
    ranks = max((len(counts) for counts in each if counts), default=0)
    if not ranks:
        return None
    whole = [
        counts or [recording.counters[metric]] * ranks
        for counts, recording in zip(each, known, strict=True)
    ]
    lowest = [min(counts) for counts in zip(*whole, strict=True)]
    return lowest if METRICS[metric].tolerant else whole[-1]


def _some(its: list[int], ranks: int) -> tuple[int, ...]:
    """Return these ranks, or nothing if they are all ranks."""
    return tuple(its) if len(its) < ranks else ()


def _moved_parts(metric: str, now: Recording, past: Recording) -> tuple[PartMove, ...]:
    """Return the parts of a counter that moved, causes first."""
    new, old = now.detail.get(metric, {}), past.detail.get(metric, {})
    if not old and past.counters.get(metric):  # the recorded parts are unknown
        return ()
    # Recordings of a GPU may be older than types in the names of casts; there the time shows the
    # cost of a cast. On a CPU only the name shows it.
    if past.device_uuid and _UNTYPED in old and not any(_CAST.search(name) for name in old):
        new = _without_types(new)
    moves = [
        PartMove(name, old.get(name, 0), new.get(name, 0))
        for name in sorted(old.keys() | new.keys())
        if old.get(name, 0) != new.get(name, 0)
    ]
    return tuple(sorted(moves, key=_distance_from_cause))


def _without_types(parts: Mapping[str, int]) -> dict[str, int]:
    """Return the parts without types in the names of casts, as older recordings have them."""
    calls: Counter[str] = Counter()
    for name, count in parts.items():
        calls[_CAST.sub("", name)] += count
    return calls


def _computes_as_much(moved: Sequence[PartMove], calls: int) -> bool:
    """Tell whether only the way of calling operators moved: other overloads, other views, or a few
    views more or fewer.
    """
    changes: Counter[str] = Counter()
    for part in moved:
        packet = _packet(part.name)
        alike = _VIEW.search(packet) or _ALIKE.search(packet)
        changes[packet if alike else part.name] += part.new - part.old
    views = all(_VIEW.search(name) for name, change in changes.items() if change)
    return bool(moved) and views and abs(changes.total()) <= VIEWS_PCT / 100 * calls


def _packet(name: str) -> str:
    """Return an operator without its overload, "aten.sum" for "aten.sum.default"."""
    # The profiler writes "aten::sum". What overloads of another library do is unknown.
    overloaded = name.startswith("aten.") and name.count(".") > 1
    return name.rpartition(".")[0] if overloaded else name


def _distance_from_cause(part: PartMove) -> tuple[int, bool, bool, bool, int]:
    """Order parts: by kind; new and lost ones before others; attention before the products that
    replace it; new before lost; then by the size of the move.
    """
    kinds = [rank for rank, kind in _KINDS.items() if kind.search(part.name)]
    kind = max(kinds, default=OTHER_KIND)
    changed_number = 0 not in (part.old, part.new)
    lost = part.new < part.old
    return kind, changed_number, "attention" not in part.name, lost, -abs(part.new - part.old)


def _moved_operators(
    moved: Sequence[PartMove], now: Recording, past: Recording
) -> tuple[Site, ...]:
    """Return the lines that call these operators more often, or less often: then the count is
    negative.

    If a function calls an operator more often, its new lines are returned, if they account for the
    whole rise; else the line that accounts for most of it. The same holds for falls. Lines whose
    operators are called only in backward passes and optimizers come last, with that phase.
    """
    new, old = now.operator_sites(), past.operator_sites()
    # The lines of a baseline have no phase. A line has one phase for all that it calls.
    called = {(s.file, s.function, s.text) for s in new if not s.phase}
    phases = {(s.file, s.function, s.text): s.phase for s in new}
    moved_lines = []
    for part in moved:
        rose = part.new > part.old
        if not old and part.old or not new and part.new:  # the lines of one side are unknown
            continue
        here, there = (new, old) if rose else (old, new)
        here, there = ([s for s in side if s.what == part.name] for side in (here, there))
        lines = added(there, here)
        for place, count in (_by_function(here) - _by_function(there)).items():
            inside = [site for site in lines if (site.file, site.function) == place]
            if sum(site.count for site in inside) != count:  # some lines were only edited
                line = min(inside, key=lambda site: abs(site.count - count))
                inside = [msgspec.structs.replace(line, count=count)]
            for line in inside:
                key = (line.file, line.function, line.text)
                phase = "" if key in called else phases.get(key, line.phase)
                signed = line.count if rose else -line.count
                line = msgspec.structs.replace(line, count=signed, phase=phase)
                moved_lines.append(line if rose else _former(line))
    return tuple(sorted(moved_lines, key=lambda site: bool(site.phase)))


def _moved_collectives(now: Recording, past: Recording, fell: bool) -> tuple[Site, ...]:
    """Return the lines that call more collectives in the eager step. With ``fell``: the lines that
    called them before.
    """
    moved = [part for part in _moved_parts(OPERATORS, now, past) if _COLLECTIVE.match(part.name)]
    these = [part for part in moved if (part.new < part.old) == fell]
    return tuple(
        msgspec.structs.replace(site, what=site.what.rpartition(".")[0], count=abs(site.count))
        for site in _moved_operators(these, now, past)
    )


def _calls_at_other_lines(now: Recording, past: Recording) -> tuple[Site, ...]:
    """Return the lines that now call an operator that another line called before, if that line
    still exists. Example: a loss cast its input; now the line above does. A line that was only
    edited is not returned.
    """
    new, old = now.operator_sites(), past.operator_sites()
    calls = {site.key: site.count for site in merge(new)}
    lines = {site.key[1:] for site in new}
    left: Counter[str] = Counter()
    for site in merge(old):
        if site.key[1:] in lines:
            left[site.what] += max(0, site.count - calls.get(site.key, 0))
    return tuple(
        msgspec.structs.replace(site, what=_packet(site.what))
        for site in added(old, new)
        if left[site.what] >= site.count and not site.phase and not _VIEW.search(_packet(site.what))
    )


def _former(site: Site) -> Site:
    """Return a place without its line number, which is the other side's."""
    return msgspec.structs.replace(site, line=0)


def _by_function(sites: Sequence[Site]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for site in sites:
        counts[site.file, site.function] += site.count
    return counts


def _moved_sites(metric: str, now: Recording, past: Recording, fell: bool) -> tuple[Site, ...]:
    """Return the places of what rose, or the former ones of what fell; not those allowed."""
    # The former places are unknown then. For bytes between steps an empty list is known: weights
    # have no place.
    if not past.sites.get(metric) and past.counters.get(metric) and metric != BETWEEN_STEPS:
        return ()
    new = [site for site in now.sites.get(metric, ()) if not site.allowed]
    old = [site for site in past.sites.get(metric, ()) if not site.allowed]
    sites = tuple(map(_former, added(new, old))) if fell else added(old, new)
    if METRICS[metric].unit == "B":  # their count is bytes; the largest first
        return tuple(sorted(sites, key=lambda site: -site.count))
    return sites
