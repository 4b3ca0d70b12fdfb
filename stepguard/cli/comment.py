"""The command comment: a run's document as a pull request's comment, and as a check run.

python -m stepguard comment perf.json --run 1234567890
python -m stepguard comment perf.json --run 123 --check check.json --head HASH
"""

import argparse
import re
from pathlib import Path
from typing import Any

from stepguard.cli.common import UsageError, add_parser, put_text, say
from stepguard.report import github
from stepguard.report.document_json import as_json
from stepguard.storage.json_file import FileError
from stepguard.storage.run_document_file import load_document


def add_command(commands: Any, root: Path) -> None:
    command = add_parser(commands, root, "comment", _comment, "print a pull request's comment")
    command.add_argument("document", metavar="FILE", type=Path, help="what --perf-json wrote")
    command.add_argument("--run", metavar="ID", type=int, required=True, help="of GitHub Actions")
    text = "write the requests of a check run, in their order"
    command.add_argument("--check", metavar="PATH", type=Path, help=text)
    command.add_argument("--head", metavar="HASH", help="the commit that the check run is of")


def _comment(options: argparse.Namespace) -> int:
    run_id, head = str(options.run), options.head or ""
    if options.check and not re.fullmatch("[0-9a-f]{40,64}", head):
        raise UsageError(f"--head {head!r}: --check needs the whole hash of a commit")
    try:
        document = load_document(options.document)
        text = github.comment(document, run_id)
        bodies = list(github.check_run(document, head))
    except FileError as error:
        text = github.no_document(str(error), run_id)
        bodies = [github.unread_check_run(head, str(error))]
    if options.check:
        put_text(as_json(bodies), options.check, "--check")
    say(*text.splitlines())
    return 0
