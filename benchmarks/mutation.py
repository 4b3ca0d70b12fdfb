"""Do the tests notice a single wrong line? Faults are drawn by a seed and planted one at a time.

    python -m benchmarks.mutation stepguard/judge --tests tests/judge --faults 12 --out judge.json
    python -m benchmarks.mutation stepguard/storage --list          # the order of the candidates

The seed shuffles the faults of each kind (single_line_faults.py), and one of each kind is taken in
each round, no function twice. A fault is committed in a clone of HEAD, and the tests run there
until one fails. A fault that survives is a hole in the tests, or makes no difference: somebody has
to look. A run that was interrupted goes on if it is given the same --out. Do not run it beside a
measurement. The exit status is 1 if a fault survived.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.shared import ROOT, Document, about, clone_head, commit_all, git
from benchmarks.single_line_faults import Candidate, draw

SEED = 15
LIMIT_S = 1800.0  # for the tests of one fault: a fault may well make a loop endless
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)

_CONFTEST = re.compile(r"^ImportError while loading (conftest .+)\.$", re.MULTILINE)


def plant(tree: Path, fault: Candidate) -> None:
    """Put the fault into its file. Raises ValueError where its line is another one."""
    path = tree / fault.file
    lines = path.read_text().split("\n")
    if lines[fault.number - 1] != fault.line:
        raise ValueError(
            f"{path}:{fault.number} is {lines[fault.number - 1]!r}, not {fault.line!r}"
        )
    lines[fault.number - 1] = fault.replacement
    path.write_text("\n".join(lines))


def failing_test(tree: Path, tests: Sequence[str]) -> str:
    """Run tests until one fails; return its id, or the empty string if all pass.

    No bytecode is written: Python takes it for up to date where size and second are the same, and
    the next fault would run as the last one.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    how: dict[str, Any] = {"cwd": tree, "env": os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}}
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, **how)
    except subprocess.TimeoutExpired:
        return f"a test that did not end within {LIMIT_S:.0f} s"
    if ran.returncode == 0:
        return ""
    # A fault in what a conftest imports ends pytest before it has a test.
    if broken := _CONFTEST.search(ran.stderr):
        return broken[1]
    found = _FAILED.findall(ran.stdout)
    if ran.returncode not in (1, 2) or not found:  # a wrong option, no such file, no test
        raise SystemExit(f"{' '.join(command)}: exit {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return str(found[-1])  # a failed test may have run pytest, whose output comes before


def outcome(tree: Path, fault: Candidate, tests: Sequence[str]) -> dict[str, Any]:
    """Plant a fault, run the tests and set the tree back."""
    began, commit = time.monotonic(), git(tree, "rev-parse", "HEAD")
    plant(tree, fault)
    commit_all(tree, "a fault")  # committed: tests may clone the tree
    try:
        caught_by = failing_test(tree, tests)
    finally:
        git(tree, "reset", "-q", "--hard", commit)
    return asdict(fault) | {"by": caught_by, "seconds": round(time.monotonic() - began, 1)}


def main() -> int:
    """Draw, plant and judge; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", help="of the modules, from the root of the repository")
    parser.add_argument("--tests", nargs="+", default=[], help="files or folders of tests")
    parser.add_argument("--faults", type=int, default=10, help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=SEED, help="(%(default)s)")
    parser.add_argument("--list", action="store_true", help="print the candidates in their order")
    parser.add_argument("--out", type=Path, help="result file")
    options = parser.parse_args()
    if options.list:
        drawn = draw(ROOT, options.folder, options.seed)
        print(json.dumps([asdict(one) for one in drawn], indent=1))
        return 0
    if not options.tests or not options.out:
        parser.error("--tests and --out are needed")
    how = {"folder": options.folder, "seed": options.seed, "tests": options.tests}
    fresh = about() | how
    known = json.loads(options.out.read_text()) if options.out.exists() else fresh
    if other := [key for key in ("commit", *how) if known[key] != fresh[key]]:
        parser.error(f"{options.out} has another {other[0]}: {known[other[0]]}")
    results, document = known.get("faults", []), Document(options.out, known)
    with tempfile.TemporaryDirectory() as folder:
        tree = clone_head(Path(folder) / "tree")
        drawn = draw(tree, options.folder, options.seed)
        if not drawn:
            parser.error(f"{options.folder}: no fault can be planted there")
        wanted = drawn[len(results) : options.faults]
        if wanted and (failed := failing_test(tree, options.tests)):
            raise SystemExit(f"{failed} fails without a fault")
        for fault in wanted:
            results.append(outcome(tree, fault, options.tests))
            document.update(faults=results)
            said = results[-1]["by"] or "SURVIVED"
            print(f"{fault.kind} {fault.file}:{fault.number} {said}", flush=True)
    survived = sum(not one["by"] for one in results)
    print(f"{len(results) - survived} of {len(results)} caught")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
