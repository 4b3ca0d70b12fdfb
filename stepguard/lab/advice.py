"""What to try, by rules on measured figures. Each recommendation has the figure that it follows
from.

The thresholds are rules of thumb, not verdicts: a recommendation is worth a measurement.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from stepguard.lab.bottleneck import Bound, bottleneck
from stepguard.lab.nsys_ncu_csv import NcuRow
from stepguard.lab.roofs import ClassRoof
from stepguard.lab.trace_summary import Summary


class Advice(StrEnum):
    """The rule of a recommendation."""

    BOUND = "bound"  # the step waits
    SHORT_KERNELS = "short kernels"
    ELEMENTWISE = "elementwise"  # unfused
    OPTIMIZER = "optimizer"
    PLAIN_ATTENTION = "plain attention"
    SINGLE_PRECISION = "single precision"
    FAR_FROM_ROOF = "far from the roof"  # a class of kernels whose work is known
    LATENCY = "latency"  # a kernel that keeps neither memory nor arithmetic busy
    MEMORY = "memory"
    COMPUTE = "compute"
    DIVERGENCE = "divergence"
    NO_TENSOR_CORES = "no tensor cores"


@dataclass(frozen=True)
class Found:
    """A rule that applies: to what, and with which figure."""

    advice: Advice
    subject: str  # a kernel, a class, a bound or a call
    figure: float  # % of the step or of kernel time; us; for ncu % of the sustained peak
    place: str = ""


ELEMENTWISE_PCT, OPTIMIZER_PCT, SOFTMAX_PCT, SINGLE_PCT = 25.0, 10.0, 2.0, 5.0
SHORT_US, SHORT_PCT = 10.0, 50.0  # of launches
ROOF_PCT, ROOF_CLASS_PCT = 50.0, 10.0  # of the roof; of the time of all kernels with known work
BUSY_PCT, IDLE_PCT, WARP_PCT = 80.0, 60.0, 75.0
_SINGLE = ("sgemm", "_s1688gemm", "f32f32_f32f32", "ffma")


def of_step(summary: Summary) -> Iterator[Found]:
    """Yield the recommendations that follow from a step's profile."""
    bound = bottleneck(summary.profile)
    if bound.bound != Bound.GPU:
        row = bound.rows[0] if bound.rows else None
        place = " ".join(text for text in (row.call, row.place) if text) if row else ""
        yield Found(Advice.BOUND, bound.bound, 100 * bound.loss_share, place)
    share = {row.name: 100 * row.share for row in summary.classes}
    if share.get("elementwise", 0) >= ELEMENTWISE_PCT:
        yield Found(Advice.ELEMENTWISE, "elementwise", share["elementwise"])
    if share.get("optimizer", 0) >= OPTIMIZER_PCT:
        yield Found(Advice.OPTIMIZER, "optimizer", share["optimizer"])
    if share.get("softmax", 0) >= SOFTMAX_PCT and not share.get("attention"):
        yield Found(Advice.PLAIN_ATTENTION, "softmax", share["softmax"])
    yield from _of_kernels(summary)


def _of_kernels(summary: Summary) -> Iterator[Found]:
    rows = summary.profile.kernels
    total = sum(sum(row.us) for row in rows)
    single = sum(sum(row.us) for row in rows if any(word in row.name for word in _SINGLE))
    if total and 100 * single / total >= SINGLE_PCT:
        yield Found(Advice.SINGLE_PRECISION, "GEMM", 100 * single / total)
    launches = sum(sum(row.calls) for row in rows)
    short = sum(sum(r.calls) for r in rows if sum(r.us) < SHORT_US * sum(r.calls))
    if launches and 100 * short / launches >= SHORT_PCT:
        yield Found(Advice.SHORT_KERNELS, "launches", 100 * short / launches)


def of_roofs(roofs: Sequence[ClassRoof]) -> Iterator[Found]:
    """Yield the classes that could be much faster on this card, the longest first."""
    known_us = sum(roof.known_us for roof in roofs)
    for roof in roofs:
        reached = 100 * roof.position.utilisation
        if reached < ROOF_PCT and 100 * roof.known_us >= ROOF_CLASS_PCT * known_us:
            yield Found(Advice.FAR_FROM_ROOF, roof.kind, reached, roof.position.bound)


def of_kernels(rows: Sequence[NcuRow]) -> Iterator[Found]:
    """Yield the recommendations that follow from ncu's figures of single launches: one for each
    kernel and rule.
    """
    seen: set[tuple[Advice, str]] = set()
    for row in sorted(rows, key=lambda row: -(row.us or 0.0)):
        for advised in _of_launch(row):
            if (advised.advice, advised.subject) not in seen:
                seen.add((advised.advice, advised.subject))
                yield advised


def _of_launch(row: NcuRow) -> Iterator[Found]:
    compute, memory = row.compute_pct, row.memory_pct
    if compute is not None and memory is not None:
        if max(compute, memory) < IDLE_PCT:
            yield Found(Advice.LATENCY, row.name, max(compute, memory))
        elif memory >= BUSY_PCT and memory >= compute:
            yield Found(Advice.MEMORY, row.name, memory)
        elif compute >= BUSY_PCT:
            yield Found(Advice.COMPUTE, row.name, compute)
    if row.threads_per_warp is not None and row.threads_per_warp * 100 / 32 < WARP_PCT:
        yield Found(Advice.DIVERGENCE, row.name, row.threads_per_warp * 100 / 32)
    if row.tensor_pct is not None and row.tensor_pct < 1 and "gemm" in row.name.lower():
        yield Found(Advice.NO_TENSOR_CORES, row.name, row.tensor_pct)
