"""Machines side by side: performance, kernels, CUDA calls, environment, and observations on
them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import geometric_mean

from stepguard.core.metrics import METRICS, format_value
from stepguard.core.profile import Profile, by_class, mean
from stepguard.core.text import listed
from stepguard.report.table import aligned

SHOWN = (
    "step_ms",
    "tokens_per_s",
    "mfu_pct",
    "energy_j_per_step",
    "compile_s",
    "sync_overhead_pct",
    "sync_api_share_pct",
    "peak_allocated_bytes",
    "launches_per_step",
    "host_syncs_per_step",
)
CALLS = 8  # rows of the table
TRACE = "trace"  # the name of a trace's profile, which belongs to no case
IDLE = "GPU idle, % of a step"
MOVED_PCT = 1.0  # of a step; a class of kernels that differs by more is pointed out


@dataclass(frozen=True)
class Side:
    """One machine's figures."""

    environment: Mapping[str, str]
    cases: Mapping[str, Mapping[str, float]]  # metrics by case
    launches_ms: Mapping[str, Sequence[float]]  # step_ms of each launch, by case
    declared: Mapping[str, Mapping[str, object]]  # what each case runs
    profiles: Mapping[str, Profile] = field(default_factory=dict)  # by case
    calls: Mapping[str, float] = field(default_factory=dict)  # CUDA call -> % of their time
    label: str = ""
    waits_pct: float | None = None  # share of the time in CUDA calls that is in calls that wait


def tables(sides: Sequence[Side]) -> Iterator[str]:
    """Yield the environment, each case that all sides have, and the figures of the traces."""
    labels = [side.label for side in sides]
    yield from _table("environment", labels, _rows([side.environment for side in sides]))
    for case in _common(side.cases for side in sides):
        values = [
            {name: format_value(name, side.cases[case][name]) for name in side.cases[case]}
            for side in sides
        ]
        rows = [row for name in SHOWN for row in _rows(values, [name])]
        units = {name: METRICS[name].unit for name in SHOWN if METRICS[name].unit != "B"}
        named = [
            [f"{name} [{units[name]}]" if name in units else name, *row] for name, *row in rows
        ]
        yield from ("", *_table(case, labels, named))
    for name in _common(side.profiles for side in sides):
        profiles = [side.profiles[name] for side in sides]
        columns = [by_class(profile) for profile in profiles]
        kinds = {kind for column in columns for kind in column}
        names = sorted(kinds, key=lambda kind: -_most(columns, kind))
        totals = [sum(column.values()) for column in columns]
        shown = [
            {kind: f"{us / 1e3:.2f} {100 * us / total:4.1f} %" for kind, us in column.items()}
            for column, total in zip(columns, totals, strict=True)
        ]
        parts = [profile.parts for profile in profiles]
        idle = [100 * mean(part.idle_us) / mean(part.step_us) for part in parts]
        rows = _rows(shown, names) + _rows([{IDLE: f"{pct:.1f} %"} for pct in idle])
        title = f"kernels of {name}, ms a step and % of kernels"
        yield from ("", title, *_table("kernel class", labels, rows))
    calls = [side.calls for side in sides]
    names = sorted({name for shares in calls for name in shares}, key=lambda n: -_most(calls, n))
    shown = [{name: f"{value:.1f}" for name, value in shares.items()} for shares in calls]
    if names and (rows := _rows(shown, names[:CALLS])):
        yield from ("", *_table("CUDA calls [% of the host's time in them]", labels, rows))


