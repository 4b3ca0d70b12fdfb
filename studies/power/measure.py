"""What the shipped command says of changes of known size: found or not, named or not, seconds.

    python -m studies.power.measure --seconds 330 --out power.json      # every GPU of this machine
    python -m studies.power.measure --device cpu --only "gelu twice in 12 layers"

Each change of changes.py is made in a clone of this repository and judged there by `pytest
perf_tests --perf-against=HEAD` of the core train step, nothing else: the run that a user would
make. The machine's GPUs take changes by turns, in the order of the table, and then measure the true
size of slowdowns (sizes.py). No verdict begins that could not end within --seconds; what is left of
them is its --perf-budget, and one that goes beyond it is cut off, and says so. Every result is in
--out as soon as it is known, and what is there already is not measured again. On a CPU it only
shows that the script works. The exit status is 1 if a verdict was not the expected one.
"""

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from stepguard.ab_margins import MARGINS
from stepguard.comparison import from_json
from stepguard.git.revision import current
from stepguard.gpu.nvml import visible_gpus
from studies.common.clones import clone_head, commit_all, only_case, share_cache
from studies.common.pair_data import as_data
from studies.common.results import ROOT, Document, command_line, default_path, machine
from studies.power.change import FASTER, RED, SAME, SLOWER, Change
from studies.power.changes import CHANGES, wanted

CASES = {"cuda": "train_step[124m-bf16]", "cpu": "train_step[nano-cpu]"}
# Of a verdict by the one pair of a step that did not change; of a pair that was begun in time; of
# an end.
SAME_S, PAIR_S, END_S = 100.0, 40.0, 20.0
# Of a repeated verdict; its pairs are those of the first one, and at most a fresh one.
AGAIN = ("command_s", "status", "failed", "first_line", "step_ms", "stages")
# Of sizes: import and settling, and each tree's build. So many changes share a process and a base.
SIZES_S, BUILD_S, TOGETHER = 20.0, 10.0, 3


def planted(tree: Path, change: Change, case: str, cache: Path, commit: bool = False) -> str:
    """Clone into ``tree`` and make the change there, committed if asked; return the base."""
    clone_head(tree)
    share_cache(tree, cache)
    change.plant(tree)
    if change.reverse:
        commit_all(tree, "Before the change")
        back = ["git", "checkout", "-q", "HEAD~1", "--", "model"]
        subprocess.run(back, cwd=tree, check=True)
    if not (commit or change.declared):
        return "HEAD"
    trailer = f"\n\nPerf-Expect: {case} {change.declared}: it is meant" if change.declared else ""
    commit_all(tree, f"The change{trailer}")
    return "HEAD~1"


def run_until(command: list[str], limit_s: float, **how: Any) -> tuple[str, bool]:
    """Run a command; return what it printed, and whether it was ended after ``limit_s``."""
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **both, **how) as process:
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            try:
                return process.communicate(timeout=max(1.0, limit_s))[0], sign != signal.SIGINT
            except subprocess.TimeoutExpired:
                process.send_signal(sign)
                limit_s = END_S
        return process.communicate()[0], True


def verdict(
    tree: Path, base: str, case: str, limit_s: float, env: dict[str, str]
) -> dict[str, Any]:
    """Return what the shipped command says of a tree."""
    document, began = tree / ".stepguard" / "power.json", time.monotonic()
    command = [sys.executable, "-m", "pytest", f"perf_tests/test_train_step.py::test_{case}", "-v"]
    command += [f"--perf-against={base}", f"--perf-json={document}"]
    command += [f"--perf-budget={max(1.0, limit_s - PAIR_S) / 60:.2f}"]
    printed, ended = run_until(command, limit_s, cwd=tree, env=env)
    seconds = round(time.monotonic() - began, 1)
    stages = [line.strip() for line in printed.splitlines() if re.match(r"\s*[\d.]+ s  ", line)]
    found: dict[str, Any] = {"command_s": seconds, "stages": stages}
    try:
        measured = only_case(document, printed)
    except SystemExit as problem:
        return found | {"failed": "cut off" if ended else str(problem)[-2000:]}
    said = measured["verdict"]
    times = [one for one in said["metrics"] if one["metric"] == "step_ms"]
    kept = tree / measured["evidence"]
    pairs = as_data(from_json(kept.read_bytes(), str(kept))) if kept.is_file() else {}
    pairs.pop("commit", None)  # a clone's own, where the change is judged backwards
    return found | {
        "status": said["status"],
        "reason": said["reason"],
        "first_line": measured["text"]["headline"],
        "message": measured["text"]["message"],
        "step_ms": {key: times[0][key] for key in ("status", "change_pct")}
        | {"note": measured["text"]["notes"].get("step_ms", "")}
        if times
        else {},
        "moved": [
            one["metric"]
            for one in said["metrics"]
            if one["gated"] and one["metric"] != "step_ms" and one["status"] != "same"
        ],
        "explanation": said.get("explanation"),
        **pairs,
    }


