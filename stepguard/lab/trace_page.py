"""The page of a trace, at most 80 columns: where the step's time goes, for one rank or several."""

import textwrap
from collections.abc import Iterator, Sequence
from statistics import stdev

from stepguard.core.profile import IdleRow, Series, mean
from stepguard.core.roofline import Peaks
from stepguard.core.text import cut, end_of
from stepguard.lab.bottleneck import Bottleneck, Bound, bottleneck
from stepguard.lab.exchanges import Exchange
from stepguard.lab.roofs import ClassRoof
from stepguard.lab.trace_summary import Summary
from stepguard.report.kernel_names import short
from stepguard.report.table import aligned

WIDTH = 80
_PARTS = (
    ("compute", "compute_us"),
    ("exposed communication", "exposed_communication_us"),
    ("exposed copies", "exposed_copies_us"),
    ("idle", "idle_us"),
)


def page(ranks: Sequence[Summary], exchanges: Sequence[Exchange], top: int) -> Iterator[str]:
    """Yield the lines: the steps of all ranks, then the details of the first one."""
    yield from _steps(ranks)
    one = ranks[0]
    if len(ranks) > 1:
        yield from ("", f"Below: rank {one.rank}. Others: --rank N")
    yield ""
    yield from textwrap.wrap(bound(bottleneck(one.profile)), WIDTH)
    yield from _idle(one)
    yield from _communication(one, exchanges)
    yield from _classes(one)
    yield from _kernels(one, top)
    yield from _phases(one)
    yield from _calls(one, top)


def heading(one: Summary) -> str:
    """Return what was read: "rank 0 of 4, NVIDIA H200, 2 of 3 steps"."""
    group = f"rank {one.rank} of {one.profile.ranks}" if one.profile.ranks > 1 else "one rank"
    parts = [group, one.profile.gpu or "GPU not named"]
    if not one.has_marks:
        return ", ".join((*parts, "no marked step: the whole file counts as one"))
    parts.append(f"{one.profile.steps} of {one.marked_steps} steps")
    lost = f"{one.lost} of {one.launches:,} launches without a record" if one.lost else ""
    dropped = f"{one.incomplete_steps} steps dropped (records lost)" if one.incomplete_steps else ""
    return ", ".join(part for part in (*parts, dropped, lost) if part)


def _steps(ranks: Sequence[Summary]) -> Iterator[str]:
    for one in ranks:
        yield from textwrap.wrap(f"{one.source}: {heading(one)}", WIDTH)
    if any(one.has_marks and one.marked_steps > 1 for one in ranks):
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
        body.append((title, _ms(mean(series)), f"{share:.1f}", _each(series)))
    yield from aligned([header, *body], left=(0, 3))


def _beside(ranks: Sequence[Summary]) -> Iterator[str]:
    """Yield a row for each rank; the columns but the first sum up to the step."""
    header = ("ms a step", "step", "compute", "exposed comm.", "exposed copies", "idle", "overlap")
    body = []
    for one in ranks:
        values = [getattr(one.profile.parts, key) for key in ("step_us", *dict(_PARTS).values())]
        overlap = "" if one.overlap_share is None else f"{100 * one.overlap_share:.1f} %"
        body.append((f"rank {one.rank}", *(_ms(mean(series)) for series in values), overlap))
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
    Bound.PROFILER: "the profiler itself",
}


def bound(found: Bottleneck) -> str:
    """Return what bounds a step, in words, with its evidence."""
    loss = f"{_LOSSES[found.loss]}, {100 * found.loss_share:.1f} % of the step"
    if found.rows and (where := _where(found.rows[0])):
        loss += f" ({where})"
    if found.bound == Bound.GPU:
        share = f"kernels compute in {100 * found.compute_share:.1f} % of the step"
        return f"GPU-bound: {share}. The largest loss: {loss}."
    return f"{found.bound}-bound: {loss}."


def _each(series: Series) -> str:
    """Return the steps one by one, or their scatter where they are many."""
    if len(series) == 1:
        return ""
    if len(series) <= 4:
        return " ".join(_ms(value) for value in series)
    return f"sd {_ms(stdev(series))}, {_ms(min(series))} to {_ms(max(series))}"


