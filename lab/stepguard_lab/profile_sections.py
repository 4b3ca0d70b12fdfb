"""Sections of a report about the GPU's work: the step's parts, kernel classes, causes, timeline."""

from collections.abc import Iterator, Sequence
from statistics import median

from stepguard.core.explanation import Cause, Explanation
from stepguard.core.profile import Profile, by_class, mean
from stepguard.core.text import counted
from stepguard.report.time_causes import named, place, refused_because, what
from stepguard.trace.kernel_classes import short
from stepguard_lab.charts import Bar, bar_chart
from stepguard_lab.report_input import MeasuredCase
from stepguard_lab.report_model import Section, Table, charts, signed, table
from stepguard_lab.time_sections import sides_of

MOST_BARS = 12
MOST_KERNELS = 15
_CAUSE = ("cause", "phase, place", "change [ms]", "before [ms]", "now [ms]")
_PARTS = (
    ("GPU: compute", "compute_us"),
    ("GPU: exposed comm.", "exposed_communication_us"),
    ("GPU: exposed copies", "exposed_copies_us"),
    ("GPU: idle", "idle_us"),
)


def sections(case: MeasuredCase, picture: str = "") -> Iterator[Section]:
    """Yield the sections of a case's profile, those without content too; ``picture`` is the
    timeline of a trace, as SVG.
    """
    head, base = case.profiles
    yield _causes(case.verdict.explanation)
    yield _classes(head, base)
    yield _step(case, head, base, picture)


def _ms(us: float | None, digits: int = 3) -> str:
    return "" if us is None else f"{us / 1e3:,.{digits}f}"


def _changed(new: float | None, old: float | None) -> str:
    return signed((new - old) / 1e3, 3) if new is not None and old is not None else ""


def _causes(explanation: Explanation | None) -> Section:
    title = "Causes"
    if explanation is None:
        return Section(title)
    if explanation.refused:
        why = tuple(refused_because(refused) for refused in explanation.refused)
        return Section(title, notes=("The profiles cannot be compared:", *why))
    bars = [
        Bar(named(cause), cause.us, None, f"{signed(cause.us / 1e3)} ms")
        for cause in explanation.causes[:MOST_BARS]
    ]
    rest_us = explanation.smaller_us + sum(cause.us for cause in explanation.causes[MOST_BARS:])
    smaller = explanation.smaller + max(0, len(explanation.causes) - MOST_BARS)
    if smaller:
        bars.append(
            Bar(f"{counted(smaller, 'smaller cause')}", rest_us, None, _change_text(rest_us))
        )
    if explanation.scatter_us:
        scatter_us = explanation.scatter_us
        bars.append(Bar("within the scatter", scatter_us, None, _change_text(scatter_us)))
    says = f"the profiled step changed by {signed(explanation.change_us / 1e3)} ms"
    chart = bar_chart("Causes of the change, ms a step", says, bars)
    rows = [_cause_row(cause) for cause in explanation.causes]
    if explanation.scatter_us:
        text = signed(explanation.scatter_us / 1e3, 3)
        rows.append(["within the scatter of steps", "", text, "", ""])
    note = (
        f"The profiled steps take {_ms(explanation.before_us)} -> {_ms(explanation.after_us)} ms; "
        f"causes explain {signed(explanation.explained_us / 1e3, 3)} ms of "
        f"{signed(explanation.change_us / 1e3, 3)} ms."
    )
    return Section(title, charts(chart), table("Causes, before and now", _CAUSE, rows, 2), (note,))


def _change_text(us: float) -> str:
    return f"{signed(us / 1e3)} ms"


def _cause_row(cause: Cause) -> list[str]:
    return [
        what(cause),
        place(cause),
        signed(cause.us / 1e3, 3),
        _ms(cause.before.us),
        _ms(cause.after.us),
    ]


def _classes(head: Profile | None, base: Profile | None) -> Section:
    title = "Kernels"
    if head is None:
        return Section(title)
    new, old = by_class(head), by_class(base) if base else {}
    kinds = sorted(
        new.keys() | old.keys(), key=lambda kind: -max(new.get(kind, 0), old.get(kind, 0))
    )
    bars = [
        Bar(
            kind,
            new.get(kind, 0.0),
            old.get(kind, 0.0) if base else None,
            f"{_ms(new.get(kind, 0.0), 2)} ms",
        )
        for kind in kinds[:MOST_BARS]
    ]
    chart = bar_chart("Kernel classes, ms a step", f"{len(kinds)} classes of kernels", bars)
    rows = [
        (
            kind,
            _ms(old.get(kind, 0.0)) if base else "",
            _ms(new.get(kind, 0.0)),
            _changed(new.get(kind, 0.0), old.get(kind, 0.0)) if base else "",
        )
        for kind in kinds
    ]
    names = ("class", "before [ms]", "now [ms]", "change [ms]")
    tables = table("Kernel classes", names, rows) + _longest(head)
    return Section(title, charts(chart), tables)


def _longest(profile: Profile) -> tuple[Table, ...]:
    return table(
        "Longest kernels",
        ("kernel", "class", "phase", "operator", "calls", "[ms]"),
        [
            (
                short(row.name, 60),
                row.kind,
                row.phase,
                row.operator or row.source,
                f"{mean(row.calls):,.4g}",
                _ms(mean(row.us)),
            )
            for row in sorted(profile.kernels, key=lambda row: -sum(row.us))
        ],
        4,
        MOST_KERNELS,
    )


def _step(case: MeasuredCase, head: Profile | None, base: Profile | None, picture: str) -> Section:
    """Return what the host and the GPU do in a step: each part's time, and the timeline."""
    rows = [*_host_row(case)]
    for label, field in _PARTS:
        new, old = (
            mean(getattr(profile.parts, field)) if profile else None for profile in (head, base)
        )
        if new or old:
            rows.append((label, new, old))
    bars = [Bar(label, new, old, f"{_ms(new, 2)} ms") for label, new, old in rows]
    chart = bar_chart("One step on the CPU and the GPU, ms", "each part's time in a step", bars)
    body = [(label, _ms(old), _ms(new), _changed(new, old)) for label, new, old in rows]
    names = ("part", "before [ms]", "now [ms]", "change [ms]")
    tables = table("Parts of a step", names, body)
    if head is not None:
        gaps = [
            (row.cause, row.call, row.place, f"{mean(row.count):,.4g}", _ms(mean(row.us)))
            for row in sorted(head.idle, key=lambda row: -sum(row.us))
        ]
        idle = ("idle, by cause", "call", "place", "gaps", "[ms]")
        tables += table("Idle time of the GPU", idle, gaps, 3, MOST_BARS)
    why = case.counted.counted.profile_problem if case.counted else ""
    notes = (f"The step has no profile: {why}",) if why else ()
    return Section("CPU and GPU in a step", charts(chart), tables, notes, picture)


def _host_row(case: MeasuredCase) -> Iterator[tuple[str, float | None, float | None]]:
    """Yield how long the host takes to launch a step, in us, where that was measured."""
    medians: Sequence[float | None] = [
        median(known) * 1e3 if known else None
        for launches in sides_of(case)
        for known in [
            [b.enqueue_ms for launch in launches for b in launch.blocks if b.enqueue_ms is not None]
        ]
    ]
    if any(medians):
        yield "CPU: launches it", medians[0], medians[1]
