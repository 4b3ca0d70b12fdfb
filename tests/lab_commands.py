"""The lab's commands in a process of the tests and in those that it starts, installed or not."""

import os
import sys
import tomllib
from pathlib import Path

import pytest

LAB = Path(__file__).resolve().parents[1] / "lab"


def installed_lab(folder: Path) -> list[str]:
    """Return what to put on an import path in place of an installation of the lab: its sources, and
    ``folder``, where this writes what an installation says of it.
    """
    project = tomllib.loads((LAB / "pyproject.toml").read_text())["project"]
    name, version = project["name"], project["version"]
    said = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    said.mkdir()
    (said / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    commands = project["entry-points"]["stepguard.commands"].items()
    lines = ["[stepguard.commands]", *(f"{command} = {module}" for command, module in commands)]
    (said / "entry_points.txt").write_text("\n".join(lines))
    return [str(folder), str(LAB)]


def add_lab(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Add the lab's commands, by an empty folder."""
    paths = installed_lab(folder)
    monkeypatch.setattr(sys, "path", [*paths, *sys.path])
    given = filter(None, [os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*paths, *given]))
