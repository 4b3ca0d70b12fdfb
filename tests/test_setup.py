"""Set-up installs the torch that this machine's recordings are of, and nothing when it is there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# In the place of .venv's interpreter: pip only notes what it is given, one line a word.
PYTHON = f"""#!/bin/bash
case "$1 $2" in
  "-m pip")
    for word in "$@"; do
      case $word in /dev/fd/*) cat "$word" ;; *) echo "$word" ;; esac
    done >>pip.log ;;
  "-m compileall") ;;
  *) exec {sys.executable} "$@" ;;
esac
"""


@pytest.fixture
def project(tmp_path):
    """What set-up reads, and a .venv that somebody else made."""
    (tmp_path / "lab").mkdir()
    for name in ("constraints.txt", "pyproject.toml", "lab/pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("scripts", "baselines"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    program(tmp_path / ".venv" / "bin" / "python", PYTHON)
    return tmp_path


def program(path, text):
    """Write a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def installed_torch(project, gpu=""):
    """The torch that set-up names to pip, on a machine whose driver names this GPU; None where it
    installs nothing.
    """
    shown = f'#!/bin/sh\necho "{gpu}"\n' if gpu else "#!/bin/sh\nexit 9\n"
    program(project / "bin" / "nvidia-smi", shown)
    log = project / "pip.log"
    log.unlink(missing_ok=True)
    env = {"PATH": f"{project / 'bin'}:{os.environ['PATH']}", "HOME": str(project)}
    subprocess.run(["scripts/setup.sh", "perf"], cwd=project, env=env, check=True)
    if not log.is_file():
        return None
    (line,) = {line for line in log.read_text().splitlines() if line.startswith("torch==")}
    return line.removeprefix("torch==")


def recorded(project, name):
    """The torch of a baseline file's recordings."""
    content = json.loads((project / "baselines" / f"{name}.json").read_text())
    (epoch, *_) = next(iter(content["cases"].values()))["epochs"]
    return content["machine"], epoch["recordings"][-1]["software"]["torch"]


@pytest.mark.skipif(Path("/proc/driver/nvidia/gpus").is_dir(), reason="this machine's own GPU")
def test_a_gpu_gets_the_torch_of_its_recordings(project):
    """A fresh clone is compared with them; on a CPU or another GPU it is that of constraints.txt.
    What is there is installed anew only when another torch is wanted.
    """
    gpu, theirs = recorded(project, "h100-80gb-hbm3x1")
    lines = (project / "constraints.txt").read_text().splitlines()
    (usual,) = [one.removeprefix("torch==") for one in lines if one.startswith("torch==")]
    assert theirs != usual  # else this could not fail
    assert installed_torch(project, gpu) == theirs
    assert installed_torch(project, gpu) is None
    assert installed_torch(project) == usual
    assert installed_torch(project, "NVIDIA GeForce RTX 9999") is None


def test_the_oldest_versions_are_those_of_the_project(project):
    """constraints.txt with each lower bound of pyproject.toml in its place: of every dependency."""

    def listed(*words):
        command = [sys.executable, "scripts/requirements.py", *words]
        return subprocess.check_output(command, cwd=project, text=True).splitlines()

    oldest = set(listed("oldest"))
    bounds = {line.replace(">=", "==") for line in listed("list", "clone")}
    assert bounds <= oldest and {"pytest==8.4", "msgspec==0.18.6"} <= bounds
    assert {line for line in oldest if "==" in line} - bounds  # what the tests need besides
