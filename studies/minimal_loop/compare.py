"""Put the losses of our training beside those of the plain loop.

    python -m studies.minimal_loop.compare ours.jsonl loop.jsonl loop2.jsonl --svg losses.svg

The third file, which may be left out, is the loop with another seed: by how much two runs differ
that differ in nothing but chance. Losses are means over ten steps; speeds are medians behind the
first twenty.
"""

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean, median
from typing import Any

from studies.common.series import table

WINDOW, LEAD = 10, 20  # steps


def read(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a log that are of steps."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if "step" in line]


def smooth(log: list[dict[str, Any]]) -> dict[int, float]:
    """Return the mean training loss of each whole window, by its last step."""
    losses = [line["loss"] for line in log if "loss" in line]
    ends = range(WINDOW, len(losses) + 1, WINDOW)
    return {end: fmean(losses[end - WINDOW : end]) for end in ends}


def speed(log: list[dict[str, Any]]) -> float:
    """Return the median tokens per second behind the first steps. Raises ValueError without any."""
    found = [line["tokens_per_s"] for line in log if "loss" in line and line["step"] > LEAD]
    if not found:
        raise ValueError(f"a log has no step behind the first {LEAD}")
    return median(found)


def validation(log: list[dict[str, Any]]) -> float | None:
    """Return the last validation loss, None in a run that was cut off."""
    return next((line["val_loss"] for line in reversed(log) if "val_loss" in line), None)


def apart(one: dict[int, float], other: dict[int, float]) -> dict[str, float]:
    """Return by how much two curves differ. Raises ValueError for two without a common window."""
    found = [abs(one[at] - other[at]) for at in one.keys() & other.keys() if at > 2 * WINDOW]
    if not found:
        raise ValueError("the runs have no windows in common")
    return {"mean": fmean(found), "largest": max(found)}


def summary(ours: list[Any], loop: list[Any], again: list[Any] | None = None) -> dict[str, Any]:
    """Return the curves, their differences, and the differences of chance where there is a third
    run.
    """
    curves = {name: smooth(log) for name, log in (("ours", ours), ("loop", loop))}
    return {
        "curves": curves,
        "apart_nats": apart(curves["ours"], curves["loop"]),
        "by_chance_nats": apart(curves["loop"], smooth(again)) if again else None,
        "validation_nats": {"ours": validation(ours), "loop": validation(loop)},
        "tokens_per_s": {"ours": speed(ours), "loop": speed(loop)},
    }


def page(found: dict[str, Any]) -> str:
    """Return the figures as Markdown."""
    ours, loop = found["curves"]["ours"], found["curves"]["loop"]
    ends = [at for at in sorted(ours) if at in loop]
    shown = [at for at in ends if at in (WINDOW, 5 * WINDOW, ends[-1]) or at % 100 == 0]
    rows = [
        [f"steps {at - WINDOW + 1} to {at}", f"{ours[at]:.3f}", f"{loop[at]:.3f}"] for at in shown
    ]
    both = found["validation_nats"]
    rows.append(["validation", *(f"{both[name]:.3f}" if both[name] else "-" for name in both)])
    rows.append(["tokens/s", *(f"{speed:,.0f}" for speed in found["tokens_per_s"].values())])
    far, chance = found["apart_nats"], found["by_chance_nats"]
    text = f"Apart by {far['mean']:.3f} nats on average, {far['largest']:.3f} at most"
    if chance:
        by = f"{chance['mean']:.3f} and {chance['largest']:.3f}"
        text += f"; two runs of the loop with unequal seeds by {by}"
    return table(["loss [nats]", "model.train", "plain loop"], rows) + f"\n{text}.\n"


def draw(logs: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Draw the losses of every step. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.5, 4.2), layout="constrained")
    for name, log in logs.items():
        points = [(line["step"], line["loss"]) for line in log if "loss" in line]
        axes.plot(*zip(*points, strict=True), linewidth=0.8, label=name)
    axes.set(xlabel="step", ylabel="training loss [nats]", title="GPT-2 124M, the same tokens")
    axes.set_yscale("log")
    axes.set_yticks([1.5, 2, 3, 4, 6, 8, 10], ["1.5", "2", "3", "4", "6", "8", "10"], minor=False)
    axes.minorticks_off()
    axes.legend()
    figure.savefig(path)
    pyplot.close(figure)


def main() -> int:
    """Print the page, draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("ours", type=Path, help="log.jsonl of model.train")
    parser.add_argument("loop", type=Path, help="the plain loop's log")
    parser.add_argument("again", type=Path, nargs="?", help="... with another seed")
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    paths = {"ours": options.ours, "loop": options.loop, "again": options.again}
    logs = {name: read(path) for name, path in paths.items() if path}
    print(page(summary(**logs)))
    if options.svg:
        names = ("model.train", "plain loop", "plain loop, other seed")
        draw(dict(zip(names, logs.values(), strict=False)), options.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
