"""Sections of a report about a step's work: metrics, lines, ranks, memory, environment."""

from collections.abc import Collection, Iterator, Mapping
from statistics import mean

from stepguard.core.evidence import Evidence
from stepguard.core.metrics import METRICS, PEAK, PYTHON_LINES, format_bytes, format_value
from stepguard.core.profile import mean as mean_of
from stepguard.core.site import Site
from stepguard.core.verdict import MetricVerdict
from stepguard.judge.comparable import (
    Conditions,
    comparable,
    conditions_of,
    conditions_recorded,
)
from stepguard_lab.charts import Bar, bar_chart
from stepguard_lab.report_input import MeasuredCase
from stepguard_lab.report_model import Cell, Section, Table, charts, signed, table
from stepguard_lab.source_links import Repository

_PARTS = ("step_us", "compute_us", "exposed_communication_us", "exposed_copies_us", "idle_us")
_ENVIRONMENT = (
    *("device_name", "device_uuid", "driver", "torch", "cuda", "cudnn", "nccl", "triton"),
    *("python", "arch", "cpu_threads"),
)


def sections(case: MeasuredCase, repository: Repository) -> Iterator[Section]:
    """Yield the sections of what a step does and where it ran, those without content too."""
    yield _lines(case, repository)
    yield _metrics(case)
    yield _ranks(case)
    yield _memory(case)
    yield _environment(case)


def _metrics(case: MeasuredCase) -> Section:
    head = ("metric", "verdict", "unit", "before", "now", "change [%]", "note")
    rows = [
        (
            metric.metric,
            Cell(metric.status.value if metric.gated else "shown", css=_colour(metric)),
            METRICS[metric.metric].unit,
            format_value(metric.metric, metric.old) if metric.old is not None else "",
            format_value(metric.metric, metric.new) if metric.new is not None else "",
            "" if not metric.change_pct else signed(metric.change_pct),
            case.text.notes.get(metric.metric, ""),
        )
        for metric in sorted(
            case.verdict.metrics, key=lambda metric: (not metric.gated, metric.rank)
        )
    ]
    return Section("Metrics", tables=table("All metrics", head, rows, 3, 60, ends_in_text=True))


def _colour(metric: MetricVerdict) -> str:
    if not metric.gated:
        return ""
    return metric.outcome


def _lines(case: MeasuredCase, repository: Repository) -> Section:
    evidence = case.counted or case.evidence
    result = case.result
    commit = evidence.commit if evidence else result.commit if result else ""
    dirty: Collection[str] = evidence.dirty if evidence else result.dirty if result else ()

    def row(metric: str, site: Site, count: str) -> tuple[str | Cell, ...]:
        place = Cell(site.place, repository.page_of(site, commit, dirty))
        text = site.text + (f" via {site.via}" if site.via else "")
        where = f"{site.function}, {site.phase}" if site.phase else site.function
        allowed = f" (allowed: {site.allowed})" if site.allowed else ""
        return metric, site.what + allowed, place, where, text, count

    head = ("metric", "what happens", "line", "function, phase", "source", "a step")
    moved = [
        row(metric.metric, site, f"{site.count:+,d}")
        for metric in case.verdict.metrics
        for site in metric.sites
    ]
    counts = evidence.counted.sites if evidence else {}
    all_of = [
        row(metric, site, f"{site.count:,}")
        for metric, sites in counts.items()
        if metric != PYTHON_LINES
        for site in sorted(sites, key=lambda site: -site.count)
    ]
    tables = table("Lines that moved", (*head[:-1], "more or less"), moved, 5)
    tables += table("Syncs, operators and other lines, now", head, all_of, 5)
    return Section("Lines", tables=tables)


def _ranks(case: MeasuredCase) -> Section:
    evidence = case.counted
    if evidence is None or evidence.world_size < 2:
        return Section("Ranks")
    times = [_by_rank(side) for side in (evidence, case.base) if side]
    straggler = case.verdict.straggler
    bars = [
        Bar(f"rank {rank}", ms, times[1].get(rank) if len(times) > 1 else None, f"{ms:,.2f} ms")
        for rank, ms in times[0].items()
    ]
    chart = bar_chart("Step time by rank, ms", f"{len(bars)} ranks", bars)
    parts = evidence.counted.parts_by_rank
    rows = [
        (
            str(rank),
            f"{ms:,.3f}",
            f"{times[1][rank]:,.3f}" if len(times) > 1 and rank in times[1] else "",
            *(_part(parts[rank], name) if rank < len(parts) else "" for name in _PARTS),
        )
        for rank, ms in times[0].items()
    ]
    head = ("rank", "step now [ms]", "before [ms]", "profiled step", "compute", "exposed comm.",
            "exposed copies", "idle")  # fmt: skip
    unlike = [
        (metric, ", ".join(f"{value:,}" for value in values))
        for metric, values in evidence.counted.by_rank.items()
    ]
    tables = table("Ranks", head, rows) + table("Counts that differ", ("metric", "by rank"), unlike)
    note = f"Rank {straggler.rank} got slower against itself" if straggler else ""
    return Section("Ranks", charts(chart), tables, (note,) if note else ())


