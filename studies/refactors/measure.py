"""Guard a model.py in nanoGPT's manner, change it in 25 ways, and write what the gate says of each.

    python -m studies.refactors.measure nanoGPT/model.py --out refactors.json

The model is recorded in a scratch project, on the CPU, then each change is made and measured there
with pytest as a user would. Refactors have to be `same`, regressions red with their cause in the
first line; the exit status is 1 where one is not. Takes about 5 minutes on 2 idle cores. A run that
was interrupted goes on where it stopped if it is given the same --out.
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from studies.common.clones import only_case
from studies.common.results import ROOT, Document, machine
from studies.refactors.changes import REFACTORS, REGRESSIONS, Change

STEP = Path(__file__).with_name("step.py")
TEST = """from stepguard import Case
from stepguard.plugin import cases


@cases(Case("cpu", "step:train_step", device="cpu", launches=1))
def test_train_step(perf, case):
    perf(case)
"""


def git(project: Path, *arguments: str) -> str:
    """Run git in the project; return what it prints."""
    name = ["-c", "user.name=studies", "-c", "user.email=studies"]
    done = subprocess.run(
        ["git", *name, *arguments], cwd=project, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def begin(project: Path, model: str) -> None:
    """Make the project and record its step."""
    (project / "model.py").write_text(model)
    (project / "step.py").write_text(STEP.read_text())
    (project / "test_step.py").write_text(TEST)
    (project / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (project / ".gitignore").write_text("__pycache__/\n.stepguard/\n.pytest_cache/\n")
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "The model as it is")
    verdict_in(project, "--perf-update")
    git(project, "add", ".")
    git(project, "commit", "-qm", "Its recording")


def verdict_in(project: Path, *options: str) -> dict[str, str]:
    """Measure the step in the project; return verdict and first line."""
    document = project / ".stepguard" / "run.json"
    document.unlink(missing_ok=True)
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "stepguard.plugin",
            f"--perf-json={document}",
            *options,
        ],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CI": ""},
        capture_output=True,
        text=True,
    )
    verdict = only_case(document, ran.stdout + ran.stderr)["verdict"]
    moved = verdict["status"] != "same"
    return {"verdict": verdict["status"], "first_line": verdict["headline"] if moved else ""}


def measured(project: Path, model: str, change: Change) -> dict[str, str]:
    """Make a change, and take it back after it was measured."""
    (project / "model.py").write_text(change(model))
    found = verdict_in(project)
    (project / "model.py").write_text(model)
    return found


def main() -> int:
    """Run the study; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path, help="a model.py in nanoGPT's manner")
    parser.add_argument("--out", type=Path, required=True, metavar="PATH")
    options = parser.parse_args()
    model = options.model.read_text()
    content: dict[str, Any] = {"refactors": {}, "regressions": {}}
    if options.out.exists():
        content = json.loads(options.out.read_text())
    document = Document(options.out, content)
    digest = hashlib.sha256(model.encode()).hexdigest()
    document.update(
        command=f"python -m studies.refactors.measure {options.model.name} --out PATH",
        commit=git(ROOT, "rev-parse", "HEAD"),
        model_sha256=digest,
        software={"python": platform.python_version(), "torch": version("torch")},
        machine=machine("cpu", 0),
    )
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        begin(Path(folder), model)
        for kind, changes in (
            ("refactors", {name: (change, "") for name, change in REFACTORS.items()}),
            ("regressions", REGRESSIONS),
        ):
            for name, (change, cause) in changes.items():
                found = content[kind].get(name) or measured(Path(folder), model, change)
                document.update(**{kind: content[kind] | {name: found}})
                as_meant = (
                    found["verdict"] == "CHANGED" and cause in found["first_line"]
                    if cause
                    else found["verdict"] == "same"
                )
                wrong += not as_meant
                mark = "" if as_meant else "WRONG "
                print(f"{mark}{name}: {found['first_line'] or found['verdict']}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
