"""What a series of the history says: its changes of level, what came along with each, and creep."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stepguard.core.margins import margins_of
from stepguard.core.metrics import METRICS
from stepguard.core.text import counted, short_hash
from stepguard.judge.comparable import Tag, changed, comparable
from stepguard_lab.change_points import (
    LEAST_CHANGE_PCT,
    LEAST_SERIES,
    NEWEST,
    Change,
    Creep,
    creep,
    exact_changes,
    has_ruptures,
    level_changes,
)
from stepguard_lab.history_store import Measurement, Series


@dataclass(frozen=True)
class Mark:
    """What else changed with a point: software, the case's parameters, or its baseline's level."""

    at: int
    text: str


@dataclass(frozen=True)
class Anchor:
    """The commit that a series is compared with, and all commits of its history."""

    name: str  # as a reader knows it
    rev: str  # as it is typed
    commits: Collection[str]


@dataclass(frozen=True)
class View:
    """A series with all that is said of it."""

    series: Series
    changes: tuple[Change, ...]
    marks: tuple[Mark, ...]
    creep: Creep | None = None  # of a time with enough points at the anchor and after it
    unsearched: str = ""  # why no change points were looked for

    @property
    def size(self) -> float:
        """Return the largest change of level, or creep, as the logarithm of a ratio; 0 if there is
        none, infinite from or to zero.
        """
        moved = [change.change_pct for change in self.changes]
        moved += [self.creep.change_pct] if self.creep and self.crept else []
        return max((abs(log_ratio(pct)) for pct in moved), default=0.0)

    @property
    def crept(self) -> bool:
        """Tell whether the newest level is slower than the anchor's by more than the margin."""
        return self.creep is not None and self.creep.beyond(margin_pct(self.series))

    def range_of(self, change: Change) -> str:
        """Return the commits between which a level changed: the last before it, the first after."""
        points = self.series.points
        before, after = points[change.at - 1], points[change.at]
        if before.commit == after.commit:
            return f"at {short_hash(after.commit)}, measured {day(before)} and {day(after)}"
        return f"{short_hash(before.commit)}..{short_hash(after.commit)}, {day(after)}"

    def beside(self, change: Change) -> str:
        """Return what else changed with the level; empty where nothing did."""
        return "; ".join(mark.text for mark in self.marks if mark.at == change.at)


def log_ratio(change_pct: float) -> float:
    """Return a change of so many percent as the logarithm of a ratio."""
    return math.log1p(change_pct / 100) if change_pct > -100 else -math.inf


def day(point: Measurement) -> str:
    """Return the day of a measurement."""
    return point.date[:10]


def device_of(series: Series) -> str:
    """Return the device of a series' case."""
    return str(series.points[-1].parameters["device"])


def margin_pct(series: Series) -> float:
    """Return the slowdown that must not be missed on the device of a series, in percent."""
    return margins_of((), device_of(series)).matter_pct


def view_of(series: Series, anchor: Anchor | None) -> View:
    """Return what a series says, compared with the anchor if there is one."""
    changes, unsearched = _changes(series)
    marks = tuple(_marks(series.points))
    is_time = METRICS[series.metric].kind == "time"
    moved = _creep(series, changes, anchor) if anchor and is_time else None
    return View(series, tuple(changes), marks, moved, unsearched)


def _changes(series: Series) -> tuple[list[Change], str]:
    """Return the changes of level, or why none were looked for."""
    if METRICS[series.metric].kind == "counter":
        return exact_changes(series.values), ""
    if min(series.values) <= 0:
        return [], "it has values of zero or less"
    if len(series.values) < LEAST_SERIES:
        return [], f"{counted(len(series.values), 'point')}, {LEAST_SERIES} are needed"
    if not has_ruptures():
        return [], "ruptures is not installed"
    return level_changes(series.values, LEAST_CHANGE_PCT[device_of(series)]), ""


def _creep(series: Series, changes: Sequence[Change], anchor: Anchor) -> Creep | None:
    """Compare the last points of the anchor's level with the newest level's."""
    at_anchor = [i for i, point in enumerate(series.points) if point.commit in anchor.commits]
    if not at_anchor:
        return None
    end = at_anchor[-1] + 1
    borders = [change.at for change in changes]
    begin = max((at for at in borders if at < end), default=0)
    newest = max([end, *borders])
    values = series.values
    return creep(values[begin:end][-NEWEST:], values[newest:][-NEWEST:])


def _marks(points: Sequence[Measurement]) -> Iterator[Mark]:
    """Yield what changed with each point, beside its value."""
    for at, point in enumerate(points):
        if at:
            before = points[at - 1]
            if moved := _moved(Tag.SOFTWARE, before.environment, point.environment):
                yield Mark(at, f"environment: {moved}")
            if moved := _moved(Tag.CASE, before.parameters, point.parameters):
                yield Mark(at, f"case: {moved}")
        if point.level_reason:
            yield Mark(at, f"new level: {point.level_reason}")


def _moved(tag: Tag, before: Mapping[str, object], after: Mapping[str, object]) -> str:
    """Return "torch 2.11.0 -> 2.13.0" of each value that differs."""
    return changed(comparable({tag: before}, {tag: after})).text
