"""Plant a hidden host sync into a copy of the tree and run the gate there: it names the line.

    make demo

Nothing in this tree is touched. Exit status 0 when the gate failed at the planted line, 1 when it
did not: then the gate is broken, not the demo.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = "model/workloads.py"
ANCHOR = "            loss = self._forward(*self._loader.next()) / count\n"
PLANT = "            self.last_loss = loss.item()\n"
COPIED = ("model", "stepguard", "perf_tests", "baselines", "conftest.py", "pytest.ini")
SUITE = ["perf_tests", "-q", "-m", "smoke", "-k", "train_step and nano-cpu and not compiled"]


def planted(folder: Path) -> int:
    """Copy the tree to ``folder``, plant the sync there, and return its line number."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    target = folder / TARGET
    before, found, after = target.read_text().partition(ANCHOR)
    if not found:
        raise SystemExit(f"demo: {TARGET} has changed: the line to plant after is gone")
    target.write_text(before + found + PLANT + after)
    return (before + found).count("\n") + 1


def main() -> int:
    """Plant, run and show; return 0 if the gate failed at the planted line."""
    with tempfile.TemporaryDirectory(prefix="stepguard-demo-") as name:
        folder = Path(name)
        line = planted(folder)
        print(f"A copy of the training step now reads its loss in every micro-step ({TARGET}):\n")
        print(f"  {line - 1}  {ANCHOR.strip()}\n+ {line}  {PLANT.strip()}\n", flush=True)
        command = [sys.executable, "-m", "pytest", *SUITE, "-p", "no:cacheprovider"]
        print(f"$ pytest perf_tests -m smoke -k '{SUITE[-1]}'", flush=True)
        # In CI a choice by -k would be refused, and the copy is no commit: this run is no gate.
        env = {name: value for name, value in os.environ.items() if name != "CI"}
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=pipe, text=True)
        assert process.stdout is not None
        shown = []
        for text in process.stdout:
            shown.append(text)
            # Commands and paths of the copy, which is gone when they are read.
            if not text.startswith(("  accept: ", "  or for some days: ", "  look closer: ")):
                print(text, end="", flush=True)
        status = process.wait()
    if status == 1 and any(f"({TARGET}:{line})" in text for text in shown):
        print(f"\ndemo: the gate failed at {TARGET}:{line}, as it must")
        print("demo: the copy and its evidence are gone, and this tree is untouched")
        return 0
    print(f"\ndemo: pytest ended with {status} and did not name {TARGET}:{line}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
