"""Make an HTML report of a real run with one SLOWER, one CHANGED and one `same` case.

    python scripts/report_example.py FOLDER              # smoke cases of a CPU; 124m on a GPU
    python scripts/report_example.py FOLDER --pictures   # and pictures of it (report_pictures.py)

It clones this repository's commit into FOLDER/clone, commits two planted lines, and judges the
three workloads there beside the commit before. It leaves FOLDER/report.html, the document and the
evidence in FOLDER/clone/.stepguard, and on a GPU a trace with the timeline.
"""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = "model/workloads.py"
# A line, and what is put behind it. The host waits in each micro-step: on a CPU, where a sync waits
# for nothing, it sleeps. The forward pass keeps its inputs, which takes memory and little time.
STEP = "            loss = self._forward(*self._loader.next()) / count\n"
WAITS = {
    "cuda": "            self.last_loss = loss.item()\n",
    "cpu": "            __import__('time').sleep(0.1)\n",
}
FORWARD = "        return self._forward(*self._loader.next())\n"
KEPT = """\
        inputs, targets = self._loader.next()
        self.inputs = inputs.clone()
        return self._forward(inputs, targets)
"""
NAMES = {"cuda": "124m-bf16", "cpu": "nano-cpu"}
WORKLOADS = ("forward", "forward_backward", "train_step")


def run(*command, cwd, status=(0,)):
    """Run a command, and leave with what it was unless it ended as it should."""
    env = {name: value for name, value in os.environ.items() if name != "CI"}
    done = subprocess.run(command, cwd=cwd, env=env, check=False)
    if done.returncode not in status:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}")


def plant(clone, device):
    """Commit both lines into the clone."""
    text = (clone / TARGET).read_text()
    for line in (STEP, FORWARD):
        if text.count(line) != 1:
            sys.exit(f"{TARGET} has changed: the line to plant at is gone: {line.strip()}")
    text = text.replace(STEP, STEP + WAITS[device]).replace(FORWARD, KEPT)
    (clone / TARGET).write_text(text)
    who = ("-c", "user.name=example", "-c", "user.email=example@localhost")
    run("git", *who, "commit", "-qam", "Two planted lines", "--no-verify", cwd=clone)


def main(folder, pictures):
    """Measure, and write the report."""
    device = "cuda" if any(Path("/dev").glob("nvidia[0-9]*")) else "cpu"
    clone, python = folder / "clone", sys.executable
    folder.mkdir(parents=True, exist_ok=True)
    run("git", "clone", "-q", ROOT, clone, cwd=ROOT)
    plant(clone, device)
    cases = [f"{name}[{NAMES[device]}]" for name in WORKLOADS]
    tests = [f"perf_tests/test_{w}.py::test_{w}[{NAMES[device]}]" for w in WORKLOADS]
    command = [python, "-m", "pytest", *tests]
    command += ["--perf-against=HEAD~1", f"--perf-json={folder / 'perf.json'}"]
    run(*command, cwd=clone, status=(0, 1))
    (folder / "perf.json").replace(clone / ".stepguard/perf.json")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    repository = project["urls"]["Repository"]
    report = [python, "-m", "stepguard", "report", ".stepguard/perf.json"]
    report += ["--html", folder / "report.html", "--repository", repository]
    if device == "cuda":
        traces = folder / "traces"
        run(python, "-m", "stepguard", "run", cases[-1], "--trace", traces, cwd=clone)
        report += ["--trace", f"{cases[-1]}={traces}"]
    run(*report, cwd=clone)
    if pictures:
        script = ROOT / "scripts/report_pictures.py"
        run(python, script, folder / "report.html", folder, cwd=folder)


if __name__ == "__main__":
    options = [argument for argument in sys.argv[1:] if argument != "--pictures"]
    if len(options) != 1:
        sys.exit(__doc__)
    main(Path(options[0]).absolute(), "--pictures" in sys.argv)
