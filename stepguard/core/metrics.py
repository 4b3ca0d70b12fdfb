"""All metrics in one table: the unit, which direction is better, and how each is judged.

Kinds: a ``time`` is judged against a limit in percent. A ``counter`` is an exact count: unless it
is tolerant, a change by 1 is a change. A ``difference`` of two variants of the step is judged in
percentage points of a step. ``information`` is shown, never judged.

A counter has a role, which says when it fails. ``work`` (FLOPs, tokens) fails when it differs: it
is no longer the same step. ``waste`` (syncs, leaks) fails when it rises, whatever the time is. A
``price`` (peak memory) fails when it rises and the step is not FASTER. An ``amount`` (operators,
launches) explains a time that pairs judge, and fails only without one. Less is better for times and
differences. docs/method.md says what each metric counts.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from stepguard.core.device import is_gpu

ALLOCATION_BYTES = 512  # CUDA's caching allocator rounds requests up to multiples of it
PEAK = "peak_allocated_bytes"
FLOPS = "flops_per_step"
COPIES = "copies_per_step"
SYNCS = "host_syncs_per_step"
CANDIDATES = "sync_candidates_per_step"
COLLECTIVES = "collectives_per_step"
COLLECTIVE_BYTES = "collective_bytes_per_step"
BETWEEN_STEPS = "allocated_bytes_between_steps"
LEAK = "leaked_bytes_per_step"
DEVICE_ALLOCATIONS = "device_allocations_per_step"
GARBAGE = "garbage_objects_per_step"
GRAPH_NODES = "leaked_graph_nodes_per_step"
PYTHON_LINES = "python_lines_per_step"
GROWING_LINES = "growing_python_lines_per_step"
OPERATORS = "operator_calls_per_step"
COMPILED_OPERATORS = "compiled_operator_calls_per_step"
OPERATOR_METRICS = (OPERATORS, COMPILED_OPERATORS)
SETTINGS = "settings"
NUMBERS = "numbers"
SPILLS = "spill_bytes"
FP64 = "fp64_kernels"
OF_KERNELS = (SPILLS, FP64)  # of the kernels that the compiler generated
Kind = Literal["time", "counter", "difference", "information"]
Role = Literal["work", "waste", "price", "amount", ""]
# The cases that have a metric, in words.
_GPU, _CPU = "a case on a GPU", "a case on a CPU"
_SEVERAL = "a case of several ranks"
# On a CPU the profile shows only frees of the profiling thread. In a process group the threads of
# gloo free tensors, too.
_EXACT = "a case on a GPU, or of one rank without torchrun on a CPU,"


@dataclass(frozen=True)
class Metric:
    """One row of the table. ``digits`` is for display only; stored values are not rounded to it."""

    name: str
    unit: str
    scope: str = ""  # the cases that have it; empty: any case
    kind: Kind = "information"
    role: Role = ""  # of a counter
    digits: int = 0
    slack_pct: float = 0.0  # a counter may rise by this much and is still `same`
    floor: int = 0  # a counter may move by fewer units, either way, and is still `same`
    parts: bool = False  # of a counter: its parts are judged too, not only their sum
    eager: bool = False  # it is counted without the compiler, in the second part of the pass
    # A good step has none of it, so a recording that accepts some says so: what the count is of.
    unwanted: str = ""
    # Recordings may be older than this counter. It is shown, and judged as soon as a recording has
    # it. The mark is removed once all of the project's own baselines have it.
    new: bool = False

    @property
    def tolerant(self) -> bool:
        """Return whether the counter may rise and still be `same`."""
        return bool(self.slack_pct or self.floor)

    @property
    def exact(self) -> bool:
        """Return whether the counter may not even fall: then the step does other work."""
        return self.role == "work" or self.name in OPERATOR_METRICS

    def exists(self, device: str, world_size: int, in_group: bool = False) -> bool:
        """Return whether a case on ``world_size`` ranks of ``device`` can have it."""
        gpu, several = is_gpu(device), world_size > 1
        exact = gpu or not (several or in_group)
        has_it = {_GPU: gpu, _CPU: not gpu, _SEVERAL: several, _EXACT: exact}
        return has_it.get(self.scope, True)


_time = partial(Metric, kind="time", digits=3)
_work = partial(Metric, kind="counter", role="work")
_waste = partial(Metric, kind="counter", role="waste")
_price = partial(Metric, kind="counter", role="price")
_amount = partial(Metric, kind="counter", role="amount")
_difference = partial(Metric, kind="difference", digits=2)
_information = partial(Metric, kind="information", digits=3)

# Counters stand in the order of a report: causes come before their effects. A sync is also an
# operator, so it comes before the operators. Memory that is kept usually comes with an operator,
# and comes before it. Operators cause launches, FLOPs and bytes.
_TABLE = (
    _time("step_ms", "ms"),
    _waste(SYNCS, "syncs", _GPU, unwanted="{} waits of the host for the GPU a step"),
    _waste(
        CANDIDATES,
        "calls",
        _CPU,
        eager=True,
        unwanted="{} calls a step that would wait on a GPU",
    ),
    _work(SETTINGS, "settings", parts=True, new=True),
    _price("graph_breaks", "breaks", unwanted="{} graph breaks"),
    _waste("recompiles", "recompiles", unwanted="{} recompiles"),
    _price(COLLECTIVES, "calls", _SEVERAL, parts=True),
    _waste(
        GARBAGE,
        "objects",
        new=True,
        unwanted="{} objects a step that only Python's garbage collector frees",
    ),
    _waste(
        GRAPH_NODES,
        "nodes",
        new=True,
        unwanted="{} nodes of autograd's graph that each step leaves behind",
    ),
    _waste(LEAK, "B", _EXACT, unwanted="{} that each step leaves behind"),
    _amount(OPERATORS, "calls", eager=True, parts=True),
    _waste(
        GROWING_LINES,
        "lines",
        eager=True,
        new=True,
        unwanted="{} lines of Python more in each step than in the one before",
    ),
    _price(BETWEEN_STEPS, "B", _EXACT, floor=ALLOCATION_BYTES),
    _waste(
        "pageable_copies_per_step",
        "copies",
        _GPU,
        unwanted="{} copies a step from or to pageable memory",
    ),
    _price(COPIES, "copies", _GPU, parts=True),
    _amount("copied_bytes_per_step", "B", _GPU, parts=True),
    _amount("memsets_per_step", "calls", _GPU),
    _waste(
        DEVICE_ALLOCATIONS, "calls", _GPU, unwanted="{} calls a step to the GPU's driver for memory"
    ),
    _amount("unique_graphs", "graphs"),
    _price(
        "uncached_graphs",
        "graphs",
        new=True,
        unwanted="{} graphs that the compile cache does not keep",
    ),
    _amount("generated_kernels", "kernels"),
    # Not their instructions: the two forms of one pointwise kernel have 24 and 6 of them.
    _amount(FP64, "kernels", _GPU, new=True),
    # Among forms of a kernel that spill at most 16 registers, 64 B, the compiler chooses by time.
    # Another machine may choose another form.
    _amount(SPILLS, "B", _GPU, floor=65, new=True),
    _amount(COMPILED_OPERATORS, "calls", parts=True),
    _work(COLLECTIVE_BYTES, "B", _SEVERAL, parts=True),
    _amount("launches_per_step", "calls", _GPU, slack_pct=2.0),
    _work(FLOPS, "FLOP", eager=True, parts=True),
    _work("tokens_per_step", "tokens"),
    _work(NUMBERS, "numbers", parts=True, new=True),  # its parts are the optimizers' options
    # The order of two summands moved it by 0.02 %, since it changes the order of the backward pass.
    _price(PEAK, "B", _EXACT, slack_pct=0.05, floor=ALLOCATION_BYTES),
    _difference("sync_overhead_pct", "% of a step", _GPU),
    _information("sync_overhead_ms", "ms", _GPU),
    _information("exposed_comm_ms", "ms", _SEVERAL),
    _information("step_ms_median", "ms"),
    _information("tokens_per_s", "tok/s", digits=0),
    _information("mfu_pct", "%", digits=2),
    _information("compile_s", "s", digits=2),
    _information("cold_compile_s", "s", digits=2),
    _information("enqueue_ms", "ms"),
    _information("gc_pause_ms_per_step", "ms"),
    _information(PYTHON_LINES, "lines", digits=0),
    _information("energy_j_per_step", "J", digits=2),
    _information("peak_reserved_bytes", "B", _GPU, digits=0),
    _information("sync_api_share_pct", "%", _GPU, digits=1),
)
METRICS: dict[str, Metric] = {metric.name: metric for metric in _TABLE}
GATEABLE = tuple(metric.name for metric in _TABLE if metric.kind != "information")
COUNTERS = tuple(metric.name for metric in _TABLE if metric.kind == "counter")
UNWANTED = {metric.name: metric.unwanted for metric in _TABLE if metric.unwanted}
# The only time that is judged: all that costs time moves the mean, which has half the noise of the
# median.
JUDGED_TIME = "step_ms"


def default_gates(device: str, world_size: int = 1, in_group: bool = False) -> tuple[str, ...]:
    """Return what a case gates by default: counters everywhere, times on GPUs.

    A time on a shared CPU should not stop a merge. A difference costs as many blocks as a launch,
    so a case has to ask for it. ``in_group`` is that of Metric.exists().
    """
    times = (JUDGED_TIME,) if is_gpu(device) else ()
    where = device, world_size, in_group
    counters = (metric for metric in METRICS.values() if metric.kind == "counter")
    return (*times, *(metric.name for metric in counters if metric.exists(*where)))


def setting(name: str, value: object) -> str:
    """Return a setting and its value as a part of SETTINGS. ``setting_of`` reads it back."""
    return f"{name} = {value}"


def setting_of(part: str) -> tuple[str, str]:
    """Return the name and the value of a setting."""
    name, _, value = part.partition(" = ")
    return name, value


def format_value(name: str, value: float | None) -> str:
    """Format a value for a reader: thousands separated, bytes in GiB or MiB, without a unit."""
    if value is None:
        return "-"
    metric = METRICS[name]
    if metric.unit == "B":
        return format_bytes(value)
    # The mean of steps that differ is no whole number.
    part = metric.kind == "counter" and not float(value).is_integer()
    if digits := metric.digits or int(part):
        return f"{value:,.{digits}f}"
    if abs(value) >= 1e12:
        return f"{value:.6g}"
    return f"{value:,.0f}"


def unit_behind(name: str, value: float) -> str:
    """Return a metric's unit as written after a value: 2 calls, 1 call."""
    metric = METRICS[name]
    if metric.kind != "counter" or abs(value) != 1:
        return metric.unit
    return "copy" if metric.unit == "copies" else metric.unit.removesuffix("s")


def format_bytes(value: float) -> str:
    """Format bytes in binary units, as torch prints them (1 GiB = 2**30 B); exact under 10 MiB."""
    if abs(value) >= 2**30:
        return f"{value / 2**30:,.3f} GiB"
    if abs(value) >= 10 * 2**20:
        return f"{value / 2**20:,.3f} MiB"
    return f"{value:,.0f} B"
