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
    complain,
    folder_option,
    named_files,
    say,
    verdict_today,
    wanted_evidence,
)
from stepguard.evidence import Evidence
from stepguard.git.resolve import TreeError, has_commit, known_commit, main_branch
from stepguard.git.revision import current
from stepguard.judge.acceptance import has_words, moved_together
from stepguard.metrics import JUDGED_TIME
from stepguard.report.commands import Commands
from stepguard.report.stored.recorded import accepted_line, moves
from stepguard.storage import baselines as baseline
from stepguard.storage.accept import Refused, accept
from stepguard.storage.json_file import FileError
from stepguard.storage.runs import Store, evidence_files, read_evidence
from stepguard.text import printable
from stepguard.worker.interpreter import as_typed


def add_command(commands: Any, root: Path) -> None:
    text = "make the last run's evidence a recording"
    command = add_parser(commands, root, "accept", _accept, text)
    add_evidence(command, "every case of that run")
    command.add_argument("--reason", default="", help="why a new level is right")


def _accept(options: argparse.Namespace) -> int:
    refused = 0
    for path, evidence in wanted_evidence(options, named_files(options)[0]):
        try:
            # In the loop: one case that is refused does not stop the others.
            _refuse_older(path, evidence, options)
            _refuse_foreign(path, evidence, options)
            _refuse_together(path, evidence, options)
            target = baseline.path_of(options.baselines, evidence)
            done = accept(target, evidence, options.reason, where=folder_option(options))
            say(accepted_line(done, Commands(Path.cwd())), *moves(done))
        except FileError as error:
            complain(error)
            refused += 1
    return 1 if refused else 0


def _refuse_older(path: Path, evidence: Evidence, options: argparse.Namespace) -> None:
    """Raise Refused for evidence of an older run if it is of another commit than HEAD: what the
    last run measured may have left none, and an older one was not meant. A path names it.
    """
    last = not options.case and Store(options.root).is_newest(path)
    # That of a dirty tree is refused below, named or not: there, with what mends it.
    if options.evidence or last or evidence.of_no_commit:
        return
    head = current(options.root, options.baselines).commit
    if head and evidence.commit != head:
        raise Refused(
            f"{evidence.case_id}: not recorded, its newest evidence ({evidence.date}) is of commit "
            f"{evidence.commit[:12] or 'none'}, HEAD is {head[:12]}; measure again, or, if it is "
            f"that one you mean: --evidence {shlex.quote(os.path.relpath(path))}"
        )


def _refuse_foreign(path: Path, evidence: Evidence, options: argparse.Namespace) -> None:
    """Raise Refused for evidence that this checkout did not measure, unless the main branch has its
    commit: a level is confirmed by that commit, so it has to stay, and to be what was reviewed.
    """
    if not options.evidence or path.resolve().is_relative_to(Store(options.root).runs.resolve()):
        return
    front = f"{evidence.case_id}: not recorded, its commit {printable(evidence.commit)[:12]}"
    commit = known_commit(options.root, evidence.commit)
    if not commit:
        raise Refused(f"{front} is not in this repository: git fetch origin")
    try:
        main = main_branch(options.root)
    except TreeError as error:
        raise Refused(f"{front} cannot be looked for: {error}") from None
    if not has_commit(options.root, main.tip, commit):
        raise Refused(f"{front} is not on {main.name}: accept what a run of {main.name} measured")


def _refuse_together(path: Path, evidence: Evidence, options: argparse.Namespace) -> None:
    """Raise Refused for a time out of a run in which all times moved alike, without a reason."""
    if has_words(options.reason) or JUDGED_TIME not in evidence.gates:
        return
    beside = [read_evidence(one) for one in {path, *evidence_files(path.parents[1])}]
    # A folder may hold what another run left.
    this = evidence.commit, evidence.command
    run = [one for one in beside if (one.commit, one.command) == this]
    verdicts = [verdict_today(one, options.baselines) for one in run]
    if problem := moved_together(verdicts, as_typed(f"stepguard accept{folder_option(options)}")):
        raise Refused(f"{evidence.case_id}: not recorded, {problem}")
