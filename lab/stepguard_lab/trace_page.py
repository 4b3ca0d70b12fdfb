"""The page of a trace: where the step's time goes, for one rank or several. Texts are shortened to
its width; figures are not.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from statistics import stdev

from stepguard.core.profile import Series, grouped, mean
from stepguard.core.text import cut, listed
from stepguard.report.table import aligned
from stepguard.trace.kernel_classes import short
from stepguard_lab.exchanges import Exchange
from stepguard_lab.measured_peaks import Peaks
from stepguard_lab.printed import end_of, fitted
from stepguard_lab.roofline import ClassRoof
from stepguard_lab.trace_summary import Bottleneck, Bound, ClassRow, Summary, bottleneck

WIDTH = 80
_PARTS = (
    ("compute", "compute_us"),
    ("exposed communication", "exposed_communication_us"),
    ("exposed copies", "exposed_copies_us"),
    ("idle", "idle_us"),
)


def page(
    ranks: Sequence[Summary], exchanges: Sequence[Exchange], top: int, width: int = WIDTH
) -> Iterator[str]:
    """Yield the lines: the steps of all ranks, then the details of the first one."""
    yield from _steps(ranks, width)
    summary = ranks[0]
    if len(ranks) > 1:
        yield from ("", f"Below: rank {summary.rank}. Others: --rank N")
    yield ""
    yield from textwrap.wrap(bound(bottleneck(summary.profile)), width)
    yield from _idle(summary, width)
    yield from _communication(summary, exchanges)
    yield from _classes(summary)
    yield from _kernels(summary, top, width)
    yield from _phases(summary, width)
    yield from _calls(summary, top, width)


def _headings(ranks: Sequence[Summary]) -> Iterator[str]:
    """Yield what was read, with each rank named once: "a.json: rank 0 of 4, NVIDIA H200, ..."."""
    for said, alike in grouped(ranks, _read).items():
        size = alike[0].profile.ranks
        numbers = ", ".join(str(summary.rank) for summary in alike)
        group = f"rank{'s' if len(alike) > 1 else ''} {numbers}" + (f" of {size}" * (size > 1))
        files = listed(list(dict.fromkeys(summary.source for summary in alike)), 3)
        yield f"{files}: {group if len(ranks) > 1 or size > 1 else 'one rank'}, {said}"


def _read(summary: Summary) -> str:
    parts = [summary.profile.gpu or "GPU not named"]
    if not summary.has_marks:
        return ", ".join((*parts, "no marked step: the whole file counts as one"))
    parts.append(f"{summary.profile.steps} of {summary.marked_steps} steps")
    lost, incomplete = summary.lost, summary.incomplete_steps
    without = f"{lost} of {summary.launches:,} launches without a record" if lost else ""
    dropped = f"{incomplete} steps dropped (records lost)" if incomplete else ""
    return ", ".join(part for part in (*parts, dropped, without) if part)


def _steps(ranks: Sequence[Summary], width: int) -> Iterator[str]:
    for text in _headings(ranks):
        yield from textwrap.wrap(text, width)
    if any(summary.has_marks and summary.marked_steps > 1 for summary in ranks):
        yield "The last step is left out: nothing in the file ends it on the GPU."
    yield ""
    if len(ranks) > 1:
        yield from _beside(ranks)
        return
    parts = ranks[0].profile.parts
    whole = mean(parts.step_us)
    header = ("step on the GPU", "[ms]", "[%]", "each step [ms]")
    body = []
    for title, key in (*_PARTS, ("step", "step_us")):
        series = getattr(parts, key)
        share = 100 * mean(series) / whole
        body.append((title, _ms(mean(series)), _figure(share, 1), _each(series)))
    yield from aligned([header, *body], left=(0, 3))


def _beside(ranks: Sequence[Summary]) -> Iterator[str]:
    """Yield a row for each rank: the step, the parts that add up to it, and the overlap."""
    header = ("ms a step", "step", "compute", "exposed comm.", "exposed copies", "idle", "overlap")
    body = []
    for summary in ranks:
        parts, share = summary.profile.parts, summary.overlap_share
        values = [getattr(parts, key) for key in ("step_us", *dict(_PARTS).values())]
        overlap = "" if share is None else f"{_figure(100 * share, 1)} %"
        body.append((f"rank {summary.rank}", *(_ms(mean(series)) for series in values), overlap))
    yield from aligned([header, *body])
    yield "overlap: of communication, the part with compute beside it"


_LOSSES = {
    Bound.GPU: "none",
    Bound.SYNC: "the host waits for the GPU and launches too late",
    Bound.LAUNCH: "the host launches more slowly than the GPU computes",
    Bound.INPUT: "the host waits for data",
    Bound.COMMUNICATION: "exposed communication",
    Bound.COPIES: "exposed copies",
    Bound.KERNELS: "pauses between queued kernels",
    Bound.STREAM: "queued kernels wait for another stream or an event",
    Bound.PROFILER: "the profiler itself",
}


def bound(limit: Bottleneck) -> str:
    """Return in words what bounds a step, with its evidence."""
    loss = f"{_LOSSES[limit.loss]}, {100 * limit.loss_share:.1f} % of the step"
    if limit.rows and (row := limit.rows[0]) and (row.call or row.place):
        loss += f" ({_where(_IN.join(filter(None, (row.call, row.place))), 46)})"
    if limit.bound == Bound.GPU:
        share = f"kernels compute in {100 * limit.compute_share:.1f} % of the step"
        return f"GPU-bound: {share}. The largest loss: {loss}."
    return f"{limit.bound}-bound: {loss}."


def _each(series: Series) -> str:
    """Return the steps one by one, or their scatter if there are many."""
    if len(series) == 1:
        return ""
    if len(series) <= 4:
        return " ".join(_ms(value) for value in series)
    return f"sd {_ms(stdev(series))}, {_ms(min(series))} to {_ms(max(series))}"


def _ms(us: float) -> str:
    """Return milliseconds with three decimals; with two from 100 ms on."""
    return _figure(us / 1e3, 3 if us < 1e5 else 2)


def _figure(value: float, digits: int) -> str:
    """Return a figure. It is never "-0.0", which is only rounding."""
    return f"{round(value, digits) + 0.0:,.{digits}f}".replace(",", "")


def _count(value: float) -> str:
    """Return a mean count: "1,666", or "0.5" for what is not in every step."""
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def _idle(summary: Summary, width: int) -> Iterator[str]:
    yield ""
    step = mean(summary.profile.parts.step_us)
    header = ("idle, by cause", "[ms]", "[%]", "gaps", "where")
    body = [
        (
            row.cause,
            _ms(mean(row.us)),
            _figure(100 * mean(row.us) / step, 2),
            _count(mean(row.count)),
            _IN.join(filter(None, (row.call, row.place))),
        )
        for row in summary.profile.idle
    ]
    yield from fitted([header, *body], width, _where, column=4, left=(0, 4))


_IN = " in "  # between a call and its place


def _where(text: str, width: int) -> str:
    """Return a call and its place in ``width`` characters. A long place keeps its end, which says
    more than its begin.
    """
    call, within, place = text.partition(_IN)
    if len(text) <= width or not within:
        return end_of(text, width)
    return f"{call}{_IN}{end_of(place, max(8, width - len(call) - len(_IN)))}"


def _communication(summary: Summary, exchanges: Sequence[Exchange]) -> Iterator[str]:
    if summary.overlap_share is None:
        return
    yield ""
    total = _ms(mean(summary.communication_us))
    share = _figure(100 * summary.overlap_share, 1)
    yield f"communication: {total} ms, {share} % of it beside compute"
    if not exchanges:
        return
    header = ("collective", "MiB", "calls", "[us]", "least [us]", "bus GB/s", "skew in, out [us]")
    body = [
        (
            row.name,
            f"{row.bytes / 2**20:.2f}" if row.bytes else "",
            f"{row.calls:g}",
            f"{row.us:,.0f}",
            f"{row.latency_us:,.0f}" if row.latency_us is not None else "",
            f"{row.bus_gb_s:.1f}" if row.bus_gb_s else "",
            f"{row.skew_in_us:,.0f}, {row.skew_out_us:,.0f}" if row.skew_in_us is not None else "",
        )
        for row in exchanges[:8]
    ]
    yield from aligned([header, *body])


def _classes(summary: Summary) -> Iterator[str]:
    yield ""
    header = ("kernel class", "[ms]", "[% of the sum]", "calls")
    body = []
    for row in summary.classes:
        body.append(_class(row.name, row.us, row.share, row.calls))
        if row.name == "attention":
            body += _directions(summary, row)
    yield from aligned([header, *body])


def _class(name: str, us: float, share: float, calls: float) -> tuple[str, ...]:
    return name, _ms(us), f"{100 * share:.1f}", f"{calls:,.1f}".removesuffix(".0")


def _directions(summary: Summary, whole: ClassRow) -> Iterator[tuple[str, ...]]:
    """Yield the forward and the backward kernels of a class, if it has both."""
    mine = [row for row in summary.profile.kernels if row.kind == whole.name]
    halves = grouped(mine, lambda row: bool(_BACKWARD.search(f"{row.phase} {row.name}")))
    for backward in (False, True) if len(halves) == 2 else ():
        us = sum(mean(row.us) for row in halves[backward])
        calls = sum(mean(row.calls) for row in halves[backward])
        share = whole.share * us / whole.us if whole.us else 0.0
        yield _class(f"  {'backward' if backward else 'forward'}", us, share, calls)


_BACKWARD = re.compile("backward|bwd|bprop|dot_do_o|convert_dq", re.IGNORECASE)


def _kernels(summary: Summary, top: int, width: int) -> Iterator[str]:
    yield ""
    rows = summary.profile.kernels[:top]
    total = sum(mean(row.us) for row in summary.profile.kernels)
    share = 100 * sum(mean(row.us) for row in rows) / total if total else 0.0
    title = f"top {len(rows)} kernels, {share:.0f} %"
    header = (title, "phase", "[ms]", "sd", "calls", "[us]", "GFLOP")
    body = [
        (
            short(row.name, len(row.name)),
            cut(row.phase.rpartition("/")[2], 10),
            _ms(mean(row.us)),
            f"{stdev(row.us) / 1e3:.3f}" if len(row.us) > 1 else "",
            f"{mean(row.calls):g}",
            f"{mean(row.us) / mean(row.calls):,.1f}",
            f"{row.work.flops / 1e9:,.1f}" if row.work.flops else "",
        )
        for row in rows
    ]
    yield from fitted([header, *body], width, short, left=(0, 1))


def _phases(summary: Summary, width: int) -> Iterator[str]:
    if all(not row.path for row in summary.phases):
        return
    yield ""
    header = ("phase", "host [ms]", "own", "GPU busy", "GPU, begin to end")
    body = [
        (
            row.path or "(outside all)",
            _ms(row.host_us) if row.path else "",
            _ms(row.own_us) if row.own_us < row.host_us else "",
            _ms(row.gpu_us),
            _ms(row.gpu_span_us) if row.path else "",
        )
        for row in summary.phases
    ]
    yield from fitted([header, *body], width, end_of)


def _calls(summary: Summary, top: int, width: int) -> Iterator[str]:
    yield ""
    header = ("CUDA call (host time; a wait is no loss)", "calls", "[ms]", "[%]")
    body = [
        (
            f"{row.name}{' (waits)' if row.waits else ''}",
            f"{row.calls:g}",
            _ms(row.us),
            f"{100 * row.share:.1f}",
        )
        for row in summary.calls[:top]
    ]
    yield from fitted([header, *body], width, cut)
    queue = summary.queue
    yield ""
    text = (
        f"A kernel begins {queue.delay_median_us:,.0f} us after its launch returned (median; 90 %: "
        f"{queue.delay_p90_us:,.0f} us), with {queue.depth_median:,.0f} launches waiting (at most "
        f"{queue.depth_max:,}). {100 * queue.late_share:.1f} % of kernels came late: the GPU had "
        "already run dry when they were launched."
    )
    yield from textwrap.wrap(text, width)


def roof_lines(roofs: Sequence[ClassRoof], peaks: Peaks) -> Iterator[str]:
    """Yield the roofline: how close each class is to its roof, and whose peaks make the roof."""
    if not roofs:
        return
    most = roofs[0]
    yield ""
    yield (
        f"Of known work {most.kind} takes most, and is {most.position.bound}-bound: "
        f"{100 * most.position.utilisation:.0f} % of its roof."
    )
    header = ("under the roof", "[ms]", "of class", "TFLOP/s", "GB/s", "of roof", "bound by")
    body = [
        (
            roof.kind,
            f"{roof.known_us / 1e3:.3f}",
            f"{100 * roof.known_us / roof.all_us:.0f} %",
            f"{roof.tflops_per_s:.4g}",
            f"{roof.gb_per_s:.4g}",
            f"{100 * roof.position.utilisation:.0f} %",
            roof.position.bound,
        )
        for roof in roofs
    ]
    yield from aligned([header, *body], left=(0, 6))
    yield f"roof: a copy and products on {peaks.device_name} {peaks.device_uuid[:12]},"
    yield f"{peaks.date[:10]}, torch {peaks.torch}. Of kernels whose shapes are in the file."
