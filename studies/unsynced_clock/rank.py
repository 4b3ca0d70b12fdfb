"""A rank of measure.py, which see. Started under torchrun with one argument, JSON."""

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from model.workloads import train_step
from stepguard.worker.clock import quiet_gc
from stepguard.worker.fingerprint import fingerprint
from studies.common.ranks import tie_rank
from studies.common.series import balanced, clock_text, slowest
from studies.unsynced_clock.report import MARK
from studies.unsynced_clock.variants import (
    VARIANTS,
    PageableLoader,
    PhasedLoader,
    PhaseTimes,
    Variant,
)

OTHERS_BYTES = 4 << 30  # in use on a GPU before anything is built: another program is there
PHASE_STEPS = 6  # the first one begins on an empty queue and is left out


class Bench:
    """The workload of this rank, and everything that is done with it."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.gpu = options["device"] == "cuda"
        self.device = (
            torch.device("cuda", torch.cuda.current_device()) if self.gpu else (torch.device("cpu"))
        )
        self.workload: Any = train_step(device=options["device"], **options["params"])
        for name in ("_loader", "_phase"):
            if not hasattr(self.workload, name):
                raise SystemExit(f"the workload has no {name}: this script replaces it")
        batch, _ = self.workload._loader.next()
        shape = (int(batch.shape[0]), int(batch.shape[1]))
        self.pinned = self.workload._loader
        self.pageable = PageableLoader(shape, self.rank, self.ranks, self.device)
        self.folder = Path(options["folder"])
        self.result: dict[str, Any] = {"series": [], "phases": {}, "profiled": []}

    def say(self, text: str) -> None:
        """Progress, with the time since the command began."""
        if self.rank == 0:
            passed = clock_text(time.time() - self.options["began"])
            print(f"[{passed}] {text}", flush=True)

    def save(self) -> None:
        """Replace the result file by what is known so far."""
        if self.rank == 0:
            fresh = self.folder / "ranks.json.new"
            fresh.write_text(json.dumps(self.result))
            fresh.replace(self.folder / "ranks.json")

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if self.gpu:
            torch.cuda.synchronize()

    def line_up(self) -> None:
        """Wait for the other ranks, on the host alone."""
        dist.all_reduce(torch.zeros(1))

    def from_rank_0(self, value: float) -> float:
        """Return rank 0's value, on every rank."""
        carried = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(carried, 0)
        return float(carried)

    def one(self, variant: Variant, wait_phase: Any = nullcontext) -> float:
        """A step; what rank 0's clock around it reads, in ms."""
        began = time.perf_counter_ns()
        loss = self.workload.step()
        if variant.synchronize:
            with wait_phase():
                self.synchronize()
        read_ms = (time.perf_counter_ns() - began) / 1e6
        if variant.item and self.rank == 0:
            with wait_phase():
                loss.item()
        return read_ms

    def use(self, variant: Variant) -> None:
        """Take batches as the variant does."""
        self.workload._loader = self.pageable if variant.pageable else self.pinned

    def block(self, variant: Variant, steps: int) -> tuple[float, list[float]]:
        """Wall ms a step from synchronize to synchronize, and what the clock reads each step."""
        self.use(variant)
        self.line_up()
        self.synchronize()
        began = time.perf_counter_ns()
        readings = [self.one(variant) for _ in range(steps)]
        self.synchronize()
        return (time.perf_counter_ns() - began) / 1e6 / steps, readings

    def warm_up(self) -> None:
        """Alternate the variants for at least so many steps and so many seconds of load."""
        self.say("first step: compiles, up to a minute with a cold cache")
        began = time.perf_counter()
        self.one(VARIANTS["P"])
        self.synchronize()
        compile_s = time.perf_counter() - began
        self.say(f"first step took {compile_s:.1f} s")
        names, steps, began = list(VARIANTS), 0, time.perf_counter()
        wanted, ended = self.options["warm_up_steps"], False
        while not ended:
            for name in names:
                self.block(VARIANTS[name], 4)
            steps += 4 * len(names)
            taken = time.perf_counter() - began
            ended = bool(self.from_rank_0(steps >= wanted and taken >= self.options["warm_up_s"]))
        step_ms = taken / steps * 1e3
        self.say(f"warm-up: {steps} steps in {taken:.1f} s, {step_ms:.1f} ms a step")
        warm = {"first_step_s": compile_s, "steps": steps, "seconds": taken}
        self.result |= {"warm_up": warm, "graphs_before": _graphs()}

    def series(self) -> None:
        """Blocks of every variant, in balanced order, until they are enough or time is short.

        A series begins with a block that is not counted: writing the results of the last one made a
        pause, and a card under its power cap answers that with seconds of other clocks (on four
        H200s the block after it took 0.4 % more in six of six).
        """
        wanted, steps = self.options["series"], self.options["steps"]
        for index in range(wanted):
            began = time.perf_counter()
            order = balanced(list(VARIANTS), index)
            with quiet_gc():
                self.block(VARIANTS[order[-1]], steps)
                measured = {name: self.block(VARIANTS[name], steps) for name in order}
            self.result["series"].append(self.gathered(order, measured))
            self.save()
            took = time.perf_counter() - began
            left = self.options["limit_s"] - (time.time() - self.options["began"])
            short = left < took + self.options["after_s"]
            true = {name: slowest(b["rank_ms"]) for name, b in self.latest().items()}
            said = ", ".join(f"{name} {ms:.1f}" for name, ms in true.items())
            rest = (wanted - index - 1) * took + self.options["after_s"]
            about = clock_text(rest)
            self.say(f"series {index + 1}/{wanted}: {said} ms a step; about {about} left")
            if self.from_rank_0(short and index + 1 < wanted):
                self.say(f"time is short: {index + 1} of {wanted} series are all there will be")
                break

    def latest(self) -> dict[str, Any]:
        """The blocks of the newest series."""
        return self.result["series"][-1]["blocks"]

    def gathered(
        self, order: Sequence[str], measured: dict[str, tuple[float, list[float]]]
    ) -> dict[str, Any]:
        """A series: every rank's wall time, and the readings of this rank's clock."""
        mine = torch.tensor([measured[name][0] for name in order], dtype=torch.float64)
        everyone = [torch.zeros_like(mine) for _ in range(self.ranks)]
        dist.all_gather(everyone, mine)
        blocks = {
            name: {
                "rank_ms": [round(float(ms[at]), 4) for ms in everyone],
                "clock_ms": [round(ms, 4) for ms in measured[name][1]],
            }
            for at, name in enumerate(order)
        }
        return {"order": list(order), "blocks": blocks}

    def phases(self) -> None:
        """Host and GPU time by phase of each variant, on rank 0."""
        for name, variant in VARIANTS.items():
            self.use(variant)
            times = PhaseTimes(self.gpu)
            if self.rank == 0:
                self.workload._phase = times.phase
                self.workload._loader = PhasedLoader(self.workload._loader, times)
            self.line_up()
            self.synchronize()
            for times.step in range(PHASE_STEPS):
                with times.phase("step"):
                    self.one(variant, lambda times=times: times.phase("wait"))
            self.synchronize()
            vars(self.workload).pop("_phase", None)
            self.result["phases"][name] = times.means()
        self.save()
        self.say("phases timed")

    def profiles(self) -> None:
        """A trace of a few steps of each variant, written by rank 0; none on a CPU."""
        if not self.gpu:
            return
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        for at, (name, variant) in enumerate(VARIANTS.items(), 1):
            self.use(variant)
            watched = torch.profiler.profile(activities=kinds, acc_events=True)
            with watched if self.rank == 0 else nullcontext():
                self.one(variant)
                self.line_up()
                self.synchronize()
                for _ in range(self.options["profile_steps"]):
                    with torch.profiler.record_function(MARK):
                        self.one(variant)
                self.synchronize()
            if self.rank == 0:
                watched.export_chrome_trace(str(self.folder / f"{name}.trace.json"))
                self.result["profiled"].append(name)
            self.save()
            self.say(f"profile {at}/{len(VARIANTS)}: {name}")


