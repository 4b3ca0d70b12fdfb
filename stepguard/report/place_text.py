"""Where a metric moved, for a reader: places, operators, and how often they are called."""

from collections import Counter
from collections.abc import Sequence

from msgspec import structs

from stepguard.core.metrics import METRICS, OPERATOR_METRICS, PEAK, format_bytes, format_value
from stepguard.core.site import Site
from stepguard.core.text import first
from stepguard.core.verdict import MetricVerdict
from stepguard.judge.moved_places import EDITED

PLACES_SHOWN = 5  # of operators and of bytes


def happens(site: Site, unit: str = "") -> str:
    """Return "2 x .item(): loss.item() in step (model/workloads.py:88), forward"; or the bytes."""
    if unit == "B":
        return f"{format_bytes(site.count)} of {site.described()}"
    return (f"{site.count} x " if site.count > 1 else "") + site.described()


def operator_move(metric: MetricVerdict) -> str:
    """Return the operator that moved at the first place, and how often there: "+4 aten.clone"; or
    "+4 aten.silu for aten.gelu", where its function calls as many fewer of another one.
    """
    if metric.sites:
        main, names = metric.sites[0], _names(metric.sites)
        here: Counter[str] = Counter()
        for site in metric.sites:
            if (site.file, site.function, site.phase) == (main.file, main.function, main.phase):
                here[site.what] += site.count
        count = here.pop(main.what)
        text = f"{main.count:+,d} {names[main.what]}"
        if [*here.values()] == [-count] and count > 0:
            return f"{text} for {names[next(iter(here))]}"
        return text
    part = metric.moved[0]
    return f"{part.new - part.old:+,d} {_bare(part.name)}"


def share_of_place(metric: MetricVerdict) -> str:
    """Return ", 4 at", the part of a move that is of its first place; empty if it is the only one,
    or nobody knows its part.
    """
    places = [site for site in metric.sites if site.file]
    if len(places) < 2 or metric.metric == PEAK or METRICS[metric.metric].kind != "counter":
        return ""
    return f", {format_value(metric.metric, places[0].count)} at"


def place_lines(metric: MetricVerdict) -> list[str]:
    """Return where a metric moved, a line each."""
    unit = METRICS[metric.metric].unit
    # Bytes belong to no single line: the longest-living tensor shares the peak with others.
    if metric.metric == PEAK:
        known = ("" if site.what == EDITED else "called here now: " for site in metric.sites)
        lines = [f"{how}{happens(site)}" for how, site in zip(known, metric.sites, strict=True)]
    elif metric.metric not in OPERATOR_METRICS:
        lines = [happens(site, unit) for site in _with_count_before(metric)]
        if unit != "B":
            return lines
    else:
        names = _names(metric.sites)
        lines = [
            f"{site.count:+,d} {names[site.what]} in {site.function} ({site.place})"
            + (site.reached if site.caller else "")
            for site in metric.sites
        ]
    return first(lines, PLACES_SHOWN)


def _with_count_before(metric: MetricVerdict) -> tuple[Site, ...]:
    """Return the places. If the only one counts more than the counter rose by, its line was edited,
    or replaced others: then it says how many there were.
    """
    old, new = metric.old or 0, metric.new or 0
    if METRICS[metric.metric].kind != "counter" or len(metric.sites) != 1 or new <= old:
        return metric.sites
    (site,) = metric.sites
    before = site.count - (new - old)
    if not 0 < before <= old:
        return metric.sites
    what = f"{site.what} ({format_value(metric.metric, before)} before)"
    return (structs.replace(site, what=what),)


def _names(sites: Sequence[Site]) -> dict[str, str]:
    """Return how to call each operator: "aten.clone" for "aten.clone.default". The overload stays
    only if two operators differ in it alone.
    """
    known = {site.what for site in sites}
    alike = Counter(map(_bare, known))
    return {name: name if alike[_bare(name)] > 1 else _bare(name) for name in known}


def _bare(name: str) -> str:
    return name.rpartition(".")[0] or name
