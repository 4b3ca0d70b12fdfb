"""Time a training step while the model learns, beside the same step at a rate of 0.

    python -m studies.training_progress.measure --out progress.json
    python -m studies.training_progress.measure --read progress.json --plot progress.png
    python -m studies.training_progress.measure --device cpu --steps 16 --warm-up-s 1 \\
        --out progress.json

One process, one train step. After a warm-up it trains again and again from the same initial
parameters, alternately with a learning rate and without one (the same kernels then leave every
parameter as it is), without a pause between. A card that merely gets warmer does so over all
series; what comes back at each new start is the model's doing. Prints each window's step time,
learning over frozen; every window goes to --out with clock and power. ``--plot`` needs matplotlib.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from model.workloads import train_step
from perf_tests.parameters import NANO_STEP, SEED_STEP
from stepguard.cli.workload import parse_params
from stepguard.worker.clock import Clock
from studies.common.results import Document, command_line
from studies.common.series import half_width, mirrored, table

LEARNING, FROZEN = "learning", "frozen"


class Restart:
    """Sets a workload's parameters and its optimizer's state back to where they were."""

    def __init__(self, workload: Any) -> None:
        self.optimizer = workload.optimizer
        self.parameters = list(workload.model.parameters())
        self.initial = [p.detach().clone() for p in self.parameters]
        self.rate = self.optimizer.param_groups[0]["lr"]

    @torch.no_grad()
    def __call__(self, way: str) -> None:
        """From the initial parameters on, with the learning rate that ``way`` says."""
        for parameter, initial in zip(self.parameters, self.initial, strict=True):
            parameter.copy_(initial)
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate if way == LEARNING else 0.0


def sample(device: str) -> dict[str, float]:
    """Clock and power of the card now."""
    if device == "cpu":
        return {}
    return {"sm_clock_mhz": torch.cuda.clock_rate(), "power_w": torch.cuda.power_draw() / 1e3}


def rows(windows: list[dict[str, Any]]) -> list[list[str]]:
    """By window of a series: learning over frozen less one, percent, with its interval."""
    found = []
    for index in sorted({one["window"] for one in windows}):
        mine = [one for one in windows if one["window"] == index]
        by_way = {
            way: [one["step_ms"] for one in mine if one["way"] == way] for way in (LEARNING, FROZEN)
        }
        percent = [
            100 * (a / b - 1) for a, b in zip(by_way[LEARNING], by_way[FROZEN], strict=False)
        ]
        half = half_width(percent)
        steps = f"{mine[0]['first_step']} to {mine[0]['first_step'] + mine[0]['steps'] - 1}"
        interval = f" +- {half:.2f}" if half is not None else ""
        means = [f"{fmean(by_way[way]):.2f}" if by_way[way] else "" for way in by_way]
        found.append([steps, *means, f"{fmean(percent):+.2f}{interval} %" if percent else ""])
    return found


def plot(windows: list[dict[str, Any]], path: Path) -> None:
    """Every series' step times over the steps since its parameters were set back."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(8, 4), layout="constrained")
    for way, colour in ((LEARNING, "C1"), (FROZEN, "C0")):
        mine = [one for one in windows if one["way"] == way]
        for number in sorted({one["series"] for one in mine}):
            points = [one for one in mine if one["series"] == number]
            middle = [one["first_step"] + (one["steps"] - 1) / 2 for one in points]
            label = way if number == min(one["series"] for one in mine) else None
            panel.plot(
                middle, [one["step_ms"] for one in points], "o-", ms=3, c=colour, label=label
            )
    panel.set_xlabel("steps since the parameters were set back to the initial ones")
    panel.set_ylabel("step time, ms")
    panel.legend()
    figure.savefig(path, dpi=110)


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Run the series; every window of all of them."""
    cuda = options.device == "cuda"
    learning = {"lr": 6e-4}  # the suite's own step does not learn, for what this shows
    params = (SEED_STEP if cuda else NANO_STEP) | learning | parse_params(options.params)
    workload = train_step(device=options.device, **params)
    clock = Clock(torch.device(options.device))
    restart = Restart(workload)

    def window_ms() -> float:
        steps = options.window
        return float(clock.block(workload.step, steps, lambda index: None)["wall_ms"]) / steps

    restart(FROZEN)
    spent_s = 0.0
    while spent_s < options.warm_up_s:
        spent_s += window_ms() * options.window / 1e3
    facts = {
        "command": command_line(),
        "device": torch.cuda.get_device_name() if cuda else "CPU",
        "torch": torch.__version__,
        "params": params,
    }
    document, windows = Document(options.out, facts), []
    order = [way for pair in range(options.series) for way in mirrored((LEARNING, FROZEN), pair)]
    for number, way in enumerate(order, start=1):
        restart(way)
        for first in range(0, options.steps, options.window):
            place = {"series": number, "way": way, "window": first // options.window}
            place |= {"first_step": first + 1, "steps": options.window}
            windows.append(place | {"step_ms": round(window_ms(), 5)} | sample(options.device))
        document.update(windows=windows)
        print(f"series {number} of {len(order)}: {way}", flush=True)
    return windows


def main() -> None:
    """Measure, or read what was measured; print it side by side, draw it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--series", type=int, default=4, help="of each way (%(default)s)")
    parser.add_argument("--steps", type=int, default=80, help="of a series (%(default)s)")
    parser.add_argument("--window", type=int, default=8, help="steps (%(default)s)")
    parser.add_argument("--warm-up-s", type=float, default=15.0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="measure, and write it here")
    what.add_argument("--read", type=Path, help="measure nothing: what an earlier run wrote")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("params", nargs="*", metavar="key=value")
    options = parser.parse_args()
    windows = json.loads(options.read.read_text())["windows"] if options.read else measure(options)
    print(table(["steps", "learning [ms]", "frozen [ms]", "learning over frozen"], rows(windows)))
    if options.plot:
        plot(windows, options.plot)


if __name__ == "__main__":
    main()
