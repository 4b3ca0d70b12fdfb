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
from stepguard.core.baseline import Entry
from stepguard.core.text import counted, meant, printable_document
from stepguard.machine.interpreter import as_typed
from stepguard.report import metric_list
from stepguard.storage import baseline_files as baseline
from stepguard.storage.json_file import restore


def add_command(commands: Any, root: Path) -> None:
    command = add_parser(commands, root, "baselines", _baselines, "what is recorded")
    command.add_argument("action", choices=("list", "show", "prune"))
    command.add_argument("case", nargs="?", metavar="CASE")
    command.add_argument("--json", action="store_true", help="show: one JSON document")


def _baselines(options: argparse.Namespace) -> int:
    """List the cases of each file, show the recordings of cases, or remove those of one case."""
    action, files = options.action, _found(options)
    if options.json and action != "show":
        raise UsageError(f"baselines {action} --json: only show has a document")
    if action == "prune" and not options.case:
        raise UsageError("baselines prune: name the case whose recordings go")
    for path, cases in files.items():
        if action == "list" and (cases or not options.case):
            say(path.name, *(metric_list.listing(cases) if cases else ["no case"]))
        for case_id, entry in cases.items():
            if action == "prune":
                count = counted(sum(len(epoch.recordings) for epoch in entry.epochs), "recording")
                baseline.remove(path, case_id)
                say(f"{case_id}: {count} removed from {path}; commit it, or {restore(path)}")
            elif action == "show" and not options.json:
                say(f"{path.name}  {case_id}", *metric_list.lines(entry))
    if options.json:
        document = {path.name: msgspec.to_builtins(cases) for path, cases in files.items() if cases}
        say(*json.dumps(printable_document(document), indent=1, sort_keys=True).splitlines())
    return 0


def _found(options: argparse.Namespace) -> dict[Path, dict[str, Entry]]:
    """Return the recorded entries of the case, or of all cases, by file. Raises ValueError if there
    are none.
    """
    folder, case = options.baselines, options.case
    contents = {path: baseline.load(path) for path in baseline.files(folder)}
    if not contents:
        record = as_typed("pytest perf_tests --perf-update")
        raise ValueError(f"{folder}: no baseline file; record one: {record}")
    known = {path: content.cases for path, content in contents.items() if content}
    if case and not any(case in cases for cases in known.values()):
        hint = meant(case, {name for cases in known.values() for name in cases})
        hint += f"; what has: {as_typed('stepguard baselines list')}"
        raise ValueError(f"{folder} has no baseline of {case!r}{hint}")
    return {
        path: {name: cases[name] for name in sorted(cases) if case in (None, name)}
        for path, cases in known.items()
    }
