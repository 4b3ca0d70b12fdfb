"""The command comment: a run's document as the comment of a pull request.

python -m stepguard comment perf.json --run 1234567890 --conclusion failure
"""

import argparse
from pathlib import Path
from typing import Any

from stepguard.cli.common import add_parser, say
from stepguard.report import comment_and_annotations
from stepguard.storage.json_file import FileError
from stepguard.storage.run_document_file import load_document


def add_command(commands: Any, root: Path) -> None:
    command = add_parser(commands, root, "comment", _comment, "print a pull request's comment")
    command.add_argument("document", metavar="FILE", type=Path, help="what --perf-json wrote")
    command.add_argument("--run", metavar="ID", type=int, required=True, help="of GitHub Actions")
    command.add_argument("--conclusion", default="success", help="of that run, the gate included")


def _comment(options: argparse.Namespace) -> int:
    run_id = str(options.run)
    try:
        text = comment_and_annotations.comment(
            load_document(options.document), run_id, options.conclusion
        )
    except FileError as error:
        text = comment_and_annotations.no_document(str(error), run_id)
    say(*text.splitlines())
    return 0
