"""The command bencher: a run's figures in Bencher's own format.

    python -m stepguard bencher perf.json > figures.json
    bencher run --adapter json --file figures.json

Each metric is a measure under its own name; a step time has its fastest and slowest launch.
"""

import argparse
from pathlib import Path
from typing import Any

from stepguard.cli.common import say
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.run_document import ResultDocument, RunDocument
from stepguard.report.document_json import as_json
from stepguard.storage.run_document_file import load_document


def add_command(commands: Any, root: Path) -> None:
    command = commands.add_parser("bencher", help="print a run's figures in Bencher's format")
    command.add_argument("document", metavar="FILE", type=Path, help="what --perf-json wrote")
    command.set_defaults(call=_bencher, root=root)


def _bencher(options: argparse.Namespace) -> int:
    figures = measures(load_document(options.document))
    if not figures:
        raise ValueError(f"{options.document}: nothing was measured; see its problems")
    say(*as_json(figures).splitlines())
    return 0


def measures(document: RunDocument) -> dict[str, dict[str, dict[str, float]]]:
    """Return the figures of each case by metric, without cases whose measurement failed."""
    return {result.case: _of_case(result) for result in document.results if result.metrics}


def _of_case(result: ResultDocument) -> dict[str, dict[str, float]]:
    figures = {metric: {"value": value} for metric, value in result.metrics.items()}
    if JUDGED_TIME in figures and result.launches:
        times_ms = [launch.step_ms for launch in result.launches]
        figures[JUDGED_TIME] |= {"lower_value": min(times_ms), "upper_value": max(times_ms)}
    return figures
