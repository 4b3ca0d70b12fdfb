"""Guards one public repository as a new user would, and writes down what happened.

    python studies/unmodified/measure.py NAME --clones DIR --work DIR --out ROW.json

``--clones`` holds a git directory for each repository, OWNER+NAME/repo. For each entry of
repositories.py: export the stated commit, make the data, init, then the refactors and the
planted regressions one after the other, each taken back before the next.
"""

import argparse
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from time import perf_counter

from edits import Change
from repositories import REPOSITORIES, Repository

ENDED = 124  # a command's status, as of timeout
NAMED = re.compile(r"([\w./-]+\.py):(\d+)")
VERDICT = re.compile(
    r"(?:-m )?\S+\[[^\]]+\] .*?\s(same|recorded|NOT COMPARABLE|[A-Z]{4,})\s*$"  # in the table
)


class Limit:
    """When a command is ended: after so many seconds, and where all runs have to be over."""

    each_s = 1500.0
    ends_s = math.inf  # by perf_counter()

    @classmethod
    def left_s(cls) -> float:
        """Return how long a command that starts now may take."""
        return max(0.1, min(cls.each_s, cls.ends_s - perf_counter()))


def run(command: list[str], folder: Path, env: dict[str, str]) -> dict:
    """Run a command; return its status (ENDED if it took too long), its text and its seconds."""
    began = perf_counter()
    started = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # init starts pytest, which would go on
    )
    try:
        text, _ = started.communicate(timeout=Limit.left_s())
        status = started.returncode
    except subprocess.TimeoutExpired:
        os.killpg(started.pid, signal.SIGKILL)
        text, _ = started.communicate()
        status = ENDED
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)
    return {"status": status, "text": text, "s": round(perf_counter() - began, 1)}


def git(folder: Path, *words: str) -> str:
    """Return what git answers in ``folder``."""
    return subprocess.run(
        ["git", *words], cwd=folder, check=True, text=True, stdout=subprocess.PIPE
    ).stdout


def export(entry: Repository, clones: Path, tree: Path) -> list[str]:
    """Write the stated commit's files to ``tree``, a repository of its own; return what a clone
    without large files has not.
    """
    store = clones / entry.repository.replace("/", "+") / "repo"
    listed = [
        line.split("\t", 1)
        for line in git(store, "--git-dir", str(store), "ls-tree", "-r", "-z", entry.commit).split(
            "\0"
        )
        if line
    ]
    blobs = [line[0].split()[2] for line in listed]
    answers = subprocess.run(
        ["git", "--git-dir", str(store), "cat-file", "--batch-check"],
        input="\n".join(blobs),
        text=True,
        capture_output=True,
        check=True,
    ).stdout.splitlines()
    absent = [path for (_, path), answer in zip(listed, answers) if answer.endswith("missing")]
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    packed = subprocess.Popen(
        [
            "git",
            "--git-dir",
            str(store),
            "archive",
            entry.commit,
            "--",
            ".",
            *(f":(exclude){path}" for path in absent),
        ],
        stdout=subprocess.PIPE,
    )
    subprocess.run(["tar", "x", "-C", str(tree)], stdin=packed.stdout, check=True)
    git(tree, "init", "-q", "-b", "main")
    git(tree, "add", "-A", "-f")
    git(tree, "commit", "-q", "-m", f"{entry.repository} {entry.commit}")
    return absent


def first_line(text: str) -> str:
    """Return the line that pytest's report of the case begins with."""
    for line in text.splitlines():
        if re.match(r"(?:-m )?\S+\[[^\]]+\]: [A-Z]", line):
            return line.strip()
    return ""


def verdict(text: str) -> str:
    """Return the verdict in the table of the summary."""
    for line in text.splitlines():
        if match := VERDICT.match(line):
            return match.group(1)
    return ""


def guard(entry: Repository, folder: Path, env: dict[str, str]) -> dict:
    """Run the guarding test; return its verdict and its first line."""
    done = run([entry.python, "-m", "pytest", "perf_tests"], folder, env)
    return {
        "status": done["status"],
        "s": done["s"],
        "verdict": verdict(done["text"]),
        "first_line": first_line(done["text"]),
        "text": done["text"],
    }


