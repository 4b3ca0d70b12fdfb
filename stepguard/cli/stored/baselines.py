"""The command baselines: list or show what is recorded, or remove a case that is gone.

python -m stepguard baselines show 'train_step[124m-bf16]'
python -m stepguard baselines prune 'train_step[124m-bf16]'
"""

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec

from stepguard.cli.common import UsageError, add_parser, say
from stepguard.report.stored import recorded
from stepguard.storage import baselines as baseline
from stepguard.text import meant, printable_document
from stepguard.worker.interpreter import as_typed


def add_command(commands: Any, root: Path) -> None:
    """Add its parser."""
    command = add_parser(commands, root, "baselines", _baselines, "what is recorded")
    command.add_argument("action", choices=("list", "show", "prune"))
    command.add_argument("case", nargs="?", metavar="CASE")
    command.add_argument("--json", action="store_true", help="show: one JSON document")


def _baselines(options: argparse.Namespace) -> int:
    """Print a table of the cases of each file; ``show`` has the recordings of each case."""
    folder = options.baselines
    paths = baseline.files(folder)
    if not paths:
        record = as_typed("pytest perf_tests --perf-update")
        raise ValueError(f"{folder}: no baseline file; record one: {record}")
    if options.json and options.action == "list":
        raise UsageError("baselines list --json: only show has a document")
    recorded_cases = [
        (path, case_id, entry)
        for path in paths
        if (content := baseline.load(path)) is not None
        for case_id, entry in sorted(content.cases.items())
    ]
    found = [one for one in recorded_cases if options.case in (None, one[1])]
    if options.case and not found:
        hint = meant(options.case, {case_id for _, case_id, _ in recorded_cases})
        hint += f"; what has: {as_typed('stepguard baselines list')}"
        raise ValueError(f"{folder} has no baseline of {options.case!r}{hint}")
    if options.action == "prune":
        if not options.case:
            raise UsageError("baselines prune: name the case whose recordings go")
        for path, case_id, _ in found:
            baseline.remove(path, case_id)
            say(f"{case_id}: removed from {path}; commit it")
        return 0
    if options.action == "show" and options.json:
        document: dict[str, dict[str, Any]] = {}
        for path, case_id, entry in found:
            document.setdefault(path.name, {})[case_id] = msgspec.to_builtins(entry)
        say(*json.dumps(printable_document(document), indent=1, sort_keys=True).splitlines())
        return 0
    if options.action == "list":
        for path in paths:
            cases = {case_id: entry for at, case_id, entry in found if at == path}
            if cases or not options.case:
                say(path.name, *(recorded.listing(cases) if cases else ["no case"]))
        return 0
    for path, case_id, entry in found:
        say(f"{path.name}  {case_id}", *recorded.lines(entry))
    return 0
