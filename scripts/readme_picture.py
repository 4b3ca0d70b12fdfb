"""Draw the README's picture: the pairs of its example beside the margins, as the report shows them.

    python -m scripts.readme_picture docs/pictures/verdict.svg

The figures are those of the study that the README names. Needs jinja2 (the extra `report`).
"""

import json
import math
import sys
from pathlib import Path

from stepguard.core.margins import MARGINS
from stepguard.judge.pair_statistics import decide, figures
from stepguard.lab.charts import Interval, change_chart
from stepguard.lab.html_templates import TEMPLATES

ROOT = Path(__file__).resolve().parents[1]
STUDY, CHANGE = ROOT / "studies/power/h200_2026-11-23.json", "gelu twice in 3 layers"
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


def picture() -> str:
    """Return the SVG."""
    pairs = json.loads(STUDY.read_text())["changes"][CHANGE]["pairs"]
    ratios = [math.log(pair["head"]["step_ms"] / pair["base"]["step_ms"]) for pair in pairs]
    said = decide(figures(ratios))
    bands = ((MARGINS.ignore_pct, "ignored"), (MARGINS.matter_pct, "matters from"))
    chart = change_chart(
        f"{said.status.value}, {said.estimate_pct:+.1f} %: {len(pairs)} pairs on an H200",
        [100 * math.expm1(ratio) for ratio in ratios],
        Interval("interval", said.estimate_pct, said.low_pct, said.high_pct),
        bands,
    )
    return TEMPLATES.from_string(PICTURE).render(chart=chart).strip() + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    Path(sys.argv[1]).write_text(picture(), encoding="utf-8")
