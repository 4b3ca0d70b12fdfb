"""The command report: a run as one HTML page, with all that its evidence shows.

python -m stepguard report perf.json --html report.html
python -m stepguard report .stepguard/runs/20261121T101500Z-4711
"""

import argparse
from pathlib import Path
from typing import Any

from stepguard.cli.common import UsageError, add_parser, put_text, refuse_target, say
from stepguard.core.text import counted
from stepguard.trace.kernel_classes import usual_classes
from stepguard_lab.report_input import read_runs
from stepguard_lab.source_links import Repository, pages_of, repository
from stepguard_lab.timeline import timeline
from stepguard_lab.trace_files import analysed, has_kernels, read_files


def add_command(commands: Any, root: Path) -> None:
    command = add_parser(commands, root, "report", _report, "a run as one HTML page")
    text = "a run's document, or a folder of kept evidence; default: the last run's"
    command.add_argument("source", nargs="*", type=Path, metavar="RUN", help=text)
    text = "the page to write (%(default)s)"
    command.add_argument(
        "--html", type=Path, default=Path("report.html"), metavar="PATH", help=text
    )
    text = "draw a step of this trace, or of the first rank in a folder, with its case"
    command.add_argument(
        "--trace", type=_trace, action="append", default=[], metavar="CASE=FILE", help=text
    )
    text = "address of the repository's pages, for links to lines; default: remote origin's"
    command.add_argument("--repository", metavar="URL", help=text)


def _trace(text: str) -> tuple[str, Path]:
    case_id, separator, path = text.rpartition("=")
    if not separator or not case_id or not path:
        raise argparse.ArgumentTypeError(f"{text!r}: write CASE=FILE")
    return case_id, Path(path)


def _report(options: argparse.Namespace) -> int:
    refuse_target(options.html, "--html", inputs=options.source)
    from stepguard_lab.html_page import page  # with jinja2, which other commands do not need

    runs = [*read_runs(options.source, options.root, options.baselines)]
    known = {case.verdict.case_id for run in runs for case in run.cases}
    if unknown := [case_id for case_id, _ in options.trace if case_id not in known]:
        raise UsageError(f"--trace: no case {unknown[0]!r} in the report")
    pictures = {case_id: _picture(path) for case_id, path in options.trace}
    put_text(page(runs, _links(options), pictures), options.html, "--html")
    say(
        f"{options.html}: {counted(len(known), 'case')}, {options.html.stat().st_size / 1e6:.2f} MB"
    )
    return 0


def _links(options: argparse.Namespace) -> Repository:
    """Return where links lead. Raises UsageError for an address that is none."""
    own = repository(options.root)
    if options.repository is None:
        return own
    url = pages_of(options.repository)
    if not url:
        raise UsageError(f"--repository {options.repository}: give an https address")
    return Repository(url, own.prefix)


def _picture(path: Path) -> str:
    """Return the timeline of the first rank's trace, as SVG. Raises UsageError without kernels."""
    traces = read_files([path])
    if not has_kernels(traces):
        raise UsageError(f"--trace {path}: it has no kernel of a GPU, so no timeline is drawn")
    ranks = analysed(traces, usual_classes())
    source, analysis = ranks[min(ranks)]
    return timeline(analysis, source.name)
