"""Draw the three bar charts of sync against no sync: step time, throughput, time of 20 steps.

    python -m studies.unsynced_clock.charts clock.json --svg clock.svg

Each variant has two bars: what it takes from synchronize to synchronize, and what a clock around
its steps reads. Needs matplotlib.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STEPS = 20
PANELS = (
    ("step [ms]", lambda ms, tokens: ms, "{:.0f}"),
    ("throughput [million tokens/s]", lambda ms, tokens: tokens / ms / 1e3, "{:.2f}"),
    (f"{STEPS} steps at that rate [s]", lambda ms, tokens: STEPS * ms / 1e3, "{:.2f}"),
)
SERIES = (("true_ms", "what a step takes"), ("clock_ms", "what a clock around it reads"))


def heights(summary: Mapping[str, Mapping[str, Any]], tokens: int) -> dict[str, list[list[float]]]:
    """Return for each panel the bars of both series, in the order of the variants.

    Raises ValueError without a variant or without a positive time.
    """
    times = [[float(one[key]) for one in summary.values()] for key, _ in SERIES]
    if not times[0] or min(min(row) for row in times) <= 0:
        raise ValueError(f"nothing to draw: times {times}")
    return {name: [[of(ms, tokens) for ms in row] for row in times] for name, of, _ in PANELS}


def draw(content: Mapping[str, Any], path: Path) -> None:
    """Write the charts of a result file of measure.py. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    drawn = heights(content["summary"], content["tokens_per_step"])
    names = list(content["summary"])
    figure, panels = pyplot.subplots(1, len(PANELS), figsize=(13, 4.2), layout="constrained")
    for axes, (title, _, form) in zip(panels, PANELS, strict=True):
        for at, (row, (_, label)) in enumerate(zip(drawn[title], SERIES, strict=True)):
            places = [place + 0.4 * (at - 0.5) for place in range(len(names))]
            bars = axes.bar(places, row, width=0.4, label=label, color=("#4477aa", "#ee6677")[at])
            axes.bar_label(bars, [form.format(value) for value in row], fontsize=7, padding=1)
        axes.set_xticks(range(len(names)), names)
        axes.set_title(title, fontsize=11)
        axes.margins(y=0.12)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    machine = content["machine"]
    figure.suptitle(f"{machine['device']} x {machine.get('count', 1)}: a training step")
    figure.savefig(path)
    pyplot.close(figure)


def main() -> int:
    """Draw a kept result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("file", type=Path, help="what measure.py wrote")
    parser.add_argument("--svg", type=Path, required=True)
    options = parser.parse_args()
    draw(json.loads(options.file.read_text(encoding="utf-8")), options.svg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
