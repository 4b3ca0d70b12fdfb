"""Packages: those that stepguard needs, with the user's own torch, here and in another interpreter.
There the other side of pairs may run. The user makes it. The engine of this process runs in it,
too, so it needs the engine's packages. And packages that add commands.
"""

import contextlib
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from stepguard.core.replies import Sources
from stepguard.machine.gpu import MachineError
from stepguard.machine.interpreter import as_typed

# torch is an extra of the distribution: a user who trains has one, which pip must not replace.
TORCH = "torch"
_SOURCES = Path(__file__).resolve().parents[2]
_DECLARED = _SOURCES / "pyproject.toml"


def requirements() -> list[Requirement]:
    """Return the packages needed, as the source tree declares them, or the installation."""
    if _DECLARED.is_file():
        project = tomllib.loads(_DECLARED.read_text())["project"]
        lines = [*project["dependencies"], *project["optional-dependencies"][TORCH]]
    else:
        lines = metadata.requires("stepguard") or []
    needed = []
    for wanted in map(Requirement, lines):
        if wanted.marker is None or wanted.marker.evaluate({"extra": TORCH}):
            wanted.marker = None
            needed.append(wanted)
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


SURVEY_LIMIT_S = 120.0
LEAST = (3, 11)  # the option -P, with which launches start
NO_PACKAGE = "of no package"  # stands for the version of a module that was put there by hand
ENGINE = {"stepguard", "__mp_main__"}  # both sides run it; its agent is the ranks' main module
# It runs in Pythons of any age. With -c an empty path stands for the working directory. Of two
# copies of a package the first one on the path is imported.
_SURVEY = """
import sys
sys.path[:] = filter(None, sys.path)
import json
from importlib import metadata, util
installed = [*metadata.distributions()]
modules = getattr(metadata, "packages_distributions", dict)()
for one in installed:  # a finder of an editable install is no package's top level
    for path in one.files or ():
        if path.suffix == ".py" and len(path.parts) == 1:
            modules.setdefault(path.stem, [one.metadata["Name"]])
json.dump({
    "prefix": sys.prefix,
    "version": sys.version_info[:3],
    "torch": util.find_spec("torch") is not None,
    "packages": {one.metadata["Name"]: one.version for one in installed[::-1]},
    "modules": modules,
}, sys.stdout)
"""


@dataclass(frozen=True)
class Python:
    """An interpreter and its packages."""

    asked: str  # as it was asked for
    executable: str  # an absolute path; not resolved, since an environment's python is a link
    prefix: str
    version: tuple[int, ...]
    torch: bool  # it finds a torch, which may have no metadata
    packages: Mapping[str, str]  # their versions, by canonical name
    modules: Mapping[str, tuple[str, ...]]  # the packages that have a top-level module

    def versions(self, imported: Sources) -> dict[str, str]:
        """Return the versions of a rank's packages; a module of none stands for itself."""
        installed = {module.partition(".")[0] for module in imported.installed}
        versions = dict.fromkeys(installed - self.modules.keys(), NO_PACKAGE)
        for top in installed | {module.partition(".")[0] for module in imported.sources}:
            versions |= {name: self.packages[name] for name in self.modules.get(top, ())}
        return {name: versions[name] for name in sorted(versions.keys() - ENGINE)}

    def beside(self, cache: Path) -> Path:
        """Return the folder of this interpreter's compile caches, beside the checkout's own."""
        digest = hashlib.sha256(os.fsencode(self.prefix)).hexdigest()[:8]
        return cache.with_name(f"{cache.name}-python-{digest}")


Pythons = tuple[Python, Python]  # the running one, and the other one


def survey_both(asked: str, start: Path, root: Path, variables: Mapping[str, str]) -> Pythons:
    """Return the running interpreter and the one that was ``asked`` for."""
    mine = _survey(sys.executable, sys.executable, root, variables)
    theirs = survey_other(asked, start, root, variables)
    if (mine.prefix, mine.version) == (theirs.prefix, theirs.version):
        raise MachineError(
            f"this is the running environment, {mine.prefix}: name the python of another one"
        )
    return mine, theirs


def survey_other(asked: str, start: Path, root: Path, variables: Mapping[str, str]) -> Python:
    """Return the interpreter ``asked`` for. Raises MachineError if no launch can run in it."""
    found = shutil.which(start / asked) if os.sep in asked else shutil.which(asked)
    if found is None:
        raise MachineError(
            "no program is there; make an environment, for example in /tmp/other: "
            "python -m venv /tmp/other, and name /tmp/other/bin/python"
        )
    python = _survey(asked, os.path.abspath(found), root, variables)
    for folder in filter(None, variables.get("PYTHONPATH", "").split(os.pathsep)):
        if Path(root, folder).resolve() == Path(sysconfig.get_path("purelib")).resolve():
            raise MachineError(
                f"PYTHONPATH has {folder}, the running environment's packages, which it would "
                "import, too: take that folder off PYTHONPATH"
            )
    return python


def _survey(asked: str, executable: str, root: Path, variables: Mapping[str, str]) -> Python:
    command = [executable, "-c", _SURVEY]
    try:
        done = subprocess.run(
            command, cwd=root, env=variables, capture_output=True, timeout=SURVEY_LIMIT_S
        )
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        said = str(error)
        if isinstance(error, ValueError):
            said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise MachineError(
            f"it does not run as a Python: {said or 'it says nothing'}; "
            f"try: {shlex.quote(executable)} -c 'import importlib.metadata'"
        ) from None
    names = {name: canonicalize_name(name) for name in found["packages"] if name}
    python = Python(
        asked,
        executable,
        os.path.realpath(found["prefix"]),
        tuple(found["version"]),
        found["torch"],
        {names[name]: version for name, version in found["packages"].items() if name in names},
        {
            top: tuple(sorted({names[name] for name in of if name in names}))
            for top, of in found["modules"].items()
        },
    )
    if executable != sys.executable:
        _refuse_incomplete(python)
    return python


def _refuse_incomplete(python: Python) -> None:
    """Raise MachineError if an interpreter is too old, or lacks a package that a launch needs."""
    if python.version < LEAST:
        version, least = (".".join(map(str, one)) for one in (python.version, LEAST))
        raise MachineError(
            f"it is Python {version}, {least} is needed: make the environment with a newer one"
        )
    try:
        needed = requirements()
    except metadata.PackageNotFoundError:  # the command doctor says so
        return
    problems = {one: lacks(one, python.packages.get(canonicalize_name(one.name))) for one in needed}
    # A torch that the user built may lie on the import path without metadata.
    built = {TORCH} if python.torch and TORCH not in python.packages else ()
    missing = {one: why for one, why in problems.items() if why and one.name not in built}
    if missing:
        # An environment that uv made has no pip.
        where = shlex.quote(python.executable)
        own = "pip" in python.packages
        install = f"{where} -m pip install" if own else f"uv pip install --python {where}"
        what = " ".join(shlex.quote(f"{one.name}{one.specifier}") for one in missing)
        raise MachineError(f"{'; '.join(missing.values())}; install with: {install} {what}")
