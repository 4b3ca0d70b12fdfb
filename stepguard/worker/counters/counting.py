"""The counting pass: exact counts of what a step does, never inside a timed block.

It begins SETTLING_STEPS after a launch's first step, so each launch counts the same steps of a
loop. It has two parts. Every compilation in the first one, whose steps run compiled, is a
recompile. The second one switches the compiler off, and may need more memory than there is.
"""

from collections.abc import Callable
from contextlib import nullcontext

from stepguard.worker.counters import (
    changed_settings,
    compiler,
    generated_kernels,
    memory_counters,
    numbers,
    operators,
    profiled_steps,
    python_lines,
    sync_candidates,
    syncs,
)
from stepguard.worker.counters.tally import RankStep, StepCounter, Tally
from stepguard.worker.torch_device import growing_segments, on_gpu

# What a step allocates once, it has allocated by then: gradients and the optimizer's state in the
# second step, the allocator's blocks in the ones after it.
SETTLING_STEPS = 4
# In this order. A counter that runs steps of its own comes behind the others of its part, whose
# steps then keep their numbers.
COUNTERS = (
    changed_settings.COUNTER,
    compiler.COUNTER,
    memory_counters.COUNTER,  # before the profiler, whose records lie between live tensors
    profiled_steps.COUNTER,
    syncs.COUNTER,  # of the traced steps
    generated_kernels.COUNTER,  # after the profile, to whose rows it adds
    python_lines.COUNTER,
    operators.COUNTER,
    sync_candidates.COUNTER,
)


def count_compiled(counted: RankStep, progress: Callable[[str], None]) -> Tally:
    """Return the first part's counts of a workload whose step has run once."""
    tally = Tally(after_steps=SETTLING_STEPS)
    progress("count: settling")
    numbers.count_numbers(tally, counted)  # of the first steps: training scatters the later ones
    for _ in range(SETTLING_STEPS - numbers.STEPS):
        counted.step()
    with compiler.Recompiles() as recompiles:
        for counter in counters_of(counted, eager=False):
            progress(f"count: {counter.shown}")
            counter.count(tally, counted)
    compiler.count_recompiles(tally, recompiles)
    return tally


def count_without_compiler(
    counted: RankStep, progress: Callable[[str], None], tally: Tally
) -> None:
    """Add the second part's counts to those of the first, and lines of both. Raises
    torch.OutOfMemoryError, after which the other ranks wait: the launch cannot go on.
    """
    # It takes more memory than the compiled step.
    with growing_segments() if on_gpu(counted.device) else nullcontext():
        for counter in counters_of(counted, eager=True):
            progress(f"count: {counter.shown}")
            counter.count(tally, counted)
        for counter in counters_of(counted):
            if counter.locate:
                progress(f"count: lines of {counter.shown}")
                counter.locate(tally, counted)


def counters_of(counted: RankStep, eager: bool | None = None) -> list[StepCounter]:
    """Return the counters of such a step, in order. With ``eager`` only those of one part."""
    return [
        counter
        for counter in COUNTERS
        if eager in (None, counter.eager) and any(map(counted.has, counter.metrics))
    ]
