"""Checks for the packages that stepguard needs, for the user's own torch, and for packages that add
commands.
"""

import contextlib
import shlex
import tomllib
from collections.abc import Iterable
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from stepguard.machine.gpu.nvml import MachineError
from stepguard.machine.interpreter import as_typed

# torch is an extra of the distribution: a user who trains has one, which pip must not replace.
TORCH = "torch"
_SOURCES = Path(__file__).resolve().parents[2]
_DECLARED = _SOURCES / "pyproject.toml"


def requirements() -> list[Requirement]:
    """Return the packages needed, as the source tree declares them, or the installation."""
    if _DECLARED.is_file():
        project = tomllib.loads(_DECLARED.read_text())["project"]
        return _parsed([*project["dependencies"], *project["optional-dependencies"][TORCH]])
    return _parsed(metadata.requires("stepguard") or [])


def _parsed(lines: Iterable[str]) -> list[Requirement]:
    declared = [Requirement(line) for line in lines]
    needed = [
        wanted
        for wanted in declared
        if wanted.marker is None or wanted.marker.evaluate({"extra": TORCH})
    ]
    for wanted in needed:
        wanted.marker = None
    return needed


def unmet(wanted: Requirement) -> str:
    """Return what is wrong with a package here, and the command that mends it; empty if nothing."""
    version = None
    with contextlib.suppress(metadata.PackageNotFoundError):
        version = metadata.version(wanted.name)
    problem = lacks(wanted, version)
    mend = as_typed(f"pip install '{wanted.name}{wanted.specifier}'")
    return f"{problem}; install it with: {mend}" if problem else ""


def lacks(wanted: Requirement, version: str | None) -> str:
    """Return what is wrong with a package's version, None for a missing one; else empty."""
    if version is None:
        return f"{wanted.name} is not installed"
    # By default a specifier excludes every pre-release, however new.
    if wanted.specifier.contains(version, prereleases=True):
        return ""
    return f"{wanted.name} {version} is installed, {wanted} is needed"


def require_torch() -> None:
    """Raise MachineError if the user's torch is missing, or too old to be measured."""
    try:
        wanted = next(package for package in requirements() if package.name == TORCH)
    except metadata.PackageNotFoundError:  # the command doctor says so; a rank without torch fails
        return
    problem = unmet(wanted)
    # A torch that the user built may lie on the import path without metadata.
    if problem and ([*metadata.distributions(name=TORCH)] or find_spec(TORCH) is None):
        raise MachineError(f"{problem} (stepguard measures with the torch that you train with)")


def commands_of_packages() -> dict[str, metadata.EntryPoint]:
    """Return the commands that installed packages add, by name. Each loads a module like cli/'s."""
    return {point.name: point for point in metadata.entry_points(group="stepguard.commands")}


def to_install_lab() -> str:
    """Return what stepguard-lab is for, and the command that installs it."""
    lab = _SOURCES / "lab"
    clone = f"-e {shlex.quote(str(_SOURCES))} -e {shlex.quote(str(lab))}"
    what = clone if (lab / "pyproject.toml").is_file() else "stepguard-lab"
    return (
        "traces, memory, sweeps, history and pages of runs are in the package stepguard-lab; "
        f"install it with: {as_typed(f'pip install {what}')}"
    )