def _ms(us: float) -> str:
    """Return milliseconds with three digits behind the point, two from 100 ms on."""
    return f"{us / 1e3:.3f}" if us < 1e5 else f"{us / 1e3:.2f}"


def _idle(one: Summary) -> Iterator[str]:
    yield ""
    step = mean(one.profile.parts.step_us)
    header = ("idle, by cause", "[ms]", "[%]", "gaps", "where")
    body = [
        (
            row.cause,
            _ms(mean(row.us)),
            f"{100 * mean(row.us) / step:.2f}",
            f"{mean(row.count):,.0f}",
            _where(row),
        )
        for row in one.profile.idle
    ]
    yield from aligned([header, *body], left=(0, 4))


def _where(row: IdleRow) -> str:
    """Return the call and its place, of which the end says more than the begin."""
    if not row.call or not row.place:
        return cut(row.call or row.place, 46)
    return f"{row.call} in {end_of(row.place, 42 - len(row.call))}"


def _communication(one: Summary, exchanges: Sequence[Exchange]) -> Iterator[str]:
    if one.overlap_share is None:
        return
    yield ""
    total = _ms(mean(one.communication_us))
    yield f"communication: {total} ms, {100 * one.overlap_share:.1f} % of it beside compute"
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


def _classes(one: Summary) -> Iterator[str]:
    yield ""
    header = ("kernel class", "[ms]", "[% of the sum]", "calls")
    body = [
        (row.name, _ms(row.us), f"{100 * row.share:.1f}", f"{row.calls:,.1f}".removesuffix(".0"))
        for row in one.classes
    ]
    yield from aligned([header, *body])


def _kernels(one: Summary, top: int) -> Iterator[str]:
    yield ""
    rows = one.profile.kernels[:top]
    total = sum(mean(row.us) for row in one.profile.kernels)
    share = 100 * sum(mean(row.us) for row in rows) / total if total else 0.0
    title = f"top {len(rows)} kernels, {share:.0f} %"
    header = (title, "phase", "[ms]", "sd", "calls", "[us]", "GFLOP")
    products = any(row.work.flops for row in rows)  # by which the rows of one kernel are told apart
    body = [
        (
            short(row.name, 28 if products else 36),
            cut(row.phase.rpartition("/")[2], 10),
            _ms(mean(row.us)),
            f"{stdev(row.us) / 1e3:.3f}" if len(row.us) > 1 else "",
            f"{mean(row.calls):g}",
            f"{mean(row.us) / mean(row.calls):,.1f}",
            f"{row.work.flops / 1e9:,.1f}" if row.work.flops else "",
        )
        for row in rows
    ]
    yield from aligned([header, *body], left=(0, 1))


def _phases(one: Summary) -> Iterator[str]:
    if all(not row.path for row in one.phases):
        return
    yield ""
    header = ("phase", "host [ms]", "GPU busy [ms]", "GPU, begin to end [ms]")
    body = [
        (
            cut(row.path, 34) or "(outside all)",
            _ms(row.host_us) if row.path else "",
            _ms(row.gpu_us),
            _ms(row.gpu_span_us) if row.path else "",
        )
        for row in one.phases
    ]
    yield from aligned([header, *body])


def _calls(one: Summary, top: int) -> Iterator[str]:
    yield ""
    header = ("CUDA call (host time; a wait is no loss)", "calls", "[ms]", "[%]")
    body = [
        (
            f"{row.name}{' (waits)' if row.waits else ''}",
            f"{row.calls:g}",
            _ms(row.us),
            f"{100 * row.share:.1f}",
        )
        for row in one.calls[:top]
    ]
    yield from aligned([header, *body])
    queue = one.queue
    yield ""
    yield (
        f"A kernel begins {queue.delay_median_us:,.0f} us after its launch returned (median; "
        f"90 %: {queue.delay_p90_us:,.0f} us),"
    )
    yield (
        f"with {queue.depth_median:,.0f} launches waiting (at most {queue.depth_max:,}). "
        f"{100 * queue.late_share:.1f} % of kernels came late: the"
    )
    yield "GPU had already run dry when they were launched."


def roof_lines(roofs: Sequence[ClassRoof], peaks: Peaks) -> Iterator[str]:
    """Yield the roofline: where each class is under the roof, and what that was measured on."""
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
