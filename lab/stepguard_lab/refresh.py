"""The command refresh: after a new torch or driver, measure anew, see what moved, and record it.

    python -m stepguard refresh --reason 'torch 2.13, driver 580'
    python -m stepguard refresh --reason 'torch 2.13' perf_tests/test_ddp.py

Run it once on each kind of machine, on a clean commit of main. It runs pytest on all cases, records
what they measured under the new software, and shows old -> new with the kernels. It commits
nothing.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepguard.cli.accept import accept_evidence
from stepguard.cli.common import UsageError, add_parser, say
from stepguard.core.reason_sentences import uncommitted
from stepguard.core.text import has_words
from stepguard.machine.git.revision import current, no_commit
from stepguard.plugin.baseline_folder import changes
from stepguard.storage import baseline_files as baseline
from stepguard.storage.kept_runs import Store
from stepguard_lab.compare import lines_of, side_of

# pytest's exit status of a complete run. It is 1 after an error, which new software is for a case.
MEASURED = (0, 1)


def add_command(commands: Any, root: Path) -> None:
    text = "measure and record anew after a new torch or driver, and show what moved"
    command = add_parser(commands, root, "refresh", _refresh, text)
    command.add_argument("tests", nargs="*", metavar="PATH", help="for pytest (perf_tests)")
    command.add_argument("--reason", required=True, help="what is new; of each level that changes")


def _refresh(options: argparse.Namespace) -> int:
    root, folder = options.root, options.baselines
    if not has_words(options.reason):
        raise UsageError(f"--reason {options.reason!r}: write a line of words")
    # Everything that can be refused at once is refused before an hour on a GPU.
    if problem := no_commit(root) or uncommitted(current(root, folder).dirty):
        raise ValueError(f"nothing can be recorded: {problem}")
    with tempfile.TemporaryDirectory(prefix="stepguard-") as kept:
        before = Path(kept, "before")
        before.mkdir()
        if folder.is_dir():  # with the waivers
            shutil.copytree(folder, before, dirs_exist_ok=True)
        _measure(options)
        accepting = argparse.Namespace(**vars(options), case=[], evidence=None)
        status = accept_evidence(accepting)
        moved = [path for path in baseline.files(folder) if _differs(path, before / path.name)]
        say("", *(f"  {line}" for line in changes(before, folder)))
        for path in moved:
            _show(before / path.name, path)
    if moved:
        named = shlex.join(os.path.relpath(path) for path in moved)
        say("", "Read the diff, then, for this machine alone:")
        say(f"  git add {named} && git commit -m {shlex.quote(f'Baselines: {options.reason}')}")
        say("or take it back:", f"  git restore {named}")
    return status


def _measure(options: argparse.Namespace) -> None:
    """Run pytest on the cases. Raises ValueError if it did not come to its end, or measured
    nothing: evidence of an earlier run must not be recorded.
    """
    store = Store(options.root)
    last = store.last_run()
    command = [sys.executable, "-m", "pytest", *(options.tests or ["perf_tests"])]
    command.append("--perf-no-strict")
    if options.baselines != baseline.usual(options.root):
        command.append(f"--perf-baselines={options.baselines}")
    status = _run(command)
    if status not in MEASURED:
        raise ValueError(f"nothing is recorded: {shlex.join(command)} ended with {status}")
    if store.last_run() == last:
        raise ValueError("nothing is recorded: no case came to a result, see above")


def _run(command: list[str]) -> int:
    return subprocess.run(command, check=False).returncode


def _differs(path: Path, before: Path) -> bool:
    return not before.exists() or path.read_bytes() != before.read_bytes()


def _show(before: Path, now: Path) -> None:
    """Print a file's cases old -> new. A new case has nothing to be compared with."""
    say("", f"{os.path.relpath(now)}:")
    if not before.exists():
        say("  it is new")
        return
    sides = [replace(side_of(path), label=name) for path, name in ((before, "old"), (now, "new"))]
    say(*lines_of(sides))