def as_expected(change: Change, found: dict[str, Any]) -> bool:
    """Tell whether it was said what has to be: a slowdown, what is hidden not green, an honest
    change never red. Between the margins `same` is as right as SLOWER.
    """
    status, said = found.get("status"), found.get("step_ms", {}).get("status")
    if change.expected == SLOWER:
        either = found.get("size", {}).get("ratio_minus_1_pct", math.inf) < MARGINS.matter_pct
        return said == SLOWER or status == "CHANGED" or status == SAME and either
    if change.expected == RED:
        return status not in (None, SAME, FASTER)
    return status in (SAME, FASTER)


def wants_size(name: str, found: dict[str, Any]) -> bool:
    """Tell whether a true size is missing: of a slowdown, and of what is hidden and green."""
    expected = CHANGES[name].expected
    missing = "status" in found and "size" not in found
    return missing and (expected == SLOWER or expected == RED and not found["right"])


class Results:
    """What is known of each change, in a file that is whole at any time."""

    def __init__(self, options: argparse.Namespace) -> None:
        content = json.loads(options.out.read_text()) if options.out.exists() else {}
        self.changes: dict[str, dict[str, Any]] = content.get("changes", {})
        self._document, self._lock = Document(options.out, content), threading.Lock()
        self.about = {
            "command": command_line(),
            "commit": current(ROOT, ROOT / "baselines").commit,
            "machine": machine(options.device, 1),
        }

    def take(self, name: str, found: dict[str, Any]) -> None:
        """Add figures of a change."""
        with self._lock:
            self.changes[name] = self.changes.get(name, self.about) | found
            self._document.update(changes=self.changes)

    def row(self, name: str) -> str:
        """Return a change's row of the table."""
        found, change = self.changes[name], CHANGES[name]
        size = found.get("size", {})
        interval = size.get("interval_95_pct") or (0, 0)
        true = (
            f"{size['ratio_minus_1_pct']:+.2f} [{interval[0]:+.2f}, {interval[1]:+.2f}]"
            if size
            else ""
        )
        said = found.get("status") or f"failed: {found.get('failed', '')[-200:]}"
        line = found.get("first_line", "")
        named = "" if not change.named else str(bool(re.search(change.named, line)))
        pairs, busy = len(found.get("pairs", [])), found.get("gpu_s", "")
        right = "yes" if found.get("right") else "NO"
        cells = (name, true, said, right, named, pairs, found.get("command_s"), busy, line)
        return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"


