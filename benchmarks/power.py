"""What the shipped command says of changes of known size: found or not, named or not, seconds.

    python -m benchmarks.power --seconds 330 --out power.json         # every GPU of this machine
    python -m benchmarks.power --device cpu --only "gelu twice in 12 layers" --out cpu.json

Each change of changes.py, refactors.py and fast_levers.py is made in a clone of this repository and
judged there by `pytest perf_tests --perf-against=HEAD` of the core train step, or of the change's
own case: the run that a user would make. The GPUs of the machine take changes by turns. No verdict
begins that could not end within --seconds. What is left of them is its --perf-budget; a verdict
beyond that is cut off, and says so. Each result is in --out as soon as it is known, and what is
there is not measured again. On a CPU it only shows that the benchmark works. The exit status is 1
if a verdict was not the expected one.
"""

import argparse
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import stage_seconds
from benchmarks.changes import (
    EITHER,
    FASTER,
    HIDDEN,
    OPTIMIZATIONS,
    RED,
    SAME,
    SLOWDOWNS,
    SLOWER,
)
from benchmarks.fast_levers import LEVERS
from benchmarks.longer_kernels import LONGER
from benchmarks.refactors import REFACTORS
from benchmarks.shared import Change, Document, about, clone_head, commit_all, git, run_until
from stepguard.core.comparison import from_json
from stepguard.machine.gpu import visible_gpus

CHANGES = SLOWDOWNS | OPTIMIZATIONS | HIDDEN | REFACTORS | LEVERS | LONGER
CASES = {"cuda": "train_step[124m-bf16]", "cpu": "train_step[nano-cpu]"}
# Of a verdict by the one pair of a step that did not change; of a pair that was begun in time; of
# an end.
SAME_S, PAIR_S, END_S = 100.0, 40.0, 20.0
Found = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """Changes to judge by one case, and who says whether a verdict on one is right.

    ``right`` gets the change, what was found, and the lines that were planted.
    """

    changes: Mapping[str, Change]
    case: str
    right: Callable[[Change, Found, range], bool]

    def wanted(self, names: Sequence[str], device: str) -> list[str]:
        """Return the changes to make. Raises ValueError for a name that there is not."""
        possible = [n for n, one in self.changes.items() if device == "cuda" or not one.needs_gpu]
        if wrong := [name for name in names if name not in possible]:
            raise ValueError(f"{wrong[0]!r}: no such change here; possible: {', '.join(possible)}")
        return [name for name in possible if not names or name in names]


def planted(tree: Path, change: Change, cache: Path) -> range:
    """Clone into ``tree`` and make the change there; return the planted lines."""
    clone_head(tree, cache)
    if change.base_edits:
        change.plant_base(tree)
        commit_all(tree, "Before the change")
        git(tree, "checkout", "-q", "HEAD~1", "--", "model")
    return change.plant(tree)


def command_of(case: str, base: str, document: Path, limit_s: float) -> list[str]:
    """Return the shipped command that judges one case beside the revision ``base``."""
    test = f"perf_tests/test_{case.partition('[')[0]}.py::test_{case}"
    command = [sys.executable, "-m", "pytest", test, "-v", f"--perf-against={base}"]
    command += ["-m", ""]  # a case that is named is meant, also if it is an extended one
    command += [f"--perf-json={document}", "-p", "benchmarks.stage_seconds"]
    return [*command, f"--perf-budget={max(1.0, limit_s - PAIR_S) / 60:.2f}"]


def verdict(tree: Path, base: str, case: str, limit_s: float, env: dict[str, str]) -> Found:
    """Return what the shipped command says of one case in a tree, beside its revision ``base``."""
    document, began = tree / ".stepguard" / "power.json", time.monotonic()
    command = command_of(case, base, document, limit_s)
    printed, ended = run_until(command, limit_s, cwd=tree, env=env)
    took = {"command_s": round(time.monotonic() - began, 1)}
    cases = json.loads(document.read_text())["results"] if document.exists() else []
    if len(cases) != 1:
        return took | {"failed": "cut off" if ended else printed[-2000:]}
    if (kept := tree / stage_seconds.OUT).exists():  # not if the run was cut off behind its case
        took |= {"stage_s": json.loads(kept.read_text())}
    return took | said_of(cases[0], tree)


def said_of(case: Found, tree: Path) -> Found:
    """Return what a run's document says of its one case, and the step times of its pairs."""
    said, text, kept = case["verdict"], case["text"], tree / case["evidence"]
    times = [one["status"] for one in said["metrics"] if one["metric"] == "step_ms"]
    found = {"status": said["status"], "time": times[0] if times else ""}
    found |= {"reason": said["reason"]}
    found |= {"first_line": text["headline"], "message": text["message"]}
    if kept.is_file():
        pairs = from_json(kept.read_bytes(), str(kept))
        sides = zip(pairs.head.launches, pairs.base.launches, strict=False)
        found["pairs"] = [
            {"head": {"step_ms": head.step_ms}, "base": {"step_ms": base.step_ms}}
            for head, base in sides
        ]
    return found


