"""The commands about baselines: accept, judge, baselines."""

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from stepguard.cli.usage import UsageError
from stepguard.evidence import Evidence, from_json
from stepguard.git.revision import current
from stepguard.judge.acceptance import has_words, moved_together
from stepguard.judge.screen import judge
from stepguard.judge.waivers import waive
from stepguard.metrics import METRICS
from stepguard.report import documents, recorded, table
from stepguard.report import figures as shell
from stepguard.report import words as explain
from stepguard.report.waivers import sentences
from stepguard.storage import baselines as baseline
from stepguard.storage.accept import Refused, accept
from stepguard.storage.json_file import FileError
from stepguard.storage.runs import Store
from stepguard.storage.waivers import load_waivers, today, unknown
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
    shown.add_argument("--json", action="store_true", help="show: JSON, also on a terminal")
    shown.set_defaults(call=_baselines)
    for command in (accept, again):
        command.add_argument(
            "--evidence", metavar="PATH", help="a file or folder, e.g. of a CI run"
        )
    folder = baseline.usual(root)
    for command in (accept, again, shown):
        command.add_argument("--baselines", type=Path, default=folder, metavar="DIR")
        command.set_defaults(root=root)


def _accept(options: argparse.Namespace) -> int:
    refused = 0
    for path, evidence in _wanted(options):
        try:
            _refuse_older(path, evidence, options)
            _refuse_together(path, evidence, options)
            target = baseline.path_of(options.baselines, evidence)
            print(accept(target, evidence, options.reason, where=folder_option(options)))
        except FileError as error:
            print(f"stepguard: {error}", file=sys.stderr)
            refused += 1
    return 1 if refused else 0


def _refuse_older(path: Path, evidence: Evidence, options: argparse.Namespace) -> None:
    """Raise Refused for a case's newest evidence if it is of another commit than HEAD: what the
    last run measured may have left none, and an older one was not meant. A path names it.
    """
    if options.evidence or not options.case:
        return
    head = current(options.root, options.baselines).commit
    if head and evidence.commit != head:
        raise Refused(
            f"{evidence.case_id}: not recorded, its newest evidence ({evidence.date}) is of commit "
            f"{evidence.commit[:12] or 'none'}, HEAD is {head[:12]}; measure again, or, if it is "
            f"that one you mean: --evidence {shlex.quote(os.path.relpath(path))}"
        )


def _refuse_together(path: Path, evidence: Evidence, options: argparse.Namespace) -> None:
    """Raise Refused for a time out of a run in which all times moved alike, without a reason."""
    timed = any(METRICS[name].kind == "time" for name in evidence.gates)
    if has_words(options.reason) or not timed:
        return
    beside = [from_json(p.read_bytes(), str(p)) for p in Store.of_the_same_run(path)]
    mark = (evidence.commit, evidence.command)  # a folder may hold what is from elsewhere
    run = [one for one in beside if (one.commit, one.command) == mark]
    if problem := moved_together(
        [verdict_today(one, options.baselines) for one in run], folder_option(options)
    ):
        raise Refused(f"{evidence.case_id}: not recorded, {problem}")


def folder_option(options: argparse.Namespace) -> str:
    """How a command is told of the folder that this one was told of."""
    usual = baseline.usual(options.root)
    return explain.in_folder("" if options.baselines == usual else str(options.baselines))


def verdict_today(evidence: Evidence, folder: Path) -> Verdict:
    """What today's baseline says of the evidence."""
    path = baseline.path_of(folder, evidence)
    content = baseline.load_for(path, baseline.machine_of(evidence))
    return judge(evidence, content.cases.get(evidence.case_id) if content else None)


