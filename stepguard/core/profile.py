"""The profile and the identity of a few steps of one workload. The profile says what they did on
the GPU, and is small enough to keep with a run.

Every figure has a value for each profiled step. Their scatter shows whether two profiles differ. In
each step: compute + exposed communication + exposed copies + idle = step.
"""

from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, TypeVar

import msgspec

Figure = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


@dataclass(frozen=True)
class MachineCode:
    """The figures of one kernel's machine code. They are the same in each of its launches."""

    registers: Figure  # of a thread
    spill_bytes: Figure  # of a thread: local memory for what does not fit into its registers
    shared_bytes: Figure  # of a block
    instructions: Figure  # in the code, however often they run; without padding
    fp64: Figure  # instructions that compute in fp64, or convert from or to it
    tensor_core: Figure  # instructions for tensor cores
    atomic: Figure  # instructions for atomic operations on memory


_WORDS = {"bfloat16": "bf16", "half": "fp16", "float": "fp32"}


@dataclass(frozen=True)
class Work:
    """The least that a launch has to do; 0 if unknown."""

    flops: float = 0.0
    bytes: float = 0.0
    dtype: str = ""  # the type of the products: "bf16"


def type_of(dtype: str) -> str:
    """Return the short name of a type of a trace: "bf16" of "c10::BFloat16"."""
    return _WORDS.get(dtype.lower().removeprefix("c10::"), "")


Series = tuple[float, ...]  # one item for each step
Row = TypeVar("Row")
Key = TypeVar("Key", bound=Hashable)
LONGEST_US = 1e12  # of a step; eleven days


@dataclass(frozen=True)
class KernelRow:
    """All launches of one kernel with one shape, for one amount of work, from one phase."""

    name: str
    canonical: str  # the name without what differs from build to build
    kind: str  # the class: "GEMM", "attention", ...
    phase: str
    calls: Series  # launches in each step
    us: Series  # the sum of the launches in each step
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    operator: str = ""  # the operator that launched it
    source: str = ""  # "model/gpt.py(166): forward", if the stack was recorded
    code: str = ""  # hash of the kernel's source if the compiler generated it; else empty
    begin_us: float = 0.0  # time of the first launch in the file
    work: Work = Work()  # of one launch, if the operators' shapes were recorded
    machine_code: MachineCode | None = None  # of a kernel that the compiler generated

    @property
    def key(self) -> tuple[object, ...]:
        """Return the fields by which the rows of a profile are distinguished."""
        return self.name, self.grid, self.block, self.phase, self.work


@dataclass(frozen=True)
class IdleRow:
    """Idle time with one cause at one place."""

    cause: str  # a value of trace.idle.Idle
    call: str  # the call that made the host wait; empty without one
    place: str  # the source line, or the operators or the phase around it
    count: Series  # gaps in each step
    us: Series
    begin_us: float = 0.0  # time of the first gap in the file


AnyRow = TypeVar("AnyRow", KernelRow, IdleRow)


@dataclass(frozen=True)
class Parts:
    """The parts of a step's time on the GPU, in us for each step. They add up to ``step_us``."""

    step_us: Series
    compute_us: Series  # at least one kernel runs that is no communication
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
    lost_share: float = 0.0  # share of the profiled steps' launches that have no record
    incomplete: int = 0  # how many steps were left out because some launches have no record
    software: tuple[tuple[str, str], ...] = ()

    @property
    def steps(self) -> int:
        """Return the number of profiled steps."""
        return len(self.parts.step_us)

    def problem(self) -> str:
        """Return what is wrong with the profile, its types aside; empty if nothing is."""
        series = [getattr(self.parts, name) for name in _PARTS] + [*self.calls.values()]
        for row in self.kernels:
            series += [row.calls, row.us]
        for gap in self.idle:
            series += [gap.count, gap.us]
        if any(len(values) != self.steps for values in series):
            return f"not every figure of its profile is of {self.steps} steps"
        if not all(-1 <= value <= LONGEST_US for values in series for value in values):
            return "its profile has a time that no profiler measures"
        return ""


@dataclass(frozen=True)
class StepIdentity:
    """Hashes of all that one rank's step does on the host and on the GPU. They are the same for all
    profiled steps, unless ``problem`` says otherwise.

    Two steps with equal identities launch the same kernels, from the same generated code, in the
    same order and with the same grids. The operands have the same shapes, strides and types, and
    libraries have the same settings.
    """

    parts: dict[str, str] = field(default_factory=dict)  # "kernels" -> hash
    problem: str = ""  # why it is unknown, or which parts differ from step to step

    def differs_from(self, other: "StepIdentity") -> Iterator[str]:
        """Yield the parts that are not known to be equal."""
        for name in sorted(self.parts.keys() | other.parts.keys()):
            if name not in self.parts or self.parts[name] != other.parts.get(name):
                yield name


