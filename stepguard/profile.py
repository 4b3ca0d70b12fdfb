"""A profile: what a few steps of one workload did on the GPU, small enough to keep with a run.

Every figure is given for each profiled step, so that two profiles are compared with their scatter.
The identity closes for each step: compute + exposed communication + exposed copies + idle = step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

Series = tuple[float, ...]  # one item a step


@dataclass(frozen=True)
class KernelRow:
    """All launches of one kernel in one shape from one phase."""

    name: str
    canonical: str  # without what differs from build to build
    kind: str  # the class: "GEMM", "attention", ...
    phase: str
    calls: Series  # a step
    us: Series  # summed over the calls of a step
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    operator: str = ""  # that launched it
    source: str = ""  # "model/gpt.py(166): forward", where the stack was recorded
    order: float = 0.0  # mean place of its launches in a step, 0 to 1
    begin_us: float = 0.0  # of the first one, in the file
    stream: int = -1


@dataclass(frozen=True)
class IdleRow:
    """Idle time of one cause at one place."""

    cause: str  # a value of trace.idle.Idle
    call: str  # that made the host wait, "" without one
    place: str  # the operators or the phase around it, or the source line
    count: Series  # gaps a step
    us: Series
    begin_us: float = 0.0  # of the first one, in the file


@dataclass(frozen=True)
class Parts:
    """What the step's time on the GPU is made of, us for each step; they sum up to ``step_us``."""

    step_us: Series
    compute_us: Series  # at least one kernel that is no communication
    exposed_communication_us: Series  # communication while nothing computes
    exposed_copies_us: Series  # copies and fills while nothing else runs
    idle_us: Series


@dataclass(frozen=True)
class Profile:
    """The profiled steps of one rank, or the mean over several ranks."""

    gpu: str
    ranks: int  # in the group
    parts: Parts
    kernels: tuple[KernelRow, ...]
    idle: tuple[IdleRow, ...]
    calls: dict[str, Series] = field(default_factory=dict)  # CUDA calls a step, by name
    lost_share: float = 0.0  # launches without a record
    software: tuple[tuple[str, str], ...] = ()

    @property
    def steps(self) -> int:
        """The number of profiled steps."""
        return len(self.parts.step_us)


def mean(series: Sequence[float]) -> float:
    """Return the mean over steps, 0 without any."""
    return sum(series) / len(series) if series else 0.0


def added(rows: Sequence[Series]) -> Series:
    """Return the sum of several figures, step by step."""
    return tuple(map(sum, zip(*rows, strict=True)))