def _judge(options: argparse.Namespace) -> int:
    """The verdicts that kept evidence gets from today's baselines; nothing is measured."""
    shell.refuse_target(options.json)
    verdicts = []
    wanted, waivers = _wanted(options), load_waivers(options.baselines, today())
    known = {evidence.case_id for _, evidence in wanted} | Store(options.root).measured_cases()
    for case_id in unknown(options.baselines, waivers, known):
        where = options.baselines / baseline.WAIVERS
        print(f"stepguard: {where}: no baseline or kept run has {case_id!r}", file=sys.stderr)
    for _, evidence in wanted:
        path = baseline.path_of(options.baselines, evidence)
        found = verdict_today(evidence, options.baselines)
        verdicts.append(waive(found, evidence, waivers, today()))
        commit = evidence.commit[:10] or "no commit"
        print(f"{evidence.case_id}: measured {evidence.date} on {commit}, {path.name}")
    for text, _ in table.lines(table.rows(verdicts)):
        print(text)
    for verdict in verdicts:
        if verdict.status is not Status.SAME:
            print("\n".join([explain.headline(verdict), *explain.evidence_lines(verdict)]))
        else:
            for text in sentences(verdict):
                print(f"{verdict.case_id}: waiver {text}")
    shell.put_json([documents.verdict_document(verdict) for verdict in verdicts], options.json)
    return 0 if all(verdict.outcome == "passed" for verdict in verdicts) else 1


def _wanted(options: argparse.Namespace) -> list[tuple[Path, Evidence]]:
    """The evidence that is meant, with its files: a case may be there from several machines.

    Raises ValueError when there is none, or a case is unknown.
    """
    store = Store(options.root)
    if options.evidence:
        path = Path(options.evidence)
        paths = sorted(path.rglob("evidence.json")) if path.is_dir() else [path]
        source = str(path)
    else:
        paths = list(store.newest().values()) if options.case else store.last_run()
        source = str(store.runs)
    try:
        found = [(path, from_json(path.read_bytes(), str(path))) for path in paths]
    except OSError as error:
        raise ValueError(f"{error.filename}: {error.strerror}") from None
    known = {evidence.case_id for _, evidence in found}
    unknown = [case_id for case_id in options.case if case_id not in known]
    against = "" if options.evidence else store.last_against()
    if against and (unknown or not found):
        raise ValueError(
            f"{source}: the last run judged against {against}, which leaves nothing to accept or "
            "judge again; measure: pytest perf_tests"
        )
    if not found:
        here = "the last run left no evidence; measure: pytest perf_tests"
        there = "no evidence.json is below it"
        raise ValueError(f"{source}: {there if options.evidence else here}")
    if unknown:
        has = ", ".join(sorted(known))
        raise ValueError(f"no evidence of {unknown[0]!r} in {source}; it has: {has}")
    return [item for item in found if item[1].case_id in (options.case or known)]


def _baselines(options: argparse.Namespace) -> int:
    """A line a case; ``show`` adds its epochs, or is one JSON document for whoever reads a pipe."""
    folder = options.baselines
    paths = baseline.files(folder)
    if not paths:
        raise ValueError(f"{folder}: no baseline file; record one: pytest perf_tests --perf-update")
    if options.json and options.action == "list":
        raise UsageError("baselines list --json: only show has a document")
    found = [
        (path, case_id, entry)
        for path in paths
        if (content := baseline.load(path)) is not None
        for case_id, entry in sorted(content.cases.items())
        if options.case in (None, case_id)
    ]
    if options.case and not found:
        raise ValueError(f"{folder} has no baseline of {options.case!r}")
    if options.action == "show" and (options.json or not sys.stdout.isatty()):
        document: dict[str, dict[str, Any]] = {}
        for path, case_id, entry in found:
            document.setdefault(path.name, {})[case_id] = baseline.as_builtins(entry)
        print(json.dumps(document, indent=1, sort_keys=True))
        return 0
    for path, case_id, entry in found:
        print(recorded.line(path, case_id, entry))
        if options.action == "show":
            print("\n".join(recorded.lines(entry)))
    return 0
