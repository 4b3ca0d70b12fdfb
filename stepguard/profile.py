"""A profile: what a few steps of one workload did on the GPU, small enough to keep with a run.

Every figure is given for each profiled step, so that two profiles are compared with their scatter.
The identity closes for each step: compute + exposed communication + exposed copies + idle = step.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from stepguard.roofline import Work

Series = tuple[float, ...]  # one item a step
LONGEST_US = 1e12  # of a step: eleven days


@dataclass(frozen=True)
class KernelRow:
    """All launches of one kernel in one shape, for one work, from one phase."""

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
    code: str = ""  # hash of the source that the compiler generated for it; "" for others
    begin_us: float = 0.0  # of the first one, in the file
    work: Work = Work()  # of a launch, where the operators' shapes were recorded

    @property
    def key(self) -> tuple[object, ...]:
        """Return what tells it from the other rows of a profile."""
        return self.name, self.grid, self.block, self.phase, self.work


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
    """Split the step's time on the GPU, us for each step; the parts sum up to ``step_us``."""

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
    lost_share: float = 0.0  # of the launches of these steps, those without a record
    incomplete: int = 0  # steps that were left out since launches of theirs lack records
    software: tuple[tuple[str, str], ...] = ()

    @property
    def steps(self) -> int:
        """The number of profiled steps."""
        return len(self.parts.step_us)

    def problem(self) -> str:
        """Return what is wrong with it although every field has its type, "" if nothing."""
        series = [getattr(self.parts, name) for name in _PARTS] + [*self.calls.values()]
        for row in self.kernels:
            series += [row.calls, row.us]
        for gap in self.idle:
            series += [gap.count, gap.us]
        if any(len(one) != self.steps for one in series):
            return f"not every figure of its profile is of {self.steps} steps"
        if not all(-1 <= value <= LONGEST_US for one in series for value in one):
            return "its profile has a time that no profiler measures"
        return ""


def over_ranks(profiles: Sequence[Profile]) -> Profile:
    """Return the mean of several ranks' profiles, step by step; what a rank lacks counts as 0."""
    if len(profiles) == 1:
        return profiles[0]
    steps = min(one.steps for one in profiles)
    parts = Parts(*(_mean_of([getattr(p.parts, name) for p in profiles], steps) for name in _PARTS))
    kernels: dict[object, list[KernelRow]] = {}
    idle: dict[object, list[IdleRow]] = {}
    for one in profiles:
        for row in one.kernels:
            kernels.setdefault(row.key, []).append(row)
        for gap in one.idle:
            idle.setdefault((gap.cause, gap.call, gap.place), []).append(gap)
    zeros = (0.0,) * steps

    def filled(rows: Sequence[Series]) -> Series:
        return _mean_of([*rows, *[zeros] * (len(profiles) - len(rows))], steps)

    calls = {name for one in profiles for name in one.calls}
    return replace(
        profiles[0],
        parts=parts,
        kernels=tuple(
            replace(rows[0], calls=filled([r.calls for r in rows]), us=filled([r.us for r in rows]))
            for rows in kernels.values()
        ),
        idle=tuple(
            replace(rows[0], count=filled([r.count for r in rows]), us=filled([r.us for r in rows]))
            for rows in idle.values()
        ),
        calls={
            name: filled([one.calls[name] for one in profiles if name in one.calls])
            for name in sorted(calls)
        },
        lost_share=max(one.lost_share for one in profiles),
    )


def merged(rows: Sequence[KernelRow], **alike: Any) -> tuple[KernelRow, ...]:
    """Return rows with these fields, those that nothing else tells apart as one."""
    found: dict[object, list[KernelRow]] = {}
    for row in rows:
        one = replace(row, **alike)
        found.setdefault(one.key, []).append(one)
    return tuple(
        replace(
            same[0], calls=added([row.calls for row in same]), us=added([row.us for row in same])
        )
        for same in found.values()
    )


def bounded(profile: Profile, most: int, kept: Container[object] = ()) -> Profile:
    """Return a profile of the ``most`` longest kernels and those whose keys are ``kept``; the other
    kernels are a row for each class and phase, other idle time a row for each cause.
    """
    alone: list[KernelRow] = []
    classes: dict[tuple[str, str], list[KernelRow]] = {}
    for i, row in enumerate(sorted(profile.kernels, key=lambda row: -sum(row.us))):
        if (i < most or row.key in kept) and not row.name.startswith(OTHERS):
            alone.append(row)
        else:
            classes.setdefault((row.kind, row.phase), []).append(row)
    for (kind, phase), rows in classes.items():
        calls, us = added([row.calls for row in rows]), added([row.us for row in rows])
        name = f"{OTHERS}{kind}"
        alone.append(KernelRow(name, name, kind, phase, calls, us, begin_us=rows[0].begin_us))
    gaps = sorted(profile.idle, key=lambda row: -sum(row.us))
    causes: dict[str, list[IdleRow]] = {}
    for gap in gaps[most:]:
        causes.setdefault(gap.cause, []).append(gap)
    idle = gaps[:most] + [
        IdleRow(cause, "", "", added([gap.count for gap in rows]), added([gap.us for gap in rows]))
        for cause, rows in causes.items()
    ]
    return replace(profile, kernels=tuple(alone), idle=tuple(idle))


OTHERS = "other kernels of the class "  # a row of all that a bounded profile does not name
_PARTS = tuple(one.name for one in fields(Parts))


def _mean_of(rows: Sequence[Series], steps: int) -> Series:
    return tuple(mean([row[step] for row in rows]) for step in range(steps))


def mean(series: Sequence[float]) -> float:
    """Return the mean over steps, 0 without any."""
    return sum(series) / len(series) if series else 0.0


def added(rows: Sequence[Series]) -> Series:
    """Return the sum of several figures, step by step."""
    return tuple(map(sum, zip(*rows, strict=True)))
