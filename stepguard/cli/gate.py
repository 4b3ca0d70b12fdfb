"""The command gate: pass or fail, by the document of a run and what the base branch has recorded.

    python -m stepguard gate perf.json --commit "$(git rev-parse HEAD)" --gpus 1

Run it with the code and the baselines of the base branch, where the change cannot reach. In GitHub
Actions it annotates the lines of code that are the cause.
"""

import argparse
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepguard.cli.common import UsageError, add_parser, complain, say
from stepguard.core.permission import Permission
from stepguard.core.run_document import RunDocument
from stepguard.core.text import counted, short_hash
from stepguard.judge.guard import Base, expected, guard
from stepguard.machine.git.resolve import files_at
from stepguard.machine.interpreter import as_typed
from stepguard.report import github
from stepguard.report.metric_notes import described
from stepguard.storage import baseline_files as baseline
from stepguard.storage.json_file import FileError
from stepguard.storage.run_document_file import load_document


def add_command(commands: Any, root: Path) -> None:
    text = "pass or fail, by a run's document and the base branch's baselines"
    command = add_parser(commands, root, "gate", _gate, text)
    command.add_argument("document", metavar="FILE", type=Path, help="what --perf-json wrote")
    command.add_argument(
        "--commit", required=True, help="the commit that must have been measured, in full"
    )
    command.add_argument(
        "--gpus", type=int, default=0, metavar="N", help="how many GPUs must have measured it (0)"
    )
    command.add_argument(
        "--against",
        default="",
        metavar="COMMIT",
        help="the commit that a run with --perf-against may be compared with, in full",
    )
    command.add_argument(
        "--head",
        default="",
        metavar="COMMIT",
        help="the commit whose waivers.json may add waivers, if --commit is a merge of it that "
        "this clone lacks (default: --commit)",
    )


def _gate(options: argparse.Namespace) -> int:
    for name in ("commit", "against", "head"):
        commit, wanted = getattr(options, name), "a commit's hash in full (git rev-parse HEAD)"
        if (commit or name == "commit") and not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
            raise UsageError(f"--{name} {commit!r}: {wanted}; is a variable not set?")
    if options.gpus < 0:
        raise UsageError(f"--gpus {options.gpus}: 0 or more")
    try:
        document = load_document(options.document)
    except FileError as error:
        _annotate([github.error("no document", str(error))])
        raise
    waivers = _waivers(document, options)
    base = Base(
        commit=options.commit,
        gpus=options.gpus,
        recorded=baseline.recorded(options.baselines),
        today=baseline.today(),
        against=options.against,
        permissions=waivers,
    )
    say(*(f"declared here: {one.case} {described(one)}" for one in waivers if one.commit))
    if problems := guard(document, base):
        complain(f"the gate fails, {counted(len(problems), 'problem')}:")
        say(*(f"{problem.code.value}: {problem.sentence}" for problem in problems))
        say(f"what a code means: {as_typed('stepguard explain-code CODE')}")
        _annotate(github.annotations(document, problems, Path.cwd()))
        alone = len(problems) == len(document.failing)  # each such case is one problem
        return 3 if document.undecided and alone else 1  # 3: cases without a verdict, no more
    guarded = counted(len(expected(document, base)), "case")
    statuses = Counter(result.verdict.status.value for result in document.results)
    words = ", ".join(f"{count} {status}" for status, count in statuses.items())
    say(
        f"the gate passes: {guarded}, all that {document.machine} has to measure, "
        f"measured at {short_hash(document.commit)}: {words}"
    )
    return 0


def _waivers(document: RunDocument, options: argparse.Namespace) -> tuple[Permission, ...]:
    """Return the base's waivers, behind those that the measured commit adds. The commit is read
    from git, not from the document, and only if the document says that it adds one: this clone must
    have the commit.
    """
    waivers = baseline.load_waivers(options.baselines, baseline.today())
    outcomes = (one for result in document.results for one in result.verdict.permissions)
    if not any(outcome.permission.commit for outcome in outcomes):
        return waivers
    commit = options.head or options.commit
    text = files_at(Path.cwd(), commit, options.baselines).get(baseline.WAIVERS)
    with tempfile.TemporaryDirectory(prefix="stepguard-") as folder:
        if text is not None:
            Path(folder, baseline.WAIVERS).write_text(text, errors="surrogateescape")
        own = baseline.load_waivers(Path(folder), baseline.today())
        return baseline.declared(own, waivers, commit)


def _annotate(lines: Sequence[str]) -> None:
    # Not by say(), which breaks up such lines.
    if github.in_actions():
        sys.stdout.writelines(f"{line}\n" for line in lines)