def judge(entry: Repository, tree: Path, env: dict[str, str], planned: Change, red: bool) -> dict:
    """Apply a change, run the guard, take the change back."""
    # Edits by line first, from below, so that no line has moved when it is edited.
    for edit in sorted(planned.edits, key=lambda edit: (not edit.line, -edit.line)):
        edit.apply(tree / entry.folder)
    try:
        found = guard(entry, tree / entry.folder, env)
    finally:
        git(tree, "checkout", "-q", "--", ".")
    row = {"what": planned.what, "place": planned.place, **found}
    if red:
        named = NAMED.search(found["first_line"])
        row["names"] = f"{named.group(1)}:{named.group(2)}" if named else ""
        row["names_the_line"] = row["names"] == planned.place
        row["line_in_text"] = planned.place in found["text"]
    row["right"] = found["verdict"] in (("CHANGED", "SLOWER") if red else ("same",))
    return row


def main() -> int:
    """Do all steps for one entry, and write its row."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=sorted(REPOSITORIES))
    parser.add_argument("--clones", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=("export", "init"), help="stop behind this step")
    parser.add_argument("--keep", action="store_true", help="go on in the tree that is there")
    parser.add_argument("--change", help="judge only the changes whose words contain this")
    parser.add_argument("--seconds", type=float, help="all runs together take no longer")
    options = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)
    if options.seconds:
        Limit.ends_s = perf_counter() + options.seconds
    entry = REPOSITORIES[options.name]
    tree = (options.work / options.name).absolute()
    env = {**os.environ, "COLUMNS": "80", "HF_HUB_OFFLINE": "1", "HF_HOME": f"{tree}.hf"}
    row: dict = {
        "name": options.name,
        "repository": entry.repository,
        "commit": entry.commit,
        "command": shlex.join(["init", *entry.options, "--", *entry.command]),
        "in_the_way": list(entry.in_the_way),
    }
    if options.keep and options.out.exists():
        row |= json.loads(options.out.read_text())
    env.update({key: value.format(tree=tree) for key, value in entry.env.items()})
    if not options.keep:
        row["absent_in_the_clone"] = export(entry, options.clones, tree)
        entry.prepare(tree)
        made = git(tree, "status", "--porcelain", "-uall").splitlines()
        row["data_that_git_does_not_ignore"] = [line[3:] for line in made][:8]
        exclude = tree / ".git/info/exclude"
        ignored = [*(f"/{line[3:]}" for line in made), *entry.written, "__pycache__/", ""]
        exclude.write_text("\n".join(ignored))
    if options.only == "export":
        return 0
    folder = tree / entry.folder
    if not (folder / "baselines").is_dir():
        command = [entry.python, "-m", "stepguard", "init", *entry.options, "--"]
        started = run([*command, *(word.format(tree=tree) for word in entry.command)], folder, env)
        row["init"] = started
        print(started["text"], f"init: status {started['status']}, {started['s']} s")
        options.out.write_text(json.dumps(row, indent=1) + "\n")
        if started["status"] or options.only == "init":
            return started["status"]
        git(folder, "add", "baselines")
        git(folder, "commit", "-q", "-m", "The first recording")
    first = git(tree, "rev-list", "--max-parents=0", "HEAD").strip()
    row["changed_files_of_theirs"] = git(
        tree, "diff", "--diff-filter=MD", "--name-only", first, "HEAD"
    ).split()
    both = Change(
        "; ".join(one.what for one in entry.refactors),
        tuple(edit for one in entry.refactors for edit in one.edits),
    )
    # Refactors are judged together, and one by one, at the end, only if that is not `same`.
    planned = [
        ("refactors", both),
        *(("plants", one) for one in entry.plants),
        *(("refactors", one) for one in entry.refactors),
    ]
    for key in ("refactors", "plants"):
        earlier = row.get(key, []) if options.change else []
        row[key] = [run for run in earlier if options.change not in run["what"]]
    for key, change in planned:
        if options.change and options.change not in change.what:
            continue
        if key == "refactors" and row[key] and row[key][0]["right"]:
            continue
        last = judge(entry, tree, env, change, key == "plants")
        if last["status"] == ENDED:
            print(f"cut off after {last['s']} s: {change.what}\n{last['text']}")
            return ENDED
        row[key].append(last)
        print(
            f"{'right' if last['right'] else 'WRONG'} {last['s']} s {change.what}"
            f" [{change.place}]\n    {last['first_line'] or last['verdict']}"
        )
        options.out.write_text(json.dumps(row, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
