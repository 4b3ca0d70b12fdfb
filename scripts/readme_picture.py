"""Draw the README's picture: the pairs of its example and the margins, as the report shows them.

    python -m scripts.readme_picture docs/pictures/verdict.svg

The figures come from the file that the README names. Needs the lab.
"""

import json
import sys
from pathlib import Path
from typing import Any

from stepguard.judge.rules.changed_kernels import KERNEL_MARGINS
from stepguard_lab.charts import Interval, change_chart
from stepguard_lab.html_templates import TEMPLATES

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "benchmarks/data/power_kernels_h100_2026-11-26.json"
CHANGE, REASON = "gelu twice in 3 layers", "CHANGED_KERNELS"
PICTURE = """<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{{ chart.says }}"
 viewBox="0 0 {{ '%g' % chart.width }} {{ '%g' % (chart.height + 44) }}">
{% from "parts.html" import shape %}
<style>
{% include "page.css" %}
 .paper { fill: var(--paper); } svg .title { font-weight: 600; fill: var(--ink); }
</style>
<rect class="paper" width="100%" height="100%"/>
<text class="title" x="2" y="14">{{ chart.title }}</text>
<g transform="translate(0 22)">{% for one in chart.shapes %}{{ shape(one) }}{% endfor %}</g>
{% for css, meaning in chart.legend[:2] %}
<g transform="translate({{ 64 + 140 * loop.index0 }} {{ chart.height + 28 }})">
<rect class="{{ css }}" width="10" height="9"/><text x="14" y="8">{{ meaning }}</text></g>
{% endfor %}
</svg>
"""


def example() -> dict[str, Any]:
    """Return what is kept of the verdict that the README shows."""
    runs: list[dict[str, Any]] = json.loads(FIGURES.read_text())["runs"]
    return next(run for run in runs if (run["change"], run["reason"]) == (CHANGE, REASON))


def picture() -> str:
    """Return the SVG."""
    said = example()
    step_ms = [[pair[side]["step_ms"] for side in ("head", "base")] for pair in said["pairs"]]
    changes = [100 * (head / base - 1) for head, base in step_ms]
    bands = (KERNEL_MARGINS.ignore_pct, "ignored"), (KERNEL_MARGINS.matter_pct, "matters from")
    chart = change_chart(
        f"{said['status']}, {said['estimate_pct']:+.2f} %: {len(changes)} pairs on an H100",
        changes,
        Interval("kernels", said["estimate_pct"], *said["interval_pct"]),
        bands,
    )
    return TEMPLATES.from_string(PICTURE).render(chart=chart).strip() + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    Path(sys.argv[1]).write_text(picture(), encoding="utf-8")
