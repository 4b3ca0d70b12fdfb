"""The command accept: make kept evidence a recording.

python -m stepguard accept 'train_step[124m-bf16]' --reason 'fused the loss'
"""

import argparse
import os
import shlex
from pathlib import Path
from typing import Any

from stepguard.cli.common import (
    add_evidence,
    add_parser,
    commands_of,
    complain,
    say,
    verdict_of_run,
    wanted_evidence,
)
from stepguard.core.evidence import Evidence
from stepguard.core.text import printable, short_hash
from stepguard.machine.git.resolve import TreeError, has_commit, known_commit, main_branch
from stepguard.machine.git.revision import current, no_commit
from stepguard.report.metric_list import accepted_line, moves
from stepguard.report.metric_notes import of_waivers
from stepguard.storage import baseline_files as baseline
from stepguard.storage.accept_recording import accept
from stepguard.storage.json_file import FileError
from stepguard.storage.kept_runs import Store


def add_command(commands: Any, root: Path) -> None:
    text = "make the last run's evidence a recording"
    command = add_parser(commands, root, "accept", accept_evidence, text)
    add_evidence(command, "every case of that run")
    command.add_argument("--reason", default="", help="why a new level is right")


def accept_evidence(options: argparse.Namespace) -> int:
    """Record the evidence that the options name. Return the exit status."""
    refused, commands = 0, commands_of(options)
    waivers = baseline.load_waivers(options.baselines, baseline.today())
    for path, evidence in wanted_evidence(options)[0]:
        problem = (
            _without_git(evidence, options)
            or _older(path, evidence, options)
            or _foreign(path, evidence, options)
        )
        try:
            if not problem:
                target = baseline.path_of(options.baselines, evidence)
                done = accept(target, evidence, options.reason, where=commands.in_folder())
                say(accepted_line(done, commands), *moves(done))
                # Judged by the new level, under which a waiver may no longer be needed.
                verdict = verdict_of_run(evidence, None, options.baselines, waivers)
                say(*(f"{evidence.case_id}: {text}" for text in of_waivers(verdict, commands)))
        except FileError as error:
            problem = str(error)
        if problem:  # it does not stop the others
            complain(problem)
            refused += 1
    return 1 if refused else 0


def _without_git(evidence: Evidence, options: argparse.Namespace) -> str:
    """Refuse evidence without a commit if the tree still has none; say why."""
    if not evidence.commit and (why := no_commit(options.root)):
        return f"{evidence.case_id}: not recorded, {why}; then measure again"
    return ""


def _older(path: Path, evidence: Evidence, options: argparse.Namespace) -> str:
    """Refuse evidence of an older run and of another commit than HEAD: the user may expect evidence
    of the last run, which left none of this case. Evidence that the user names by its path is
    accepted.
    """
    last = not options.case and Store(options.root).is_newest(path)
    # accept() refuses evidence of a dirty tree, named or not, and says what mends it.
    if options.evidence or last or evidence.of_no_commit:
        return ""
    head = current(options.root, options.baselines).commit
    if not head or evidence.commit == head:
        return ""
    return (
        f"{evidence.case_id}: not recorded, its newest evidence ({evidence.date}) is of commit "
        f"{short_hash(evidence.commit) or 'none'}, HEAD is {short_hash(head)}; measure again, "
        f"or, if you mean that one: --evidence {shlex.quote(os.path.relpath(path))}"
    )


def _foreign(path: Path, evidence: Evidence, options: argparse.Namespace) -> str:
    """Refuse evidence that this checkout did not measure, unless the main branch has its commit.
    Later alarms measure that commit again, so it must be reviewed and must not disappear.
    """
    if not options.evidence or path.resolve().is_relative_to(Store(options.root).runs.resolve()):
        return ""
    front = f"{evidence.case_id}: not recorded, its commit {short_hash(printable(evidence.commit))}"
    commit = known_commit(options.root, evidence.commit)
    if not commit:
        return f"{front} is not in this repository: git fetch origin"
    try:
        main = main_branch(options.root)
    except TreeError as error:
        return f"{front} cannot be looked for: {error}"
    if not has_commit(options.root, main.tip, commit):
        return f"{front} is not on {main.name}: accept what a run of {main.name} measured"
    return ""
