"""The commands about baselines: accept, judge, baselines."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from stepguard import explain
from stepguard.acceptance import moved_together
from stepguard.evidence import Evidence, from_json
from stepguard.host import baseline
from stepguard.host.accept import Refused, accept
from stepguard.host.baseline import BaselineError
from stepguard.host.store import Store
from stepguard.judge import judge
from stepguard.metrics import METRICS
from stepguard.report import documents, shell, table
from stepguard.verdict import Status, Verdict


def add_commands(commands: Any, root: Path) -> None:
    """Their parsers; ``commands`` is what argparse's add_subparsers() gave."""
    accept = commands.add_parser("accept", help="make the last run's evidence a recording")
    accept.add_argument("case", nargs="*", metavar="CASE", help="default: every case of that run")
    accept.add_argument("--reason", default="", help="why a new level is right")
    accept.set_defaults(call=_accept)
    again = commands.add_parser("judge", help="judge kept evidence against the baselines again")
    again.add_argument(
        "case", nargs="*", metavar="CASE", help="default: every case of the last run"
    )
    again.add_argument("--json", metavar="PATH", help="write the verdicts as one JSON document")
    again.set_defaults(call=_judge)
    shown = commands.add_parser("baselines", help="what is recorded")
    shown.add_argument("action", choices=("list", "show"))
    shown.add_argument("case", nargs="?", metavar="CASE")
    shown.set_defaults(call=_baselines)
    for command in (accept, again):
        command.add_argument(
            "--evidence", metavar="PATH", help="a file or folder, e.g. of a CI run"
        )
    folder = Path(os.path.relpath(root / "baselines"))
    for command in (accept, again, shown):
        command.add_argument("--baselines", type=Path, default=folder, metavar="DIR")
        command.set_defaults(root=root)


def _accept(options: argparse.Namespace) -> int:
    refused = 0
    for path, evidence in _wanted(options):
        try:
            _refuse_together(path, evidence, options)
            target = baseline.path_of(options.baselines, evidence)
            print(accept(target, evidence, options.reason))
        except BaselineError as error:
            print(f"stepguard: {error}", file=sys.stderr)
            refused += 1
    return 1 if refused else 0


def _refuse_together(path: Path, evidence: Evidence, options: argparse.Namespace) -> None:
    """Raise Refused for a time out of a run in which all times moved alike, without a reason."""
    timed = any(METRICS[name].kind == "time" for name in evidence.gates)
    if options.reason.strip(" .'\"") or not timed:
        return
    run = [from_json(p.read_bytes(), str(p)) for p in Store.of_the_same_run(path)]
    if problem := moved_together([_verdict(one, options.baselines) for one in run]):
        raise Refused(f"{evidence.case_id}: not recorded, {problem}")


def _verdict(evidence: Evidence, folder: Path) -> Verdict:
    """What today's baseline says of the evidence."""
    path = baseline.path_of(folder, evidence)
    content = baseline.load_for(path, baseline.machine_of(evidence))
    return judge(evidence, content.cases.get(evidence.case_id) if content else None)


def _judge(options: argparse.Namespace) -> int:
    """The verdicts that kept evidence gets from today's baselines; nothing is measured."""
    shell.refuse_target(options.json)
    verdicts = []
    for _, evidence in _wanted(options):
        path = baseline.path_of(options.baselines, evidence)
        verdicts.append(_verdict(evidence, options.baselines))
        commit = evidence.commit[:10] or "no commit"
        print(f"{evidence.case_id}: measured {evidence.date} on {commit}, {path.name}")
    for text, _ in table.lines(table.rows(verdicts)):
        print(text)
    for verdict in verdicts:
        if verdict.status is not Status.SAME:
            print("\n".join([explain.headline(verdict), *explain.evidence_lines(verdict)]))
    shell.put_json([documents.verdict_document(verdict) for verdict in verdicts], options.json)
    return 0 if all(verdict.status.outcome == "passed" for verdict in verdicts) else 1


def _wanted(options: argparse.Namespace) -> list[tuple[Path, Evidence]]:
    """The evidence that is meant, with its files: a case may be there from several machines.

    Raises ValueError when there is none, or a case is unknown.
    """
    if options.evidence:
        path = Path(options.evidence)
        paths = sorted(path.rglob("evidence.json")) if path.is_dir() else [path]
        source = str(path)
    else:
        store = Store(options.root)
        paths = list(store.newest().values()) if options.case else store.last_run()
        source = str(store.runs)
    try:
        found = [(path, from_json(path.read_bytes(), str(path))) for path in paths]
    except OSError as error:
        raise ValueError(f"{error.filename}: {error.strerror}") from None
    if not found:
        here = "the last run left no evidence; measure: pytest perf_tests"
        there = "no evidence.json is below it"
        raise ValueError(f"{source}: {there if options.evidence else here}")
    known = {evidence.case_id for _, evidence in found}
    for case_id in options.case:
        if case_id not in known:
            has = ", ".join(sorted(known))
            raise ValueError(f"no evidence of {case_id!r} in {source}; it has: {has}")
    return [item for item in found if item[1].case_id in (options.case or known)]


def _baselines(options: argparse.Namespace) -> int:
    folder = options.baselines
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise ValueError(f"{folder}: no baseline file; record one: pytest perf_tests --perf-update")
    shown = 0
    for path in paths:
        content = baseline.load(path)
        for case_id, entry in sorted(content.cases.items()) if content else ():
            if options.case not in (None, case_id):
                continue
            shown += 1
            print(shell.recorded(path, case_id, entry))
            if options.action == "show":
                print(json.dumps(baseline.as_builtins(entry), indent=1, sort_keys=True))
    if options.case and not shown:
        raise ValueError(f"{folder} has no baseline of {options.case!r}")
    return 0
