"""Does a compile that was killed break the next run? A case is measured with an empty compile cache
and killed, with all its processes, at random moments while it compiles. Then it is measured again,
and has to be ``same`` as what a run that nobody killed has recorded.

    python -m benchmarks.killed_compiles 'perf_tests/test_train_step.py::test_train_step[CASE]' \\
        --kills 20 --seed 1 --out killed.json
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.shared import Document, about, clone_head

VARIABLE = "KILLED_COMPILES"  # in the environment of all processes of a run
SIGNALS = (signal.SIGTERM, signal.SIGKILL)
ENDING_S = 60.0  # that a run gets after SIGTERM
LIMIT_S = 1800.0  # of a run
# Of a cache. Headers are copied there when a launch ends.
NOT_COMPILED = {"unfinished", "set-aside", "lock", "precompiled_headers"}


def processes(folder: Path) -> list[int]:
    """Return the processes of the runs in a folder."""
    wanted, found = f"\0{VARIABLE}={folder}\0".encode(), []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if wanted in b"\0" + Path("/proc", name, "environ").read_bytes() + b"\0":
                found.append(int(name))
    return found


def kill(folder: Path, number: signal.Signals) -> None:
    """Send a signal to all processes of a run, and wait until they are gone."""
    until, sent = time.monotonic() + ENDING_S, set[int]()
    while pids := processes(folder):
        late = time.monotonic() > until
        for pid in pids:
            if pid not in sent or late or number == signal.SIGKILL:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else number)
        sent |= {*pids}
        time.sleep(0.005)


class Tree:
    """A clone of HEAD, and runs of one test there."""

    def __init__(self, folder: Path, test: str) -> None:
        self.folder, self.tree = folder, clone_head(folder / "tree")
        self.cache, self._document = self.tree / ".stepguard" / "cache", folder / "run.json"
        self._command = [sys.executable, "-m", "pytest", test, "-q", "-p", "no:cacheprovider"]
        self._command += [f"--perf-json={self._document}"]
        path = os.pathsep.join(filter(None, (str(self.tree), os.environ.get("PYTHONPATH"))))
        self._env = os.environ | {VARIABLE: str(folder), "PYTHONPATH": path}

    def start(self, *options: str) -> "subprocess.Popen[bytes]":
        """Start a run."""
        self._document.unlink(missing_ok=True)
        command = [*self._command, *options]
        with (self.folder / "log").open("wb") as log:
            return subprocess.Popen(command, cwd=self.tree, env=self._env, stdout=log, stderr=log)

    def measure(self, *options: str) -> dict[str, Any]:
        """Run to the end. Return the verdict's status, its message, and the seconds it took."""
        began = time.monotonic()
        self.start(*options).wait(LIMIT_S)
        took_s = time.monotonic() - began
        if not self._document.exists():
            raise RuntimeError((self.folder / "log").read_text(errors="replace")[-2000:])
        (result,) = json.loads(self._document.read_text())["results"]
        message = result["text"]["message"]
        return {"status": result["verdict"]["status"], "message": message, "seconds": took_s}

    def forget(self) -> None:
        """Empty the compile cache."""
        shutil.rmtree(self.cache, ignore_errors=True)

    def compiled(self) -> list[Path]:
        """Return the files that compilers wrote."""
        files = (path for path in self.cache.rglob("*") if not NOT_COMPILED & {*path.parts})
        return [path for path in files if path.is_file()]

    def empty(self) -> int:
        """Return how many of them, except for locks, are empty."""
        sizes = [path.stat().st_size for path in self.compiled() if "lock" not in path.name]
        return sizes.count(0)

    def killed(self, after_s: float, number: signal.Signals) -> bool:
        """Run, and kill the run so long after its first file was compiled. Return False if it ended
        before.
        """
        process = self.start()

        def wait(condition: Callable[[], object]) -> None:
            while process.poll() is None and not condition():
                time.sleep(0.01)

        wait(self.compiled)
        until = time.monotonic() + after_s
        wait(lambda: time.monotonic() > until)
        alive = process.poll() is None
        kill(self.folder, number)
        process.wait()
        return alive


def main() -> int:
    """Run the benchmark; return the exit status: 0 if each run after a kill was ``same``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("test", help="pytest's name of one case")
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cpu")
    parser.add_argument("--out", type=Path, required=True, help="result file")
    options = parser.parse_args()
    document, draw = Document(options.out, about(options.device)), random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        tree = Tree(Path(name), options.test)
        cold = tree.measure("--perf-update")
        times = [path.stat().st_mtime for path in tree.compiled()]
        window_s = max(times) - min(times)
        document.update(cold=cold, compiles_s=window_s, kills=[])
        print(f"cold {cold['status']} {cold['seconds']:.0f} s, compiles for {window_s:.1f} s")
        rows: list[dict[str, Any]] = []
        while len(rows) < options.kills:
            tree.forget()
            after_s, number = draw.uniform(0.0, window_s), SIGNALS[len(rows) % len(SIGNALS)]
            if not tree.killed(after_s, number):
                print(f"ended before {after_s:.1f} s")
                continue
            row = {"signal": number.name, "after_s": after_s, "empty_files": tree.empty()}
            row |= {"files": len(tree.compiled())} | {"next": tree.measure()}
            rows.append(row)
            document.update(kills=rows)
            after = row["next"]
            print(
                f"{len(rows)}: {number.name} after {after_s:.1f} s, {row['files']} files, "
                f"{row['empty_files']} empty; next {after['status']} {after['seconds']:.0f} s",
                flush=True,
            )
    differ = sum(row["next"]["status"] != "same" for row in rows)
    slowest_s = max((row["next"]["seconds"] for row in rows), default=0.0)
    document.update(differ=differ, slowest_next_s=slowest_s)
    print(f"{differ} of {len(rows)} not same; slowest next run {slowest_s:.0f} s; {options.out}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