def as_expected(change: Change, found: Found, lines: range = range(0)) -> bool:
    """Tell whether it was said what has to be: a slowdown is red by its time or a counter, what is
    hidden is not green, an honest change is never red.
    """
    status = found.get("status")
    if change.expected in (SLOWER, EITHER):
        slower = found.get("time") == SLOWER or status == "CHANGED"
        return slower or (change.expected == EITHER and status == SAME)
    if change.expected == RED:
        return status not in (None, SAME, FASTER)
    return status in (SAME, FASTER)


class Work:
    """Changes that the GPUs take by turns, and what is known of each, in a file."""

    def __init__(self, plan: Plan, options: argparse.Namespace, folder: Path) -> None:
        self.plan, self.options, self.folder = plan, options, folder
        known = json.loads(options.out.read_text()) if options.out.exists() else {}
        self.found: dict[str, Found] = known.get("changes", {})
        self.left = [name for name in options.only if "status" not in self.found.get(name, {})]
        self._cache = (options.cache or folder / "cache").resolve()
        self._document, self._lock = Document(options.out, known), threading.Lock()
        self._until = time.monotonic() + options.seconds

    def on(self, gpu: str) -> None:
        """Judge changes on one GPU, or on all for an empty name, until none is left in time."""
        env = os.environ | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})
        how = about(self.options.device, self.options.gpus) | {"gpu": gpu}
        while name := self._next():
            change, tree = self.plan.changes[name], self.folder / name.replace(" ", "-")
            case = change.case or self.plan.case
            lines = planted(tree, change, self._cache)
            limit_s = self._until - time.monotonic() - END_S
            found = verdict(tree, "HEAD", case, limit_s, env)
            found["right"] = self.plan.right(change, found, lines)
            with self._lock:
                self.found[name] = how | found
                self._document.update(changes=self.found)
            print(row(name, change, found), flush=True)

    def _next(self) -> str:
        """Take the first change whose verdict can end in time; empty: none."""
        with self._lock:
            for name in self.left:
                same = self.plan.changes[name].expected == SAME
                least_s = SAME_S if same else self.options.verdict_s
                if self._until - time.monotonic() > least_s:
                    self.left.remove(name)
                    return name
        return ""


def row(name: str, change: Change, found: Found) -> str:
    """Return a change's row of the table."""
    line, said = found.get("first_line", ""), found.get("status")
    named = str(bool(re.search(change.named, line))) if change.named else ""
    said = said or f"failed: {found.get('failed', '')[-200:]}"
    pairs, right = len(found.get("pairs", ())), "yes" if found["right"] else "NO"
    cells = (name, said, right, named, pairs, found.get("command_s"), line)
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"


def options_of(doc: str) -> argparse.ArgumentParser:
    """Return the options of a benchmark that judges changes."""
    parser = argparse.ArgumentParser(description=doc.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="CHANGE", help="(all)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--gpus", type=int, default=1, help="of each verdict (%(default)s)")
    parser.add_argument("--seconds", type=float, default=330.0, help="in all (%(default)s)")
    # On an H200: 67 s of counting with a cold cache, and six pairs of 22 to 36 s.
    text = "a verdict may take, so that none begins with less left (%(default)s)"
    parser.add_argument("--verdict-s", type=float, default=250.0, help=text)
    parser.add_argument("--cache", type=Path, help="compile caches to share with other runs")
    parser.add_argument("--out", type=Path, help="result file")
    return parser


def judge(plan: Plan, options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Judge the changes that are wanted; return the exit status. Wrong options end the program."""
    if options.out is None or not options.out.resolve().parent.is_dir():
        parser.error(f"--out {options.out}: a file in a folder that exists is needed")
    try:
        options.only = plan.wanted(options.only, options.device)
    except ValueError as error:
        parser.error(str(error))
    alone = options.device == "cpu" or options.gpus > 1
    gpus = [""] if alone else [gpu.uuid for gpu in visible_gpus()]
    print("| change | said | right | named | pairs | s | first line |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Work(plan, options, Path(folder))
        threads = [threading.Thread(target=work.on, args=(gpu,)) for gpu in gpus]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    known = [work.found[name] for name in options.only if name in work.found]
    right = sum(one.get("right", False) for one in known)
    print(f"{right} of {len(known)} as expected; {len(work.left)} not begun; {options.out}")
    return 0 if right == len(known) > 0 else 1


def main() -> int:
    """Run the benchmark; return the exit status."""
    parser = options_of(__doc__ or "")
    options = parser.parse_args()
    return judge(Plan(CHANGES, CASES[options.device], as_expected), options, parser)


if __name__ == "__main__":
    sys.exit(main())
