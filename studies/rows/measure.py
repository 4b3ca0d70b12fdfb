"""Measure the rows of many sweeps in one process: quick, where `stepguard sweep` is thorough.

    python -m studies.rows.measure --out rows.json sweeps/attention.toml:compile=false \\
        sweeps/decode.toml:mode=eager,cuda-graph
    python -m studies.rows.measure --out cpu.json --limit-s 20 sweeps/attention_cpu.toml
    python -m studies.rows.measure --show rows.json more.json --plots studies/rows

`python -m stepguard sweep` starts two launches for each row and warms up until a step is steady,
30 s a row. Here a row is built, warmed up by a few steps and timed in three blocks from synchronize
to synchronize, about a second a row; all rows share a process. A sweep may be narrowed behind a
colon. The file is written after every row; a row that ran out of memory is one.
"""

import argparse
import gc
import json
import math
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from statistics import fmean, median
from typing import Any

import msgspec
import torch

from stepguard.cli.common import UsageError
from stepguard.cli.workload import parse_params
from stepguard.git.revision import current
from stepguard.gpu.peaks import nominal_peak_flops
from stepguard.report import sweep as report
from stepguard.sweep import MEASURED, SCHEMA, Row, Sweep, SweepFile, parse
from stepguard.verdict import Reason
from stepguard.worker.clock import quiet_gc
from studies.common.results import ROOT, Document, command_line, machine

BLOCKS = 3
BLOCK_S = 0.06  # a block is so long at least; of one step where that takes longer
WARM_UP_S, WARM_UP_STEPS = 0.4, 60  # the shorter one, and 3 steps at least
LATENCIES = 50  # steps with a synchronize() behind each, for the latency of one,
SHORT_MS = 10.0  # where it is shorter than this


class Device:
    """What has to be asked of a GPU, and of a CPU not."""

    def __init__(self, name: str) -> None:
        self.gpu = name == "cuda"
        self.name = torch.cuda.get_device_name() if self.gpu else "CPU"

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if self.gpu:
            torch.cuda.synchronize()

    def forget(self) -> None:
        """Give back what the last row held, compiled code included."""
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()
        gc.collect()
        if self.gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


def figures(workload: Any, device: Device) -> dict[str, float]:
    """Warm up and time a workload; milliseconds, bytes, tokens per second."""
    began = time.perf_counter()
    workload.step()
    device.synchronize()
    found = {"first_step_s": time.perf_counter() - began}
    steps, began = 0, time.perf_counter()
    while steps < 3 or (steps < WARM_UP_STEPS and time.perf_counter() - began < WARM_UP_S):
        workload.step()
        device.synchronize()
        steps += 1
    wanted = math.ceil(BLOCK_S * steps / (time.perf_counter() - began))
    with quiet_gc():
        blocks = [_block(workload, device, wanted) for _ in range(BLOCKS)]
        found["step_ms"] = fmean(blocks)
        found["spread_pct"] = 100 * (max(blocks) / min(blocks) - 1)
        if found["step_ms"] < SHORT_MS:
            latencies = [_block(workload, device, 1) for _ in range(LATENCIES)]
            found["latency_median_ms"] = median(latencies)
            found["latency_p95_ms"] = sorted(latencies)[int(0.95 * LATENCIES)]
    found["steps"] = float(wanted)
    found["tokens_per_s"] = workload.tokens_per_step / found["step_ms"] * 1e3
    flops = getattr(workload, "flops_per_step", None)
    peak = nominal_peak_flops(device.name, getattr(workload, "precision", ""))
    if flops and peak:
        found["mfu_pct"] = 100 * flops / (found["step_ms"] / 1e3) / peak
    return found | (_memory(workload) if device.gpu else {})


def _block(workload: Any, device: Device, steps: int) -> float:
    """Return the milliseconds of a step, from synchronize to synchronize."""
    device.synchronize()
    began = time.perf_counter()
    for _ in range(steps):
        workload.step()
    device.synchronize()
    return (time.perf_counter() - began) * 1e3 / steps


def _memory(workload: Any) -> dict[str, float]:
    """Return the peak of one step, and what is allocated when its phase "saved" begins."""
    saved: list[int] = []

    def note(name: str) -> None:
        if name == "saved":
            saved.append(torch.cuda.memory_allocated())

    torch.cuda.reset_peak_memory_stats()
    workload.on_phase = note
    workload.step()
    torch.cuda.synchronize()
    found = {
        "peak_allocated_bytes": float(torch.cuda.max_memory_allocated()),
        "peak_reserved_bytes": float(torch.cuda.max_memory_reserved()),
    }
    return found | ({"peak_allocated_bytes:saved": float(saved[0])} if saved else {})


def measured_row(sweep: Sweep, values: dict[str, Any], device: Device) -> Row:
    """Build and time one combination; what it raised is the row's message."""
    module, _, name = sweep.workload.partition(":")
    factory: Callable[..., Any] = getattr(import_module(module), name)
    try:
        workload = factory(**sweep.parameters, **values, device=sweep.device)
        return Row(values, MEASURED, "", figures(workload, device))
    except torch.OutOfMemoryError as error:
        return Row(values, Reason.OUT_OF_MEMORY.name, str(error).split(". ")[0], {})
    except Exception as error:  # a row of its own; the others go on
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return Row(values, Reason.RAISED.name, text[:300], {})