def over_ranks(profiles: Sequence[Profile]) -> Profile:
    """Return the mean of several ranks' profiles, step by step. What a rank lacks counts as 0."""
    if len(profiles) == 1:
        return profiles[0]
    steps = min(profile.steps for profile in profiles)

    def mean_of(rows: Sequence[Series]) -> Series:
        return tuple(total / len(profiles) for total in added([row[:steps] for row in rows]))

    kernels = grouped([row for profile in profiles for row in profile.kernels], lambda row: row.key)
    idle = grouped(
        [gap for profile in profiles for gap in profile.idle],
        lambda gap: (gap.cause, gap.call, gap.place),
    )
    return replace(
        profiles[0],
        parts=Parts(*(mean_of([getattr(p.parts, name) for p in profiles]) for name in _PARTS)),
        kernels=tuple(_as_one(rows, mean_of, "calls", "us") for rows in kernels.values()),
        idle=tuple(_as_one(rows, mean_of, "count", "us") for rows in idle.values()),
        calls={
            name: mean_of([profile.calls[name] for profile in profiles if name in profile.calls])
            for name in sorted({name for profile in profiles for name in profile.calls})
        },
        lost_share=max(profile.lost_share for profile in profiles),
        incomplete=max(profile.incomplete for profile in profiles),
    )


def merged(rows: Sequence[KernelRow], **alike: Any) -> tuple[KernelRow, ...]:
    """Return the rows with these values. Rows whose keys are then equal become one."""
    by_key = grouped([replace(row, **alike) for row in rows], lambda row: row.key)
    return tuple(_as_one(same, added, "calls", "us") for same in by_key.values())


def _as_one(
    rows: Sequence[AnyRow], of: Callable[[Sequence[Series]], Series], *figures: str
) -> AnyRow:
    """Return the first of these rows, with the figures of all of them together."""
    together: dict[str, Any] = {name: of([getattr(r, name) for r in rows]) for name in figures}
    return replace(rows[0], **together)


def bounded(profile: Profile, most: int, kept: Container[object] = ()) -> Profile:
    """Return a profile with the ``most`` longest kernels and gaps, and the kernels whose keys are
    ``kept``. All other kernels become one row for each class and phase, all other idle time one row
    for each cause.
    """
    alone: list[KernelRow] = []
    others: list[KernelRow] = []
    for i, row in enumerate(sorted(profile.kernels, key=lambda row: -sum(row.us))):
        own = (i < most or row.key in kept) and not row.name.startswith(OTHERS)
        (alone if own else others).append(row)
    for (kind, phase), rows in grouped(others, lambda row: (row.kind, row.phase)).items():
        calls, us = added([row.calls for row in rows]), added([row.us for row in rows])
        name = f"{OTHERS}{kind}"
        alone.append(KernelRow(name, name, kind, phase, calls, us, begin_us=rows[0].begin_us))
    gaps = sorted(profile.idle, key=lambda row: -sum(row.us))
    idle = gaps[:most] + [
        IdleRow(cause, "", "", added([gap.count for gap in rows]), added([gap.us for gap in rows]))
        for cause, rows in grouped(gaps[most:], lambda gap: gap.cause).items()
    ]
    return replace(profile, kernels=tuple(alone), idle=tuple(idle))


OTHERS = "other kernels of the class "  # a row of all that a bounded profile does not name
_PARTS = tuple(part.name for part in fields(Parts))


def grouped(rows: Iterable[Row], key: Callable[[Row], Key]) -> dict[Key, list[Row]]:
    """Return the rows of each key, in their order."""
    by_key: dict[Key, list[Row]] = {}
    for row in rows:
        by_key.setdefault(key(row), []).append(row)
    return by_key


def summed(counts: Iterable[tuple[Key, int]]) -> "Counter[Key]":
    """Return the sum of each key's counts."""
    total: Counter[Key] = Counter()
    for key, count in counts:
        total[key] += count
    return total


def by_class(profile: Profile) -> dict[str, float]:
    """Return how many us a step each class of kernels takes. Kernels that overlap count twice."""
    kinds = grouped(profile.kernels, lambda row: row.kind)
    return {kind: sum(mean(row.us) for row in rows) for kind, rows in kinds.items()}


def mean(series: Sequence[float]) -> float:
    """Return the mean over steps; 0 without steps."""
    return sum(series) / len(series) if series else 0.0


def less(whole: Series, other: Series) -> Series:
    """Return the difference of two figures, step by step."""
    return tuple(a - b for a, b in zip(whole, other, strict=True))


def added(rows: Sequence[Series]) -> Series:
    """Return the sum of several figures, step by step."""
    return tuple(map(sum, zip(*rows, strict=True)))