def _graphs() -> int:
    """Graphs compiled so far in this process."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def join(device: str) -> None:
    """Set the device and join the group; gloo carries what only the hosts tell each other."""
    if device == "cpu":
        dist.init_process_group("gloo")
        return
    local, wanted = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    found = torch.cuda.device_count()
    if found < wanted:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "not set")
        raise SystemExit(
            f"{wanted} GPUs are wanted, {found} are visible (CUDA_VISIBLE_DEVICES: {visible}); "
            f"ask for fewer with --gpus {max(found, 1)}"
        )
    torch.cuda.set_device(local)
    free, total = torch.cuda.mem_get_info()
    if total - free > OTHERS_BYTES:
        held = (total - free) / 2**30
        raise SystemExit(f"GPU {local} has {held:.1f} GiB in use already: see nvidia-smi")
    dist.init_process_group("cpu:gloo,cuda:nccl")


def main() -> None:
    """Build, warm up, time, then look."""
    tie_rank()
    options = json.loads(sys.argv[1])
    join(options["device"])
    try:
        bench = Bench(options)
    except Exception as error:  # told at the end, below what torchrun says of it
        name = f"raised-{dist.get_rank()}"
        Path(options["folder"], name).write_text(f"{type(error).__name__}: {error}")
        raise
    bench.result |= {
        "fingerprint": fingerprint(bench.device),
        "variants": {name: asdict(variant) for name, variant in VARIANTS.items()},
        "tokens_per_step": bench.workload.tokens_per_step * bench.ranks,
    }
    bench.save()
    bench.warm_up()
    bench.series()
    bench.result["graphs_after"] = _graphs()
    if bench.gpu:
        bench.result["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
    bench.phases()
    bench.profiles()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
