"""The command history: what recorded runs measured, when a level changed, and how far it crept.

    python -m stepguard history
    python -m stepguard history 'train_step[124m-bf16]' step_ms
    python -m stepguard history --store history.sqlite --html history.html

Each call first imports what is new: kept evidence of commits that HEAD has, and the recordings of
every version of the baseline files in git. A verdict never reads the history.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepguard.cli.common import (
    UsageError,
    add_json,
    add_parser,
    put_json,
    put_text,
    refuse_target,
    say,
)
from stepguard.core.metrics import JUDGED_TIME, METRICS
from stepguard.core.text import meant, revision
from stepguard.machine.git.resolve import TreeError, resolve
from stepguard.machine.git.revision import git
from stepguard.machine.git.worktree import FOLDER, keep_out_of_git
from stepguard.machine.interpreter import as_typed
from stepguard.storage.kept_runs import Store
from stepguard_lab import history_table as table
from stepguard_lab.change_points import INSTALL, has_ruptures
from stepguard_lab.history_import import Imported, import_baselines, import_evidence
from stepguard_lab.history_page import BEGINS, page
from stepguard_lab.history_store import HistoryStore, Series, open_store, series_of
from stepguard_lab.history_view import Anchor, View, view_of
from stepguard_lab.printed import add_top

STORE = "history.sqlite"
PAGE = {".html": BEGINS.encode()}
MONTH = "30 days ago"  # the anchor if there is no tag: as far back as the nightly comparison looks


def add_command(commands: Any, root: Path) -> None:
    text = "measurements over time: changes of level, at which commit, and creep"
    command = add_parser(commands, root, "history", _history, text)
    command.add_argument("case", nargs="?", metavar="CASE", help="all series of this case")
    command.add_argument("metric", nargs="?", metavar="METRIC", help="of this metric alone")
    store = root / FOLDER / STORE
    command.add_argument(
        "--store", type=Path, default=store, metavar="FILE", help="(.stepguard/history.sqlite)"
    )
    text = "a folder of kept evidence, beside .stepguard/runs; may be given again"
    command.add_argument("--evidence", type=Path, action="append", metavar="DIR", help=text)
    command.add_argument("--card", default="", metavar="UUID", help="the begin of one card's UUID")
    text = "compare with this commit (the newest tag, or a commit of a month ago)"
    command.add_argument("--anchor", metavar="REV", help=text)
    command.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts")
    add_json(command)
    add_top(command, 20)


def _history(options: argparse.Namespace) -> int:
    if options.metric is not None and options.metric not in METRICS:
        hint, known = meant(options.metric, METRICS), ", ".join(METRICS)
        raise UsageError(f"{options.metric!r} is no metric{hint or f'; there are: {known}'}")
    for folder in options.evidence or ():
        if not folder.is_dir():
            raise UsageError(f"--evidence {folder}: no such folder")
    refuse_target(options.json, inputs=[options.store])
    refuse_target(options.html, "--html", PAGE)
    if options.store == options.root / FOLDER / STORE:
        options.store.parent.mkdir(exist_ok=True)
        keep_out_of_git(options.store.parent)
    with open_store(options.store) as store:
        _report_import(_import(store, options))
        every = series_of(store.measurements(options.case or ""))
    chosen = _chosen(every, options)  # after the block, so an error here does not undo the import
    anchor = _anchor(options.root, options.anchor)
    views = [view_of(series, anchor) for series in chosen]
    if not has_ruptures():
        say(INSTALL)
    say(*_lines(views, anchor, options))
    if options.html:
        put_text(page(views, anchor), options.html, "--html")
    put_json(document(views, anchor), options.json)
    return 0


def _import(store: HistoryStore, options: argparse.Namespace) -> list[Imported]:
    root, folders = options.root, [Store(options.root).runs, *(options.evidence or ())]
    imported = [import_evidence(store, root, folders)]
    if git(root, "rev-parse", "--verify", "HEAD") is not None and options.baselines.is_dir():
        imported.append(import_baselines(store, root, options.baselines))
    return imported


def _report_import(imported: Sequence[Imported]) -> None:
    if added := sum(part.added for part in imported):
        say(f"{added} measurements imported")
    say(*(line for part in imported for line in part.left_out))


def _chosen(known: list[Series], options: argparse.Namespace) -> list[Series]:
    """Return the series that were asked for. Raises ValueError where there are none."""
    if not known:
        of_case = f" of {options.case}" if options.case else ""
        record = as_typed("pytest perf_tests --perf-update")
        raise ValueError(
            f"{options.store}: the history has no measurement{of_case}; record first: {record}"
        )
    shown = [series for series in known if series.card.startswith(options.card)]
    if not shown:
        cards = ", ".join(sorted({series.card[:12] or series.machine for series in known}))
        raise ValueError(f"--card {options.card}: the history has none of it, but of {cards}")
    if options.metric:
        shown = [series for series in shown if series.metric == options.metric]
    elif options.case:
        shown = [series for series in shown if METRICS[series.metric].kind != "information"]
    else:
        timed = [series for series in shown if series.metric == JUDGED_TIME]
        moved = [series for series in shown if METRICS[series.metric].kind == "counter"]
        shown = [*timed, *(series for series in moved if len(set(series.values)) > 1)]
    if not shown:
        names = ", ".join(sorted({series.metric for series in known}))
        raise ValueError(f"the history has nothing of that; of these metrics it has some: {names}")
    return sorted(
        shown, key=lambda series: (series.case_id, series.metric, series.machine, series.card)
    )


def _anchor(root: Path, rev: str | None) -> Anchor | None:
    """Return the named commit; else the newest tag, or the last commit of a month ago, if any.

    Raises TreeError for a name that is no commit.
    """
    usual = rev or (git(root, "describe", "--tags", "--abbrev=0") or "").strip()
    usual = usual or (git(root, "rev-list", "-1", f"--before={MONTH}", "HEAD") or "").strip()
    if not usual:
        return None
    commit = resolve(root, usual)
    shown, commits = revision(usual, commit), git(root, "rev-list", commit)
    if commits is None:
        raise TreeError(f"git does not list the commits of {shown}: git fsck")
    return Anchor(shown, usual, frozenset(commits.split()))


def _lines(views: Sequence[View], anchor: Anchor | None, options: argparse.Namespace) -> list[str]:
    bars = _bars()
    if options.metric:
        return [
            line for view in views for line in (*table.story(view, anchor, bars, options.top), "")
        ]
    lines = list(table.overview(views, bars))
    for view in views:
        if view.crept and anchor:
            lines.append(f"{view.series.case_id}: {table.creep_text(view, anchor)}")
    return lines


def _bars() -> str:
    """Return the bars for sparklines that the output's encoding can show."""
    try:
        table.BARS.encode(sys.stdout.encoding or "ascii")
    except (LookupError, UnicodeEncodeError):
        return table.PLAIN_BARS
    return table.BARS


def document(views: Sequence[View], anchor: Anchor | None) -> dict[str, Any]:
    """Return the series as a document: points, changes of level, creep."""
    return {
        "schema": 1,
        "anchor": anchor.name if anchor else "",
        "series": [
            {
                "case": view.series.case_id,
                "machine": view.series.machine,
                "card": view.series.card,
                "metric": view.series.metric,
                "unit": METRICS[view.series.metric].unit,
                "points": [
                    {"date": point.date, "commit": point.commit, "value": value}
                    for point, value in zip(view.series.points, view.series.values, strict=True)
                ],
                "changes": [
                    {
                        "point": change.at,
                        "commit": view.series.points[change.at].commit,
                        "before": change.before,
                        "after": change.after,
                        "beside": view.beside(change),
                    }
                    for change in view.changes
                ],
                "creep_pct": view.creep.change_pct if view.creep else None,
                "crept": view.crept,
                "unsearched": view.unsearched,
            }
            for view in views
        ],
    }
