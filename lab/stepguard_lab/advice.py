"""What to try, by rules on measured figures. Each recommendation has the figure that it follows
from.

The thresholds are rules of thumb, not verdicts: a recommendation is worth a measurement.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from textwrap import wrap

from stepguard.trace.kernel_classes import short
from stepguard_lab.nsys_ncu_csv import NcuRow
from stepguard_lab.roofline import ClassRoof
from stepguard_lab.trace_summary import Bound, Summary, bottleneck


class Advice(StrEnum):
    """The rule of a recommendation: what was found, and what to try."""

    BOUND = "{subject}-bound, {figure:.0f} % of the step"
    SHORT_KERNELS = (
        "{figure:.0f} % of the launches take less than 10 us: fuse them "
        "(torch.compile), or replay them (CUDA graphs)"
    )
    ELEMENTWISE = (
        "elementwise kernels are {figure:.0f} % of kernel time: they move the same "
        "memory again and again, and torch.compile fuses them"
    )
    OPTIMIZER = (
        "the optimizer is {figure:.0f} % of kernel time: use fused=True; a larger "
        "batch or more micro-steps have fewer updates a token"
    )
    PLAIN_ATTENTION = (
        "softmax kernels ({figure:.0f} %) and no fused attention: call "
        "F.scaled_dot_product_attention, or allow its flash backends"
    )
    SINGLE_PRECISION = (
        "{figure:.0f} % of kernel time is products in single precision: use "
        "autocast to bf16, or torch.set_float32_matmul_precision('high')"
    )
    FAR_FROM_ROOF = (
        "{subject} reaches {figure:.0f} % of this card's peak of {place}: try "
        "another kernel (backend, autotuning) or other shapes"
    )
    LATENCY = (
        "{subject}: neither arithmetic nor memory above {figure:.0f} %: bound by "
        "latency; more blocks in flight (grid, registers, shared memory) or fewer, longer kernels"
    )
    MEMORY = (
        "{subject}: memory at {figure:.0f} %: bound by memory; only fewer bytes help "
        "(fusion, a smaller type)"
    )
    COMPUTE = (
        "{subject}: arithmetic at {figure:.0f} %: bound by compute; a lower precision "
        "or less work helps"
    )
    DIVERGENCE = (
        "{subject}: {figure:.0f} % of the threads of a warp are active: branches "
        "or sizes that are no multiple of 32"
    )
    NO_TENSOR_CORES = (
        "{subject}: a product without tensor cores: pad sizes to a multiple of 8, use bf16 or TF32"
    )


@dataclass(frozen=True)
class Recommendation:
    """A rule that applies: to what, and with which figure."""

    advice: Advice
    subject: str  # a kernel, a class, a bound or a call
    figure: float  # in %, of what the rule's text says
    place: str = ""


ELEMENTWISE_PCT, OPTIMIZER_PCT, SOFTMAX_PCT, SINGLE_PCT = 25.0, 10.0, 2.0, 5.0
SHORT_US, SHORT_PCT = 10.0, 50.0  # of launches
ROOF_PCT, ROOF_CLASS_PCT = 50.0, 10.0  # of the roof; of the time of all kernels with known work
BUSY_PCT, IDLE_PCT, WARP_PCT = 80.0, 60.0, 75.0
WIDTH = 80
_BOUND = {
    Bound.SYNC: "take the wait out of the step, or do it once in many steps",
    Bound.LAUNCH: "launch less: torch.compile, CUDA graphs, a larger batch",
    Bound.INPUT: "prepare batches ahead: workers, pinned memory, non_blocking copies",
    Bound.COMMUNICATION: "overlap it: bucket sizes, gradient_as_bucket_view, fewer exchanges",
    Bound.COPIES: "copy from pinned memory with non_blocking, on a stream of its own",
    Bound.KERNELS: "fuse small kernels: torch.compile, CUDA graphs",
    Bound.STREAM: "record the event that is waited for earlier, or give the stream other work",
    Bound.PROFILER: "profile fewer steps: the profiler itself is in the way",
}
_SINGLE = ("sgemm", "_s1688gemm", "f32f32_f32f32", "ffma")


def of_step(summary: Summary) -> Iterator[Recommendation]:
    """Yield the recommendations that follow from a step's profile."""
    bound = bottleneck(summary.profile)
    if bound.bound != Bound.GPU:
        row = bound.rows[0] if bound.rows else None
        place = " ".join(text for text in (row.call, row.place) if text) if row else ""
        yield Recommendation(Advice.BOUND, bound.bound, 100 * bound.loss_share, place)
    share = {row.name: 100 * row.share for row in summary.classes}
    if share.get("elementwise", 0) >= ELEMENTWISE_PCT:
        yield Recommendation(Advice.ELEMENTWISE, "elementwise", share["elementwise"])
    if share.get("optimizer", 0) >= OPTIMIZER_PCT:
        yield Recommendation(Advice.OPTIMIZER, "optimizer", share["optimizer"])
    if share.get("softmax", 0) >= SOFTMAX_PCT and not share.get("attention"):
        yield Recommendation(Advice.PLAIN_ATTENTION, "softmax", share["softmax"])
    yield from _of_kernels(summary)


