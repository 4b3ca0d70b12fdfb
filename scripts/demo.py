"""Plant a hidden host sync into a copy of the tree and run the gate there: it names the line.

    make demo

Where baselines/ has no recording of this torch or kind of CPU, the copy's step is recorded first.
Nothing in this tree is touched. Exit status 0 when the gate failed at the planted line, 1 when it
did not: then the gate is broken, not the demo.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = "model/workloads.py"
ANCHOR = "            loss = self._forward(*self._loader.next()) / count\n"
PLANT = "            self.last_loss = loss.item()\n"
BASELINE, CASE = "baselines/cpu.json", "train_step[nano-cpu]"
COPIED = "model stepguard perf_tests baselines conftest.py pytest.ini .gitignore".split()
SUITE = ["perf_tests", "-q", "-m", "smoke", "-k", "train_step and nano-cpu and not compiled"]


def copy(folder: Path) -> None:
    """Copy the tree to ``folder``."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)


def is_recorded() -> bool:
    """Tell whether the step is recorded under this torch, on this kind of CPU."""
    entry = json.loads((ROOT / BASELINE).read_text())["cases"][CASE]
    here = {"arch": platform.machine(), "torch": metadata.version("torch").partition("+")[0]}
    known = [recording["software"] for recording in entry["epochs"][-1]["recordings"]]
    return any(here.items() <= software.items() for software in known)


def record(folder: Path) -> None:
    """Record the copy's step as it is. Exits with what pytest said if it cannot be."""
    (folder / BASELINE).unlink()
    who = "-c user.name=demo -c user.email=demo@localhost"  # only a commit is recorded
    for command in ("init -q", "add .", f"{who} commit -q --no-verify --no-gpg-sign -m copy"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)
    command, env = gate("--perf-update-new")
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"demo: the step cannot be recorded\n{done.stdout}{done.stderr}")


def plant(folder: Path) -> int:
    """Plant the sync into the copy, and return its line number."""
    target = folder / TARGET
    before, found, after = target.read_text().partition(ANCHOR)
    if not found:
        raise SystemExit(f"demo: {TARGET} has changed: the line to plant after is gone")
    target.write_text(before + found + PLANT + after)
    return (before + found).count("\n") + 1


def gate(*options: str) -> tuple[list[str], dict[str, str]]:
    """Return the command of the gate with more options, and its environment: in CI a choice by -k
    would be refused, and the copy is no commit. This run is no gate.
    """
    command = [sys.executable, "-m", "pytest", *SUITE, "-p", "no:cacheprovider", *options]
    return command, {name: value for name, value in os.environ.items() if name != "CI"}


def main() -> int:
    """Plant, run and show; return 0 if the gate failed at the planted line."""
    with tempfile.TemporaryDirectory(prefix="stepguard-demo-") as name:
        folder = Path(name)
        copy(folder)
        if not is_recorded():
            print(f"{BASELINE} has no recording of this torch: the copy is recorded first\n")
            record(folder)
        line = plant(folder)
        print(f"A copy of the training step now reads its loss in every micro-step ({TARGET}):\n")
        print(f"  {line - 1}  {ANCHOR.strip()}\n+ {line}  {PLANT.strip()}\n", flush=True)
        print(f"$ pytest perf_tests -m smoke -k '{SUITE[-1]}'", flush=True)
        command, env = gate()
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
