"""A picture of one step as SVG: phases on the host and on the GPU, exchanges, copies, idle time.

Time runs to the right and is the same in all lanes. A phase's work on the GPU is to the right of
its pass on the host by as much as the GPU lags behind. Hovering over a bar shows its name and
times.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np

from stepguard.trace.api_calls import SYNC_CALLS
from stepguard.trace.columns import NONE, Bools
from stepguard.trace.kernel_classes import COMMUNICATION
from stepguard.trace.make_profile import CAUSES, COPIES, Analysis, Idle
from stepguard_lab.charts import ticks

BEGINS = '<svg class="stepguard"'  # tells our pictures from others
_LEFT, _WIDTH, _ROW, _GAP = 140, 1080, 26, 12
COLOURS = ("#4878a8", "#d98032", "#5a9e5a", "#8d6bb0", "#b5566d", "#7b8c3a", "#3f9a9a", "#a07855")
_WAIT, _IDLE = "#e3b8b8", "#d62728"
_SHORTEST_PX = 0.4  # a shorter bar cannot be seen, and is not drawn


@dataclass(frozen=True)
class _Bar:
    start_us: float
    end_us: float
    label: str
    colour: str


@dataclass(frozen=True)
class _Lane:
    title: str
    bars: tuple[_Bar, ...]


def timeline(analysis: Analysis, title: str) -> str:
    """Return the SVG of the step that has the median length."""
    windows = analysis.windows
    step = int(np.argsort(windows.step_us)[(windows.steps - 1) // 2])
    begin = min(float(windows.mark_us[step]), float(windows.begin_us[step]))
    end = max(float(windows.mark_end_us[step]), float(windows.end_us[step]))
    lanes = [lane for lane in _lanes(analysis, step, begin, end) if lane.bars]
    length = float(windows.step_us[step]) / 1e3
    heading = f"{title}: step {step + 1} of {windows.steps}, {length:.2f} ms on the GPU"
    heading += ", between the dashed lines"
    edges = float(windows.begin_us[step]), float(windows.end_us[step])
    picture = [*_svg(lanes, begin, end, heading), *_edges(edges, begin, end, len(lanes))]
    named = [*_phase_colours(analysis).items()][:8]
    named += [("idle GPU", _IDLE), ("host waits", _WAIT)]
    picture += legend(named, _LEFT, _bottom(len(lanes)) + 34)
    return "\n".join([*picture, "</svg>"]) + "\n"


def _bottom(lanes: int) -> int:
    return 40 + lanes * (_ROW + _GAP)


def _lanes(analysis: Analysis, step: int, begin: float, end: float) -> Iterator[_Lane]:
    colours = _phase_colours(analysis)
    yield from _host_lanes(analysis, colours, begin, end)
    windows = analysis.windows
    exchanges, copies = analysis.of(COMMUNICATION), analysis.of(COPIES)
    computes = ~exchanges & ~copies
    yield _Lane("GPU: phases", tuple(_projected(analysis, colours, computes, begin, end)))
    for name, rows in (("compute", computes), ("communication", exchanges), ("copies", copies)):
        union = analysis.busy(rows)
        inside = (union.end_us > begin) & (union.start_us < end)
        pairs = zip(union.start_us[inside].tolist(), union.end_us[inside].tolist(), strict=True)
        bars = (_Bar(start, stop, f"GPU {name}", "#55688a") for start, stop in pairs)
        yield _Lane(f"GPU: {name}", tuple(_joined(bars, (end - begin) / _WIDTH)))
    yield _Lane("GPU: idle", tuple(_idle(analysis, windows.begin_us[step], windows.end_us[step])))


def _phase_colours(analysis: Analysis) -> dict[str, str]:
    names = dict.fromkeys(_leaf(path) for path in analysis.phases if path)
    return {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}


def _leaf(path: str) -> str:
    return path.rpartition("/")[2]


def _host_lanes(
    analysis: Analysis, colours: dict[str, str], begin: float, end: float
) -> Iterator[_Lane]:
    """Yield the passes on the host, a lane for each depth, and the calls that wait."""
    passes = [span for span in analysis.passes if span.end_us > begin and span.start_us < end]
    for depth in range(max((span.path.count("/") for span in passes), default=-1) + 1):
        mine = [span for span in passes if span.path.count("/") == depth]
        bars = [_Bar(p.start_us, p.end_us, _leaf(p.path), colours[_leaf(p.path)]) for p in mine]
        yield _Lane("CPU: phases" if depth == 0 else "CPU: inside", tuple(bars))
    calls, names = analysis.windows.calls, analysis.trace.names
    waits = np.isin(calls.name, analysis.trace.named(SYNC_CALLS))
    rows = np.flatnonzero(waits & (calls.end_us > begin) & (calls.start_us < end)).tolist()
    yield _Lane(
        "CPU: waits",
        tuple(
            _Bar(float(calls.start_us[i]), float(calls.end_us[i]), names[calls.name[i]], _WAIT)
            for i in rows
        ),
    )


def _projected(
    analysis: Analysis, colours: dict[str, str], computes: Bools, begin: float, end: float
) -> Iterator[_Bar]:
    """Yield each pass on the GPU: from the first to the last of the kernels launched in it."""
    gpu = analysis.windows.gpu
    rows = (
        computes & (analysis.pass_of_record != NONE) & (gpu.end_us > begin) & (gpu.start_us < end)
    )
    for number in np.unique(analysis.pass_of_record[rows]).tolist():
        mine = rows & (analysis.pass_of_record == number)
        name = _leaf(analysis.passes[number].path)
        first, last = float(gpu.start_us[mine].min()), float(gpu.end_us[mine].max())
        yield _Bar(first, last, name, colours[name])


def _joined(bars: Iterator[_Bar], pixel_us: float) -> Iterator[_Bar]:
    """Yield the bars. Bars that are closer than a pixel are joined."""
    last: _Bar | None = None
    for bar in bars:
        if last is not None and bar.start_us - last.end_us < pixel_us:
            last = _Bar(last.start_us, bar.end_us, last.label, last.colour)
            continue
        if last is not None:
            yield last
        last = bar
    if last is not None:
        yield last


def _idle(analysis: Analysis, begin: float, end: float) -> Iterator[_Bar]:
    gaps, calls = analysis.gaps, analysis.windows.calls
    for i in np.flatnonzero((gaps.begin_us >= begin) & (gaps.begin_us < end)).tolist():
        cause = CAUSES[gaps.cause[i]]
        if cause == Idle.GAP:  # there are thousands, of a microsecond each
            continue
        sync = int(gaps.sync[i])
        call = "" if sync == NONE else f": {analysis.trace.names[calls.name[sync]]}"
        start = float(gaps.begin_us[i])
        yield _Bar(start, start + float(gaps.us[i]), f"{cause}{call}", _IDLE)


def _svg(lanes: Sequence[_Lane], begin: float, end: float, heading: str) -> Iterator[str]:
    width, height = _LEFT + _WIDTH + 20, _bottom(len(lanes)) + 50
    scale = _WIDTH / (end - begin)
    yield (
        f'{BEGINS} xmlns="http://www.w3.org/2000/svg" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
    )
    yield '<rect width="100%" height="100%" fill="white"/>'
    yield f'<text x="10" y="22" font-size="14">{escape(heading)}</text>'
    yield from _axis(begin, end, scale, _bottom(len(lanes)))
    for row, lane in enumerate(lanes):
        y = 40 + row * (_ROW + _GAP)
        yield f'<text x="10" y="{y + 17}">{escape(lane.title)}</text>'
        for bar in lane.bars:
            yield from _bar(bar, max(bar.start_us, begin), min(bar.end_us, end), begin, scale, y)


def _edges(edges: tuple[float, float], begin: float, end: float, lanes: int) -> Iterator[str]:
    """Yield the two lines between which the step is on the GPU."""
    for edge in edges:
        x = _LEFT + (edge - begin) * _WIDTH / (end - begin)
        yield (
            f'<line x1="{x:.1f}" y1="30" x2="{x:.1f}" y2="{_bottom(lanes)}" stroke="black" '
            'stroke-dasharray="5 4"><title>begin or end of the step on the GPU</title></line>'
        )


def legend(colours: Iterable[tuple[str, str]], x: int, y: int) -> Iterator[str]:
    """Yield a row of squares, each with its name behind it."""
    for name, colour in colours:
        yield f'<rect x="{x}" y="{y - 11}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 17}" y="{y}">{escape(name[:24])}</text>'
        x += 40 + 7 * min(24, len(name))


def _bar(bar: _Bar, start: float, end: float, begin: float, scale: float, y: int) -> Iterator[str]:
    x, width = _LEFT + (start - begin) * scale, (end - start) * scale
    if width < _SHORTEST_PX and bar.colour != _IDLE:
        return
    width = max(width, 1.0)
    ms = (bar.end_us - bar.start_us) / 1e3
    at = (bar.start_us - begin) / 1e3
    text = f"{bar.label}: {ms:.3f} ms, from {at:.3f} ms"
    yield (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW}" fill="{bar.colour}">'
        f"<title>{escape(text)}</title></rect>"
    )
    label = f"{bar.label} {ms:.1f} ms"
    if width > 6.6 * len(label):
        colour = "#222" if bar.colour == _WAIT else "white"
        yield (
            f'<text x="{x + width / 2:.1f}" y="{y + 17}" fill="{colour}" text-anchor="middle" '
            f'pointer-events="none">{escape(label)}</text>'
        )


def _axis(begin: float, end: float, scale: float, bottom: int) -> Iterator[str]:
    """Yield about ten ticks, at round milliseconds."""
    for ms in ticks(0.0, (end - begin) / 1e3, 10):
        x = _LEFT + ms * 1e3 * scale
        yield f'<line x1="{x:.1f}" y1="34" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>'
        yield (
            f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle" fill="#555">{ms:g} ms</text>'
        )
