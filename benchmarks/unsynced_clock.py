"""What a clock around a training step reads, beside what the step takes, and both as bar charts.

    python -m benchmarks.unsynced_clock --svg clock.svg
    torchrun --nproc-per-node=4 -m benchmarks.unsynced_clock --svg clock.svg
    python -m benchmarks.unsynced_clock --device cpu --steps 2 --warm-up 2

A GPU works through a queue. A host clock that is read before the queue has drained says how long it
took to fill, so that a removed synchronize() looks like a faster step. Variants of one step take
turns in blocks, in an order that is reversed in every other series:

    P   pinned inputs, nobody waits        PS  P and synchronize() in each step
    U   pageable inputs, blocking copies   US  U and synchronize() in each step
    PI  P and loss.item() after the clock is read   UI  U and the same

A step takes what the wall clock says of a block, from synchronize to synchronize, on the slowest
rank. The clock is rank 0's, around each step. Only rank 0 reads the loss, as it would to print it.
A variant is a workload, too. This shows its kernels, its phases and the calls that wait:

    python -m stepguard record-traces benchmarks.unsynced_clock:one_variant variant=US --gpus 4 \\
        --out DIR
    python -m stepguard trace DIR
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.shared import Document, about, ratio
from model.phases import OnPhase, phase
from model.settings import check_choice
from model.train import group_of_ranks
from model.workloads import rank_and_world_size, train_step
from stepguard.cli.workload_arguments import parse_params

VARIANTS = ("P", "PS", "U", "US", "PI", "UI")
CHARTED_STEPS = 20
PANELS = (
    ("step [ms]", lambda ms, tokens: ms),
    ("throughput [million tokens/s]", lambda ms, tokens: tokens / ms / 1e3),
    (f"{CHARTED_STEPS} steps at that rate [s]", lambda ms, tokens: CHARTED_STEPS * ms / 1e3),
)
BARS = {"true_ms": "what a step takes", "clock_ms": "what a clock around it reads"}


class Step:
    """A training step of this rank in one of the variants, which may be exchanged."""

    on_phase: OnPhase | None = None

    def __init__(self, variant: str, params: dict[str, Any], device: str) -> None:
        self._workload: Any = train_step(**params, device=device)
        self._gpu = device == "cuda"
        self._pinned = self._workload._loader
        batch = self._pinned.next()
        ordinary = [one.cpu() for one in batch]  # memory that is not pinned: copies from it wait
        where = batch[0].device
        self._pageable = SimpleNamespace(next=lambda: [one.to(where) for one in ordinary])
        self.variant, self.phases = variant, (*self._workload.phases, "wait")
        self.tokens_per_step = self._workload.tokens_per_step
        self.rank, self.ranks = rank_and_world_size()

    def step(self) -> Tensor:
        """Do a step, with all waiting."""
        loss = self.timed()
        self.read(loss)
        return loss

    def timed(self) -> Tensor:
        """Do what is inside the clock, and return the loss."""
        self._workload.on_phase = self.on_phase
        self._workload._loader = self._pageable if "U" in self.variant else self._pinned
        loss: Tensor = self._workload.step()
        if "S" in self.variant:
            with phase("wait", self.on_phase):
                self.wait()
        return loss

    def read(self, loss: Tensor) -> None:
        """Read the loss behind the clock, if the variant does."""
        if "I" in self.variant and self.rank == 0:
            with phase("wait", self.on_phase):
                loss.item()

    def wait(self) -> None:
        """Wait for the GPU."""
        if self._gpu:
            torch.cuda.synchronize()

    def block(self, variant: str, steps: int) -> tuple[float, list[float]]:
        """Return the ms that a step takes on the slowest rank, and what the clock reads, in ms."""
        self.variant, read_ms = variant, []
        slowest(0.0)  # line up
        self.wait()
        began = time.perf_counter()
        for _ in range(steps):
            from_here = time.perf_counter()
            loss = self.timed()
            read_ms.append((time.perf_counter() - from_here) * 1e3)
            self.read(loss)
        self.wait()
        return slowest((time.perf_counter() - began) * 1e3 / steps), read_ms


def one_variant(*, variant: str, device: str = "cuda", **params: Any) -> Step:
    """A step of a variant as a workload, for a trace of it."""
    check_choice("variant", variant, VARIANTS)
    return Step(variant, {"lr": 0.0} | params, device)  # at 0 a step takes as long each time


def slowest(value: float) -> float:
    """Return the largest of all ranks. They wait for each other on the host."""
    found = torch.tensor(value, dtype=torch.float64)
    if dist.is_initialized():
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def measured(step: Step, options: argparse.Namespace) -> list[dict[str, dict[str, float]]]:
    """Return what each variant takes and what its clock reads, in ms, for each series."""
    for variant in VARIANTS:  # the first step compiles
        step.block(variant, options.warm_up)
    found = []
    for number in range(options.series):
        order = VARIANTS if number % 2 == 0 else VARIANTS[::-1]
        step.block(
            order[0], options.steps
        )  # behind a pause a block takes longer: this one is not counted
        blocks = {variant: step.block(variant, options.steps) for variant in order}
        found.append(
            {
                variant: {"true_ms": true, "clock_ms": fmean(read), "first_ms": read[0]}
                for variant, (true, read) in blocks.items()
            }
        )
    return found


def summed_up(series: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, Any]]:
    """Return the means of each variant over all series, and its time over P's."""
    found = {}
    for variant in VARIANTS:
        means = {key: fmean(one[variant][key] for one in series) for key in series[0][variant]}
        times = [(one[variant]["true_ms"], one["P"]["true_ms"]) for one in series]
        found[variant] = means | {"over_p": ratio(times)}
    return found


