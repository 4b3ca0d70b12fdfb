"""The commands about baselines: accept, judge, waive, baselines."""

import argparse
import json
import math
import os
import shlex
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from stepguard import explain
from stepguard.acceptance import moved_together
from stepguard.evidence import Evidence, from_json
from stepguard.host import baseline
from stepguard.host.accept import Refused, accept
from stepguard.host.baseline import BaselineError
from stepguard.host.revision import current, user_name
from stepguard.host.store import Store
from stepguard.host.waivers import BadWaiver, add_waiver, load_waivers, today
from stepguard.judge import judge
from stepguard.metrics import METRICS
from stepguard.report import documents, recorded, shell, table
from stepguard.usage import UsageError
from stepguard.verdict import Status, Verdict
from stepguard.waivers import MAX_DAYS, Waiver, waive


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
    waived = commands.add_parser("waive", help="let a known regression pass for some days")
    waived.add_argument("case", metavar="CASE")
    waived.add_argument("metric", metavar="METRIC")
    waived.add_argument("--reason", required=True, help="why it is borne, and until what happens")
    waived.add_argument("--days", type=int, required=True, metavar="N", help=f"at most {MAX_DAYS}")
    waived.add_argument("--who", help="who answers for it (git's user.name)")
    size = waived.add_mutually_exclusive_group()
    size.add_argument("--limit-pct", type=float, metavar="X", help="a time: most percent")
    size.add_argument("--value", type=int, metavar="N", help="a counter: the most it may be")
    waived.set_defaults(call=_waive)
    shown = commands.add_parser("baselines", help="what is recorded")
    shown.add_argument("action", choices=("list", "show"))
    shown.add_argument("case", nargs="?", metavar="CASE")
    shown.add_argument("--json", action="store_true", help="show: JSON, also on a terminal")
    shown.set_defaults(call=_baselines)
    for command in (accept, again, waived):
        command.add_argument(
            "--evidence", metavar="PATH", help="a file or folder, e.g. of a CI run"
        )
    folder = Path(os.path.relpath(root / "baselines"))
    for command in (accept, again, waived, shown):
        command.add_argument("--baselines", type=Path, default=folder, metavar="DIR")
        command.set_defaults(root=root)


def _accept(options: argparse.Namespace) -> int:
    refused = 0
    for path, evidence in _wanted(options):
        try:
            _refuse_older(path, evidence, options)
            _refuse_together(path, evidence, options)
            target = baseline.path_of(options.baselines, evidence)
            print(accept(target, evidence, options.reason))
        except BaselineError as error:
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
    if options.reason.strip(" .'\"") or not timed:
        return
    beside = [from_json(p.read_bytes(), str(p)) for p in Store.of_the_same_run(path)]
    mark = (evidence.commit, evidence.command)  # a folder may hold what is from elsewhere
    run = [one for one in beside if (one.commit, one.command) == mark]
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
    waivers = load_waivers(options.baselines, today())
    for _, evidence in _wanted(options):
        path = baseline.path_of(options.baselines, evidence)
        found = _verdict(evidence, options.baselines)
        verdicts.append(waive(found, evidence, waivers, today()))
        commit = evidence.commit[:10] or "no commit"
        print(f"{evidence.case_id}: measured {evidence.date} on {commit}, {path.name}")
    for text, _ in table.lines(table.rows(verdicts)):
        print(text)
    for verdict in verdicts:
        if verdict.status is not Status.SAME:
            print("\n".join([explain.headline(verdict), *explain.evidence_lines(verdict)]))
        else:
            for text in verdict.waivers:
                print(f"{verdict.case_id}: waiver {text}")
    shell.put_json([documents.verdict_document(verdict) for verdict in verdicts], options.json)
    return 0 if all(verdict.outcome == "passed" for verdict in verdicts) else 1


def _waive(options: argparse.Namespace) -> int:
    """Write a waiver, by default as large as what was measured last makes necessary."""
    options.case, case_id = [options.case], options.case
    if not 1 <= options.days <= MAX_DAYS:
        raise UsageError(f"--days {options.days}: 1 to {MAX_DAYS}; what lasts longer is accepted")
    metric = METRICS.get(options.metric)
    sized = options.limit_pct is not None or options.value is not None
    if metric is not None and metric.gateable and not sized:
        _size_of_last(options, case_id)
    waiver = Waiver(
        case=case_id,
        metric=options.metric,
        limit_pct=options.limit_pct,
        value=options.value,
        reason=options.reason,
        expires=today() + timedelta(days=options.days),
        who=options.who or user_name(options.root),
    )
    try:
        path = add_waiver(options.baselines, waiver, today())
    except BadWaiver as error:
        raise UsageError(str(error)) from None
    print(f"{case_id}: {waiver.told()}")
    print(f"written to {path}; commit it, so that it holds for everybody")
    return 0


def _size_of_last(options: argparse.Namespace, case_id: str) -> None:
    """Set the size that what was measured last needs. Raises ValueError if it needs none."""
    _, evidence = _wanted(options)[-1]
    verdict = _verdict(evidence, options.baselines)
    found = next((m for m in verdict.metrics if m.metric == options.metric), None)
    failing = found is not None and found.status in (Status.SLOWER, Status.CHANGED)
    if found is None or not failing or verdict.message:
        now = found.status.value if found and not verdict.message else verdict.status.value
        raise ValueError(
            f"{case_id}: nothing to waive, {options.metric} is {now} in what was measured last; "
            "give its size: --limit-pct X or --value N"
        )
    if METRICS[found.metric].kind == "counter" and found.new is not None:
        options.value = round(found.new)
    elif found.change_pct is not None:
        options.limit_pct = math.ceil(2 * found.change_pct + 1) / 2  # at least half a point of room


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
