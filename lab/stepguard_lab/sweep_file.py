"""Sweeps: a grid over a factory's parameters, declared in a file and measured row by row.

    workload = "model.parts:attention"
    [parameters]                            # the same in every row
    batch = 8
    [grid]                                  # every combination; the last varies fastest
    width = [64, 128]
    seq = [1024, 4096]
    [report]
    columns = ["step_ms", "peak_allocated_bytes:saved"]
    plot = { x = "seq", y = ["step_ms"] }

A column is a metric, or "metric:part", a part of it as it is counted by kind or phase.
"""

import re
from itertools import product
from typing import Any

import msgspec

from stepguard.core.case import Case, Scalar
from stepguard.core.device import GPU, is_gpu
from stepguard.core.evidence import Evidence
from stepguard.core.metrics import JUDGED_TIME, METRICS, PEAK
from stepguard.core.strict_json import converted

SCHEMA = 1
MEASURED = "measured"


class Plot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chart: a panel for each column of ``y`` over the parameter ``x``."""

    x: str
    y: list[str]


class Report(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is shown of the rows."""

    columns: tuple[str, ...] = (JUDGED_TIME, "tokens_per_s", PEAK)
    plot: Plot | None = None


class Sweep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A declaration. Raises ValueError that names the field if one is malformed."""

    workload: str
    grid: dict[str, list[Scalar]]
    parameters: dict[str, Scalar] = {}
    device: str = GPU
    world_size: int = 1
    launches: int = 0  # 0: 2 on a GPU, 1 on a CPU
    time_limit_s: float = 900.0
    report: Report = Report()

    def __post_init__(self) -> None:
        if not self.grid or not all(self.grid.values()):
            raise ValueError("grid: at least one parameter, and a value for each")
        if both := sorted(self.grid.keys() & self.parameters.keys()):
            raise ValueError(f"{both[0]}: it is in grid and in parameters")
        for name, values in self.grid.items():
            if len({repr(value) for value in values}) < len(values):
                raise ValueError(f"grid.{name}: a value is there twice")
        plot = self.report.plot
        for column in (*self.report.columns, *(plot.y if plot else ())):
            if column.partition(":")[0] not in METRICS:
                raise ValueError(f"report: {column!r} is no metric; known: {', '.join(METRICS)}")
        if plot and plot.x not in self.grid:
            raise ValueError(f"report.plot.x {plot.x!r}: one of {', '.join(self.grid)}")
        self.cases()

    def cases(self) -> list[tuple[dict[str, Scalar], Case]]:
        """Return the values of each row of the grid, with its case."""
        launches = self.launches or (2 if is_gpu(self.device) else 1)
        rows = []
        for number, values in enumerate(product(*self.grid.values()), 1):
            row = dict(zip(self.grid, values, strict=True))
            # Values may differ in characters alone that a name does not have.
            texts = (f"{key}_{value}" for key, value in row.items())
            name = "-".join(["sweep", str(number), *texts])
            case = Case(
                re.sub(r"[^A-Za-z0-9._-]", "_", name),
                self.workload,
                self.parameters | row,
                device=self.device,
                world_size=self.world_size,
                launches=launches,
                time_limit_s=self.time_limit_s,
            )
            rows.append((row, case))
        return rows


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The result of one combination. ``status`` is MEASURED or the name of a Reason."""

    parameters: dict[str, Scalar]
    status: str
    message: str
    values: dict[str, float]  # by metric, and by part of a metric


class SweepFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sweep with the rows that it has so far, and what they were measured on."""

    schema: int
    sweep: Sweep
    commit: str
    dirty: list[str]
    machine: str
    rows: list[Row] = []


def flattened(metrics: dict[str, float], evidence: Evidence) -> dict[str, float]:
    """Return the metrics, and the parts of the counted ones as "metric:part"."""
    parts = {
        f"{name}:{part}": float(value)
        for name, parts in evidence.counted.detail.items()
        for part, value in parts.items()
        if name == PEAK or METRICS[name].parts
    }
    return metrics | parts


def parse(raw: dict[str, Any]) -> Sweep:
    """Return the declaration. Raises ValueError if it is none."""
    return converted(raw, Sweep)
