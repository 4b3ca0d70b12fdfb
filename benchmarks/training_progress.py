"""Does a training step get slower because the model learns?

    python benchmarks/training_progress.py --out progress.json
    python benchmarks/training_progress.py --device cpu --steps 16 --warm-up-s 1 --out progress.json

One process, one train step. After a warm-up it trains again and again from the same initial
parameters, in turns with a learning rate and without one (the same kernels then leave every
parameter as it is), without a pause between. A card that merely gets warmer does so over all
series; what comes back at each new start is the model's doing. Prints each window's step time,
relative to the first window without learning; every window goes to --out with clock and power.
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch  # noqa: E402

from benchmarks.documents import Document  # noqa: E402
from benchmarks.turns import half_width, table  # noqa: E402
from model.workloads import train_step  # noqa: E402
from perf_tests.parameters import NANO_STEP, SEED_STEP  # noqa: E402
from stepguard.cli import parse_params  # noqa: E402
from stepguard.worker.clock import CudaClock, HostClock  # noqa: E402

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


def differences(windows: list[dict[str, Any]]) -> list[list[str]]:
    """By window of a series: learning over frozen less one, percent, with its interval."""
    rows = []
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
        rows.append([steps, *means, f"{fmean(percent):+.2f}{interval} %" if percent else ""])
    return rows


def main() -> None:
    """Run the series, and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--series", type=int, default=4, help="of each way (%(default)s)")
    parser.add_argument("--steps", type=int, default=80, help="of a series (%(default)s)")
    parser.add_argument("--window", type=int, default=8, help="steps (%(default)s)")
    parser.add_argument("--warm-up-s", type=float, default=15.0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("params", nargs="*", metavar="key=value")
    options = parser.parse_args()
    cuda = options.device == "cuda"
    learning = {"lr": 6e-4}  # the suite's own step does not learn, for what this shows
    params = (SEED_STEP if cuda else NANO_STEP) | learning | parse_params(options.params)
    workload = train_step(device=options.device, **params)
    clock = CudaClock() if cuda else HostClock()
    restart = Restart(workload)

    def window(steps: int) -> float:
        return clock.block(workload.step, steps, lambda index: None)["wall_ms"] / steps

    restart(FROZEN)
    spent_s = 0.0
    while spent_s < options.warm_up_s:
        spent_s += window(options.window) * options.window / 1e3
    facts = {
        "command": " ".join(["python", *sys.argv]),
        "device": torch.cuda.get_device_name() if cuda else "CPU",
        "torch": torch.__version__,
        "params": params,
    }
    document, windows = Document(options.out, facts), []
    for number in range(2 * options.series):
        way = (LEARNING, FROZEN, FROZEN, LEARNING)[number % 4]
        restart(way)
        for first in range(0, options.steps, options.window):
            found = {
                "series": number + 1,
                "way": way,
                "window": first // options.window,
                "first_step": first + 1,
                "steps": options.window,
                "step_ms": round(window(options.window), 5),
            }
            windows.append(found | sample(options.device))
        document.update(windows=windows)
        print(f"series {number + 1} of {2 * options.series}: {way}", flush=True)
    header = ["steps", "learning [ms]", "frozen [ms]", "learning over frozen"]
    print(table(header, differences(windows)))


if __name__ == "__main__":
    main()
