"""What several benchmarks share: clones with a change, result files, and intervals."""

import json
import math
import os
import platform
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.special import betaincinv, stdtrit

from stepguard.machine.gpu import MachineError, visible_gpus

ROOT = Path(__file__).resolve().parents[1]
GPT, WORKLOADS = "model/gpt.py", "model/workloads.py"
ENDING_S = 20.0  # that a command gets after each signal
Edit = tuple[str, str, str]  # file, old text, new text


@dataclass(frozen=True)
class Change:
    """One change of the training step, and what the gate has to say of it."""

    edits: tuple[Edit, ...] = ()
    expected: str = ""  # the verdict, one of those of power.py
    named: str = ""  # pattern of what the first line has to name
    base_edits: tuple[Edit, ...] = ()  # of the base, in the step as it is; the change has others
    needs_gpu: bool = False
    case: str = ""  # that it is judged by, if not by the plan's

    def plant(self, tree: Path) -> range:
        """Make the edits in a tree of the step as it is; return the lines of the last one. Raises
        ValueError where an old text is not there exactly once.
        """
        return _planted(tree, self.edits)

    def plant_base(self, tree: Path) -> range:
        """Make the base's edits in a tree of the step as it is; return and raise as plant()."""
        return _planted(tree, self.base_edits)


def _planted(tree: Path, edits: Sequence[Edit]) -> range:
    lines = range(0)
    for path, old, new in edits:
        target = tree / path
        text = target.read_text()
        if text.count(old) != 1:
            raise ValueError(f"{target}: {text.count(old)} times there, not once: {old!r}")
        first = text[: text.index(old)].count("\n") + 1
        lines = range(first, first + new.count("\n") + 1)
        target.write_text(text.replace(old, new))
    return lines


def clone_head(tree: Path, cache: Path | None = None) -> Path:
    """Clone HEAD into ``tree``, which must not exist. Runs there use the compile caches in
    ``cache``: without them each clone would compile for half a minute.
    """
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)
    if cache:
        cache.mkdir(parents=True, exist_ok=True)
        (tree / ".stepguard").mkdir()
        (tree / ".stepguard" / "cache").symlink_to(cache.resolve(), target_is_directory=True)
    return tree


def commit_all(tree: Path, message: str) -> None:
    """Commit every change to tracked files, under a name of its own."""
    name = ["-c", "user.name=benchmarks", "-c", "user.email=benchmarks"]
    subprocess.run(["git", *name, "commit", "-qam", message], cwd=tree, check=True)


def git(tree: Path, *arguments: str) -> str:
    """Run git in a tree and return what it prints."""
    found = subprocess.run(["git", *arguments], cwd=tree, check=True, capture_output=True)
    return found.stdout.decode().strip()


def run_until(command: list[str], limit_s: float, **how: Any) -> tuple[str, bool]:
    """Run a command; return what it printed, and whether it was ended after ``limit_s``."""
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, **both, **how) as process:
        for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            try:
                return process.communicate(timeout=max(1.0, limit_s))[0], sign != signal.SIGINT
            except subprocess.TimeoutExpired:
                process.send_signal(sign)
                limit_s = ENDING_S
        return process.communicate()[0], True


class Document:
    """A JSON file that is replaced as a whole each time something is added. ``indent`` None: it is
    one line.
    """

    def __init__(
        self, path: Path, content: Mapping[str, Any] | None = None, indent: int | None = 1
    ) -> None:
        self.path, self.content, self._indent = path, dict(content or {}), indent

    def update(self, **more: Any) -> None:
        """Add entries and write the file."""
        self.content |= more
        fresh = self.path.with_name(self.path.name + ".new")
        text = json.dumps(self.content, indent=self._indent, allow_nan=False)
        fresh.write_text(text + "\n", "utf-8")
        fresh.replace(self.path)


def about(device: str = "cpu", count: int = 1) -> dict[str, Any]:
    """Return the command, the date, the commit and the machine, for a result file."""
    return {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git(ROOT, "rev-parse", "HEAD"),
        "machine": machine(device, count),
    }


def machine(device: str, count: int) -> dict[str, Any]:
    """Describe the ``count`` GPUs to be used; raise SystemExit when there are too few."""
    if device == "cpu":
        return {"device": "CPU", "cores": os.cpu_count(), "arch": platform.machine()}
    try:
        gpus = visible_gpus()
    except MachineError as error:
        raise SystemExit(str(error)) from None
    if len(gpus) < count:
        raise SystemExit(f"{count} GPUs are wanted, {len(gpus)} are visible: use --gpus N")
    used = gpus[:count]
    return {
        "device": used[0].name,
        "count": count,
        "driver": used[0].driver,
        "uuids": [gpu.uuid for gpu in used],
        "cores": os.cpu_count(),
    }


def ratio(pairs_ms: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return first over second by the pairs' log-ratios, with a 95 % interval (Student's t), which
    is None for a single pair.

    Raises ValueError without a pair, or for a time that is not positive.
    """
    if not pairs_ms or not all(ms > 0 and math.isfinite(ms) for pair in pairs_ms for ms in pair):
        raise ValueError(f"pairs {pairs_ms!r}: positive finite times are needed")
    logs = [math.log(first / second) for first, second in pairs_ms]
    mean, interval = fmean(logs), None
    if len(logs) > 1:
        half = float(stdtrit(len(logs) - 1, 0.975)) * stdev(logs) / math.sqrt(len(logs))
        interval = [math.exp(mean - half), math.exp(mean + half)]
    return {"ratio": math.exp(mean), "interval_95": interval, "pairs": len(logs)}


def binomial_bounds(hits: int, trials: int) -> tuple[float, float]:
    """Return Clopper and Pearson's exact 95 % bounds of a proportion."""
    low = float(betaincinv(hits, trials - hits + 1, 0.025)) if hits else 0.0
    high = float(betaincinv(hits + 1, trials - hits, 0.975)) if hits < trials else 1.0
    return low, high
