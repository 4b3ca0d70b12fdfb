"""Every metric there is, in one table: its unit, which way is better, and how it is judged.

Kinds: a ``time`` is judged against a limit in percent; a ``counter`` is an exact count and is
compared to the unit; a ``difference`` of two ways to run the step is judged in percentage points of
a step; ``information`` is shown and never judged.

A counter has a role. ``work`` is what the step does (FLOPs, operator calls): a move either way
means that it is no longer the same step. ``cost`` is what it pays (launches, peak memory): a rise
fails, a fall is an improvement.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """One row of the table. ``digits`` is for display; stored values are never rounded to it."""

    name: str
    unit: str
    kind: str  # "time", "counter", "difference" or "information"
    meaning: str
    role: str = ""  # counters: "work" or "cost"
    slack_pct: float = 0.0  # counters: a rise up to this much is still `same`
    digits: int = 0
    device: str = ""  # "cpu" or "cuda" where only one of them has it
    several_ranks: bool = False  # exists with several ranks alone
    parts: bool = False  # counters: what it is made of is judged too, not only how much it is

    @property
    def gateable(self) -> bool:
        """Whether a case may name it among its gates."""
        return self.kind != "information"

    def exists(self, device: str, world_size: int) -> bool:
        """Whether a case on ``world_size`` ranks of ``device`` can have it."""
        return self.device in ("", device) and (world_size > 1 or not self.several_ranks)


def _table(*metrics: Metric) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


METRICS: dict[str, Metric] = _table(
    Metric(
        "step_ms",
        "ms",
        "time",
        "mean step time: a block's wall clock over its steps, slowest rank",
        digits=3,
    ),
    Metric(
        "step_ms_median",
        "ms",
        "time",
        "median of single steps, by events, of the slowest rank",
        digits=3,
    ),
    Metric(
        "flops_per_step",
        "FLOP",
        "counter",
        "counted while the step runs eagerly",
        role="work",
        parts=True,
    ),
    Metric(
        "operator_calls_per_step",
        "calls",
        "counter",
        "ATen operators dispatched by the eager step",
        role="work",
        parts=True,
    ),
    Metric(
        "compiled_operator_calls_per_step",
        "calls",
        "counter",
        "ATen operators that the compiled step still calls",
        role="work",
        parts=True,
    ),
    Metric("tokens_per_step", "tokens", "counter", "over all ranks", role="work"),
    Metric(
        "host_syncs_per_step",
        "syncs",
        "counter",
        "calls that make the host wait for the GPU, those allowed by the source left out",
        role="cost",
        device="cuda",
    ),
    Metric(
        "sync_candidates_per_step",
        "calls",
        "counter",
        "calls of the eager step that would make the host wait for a GPU",
        role="cost",
        device="cpu",
    ),
    Metric(
        "launches_per_step",
        "calls",
        "counter",
        "kernel and graph launches, counted as API calls",
        role="cost",
        slack_pct=2.0,
        device="cuda",
    ),
    Metric(
        "copies_per_step",
        "copies",
        "counter",
        "memory copies, by direction",
        role="cost",
        parts=True,
        device="cuda",
    ),
    Metric(
        "copied_bytes_per_step",
        "B",
        "counter",
        "bytes of these copies",
        role="cost",
        parts=True,
        device="cuda",
    ),
    Metric(
        "pageable_copies_per_step",
        "copies",
        "counter",
        "copies from or to memory that is not pinned, which the driver has to stage",
        role="cost",
        device="cuda",
    ),
    Metric("memsets_per_step", "calls", "counter", "memory fills", role="cost", device="cuda"),
    Metric(
        "collectives_per_step",
        "calls",
        "counter",
        "collectives that a rank takes part in",
        role="cost",
        parts=True,
        several_ranks=True,
    ),
    Metric(
        "collective_bytes_per_step",
        "B",
        "counter",
        "payload that a rank hands to them",
        role="cost",
        parts=True,
        several_ranks=True,
    ),
    Metric(
        "generated_kernels",
        "kernels",
        "counter",
        "kernels that the compiler generated for the workload",
        role="cost",
    ),
    Metric("graph_breaks", "breaks", "counter", "unique graph breaks", role="cost"),
    Metric("unique_graphs", "graphs", "counter", "graphs that were compiled", role="cost"),
    Metric(
        "recompiles",
        "recompiles",
        "counter",
        "compilations during the counted steps, which should be steady",
        role="cost",
    ),
    Metric(
        "peak_allocated_bytes",
        "B",
        "counter",
        "peak of the bytes that live tensors asked for, within a steady step",
        role="cost",
    ),
    Metric(
        "leaked_bytes_per_step",
        "B",
        "counter",
        "what a steady step leaves behind",
        role="cost",
    ),
    Metric(
        "device_allocations_per_step",
        "calls",
        "counter",
        "cudaMalloc, cudaFree and allocator retries in a steady step",
        role="cost",
        device="cuda",
    ),
    Metric(
        "sync_overhead_pct",
        "% of a step",
        "difference",
        "what one synchronize per step adds, synced minus pipelined blocks in turns",
        digits=2,
        device="cuda",
    ),
    Metric(
        "sync_overhead_ms",
        "ms",
        "information",
        "the same in ms a step",
        digits=3,
        device="cuda",
    ),
    Metric(
        "exposed_comm_pct",
        "% of a step",
        "difference",
        "what exchange between ranks adds, steps as they are minus steps without it, in turns",
        digits=2,
        several_ranks=True,
    ),
    Metric(
        "exposed_comm_ms",
        "ms",
        "information",
        "the same in ms a step",
        digits=3,
        several_ranks=True,
    ),
    Metric(
        "rank_skew_pct",
        "%",
        "information",
        "the slowest rank's step without exchange over the fastest one's",
        digits=2,
        several_ranks=True,
    ),
    Metric(
        "tokens_per_s",
        "tok/s",
        "information",
        "tokens of all ranks over step_ms",
    ),
    Metric(
        "scaling_efficiency_pct",
        "%",
        "information",
        "tokens a second of each rank, all at work, over those of one rank alone",
        digits=2,
        several_ranks=True,
    ),
    Metric(
        "one_rank_step_ms",
        "ms",
        "information",
        "step time of one rank alone on this machine",
        digits=3,
        several_ranks=True,
    ),
    Metric(
        "mfu_pct",
        "%",
        "information",
        "formula FLOPs over step_ms and the GPU's nominal peak",
        digits=2,
    ),
    Metric(
        "compile_s",
        "s",
        "information",
        "the first step: compilation, or loading it from the cache",
        digits=2,
    ),
    Metric(
        "enqueue_ms",
        "ms",
        "information",
        "host time to enqueue a block's first step, when the launch queue is empty",
        digits=3,
    ),
    Metric(
        "energy_j_per_step",
        "J",
        "information",
        "the GPU's energy counter over the timed blocks",
        digits=2,
    ),
    Metric(
        "peak_reserved_bytes",
        "B",
        "information",
        "what the allocator held at its peak; it depends on what ran before",
        device="cuda",
    ),
    Metric(
        "sync_api_share_pct",
        "%",
        "information",
        "share of synchronize calls in the host's time in CUDA calls: a host that waits for a busy "
        "GPU, not lost time",
        digits=1,
        device="cuda",
    ),
)


def default_gates(device: str, world_size: int = 1) -> tuple[str, ...]:
    """What a case gates unless it says otherwise: counters everywhere, times on GPUs alone.

    A time on a shared CPU says nothing that should stop a merge. A difference has a launch's worth
    of blocks of its own to pay for, so a case has to ask for it.
    """
    times = ("step_ms", "step_ms_median") if device == "cuda" else ()
    counters = (metric for metric in METRICS.values() if metric.kind == "counter")
    return (*times, *(metric.name for metric in counters if metric.exists(device, world_size)))


def format_value(name: str, value: float | None) -> str:
    """A value as a person reads it: thousands separated, bytes in GiB or MiB, no unit."""
    if value is None:
        return "-"
    metric = METRICS[name]
    if metric.unit == "B":
        return format_bytes(value)
    if metric.digits:
        return f"{value:,.{metric.digits}f}"
    if abs(value) >= 1e9:
        return f"{value:.6g}"
    return f"{value:,.0f}"


def format_bytes(value: float) -> str:
    """Binary units, as torch prints them: 1 GiB = 2**30 B; exact bytes under 10 MiB."""
    if abs(value) >= 2**30:
        return f"{value / 2**30:,.3f} GiB"
    if abs(value) >= 10 * 2**20:
        return f"{value / 2**20:,.3f} MiB"
    return f"{value:,.0f} B"
