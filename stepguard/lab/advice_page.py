"""Recommendations as sentences: what was found, and what to try."""

from collections.abc import Iterable, Iterator
from textwrap import wrap

from stepguard.lab.advice import Advice, Found
from stepguard.lab.bottleneck import Bound
from stepguard.report.kernel_names import short

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
_ADVICE = {
    Advice.SHORT_KERNELS: "{figure:.0f} % of the launches take less than 10 us: fuse them "
    "(torch.compile), or replay them (CUDA graphs)",
    Advice.ELEMENTWISE: "elementwise kernels are {figure:.0f} % of kernel time: they move the same "
    "memory again and again, and torch.compile fuses them",
    Advice.OPTIMIZER: "the optimizer is {figure:.0f} % of kernel time: use fused=True; a larger "
    "batch or more micro-steps have fewer updates a token",
    Advice.PLAIN_ATTENTION: "softmax kernels ({figure:.0f} %) and no fused attention: call "
    "F.scaled_dot_product_attention, or allow its flash backends",
    Advice.SINGLE_PRECISION: "{figure:.0f} % of kernel time is products in single precision: use "
    "autocast to bf16, or torch.set_float32_matmul_precision('high')",
    Advice.FAR_FROM_ROOF: "{subject} reaches {figure:.0f} % of this card's peak of {place}: try "
    "another kernel (backend, autotuning) or other shapes",
    Advice.LATENCY: "{subject}: neither arithmetic nor memory above {figure:.0f} %: bound by "
    "latency; more blocks in flight (grid, registers, shared memory) or fewer, longer kernels",
    Advice.MEMORY: "{subject}: memory at {figure:.0f} %: bound by memory; only fewer bytes help "
    "(fusion, a smaller type)",
    Advice.COMPUTE: "{subject}: arithmetic at {figure:.0f} %: bound by compute; a lower precision "
    "or less work helps",
    Advice.DIVERGENCE: "{subject}: {figure:.0f} % of the threads of a warp are active: branches "
    "or sizes that are no multiple of 32",
    Advice.NO_TENSOR_CORES: "{subject}: a product without tensor cores: pad sizes to a multiple "
    "of 8, use bf16 or TF32",
}


def recommendations(advised: Iterable[Found], on_gpu: bool) -> Iterator[str]:
    """Yield the recommendations, numbered, in at most 80 columns. ``on_gpu`` tells whether a GPU
    worked, since the rules are for GPUs.
    """
    lines = [sentence(item) for item in advised]
    without = "nothing stands out" if on_gpu else "they are about the work of a GPU"
    yield "Worth a measurement:" if lines else f"No rule applies; {without}."
    for number, line in enumerate(lines, start=1):
        yield from wrap(line, WIDTH, initial_indent=f"{number}. ", subsequent_indent="   ")


def sentence(advised: Found) -> str:
    """Return a recommendation in words."""
    if advised.advice is Advice.BOUND:
        bound = Bound(advised.subject)
        where = f" ({advised.place})" if advised.place else ""
        return f"{bound}-bound, {advised.figure:.0f} % of the step{where}: {_BOUND[bound]}"
    return _ADVICE[advised.advice].format(
        subject=short(advised.subject), figure=advised.figure, place=advised.place
    )