def narrowed(text: str) -> tuple[str, Sweep]:
    """Return the name and the declaration of "FILE:key=a,b:key=c". Raises UsageError."""
    path, *wishes = text.split(":")
    try:
        sweep = parse(tomllib.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}") from None
    grid = dict(sweep.grid)
    for wish in wishes:
        key, _, listed = wish.partition("=")
        wanted = [parse_params([f"{key}={one}"])[key] for one in listed.split(",")]
        unknown = [one for one in wanted if one not in grid.get(key, [])]
        if unknown:
            raise UsageError(f"{path}: {key}={unknown[0]} is not in its grid")
        grid[key] = wanted
    return Path(path).stem, msgspec.structs.replace(sweep, grid=grid)


def rows(sweep: Sweep, until: float, began_from: SweepFile) -> Iterator[SweepFile]:
    """Yield the sweep's file after every row, until it is done or time is up."""
    device, content = Device(sweep.device), began_from
    import_module(sweep.workload.partition(":")[0])
    gc.collect()
    gc.freeze()  # what was imported stays: else each collection takes as long as a short row
    for values, _ in sweep.cases():
        if time.perf_counter() > until:
            return
        device.forget()
        row = measured_row(sweep, values, device)
        step_ms = row.values.get("step_ms")
        print(f"{values}: {row.status if step_ms is None else f'{step_ms:.3f} ms'}", flush=True)
        content = msgspec.structs.replace(content, rows=[*content.rows, row])
        yield content


def main(arguments: list[str] | None = None) -> int:
    """Measure each sweep within its share of the time."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sweeps", nargs="*", metavar="FILE[:key=a,b]")
    parser.add_argument("--out", type=Path, help="JSON, written after every row")
    parser.add_argument("--limit-s", type=float, default=60.0, help="for each sweep (%(default)s)")
    parser.add_argument("--show", type=Path, nargs="+", help="print the tables of such files")
    parser.add_argument("--plots", type=Path, help="with --show: draw them into this folder")
    options = parser.parse_args(arguments)
    if options.show:
        return show(options.show, options.plots)
    if not (options.out and options.sweeps):
        parser.error("--out and a sweep are needed")
    try:
        wanted = [narrowed(text) for text in options.sweeps]
    except UsageError as error:
        parser.error(str(error))
    content = json.loads(options.out.read_text()) if options.out.exists() else {"sweeps": {}}
    document = Document(options.out, content)
    commit = current(ROOT, ROOT / "baselines")
    on = machine(wanted[0][1].device, 1)
    document.update(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commands=[*content.get("commands", []), command_line()],
        commit=commit.commit,
        dirty=list(commit.dirty),
        machine=on,
        torch=str(torch.__version__),
    )
    for name, sweep in wanted:
        label = name
        while label in document.content["sweeps"]:
            label += "+"
        where = Device(sweep.device).name
        start = SweepFile(SCHEMA, sweep, commit.commit, list(commit.dirty), where, rows=[])
        until = time.perf_counter() + options.limit_s
        for found in rows(sweep, until, start):
            sweeps = document.content["sweeps"] | {label: msgspec.to_builtins(found)}
            document.update(sweeps=sweeps)
    return 0


def show(paths: list[Path], plots: Path | None) -> int:
    """Print every sweep of the files as a table, and how many of its rows were not reached."""
    for name, content in merged(paths).items():
        print(f"\n{name}", *report.table(content), sep="\n")
        missing = len(content.sweep.cases()) - len(content.rows)
        if missing:
            print(f"{missing} rows of this grid are not there")
        if plots and content.sweep.report.plot and content.rows:
            plots.mkdir(exist_ok=True)
            report.write_plot(content, plots / f"{name}.svg")
    return 0


def merged(paths: list[Path]) -> dict[str, SweepFile]:
    """Return the sweeps of several files; of a row that is there twice the later one."""
    found: dict[str, SweepFile] = {}
    for path in paths:
        for label, raw in json.loads(path.read_text(encoding="utf-8"))["sweeps"].items():
            one, name = msgspec.convert(raw, SweepFile), label.rstrip("+")
            both = [content for content in (found.get(name), one) if content is not None]
            rows = {repr(row.parameters): row for content in both for row in content.rows}
            grid = {
                key: list(dict.fromkeys(v for content in both for v in content.sweep.grid[key]))
                for key in one.sweep.grid
            }
            grid = {k: v if isinstance(v[0], str) else sorted(v) for k, v in grid.items()}
            sweep = msgspec.structs.replace(one.sweep, grid=grid)
            ordered = [rows[repr(v)] for v, _ in sweep.cases() if repr(v) in rows]
            found[name] = msgspec.structs.replace(one, sweep=sweep, rows=ordered)
    return found


if __name__ == "__main__":
    sys.exit(main())