def _of_kernels(summary: Summary) -> Iterator[Recommendation]:
    rows = summary.profile.kernels
    total = sum(sum(row.us) for row in rows)
    single = sum(sum(row.us) for row in rows if any(word in row.name for word in _SINGLE))
    if total and 100 * single / total >= SINGLE_PCT:
        yield Recommendation(Advice.SINGLE_PRECISION, "GEMM", 100 * single / total)
    launches = sum(sum(row.calls) for row in rows)
    short = sum(sum(r.calls) for r in rows if sum(r.us) < SHORT_US * sum(r.calls))
    if launches and 100 * short / launches >= SHORT_PCT:
        yield Recommendation(Advice.SHORT_KERNELS, "launches", 100 * short / launches)


def of_roofs(roofs: Sequence[ClassRoof]) -> Iterator[Recommendation]:
    """Yield the classes that could be much faster on this card, the longest first."""
    known_us = sum(roof.known_us for roof in roofs)
    for roof in roofs:
        reached = 100 * roof.position.utilisation
        if reached < ROOF_PCT and 100 * roof.known_us >= ROOF_CLASS_PCT * known_us:
            yield Recommendation(Advice.FAR_FROM_ROOF, roof.kind, reached, roof.position.bound)


def of_kernels(rows: Sequence[NcuRow]) -> Iterator[Recommendation]:
    """Yield the recommendations that follow from ncu's figures of single launches: one for each
    kernel and rule.
    """
    seen: set[tuple[Advice, str]] = set()
    for row in sorted(rows, key=lambda row: -(row.us or 0.0)):
        for advised in _of_launch(row):
            if (advised.advice, advised.subject) not in seen:
                seen.add((advised.advice, advised.subject))
                yield advised


def _of_launch(row: NcuRow) -> Iterator[Recommendation]:
    compute, memory = row.compute_pct, row.memory_pct
    if compute is not None and memory is not None:
        if max(compute, memory) < IDLE_PCT:
            yield Recommendation(Advice.LATENCY, row.name, max(compute, memory))
        elif memory >= BUSY_PCT and memory >= compute:
            yield Recommendation(Advice.MEMORY, row.name, memory)
        elif compute >= BUSY_PCT:
            yield Recommendation(Advice.COMPUTE, row.name, compute)
    if row.threads_per_warp is not None and row.threads_per_warp * 100 / 32 < WARP_PCT:
        yield Recommendation(Advice.DIVERGENCE, row.name, row.threads_per_warp * 100 / 32)
    if row.tensor_pct is not None and row.tensor_pct < 1 and "gemm" in row.name.lower():
        yield Recommendation(Advice.NO_TENSOR_CORES, row.name, row.tensor_pct)


def recommendations(advised: Iterable[Recommendation], on_gpu: bool) -> Iterator[str]:
    """Yield the recommendations, numbered, in at most 80 columns. ``on_gpu`` tells whether a GPU
    worked, since the rules are for GPUs.
    """
    lines = [sentence(item) for item in advised]
    without = "nothing stands out" if on_gpu else "they are about the work of a GPU"
    yield "Worth a measurement:" if lines else f"No rule applies; {without}."
    for number, line in enumerate(lines, start=1):
        yield from wrap(line, WIDTH, initial_indent=f"{number}. ", subsequent_indent="   ")


def sentence(advised: Recommendation) -> str:
    """Return a recommendation in words."""
    text = advised.advice.format(
        subject=short(advised.subject), figure=advised.figure, place=advised.place
    )
    if advised.advice is not Advice.BOUND:
        return text
    where = f" ({advised.place})" if advised.place else ""
    return f"{text}{where}: {_BOUND[Bound(advised.subject)]}"
