"""The roofline as a table, at most 80 columns."""

from collections.abc import Iterator, Sequence

from stepguard.explain.roofs import ClassRoof
from stepguard.report.table import aligned
from stepguard.roofline import Peaks


def roof_lines(roofs: Sequence[ClassRoof], peaks: Peaks) -> Iterator[str]:
    """Yield where each class is under the roof, and what the roof was measured on."""
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