def _table(title: str, labels: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield from aligned([[title, *labels], *rows])


def _rows(columns: Sequence[Mapping[str, str]], names: Sequence[str] = ()) -> list[list[str]]:
    """Return a row for each name, or for all names. A name that no column has gets no row."""
    wanted = names or list(dict.fromkeys(name for column in columns for name in column))
    rows = [[name, *(column.get(name, "") for column in columns)] for name in wanted]
    return [row for row in rows if any(row[1:])]


def _most(shares: Sequence[Mapping[str, float]], name: str) -> float:
    return max(of_side.get(name, 0.0) for of_side in shares)


def _common(tables: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the names that all of the tables have."""
    first, *others = tables
    return [name for name in first if all(name in table for table in others)]


def observations(sides: Sequence[Side]) -> Iterator[str]:
    """Yield the observations, a sentence each. Every side is compared with the first."""
    first = sides[0]
    for other in sides[1:]:
        for case in _common([first.cases, other.cases]):
            yield from _of_case(case, first, other)
        names = sorted(first.environment.keys() | other.environment.keys())
        moved = [name for name in names if _differ(first, other, name)]
        if software := [name for name in moved if name != "machine"]:
            yield f"{other.label}: other {', '.join(software)} than {first.label}"
        yield from _of_kernels(first, other)
        for side, another in ((first, other), (other, first)):
            if alone := [case for case in side.cases if case not in another.cases]:
                yield f"of {side.label} alone, beside {another.label}: {listed(alone, 2)}"
    for side in sides:
        if side.waits_pct is not None:
            yield (
                f"{side.label}: {side.waits_pct:.1f} % of the time in CUDA calls is waiting, "
                "which a host that is ahead of its GPU does anyway; it is no lost time"
            )


def _differ(first: Side, other: Side, name: str) -> bool:
    """Tell whether both sides know this part of their environment, and differ in it."""
    known = _knows(first, name) and _knows(other, name)
    return known and first.environment.get(name) != other.environment.get(name)


def _knows(side: Side, name: str) -> bool:
    # A recording has the whole environment: what it lacks was not installed or not set. A run's
    # document has no software at all.
    has_all = "torch" in side.environment and name != "commit"
    return has_all or bool(side.environment.get(name))


def _of_case(case: str, first: Side, other: Side) -> Iterator[str]:
    if first.declared[case] != other.declared[case]:
        yield f"{case}: {other.label} ran it with other parameters; its times are not compared"
        return
    ours, theirs = first.launches_ms[case], other.launches_ms[case]
    if ours and theirs:
        ratio = geometric_mean(theirs) / geometric_mean(ours) - 1
        spread = max(max(times) / min(times) - 1 for times in (ours, theirs))
        word = "longer" if ratio > 0 else "shorter"
        inside = "inside" if abs(ratio) <= spread else "outside"
        scatter = f"{inside} the {100 * spread:.1f} % by which launches of one side differ"
        if len(ours) == len(theirs) == 1:
            scatter = "of one launch each: how much launches differ is not known"
        yield (
            f"{case}: a step is {abs(100 * ratio):.1f} % {word} on {other.label} than on "
            f"{first.label}, {scatter}"
        )
    counters = [
        name
        for name, metric in METRICS.items()
        if metric.kind == "counter"
        and name in first.cases[case]
        and name in other.cases[case]
        and first.cases[case][name] != other.cases[case][name]
    ]
    if counters:
        yield f"{case}: not the same step or software: {', '.join(counters)} differ"


def _of_kernels(first: Side, other: Side) -> Iterator[str]:
    for name in _common([first.profiles, other.profiles]):
        if first.declared.get(name) != other.declared.get(name):
            continue
        before, after = by_class(first.profiles[name]), by_class(other.profiles[name])
        least = MOVED_PCT / 100 * mean(first.profiles[name].parts.step_us)
        moved = {k: after.get(k, 0.0) - before.get(k, 0.0) for k in before.keys() | after.keys()}
        for kind in sorted(moved, key=lambda kind: -abs(moved[kind])):
            if abs(moved[kind]) > least:
                word = "more" if moved[kind] > 0 else "less"
                yield (
                    f"{name}: kernels of {kind} take {abs(moved[kind]) / 1e3:.2f} ms a step {word} "
                    f"on {other.label} than on {first.label}: {after.get(kind, 0.0) / 1e3:.2f} and "
                    f"{before.get(kind, 0.0) / 1e3:.2f}"
                )
