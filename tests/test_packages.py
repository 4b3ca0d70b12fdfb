"""An installation brings every module along."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_package_is_installed():
    """setuptools finds folders with an __init__.py; one without works from a clone alone."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tools["setuptools"]["packages"]["find"] == {"include": ["stepguard*"]}
    folders = {path.parent for path in (ROOT / "stepguard").rglob("*.py")}
    assert folders and all((folder / "__init__.py").is_file() for folder in folders)


def test_a_package_that_is_missing_is_one_sentence(tmp_path):
    """Not a traceback: which it is, and the command that installs it."""
    (tmp_path / "msgspec.py").write_text("raise ModuleNotFoundError(name='msgspec')\n")
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT)))}
    command = [sys.executable, "-m", "stepguard", "doctor"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1 and line.startswith("stepguard: msgspec is not installed; ")
    assert line.endswith(f" -m pip install {ROOT}")
