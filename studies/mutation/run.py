"""Plant the faults of faults.json, one at a time, and see which test catches each.

    python -m studies.mutation.run --tree before --out results_before.json
    python -m studies.mutation.run --tree after --out results_after.json --only judge-3

A fault is committed in a temporary clone, its test files run there with the interpreter of this
process until one test fails, and the clone is set back. First of all the test files must pass
without a fault. Both trees are commits that faults.json names. A
run that was interrupted goes on where it stopped if it is given the same --out.

Do not run it beside a measurement. Prints a line per fault; the result is one JSON document.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from studies.common.clones import clone_head, commit_all
from studies.common.results import Document, command_line

FAULTS = Path(__file__).with_name("faults.json")
LIMIT_S = 1800.0  # for the test files of one fault: a fault may well make a loop endless
_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)


def git(tree: Path, *arguments: str) -> str:
    """Run git in a tree and return what it prints."""
    found = subprocess.run(["git", *arguments], cwd=tree, check=True, capture_output=True)
    return found.stdout.decode().strip()


def plant(tree: Path, fault: dict[str, Any]) -> None:
    """Put the fault into its file. Raises SystemExit unless the line is there exactly once."""
    path = tree / fault["file"]
    lines = path.read_text().split("\n")
    if (times := lines.count(fault["line"])) != 1:
        raise SystemExit(f"{fault['file']}: {times} lines are {fault['line']!r}, one is needed")
    lines[lines.index(fault["line"])] = fault["replacement"]
    path.write_text("\n".join(lines))


def failing_test(tree: Path, files: list[str]) -> str:
    """Run test files until a test fails; return its id, or the empty string if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *files]
    try:
        ran = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return f"a test that did not end within {LIMIT_S:.0f} s"
    if ran.returncode == 0:
        return ""
    found = _FAILED.search(ran.stdout)
    if ran.returncode not in (1, 2) or found is None:  # a wrong option, no such file, no test
        raise SystemExit(f"{' '.join(command)}: exit {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return found[1]


def outcome(tree: Path, fault: dict[str, Any]) -> dict[str, Any]:
    """Plant a fault, run its tests and set the tree back."""
    began = time.monotonic()
    commit = git(tree, "rev-parse", "HEAD")
    plant(tree, fault)
    commit_all(tree, "a fault")  # committed: tests may clone the tree
    try:
        caught_by = failing_test(tree, fault["tests"])
    finally:
        git(tree, "reset", "-q", "--hard", commit)
    seconds = round(time.monotonic() - began, 1)
    return {"caught": bool(caught_by), "by": caught_by, "seconds": seconds}


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tree", choices=("before", "after"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", metavar="ID", help="one fault, run again even if it is in --out")
    options = parser.parse_args()
    listed = json.loads(FAULTS.read_text())
    faults = {one["id"]: one[options.tree] for one in listed["faults"]}
    if options.only and options.only not in faults:
        parser.error(f"no fault {options.only!r}; there are: {', '.join(faults)}")
    with tempfile.TemporaryDirectory() as folder:
        tree = clone_head(Path(folder) / "tree")
        git(tree, "checkout", "-q", listed[f"{options.tree}_commit"])
        commit = git(tree, "rev-parse", "HEAD")
        known = json.loads(options.out.read_text()) if options.out.exists() else {}
        if known and known["commit"] != commit:
            raise SystemExit(f"{options.out} is of commit {known['commit']}, the tree of {commit}")
        results = known.get("faults", {})
        document = Document(options.out, {"command": command_line(), "commit": commit})
        document.update(faults=results)
        wanted = [options.only] if options.only else [one for one in faults if one not in results]
        files = sorted({file for one in wanted for file in faults[one]["tests"]})
        print(f"without a fault: {len(files)} test files", flush=True)
        if files and (failed := failing_test(tree, files)):
            raise SystemExit(f"{failed} fails without a fault")
        for left, one in reversed(list(enumerate(reversed(wanted)))):
            results[one] = outcome(tree, faults[one])
            document.update(faults=results)
            found = results[one]
            said = f"caught by {found['by']}" if found["caught"] else "SURVIVED"
            print(f"{one}: {said} ({found['seconds']} s), {left} left", flush=True)


if __name__ == "__main__":
    main()