def _part(parts: object, name: str) -> str:
    return f"{mean_of(getattr(parts, name)) / 1e3:,.3f}"


def _by_rank(evidence: Evidence) -> dict[int, float]:
    """Return the mean step time of each rank over all blocks, in ms."""
    blocks = [
        block for launch in evidence.launches if launch.has_times() for block in launch.blocks
    ]
    ranks = min((len(block.wall_ms) for block in blocks), default=0)
    return {
        rank: mean(block.wall_ms[rank] / block.steps for block in blocks) for rank in range(ranks)
    }


def _memory(case: MeasuredCase) -> Section:
    new = dict(case.counted.counted.detail.get(PEAK, {})) if case.counted else {}
    old: Mapping[str, int] = {}
    if case.base:
        old = case.base.counted.detail.get(PEAK, {})
    elif case.recording:
        old = case.recording.detail.get(PEAK, {})
    phases = [*new, *(phase for phase in old if phase not in new)]
    mib = 2.0**20
    bars = [
        Bar(
            phase or "the step",
            new[phase] / mib if phase in new else None,
            old[phase] / mib if phase in old else None,
            f"{new.get(phase, 0) / mib:,.1f}",
        )
        for phase in phases
    ]
    chart = bar_chart("Highest allocated memory by phase, MiB", f"{len(phases)} phases", bars)
    rows = [
        (
            phase or "the step",
            format_bytes(old[phase]) if phase in old else "",
            format_bytes(new[phase]) if phase in new else "",
            signed((new[phase] - old[phase]) / mib) if phase in new and phase in old else "",
        )
        for phase in phases
    ]
    head = ("phase", "before", "now", "change [MiB]")
    return Section("Memory by phase", charts(chart), table("Peak of each phase", head, rows))


def _environment(case: MeasuredCase) -> Section:
    head, base = case.counted, case.base
    parameters = case.result.parameters if case.result else head.case if head else {}
    rows = [(name, _text(value) if base else "", _text(value)) for name, value in _flat(parameters)]
    tables: tuple[Table, ...] = ()
    equal = ""
    if head is not None and head.fingerprint is not None:
        then = _described(base) if base and base.fingerprint else {}
        if not then and case.recording:
            then = case.recording.software | {"driver": case.recording.driver}
        rows += [(name, then.get(name, ""), value) for name, value in _described(head).items()]
        before = _conditions_before(case)
        differences = comparable(before, conditions_of(head)) if before else ()
        differs = [(each.key, each.tag.value, each.old, each.new) for each in differences]
        tables = table("What differs", ("what", "of", "before", "now"), differs, 4)
        if before and not differs:
            equal = "Nothing differs that was recorded of both."
    rows = [row for row in rows if row[2]]
    tables += table("Measured with", ("what", "before", "now"), rows, 3, 60)
    commits = [
        f"{name}: {side.commit or 'no commit'}{' and changes' if side.of_no_commit else ''}"
        for name, side in (("now", head), ("before", base))
        if side
    ]
    return Section("Environment", tables=tables, notes=(*commits, *filter(None, [equal])))


def _conditions_before(case: MeasuredCase) -> Conditions | None:
    """Return what the other revision or the recording was measured with; None if not known."""
    if case.base is not None and case.base.fingerprint is not None:
        return conditions_of(case.base)
    return conditions_recorded(case.recording) if case.recording else None


def _flat(case: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in case.items():
        if isinstance(value, Mapping):
            yield from ((str(key), inner) for key, inner in value.items())
        else:
            yield name, value


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _described(evidence: Evidence) -> dict[str, str]:
    """Return the machine, the software and the variables of evidence, by name."""
    fingerprint = evidence.fingerprint
    assert fingerprint is not None
    known = {name: str(getattr(fingerprint, name) or "") for name in _ENVIRONMENT}
    return known | fingerprint.libraries | fingerprint.environment
