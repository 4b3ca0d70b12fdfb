"""The counting pass: exact counts of what a step does, never inside a timed block.

It begins SETTLING_STEPS after a launch's first step, so each launch counts the same steps of a
loop. It has two parts. Every compilation in the first one, whose steps run compiled, is a
recompile. The second one switches the compiler off, and may need more memory than there is.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from stepguard.core.metrics import METRICS
from stepguard.core.site import merge
from stepguard.trace.host_steps import StepCalls
from stepguard.worker.count import compiler
from stepguard.worker.count.changed_settings import count_settings
from stepguard.worker.count.eager import count_eager
from stepguard.worker.count.garbage import locate_garbage
from stepguard.worker.count.generated_kernels import count_machine_code, locate_machine_code
from stepguard.worker.count.graph_nodes import locate_graph_nodes
from stepguard.worker.count.kept_memory import locate_kept
from stepguard.worker.count.leak_steps import LeakSteps
from stepguard.worker.count.memory_counters import count_memory
from stepguard.worker.count.own_thread import refuse_work_elsewhere
from stepguard.worker.count.profiled_steps import count_profiled
from stepguard.worker.count.tally import RankStep, Tally
from stepguard.worker.torch_device import growing_segments, on_gpu

# What a step allocates once, it has allocated by then: gradients and the optimizer's state in the
# second step, the allocator's blocks in the ones after it.
SETTLING_STEPS = 4


def count_compiled(
    counted: RankStep, progress: Callable[[str], None]
) -> tuple[Tally, list[StepCalls]]:
    """Return the first part's counters of a workload whose step has run once, and the traced calls
    of the steps whose syncs were counted.
    """
    tally = Tally(after_steps=SETTLING_STEPS)
    progress("count: settling")
    for _ in range(SETTLING_STEPS):
        counted.step()
    count_settings(tally, counted)
    progress("count: compiler")
    count_compiler(tally)
    left = LeakSteps(counted)
    with compiler.Recompiles() as recompiles:
        # Not in a group on a CPU: gloo's threads free tensors there, which no profile shows.
        where = counted.device.type, counted.world_size, counted.in_group
        if METRICS["peak_allocated_bytes"].exists(*where):
            # Before the profiler, whose records lie in memory between live tensors.
            progress("count: memory")
            count_memory(tally, counted, left.run)
        else:
            progress("count: what steps leave")
            counted.run_period()
            left.run()
        left.add_to(tally)
        refuse_work_elsewhere(counted)
        # After memory: on a GPU this listens for syncs, which slows down allocations for good.
        progress("count: profiled steps")
        calls = count_profiled(tally, counted)
        if on_gpu(counted.device):
            progress("count: machine code")
            count_machine_code(tally)
    count_recompiles(tally, recompiles)
    return tally, calls


def count_without_compiler(
    counted: RankStep, progress: Callable[[str], None], first: Tally
) -> dict[str, Any]:
    """Return the counters of both parts, and the lines of some of those of the ``first`` one.

    Raises torch.OutOfMemoryError. The other ranks then wait for the one that has too little memory,
    so the launch cannot go on.
    """
    tally = Tally({**first.values}, {**first.lists}, {**first.unstable}, {**first.detail})
    progress("count: eager operators")
    # It takes more memory than the compiled step.
    with growing_segments() if on_gpu(counted.device) else nullcontext():
        count_eager(tally, counted)
        locate_kept(tally, counted)
        locate_graph_nodes(tally, counted)
        locate_garbage(tally, counted)
    locate_machine_code(tally)
    return tally.as_dict()


def count_compiler(tally: Tally) -> None:
    """Count graphs, graphs that no cache keeps, graph breaks and generated kernels of this process
    so far.
    """
    breaks = compiler.graph_breaks()
    reasons = Counter(site.what.removeprefix("graph break: ") for site in breaks)
    tally.add("graph_breaks", [len(breaks)], reasons, [breaks])
    tally.add("unique_graphs", [compiler.unique_graphs()])
    tally.add("generated_kernels", [compiler.generated_kernels()])
    tally.add("uncached_graphs", [compiler.uncached_graphs()])


def count_recompiles(tally: Tally, seen: compiler.Recompiles) -> None:
    """Count compilations while ``seen`` was active, and functions that torch gave up compiling.

    A function that torch gave up runs eagerly and no longer recompiles. So it counts here:
    otherwise it would look steady.
    """
    given_up = [site for site in compiler.recompile_limits() if site not in seen.sites]
    sites = merge([*seen.sites, *given_up])
    tally.add("recompiles", [seen.compilations + len(given_up)], sites=[sites])
