"""The figures of one case that was measured by the command line, for a person."""

from collections.abc import Iterator

from stepguard.evidence import Counts
from stepguard.judge.summary import summarise
from stepguard.measure.suite import Result
from stepguard.metrics import METRICS, format_value
from stepguard.report.table import figure
from stepguard.report.words import happens

PARTS = 8  # a counter with more kinds of parts is told by its sum; the evidence has them all


def figures(result: Result) -> Iterator[str]:
    """Yield every metric that was measured, a line each; under a counter its places or parts."""
    values = summarise(result.evidence).values()
    width = max((len(name) for name in values), default=0)
    for name in (name for name in METRICS if name in values):
        yield figure(name, values[name], width)
        yield from _made_of(name, result.evidence.counts)


def _made_of(name: str, counts: Counts | None) -> Iterator[str]:
    """Yield where a counter happens; else what it is made of, the largest first."""
    sites = counts.sites.get(name, ()) if counts else ()
    for site in sites:
        yield f"    {happens(site)}" + (f" (allowed: {site.allowed})" if site.allowed else "")
    parts = counts.detail.get(name, {}) if counts and not sites else {}
    shown = sorted((item for item in parts.items() if item[1]), key=lambda item: -item[1])
    if 1 < len(shown) <= PARTS:
        yield "    " + ", ".join(f"{part} {format_value(name, n)}" for part, n in shown)
