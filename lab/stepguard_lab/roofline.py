"""The roofline: how close kernels are to the limits of their GPU, by measured peaks.

A kernel cannot be faster than its products at the peak rate of their type, nor than its bytes at
the peak rate of memory. Each of the two is a share of its time. The larger one is its utilisation,
and says what bounds it; 1 means that the kernel is at its roof. Triton's profiler Proton has the
same formula.

The picture, an SVG, shows FLOPs a second over FLOPs a byte, both in powers of ten. The slope is
memory at its measured peak. The flat lines are products at their peaks, by type. A circle is a
kernel whose work is known; its area is the time that it takes. Hovering over it shows its figures.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from xml.sax.saxutils import escape

from stepguard.core.profile import KernelRow, Profile, Work, grouped, mean
from stepguard.trace.kernel_classes import short
from stepguard_lab.measured_peaks import Peaks
from stepguard_lab.timeline import BEGINS, COLOURS, legend


@dataclass(frozen=True)
class Position:
    """The position of a kernel under the roof."""

    flops_share: float  # share of its time that its products need at the peak
    bytes_share: float

    @property
    def utilisation(self) -> float:
        """Return the larger share."""
        return max(self.flops_share, self.bytes_share)

    @property
    def bound(self) -> str:
        """Return what bounds it: "compute" or "memory"."""
        return "compute" if self.flops_share >= self.bytes_share else "memory"


def position(work: Work, us: float, peaks: Peaks) -> Position | None:
    """Return the position of work that took ``us``; None if the work or its peak is unknown."""
    peak = peaks.flops_per_s.get(work.dtype)
    if us <= 0 or not (work.bytes or work.flops) or (work.flops and peak is None):
        return None
    seconds = us / 1e6
    flops_s = work.flops / peak if peak else 0.0
    return Position(flops_s / seconds, work.bytes / peaks.copy_bytes_per_s / seconds)


@dataclass(frozen=True)
class ClassRoof:
    """The kernels of one class whose work is known."""

    kind: str
    known_us: float  # in each step, of those kernels
    all_us: float  # in each step, of all kernels of the class
    tflops_per_s: float
    gb_per_s: float
    position: Position


def class_roofs(profile: Profile, peaks: Peaks) -> list[ClassRoof]:
    """Return a row for each class with known work, the longest first."""
    kinds = grouped(profile.kernels, lambda row: row.kind)
    roofs = [roof for kind, rows in kinds.items() if (roof := _roof(kind, rows, peaks))]
    return sorted(roofs, key=lambda roof: -roof.known_us)


def _roof(kind: str, rows: Sequence[KernelRow], peaks: Peaks) -> ClassRoof | None:
    """Return the mean position of a class, weighted by time."""
    launched = ((row, mean(row.us) / mean(row.calls)) for row in rows if mean(row.calls))
    known = [(row, at) for row, us in launched if (at := position(row.work, us, peaks))]
    us = sum(mean(row.us) for row, _ in known)
    if not us:
        return None
    flops = sum(row.work.flops * mean(row.calls) for row, _ in known)
    moved = sum(row.work.bytes * mean(row.calls) for row, _ in known)
    shares = [
        sum(getattr(where, name) * mean(row.us) for row, where in known) / us
        for name in ("flops_share", "bytes_share")
    ]
    whole = sum(mean(row.us) for row in rows)
    return ClassRoof(kind, us, whole, flops / us / 1e6, moved / us / 1e3, Position(*shares))


_LEFT, _TOP, _WIDTH, _HEIGHT = 90, 50, 900, 480
_LEAST_PX, _LARGEST_PX = 3.0, 40.0  # radius


@dataclass(frozen=True)
class _Point:
    row: KernelRow
    intensity: float  # FLOP/byte
    rate: float  # FLOP/s
    where: Position


@dataclass(frozen=True)
class _Axes:
    """The powers of ten at the edges of the picture."""

    left: int
    right: int
    bottom: int
    top: int

    def x(self, intensity: float) -> float:
        """Return the position of so many FLOPs a byte, in pixels."""
        return _LEFT + _WIDTH * (log10(intensity) - self.left) / (self.right - self.left)

    def y(self, rate: float) -> float:
        """Return the position of so many FLOPs a second, in pixels."""
        return _TOP + _HEIGHT * (self.top - log10(rate)) / (self.top - self.bottom)


def roofline(profile: Profile, peaks: Peaks, title: str) -> str:
    """Return the picture; "" if no kernel has known FLOPs, bytes and a peak."""
    points = list(_points(profile, peaks))
    if not points:
        return ""
    types = {point.row.work.dtype: peaks.flops_per_s[point.row.work.dtype] for point in points}
    axes = _axes(points, list(types.values()), peaks.copy_bytes_per_s)
    total = sum(mean(row.us) for row in profile.kernels)
    share = 100 * sum(mean(point.row.us) for point in points) / total
    heading = f"{title}: kernels with known FLOPs and bytes, {share:.0f} % of kernel time"
    kinds = list(dict.fromkeys(point.row.kind for point in points))
    colours = {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(kinds)}
    lines = [
        f'{BEGINS} xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 20}" '
        f'height="{_TOP + _HEIGHT + 80}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="22" font-size="14">{escape(heading)}</text>',
        *_grid(axes),
        *_roofs(axes, types, peaks),
        *(line for point in points for line in _circle(axes, point, total, colours)),
        *legend(colours.items(), _LEFT, _TOP + _HEIGHT + 60),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _points(profile: Profile, peaks: Peaks) -> Iterator[_Point]:
    """Yield a point for each kernel and work, the longest first, so that small ones are drawn on
    top.
    """
    alike = grouped(profile.kernels, lambda row: (row.name, row.work)).values()
    for rows in sorted(alike, key=lambda rows: -sum(mean(row.us) for row in rows)):
        calls, us = (sum(mean(getattr(row, key)) for row in rows) for key in ("calls", "us"))
        work = rows[0].work
        where = position(work, us / calls, peaks) if calls else None
        if where and work.flops and work.bytes:
            row = KernelRow(rows[0].name, "", rows[0].kind, "", (calls,), (us,), work=work)
            yield _Point(row, work.flops / work.bytes, work.flops * calls / us * 1e6, where)


def _axes(points: Sequence[_Point], tops: Sequence[float], bandwidth: float) -> _Axes:
    ridges = [top / bandwidth for top in tops]
    across = [point.intensity for point in points] + ridges
    up = [*(point.rate for point in points), *tops]
    return _Axes(
        floor(log10(min(across))), ceil(log10(max(across)) + 0.01),
        floor(log10(min(up))), ceil(log10(max(up)) + 0.01),
    )  # fmt: skip


def _grid(axes: _Axes) -> Iterator[str]:
    bottom, right = _TOP + _HEIGHT, _LEFT + _WIDTH
    for power in range(axes.left, axes.right + 1):
        x = axes.x(10.0**power)
        yield f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}" stroke="#ddd"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{10.0**power:g}</text>'
    for power in range(axes.bottom, axes.top + 1):
        y = axes.y(10.0**power)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#ddd"/>'
        label = f"{10.0 ** (power - 12):g}"
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    yield f'<text x="{right}" y="{bottom + 34}" text-anchor="end">FLOP/byte</text>'
    yield f'<text x="10" y="{_TOP - 8}">TFLOP/s</text>'


def _roofs(axes: _Axes, types: dict[str, float], peaks: Peaks) -> Iterator[str]:
    bandwidth, right = peaks.copy_bytes_per_s, 10.0**axes.right
    # The slope begins at the picture's left edge, or at its lower one.
    begin = max(10.0**axes.left, 10.0**axes.bottom / bandwidth)
    ridge = max(types.values()) / bandwidth
    label = f"memory {bandwidth / 1e12:.3g} TB/s"
    yield _line(axes, (begin, begin * bandwidth), (ridge, ridge * bandwidth), label)
    for name, flops in types.items():
        label = f"{name} {flops / 1e12:.4g} TFLOP/s"
        yield _line(axes, (flops / bandwidth, flops), (right, flops), label)
        yield (
            f'<text x="{_LEFT + _WIDTH - 4}" y="{axes.y(flops) - 5:.1f}" text-anchor="end">'
            f"{escape(label)}</text>"
        )


def _line(axes: _Axes, begin: tuple[float, float], end: tuple[float, float], label: str) -> str:
    at = f'x1="{axes.x(begin[0]):.1f}" y1="{axes.y(begin[1]):.1f}"'
    to = f'x2="{axes.x(end[0]):.1f}" y2="{axes.y(end[1]):.1f}"'
    return f'<line {at} {to} stroke="#333" stroke-width="2"><title>{escape(label)}</title></line>'


def _circle(axes: _Axes, point: _Point, total_us: float, colours: dict[str, str]) -> Iterator[str]:
    row = point.row
    us, calls = mean(row.us), mean(row.calls)
    radius = max(_LEAST_PX, _LARGEST_PX * (us / total_us) ** 0.5)
    text = (
        f"{short(row.name, 60)}: {us / 1e3:.3f} ms a step, {calls:g} launches, "
        f"{point.rate / 1e12:.4g} TFLOP/s, {point.intensity:.4g} FLOP/byte, "
        f"{100 * point.where.utilisation:.0f} % of its roof, {point.where.bound}-bound"
    )
    yield (
        f'<circle cx="{axes.x(point.intensity):.1f}" cy="{axes.y(point.rate):.1f}" '
        f'r="{radius:.1f}" fill="{colours[row.kind]}" fill-opacity="0.7" stroke="#333">'
        f"<title>{escape(text)}</title></circle>"
    )