class Work:
    """Changes that the GPUs take by turns."""

    def __init__(self, options: argparse.Namespace, folder: Path, names: list[str]) -> None:
        self.options, self.folder = options, folder
        self.cache = (options.cache or folder / "cache").resolve()
        self.results = Results(options)
        known = self.results.changes
        self.left = [name for name in names if "status" not in known.get(name, {})]
        self.unsized = [name for name in names if wants_size(name, known.get(name, {}))]
        self._lock = threading.Lock()
        self._until = time.monotonic() + options.seconds

    def left_s(self) -> float:
        """Return the seconds that are left."""
        return self._until - time.monotonic()

    def on(self, gpu: str) -> None:
        """Judge changes on one GPU (empty: the CPU), then measure their sizes."""
        env = os.environ | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})
        while name := self._next():
            tree, case = self.folder / name.replace(" ", "-"), CASES[self.options.device]
            base = planted(tree, CHANGES[name], case, self.cache, self.options.twice)
            found = verdict(tree, base, case, self.left_s() - END_S, env)
            found["right"] = as_expected(CHANGES[name], found)
            if self.options.twice and "status" in found:
                again = verdict(tree, base, case, self.left_s() - END_S, env)
                found["again"] = {key: again[key] for key in AGAIN if key in again}
            self.results.take(name, found)
            print(self.results.row(name), flush=True)
            if wants_size(name, found):
                self.unsized.append(name)
        while names := self._next_sizes():
            self._sizes(names, env)

    def _next(self) -> str:
        """Take the first change whose verdict can end in time; empty: none."""
        with self._lock:
            for name in self.left:
                same = CHANGES[name].expected == SAME
                if self.left_s() > (SAME_S if same else self.options.verdict_s):
                    self.left.remove(name)
                    return name
        return ""

    def _next_sizes(self) -> list[str]:
        """Take as many changes as can be sized together in time."""
        with self._lock:
            tree_s = BUILD_S + self.options.size_s / 2
            trees = int((self.left_s() - SIZES_S - END_S) / tree_s)
            taken = self.unsized[: max(0, min(TOGETHER, trees - 1))]
            del self.unsized[: len(taken)]
            return taken

    def _sizes(self, names: list[str], env: dict[str, str]) -> None:
        trees = [clone_head(self.folder / "sizes" / name.replace(" ", "-")) for name in names]
        for name, tree in zip(names, trees, strict=True):
            CHANGES[name].plant(tree)
        seconds = self.options.size_s / 2 * (1 + len(trees))
        command = [sys.executable, "-m", "studies.power.sizes", *map(str, [ROOT, *trees])]
        command += ["--device", self.options.device, "--seconds", f"{seconds:.0f}"]
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": str(self.cache / "inductor"),
            "TRITON_CACHE_DIR": str(self.cache / "triton"),
        }
        printed, ended = run_until(command, self.left_s() - END_S, cwd=ROOT, env=env | caches)
        line = printed.strip().splitlines()[-1:] or [""]
        try:
            found = json.loads(line[0])
        except ValueError:
            problem = "cut off" if ended else printed[-1000:]
            print(f"sizes of {', '.join(names)}: {problem}", flush=True)
            return
        for name, measured in zip(names, found, strict=True):
            size = measured | self.results.about  # may be of another card than the verdict
            known = self.results.changes[name] | {"size": size}
            self.results.take(name, {"size": size, "right": as_expected(CHANGES[name], known)})
            print(self.results.row(name), flush=True)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="CHANGE", help="(all)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=330.0, help="in all (%(default)s)")
    # On an H200: 67 s of counting with a cold cache, and six pairs of 22 to 36 s.
    text = "a verdict may take, so that none begins with less left (%(default)s)"
    parser.add_argument("--verdict-s", type=float, default=250.0, help=text)
    text = "of blocks of a change and of its base (%(default)s)"
    parser.add_argument("--size-s", type=float, default=45.0, help=text)
    text = "repeat each verdict, of a commit: where pairs passed it, one fresh pair is enough"
    parser.add_argument("--twice", action="store_true", help=text)
    parser.add_argument("--cache", type=Path, help="compile caches to share with other runs")
    parser.add_argument("--out", type=Path, help="(.stepguard/power.json)")
    options = parser.parse_args()
    options.out = options.out or default_path("power.json")
    if not options.out.resolve().parent.is_dir():
        parser.error(f"{options.out}: there is no folder {options.out.resolve().parent}")
    try:
        options.only = wanted(options.only, options.device)
    except ValueError as error:
        parser.error(str(error))
    return options


def main() -> int:
    """Run the study; return the exit status."""
    options = arguments()
    gpus = [gpu.uuid for gpu in visible_gpus()] if options.device == "cuda" else [""]
    print("| change | true size, % | said | right | named | pairs | s | GPU s | first line |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Work(options, Path(folder), options.only)
        threads = [threading.Thread(target=work.on, args=(gpu,)) for gpu in gpus]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = work.results.changes
    right = sum(found[name].get("right", False) for name in options.only if name in found)
    print(f"{right} of {len(found)} as expected; {len(work.left)} not begun; {options.out}")
    return 0 if right == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