def table(summary: dict[str, dict[str, Any]], tokens: int) -> list[str]:
    """Return a line for each variant."""
    head = ("", "true ms", "tokens/s", "against P", "clock ms", "first ms", "clock's error")
    lines = ["{:3}{:>9}{:>12}{:>22}{:>10}{:>10}{:>15}".format(*head)]
    for variant, one in summary.items():
        true, clock, over = one["true_ms"], one["clock_ms"], one["over_p"]
        against = "" if variant == "P" else f"{100 * (over['ratio'] - 1):+.2f} %"
        if against and over["interval_95"]:
            low, high = (100 * (end - 1) for end in over["interval_95"])
            against = f"[{low:+.2f}, {high:+.2f}] %"
        lines.append(
            f"{variant:3}{true:9.2f}{tokens / true * 1e3:12,.0f}{against:>22}{clock:10.2f}"
            f"{one['first_ms']:10.2f}{100 * (clock / true - 1):+13.1f} %"
        )
    return lines


def draw(summary: dict[str, dict[str, Any]], tokens: int, title: str, path: Path) -> None:
    """Write the three bar charts. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(13, 4.2), layout="constrained")
    for axes, (what, height) in zip(panels, PANELS, strict=True):
        for offset, (key, label) in zip((-0.2, 0.2), BARS.items(), strict=True):
            heights = [height(one[key], tokens) for one in summary.values()]
            places = [place + offset for place in range(len(summary))]
            bars = axes.bar(places, heights, width=0.4, label=label)
            axes.bar_label(bars, fmt="%.3g", fontsize=7)
        axes.set_xticks(range(len(summary)), list(summary))
        axes.set_title(what, fontsize=11)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle(title)
    figure.savefig(path)
    pyplot.close(figure)


def main() -> int:
    """Measure; rank 0 prints the table and writes what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--series", type=int, default=6, help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=12, help="of a block (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=8, help="steps a variant (%(default)s)")
    parser.add_argument("--svg", type=Path, help="draw charts (with matplotlib)")
    parser.add_argument("--out", type=Path, help="result file")
    parser.add_argument("params", nargs="*", metavar="key=value", help="of model.workloads")
    options = parser.parse_args()
    params = parse_params(options.params)
    with group_of_ranks():
        step = one_variant(variant=VARIANTS[0], device=options.device, **params)
        series = measured(step, options)
        rank, ranks, tokens = step.rank, step.ranks, step.ranks * step.tokens_per_step
        del step
    if rank:
        return 0
    summary = summed_up(series)
    print("\n".join(table(summary, tokens)))
    machine = f"{torch.cuda.get_device_name() if options.device == 'cuda' else 'CPU'} x {ranks}"
    if options.out:
        how = about(options.device, ranks) | {"params": params, "tokens_per_step": tokens}
        Document(options.out, how).update(summary=summary, series=series)
    if options.svg:
        draw(summary, tokens, f"{machine}: a training step", options.svg)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
