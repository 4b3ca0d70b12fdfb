"""What must be alike on all nodes of a launch: the sources, the packages, the kind of GPU."""

import hashlib
import os
import platform
import socket
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

import stepguard
from stepguard.git.revision import current
from stepguard.gpu.nvml import Gpu

PACKAGES = ("torch", "triton", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
_PASSED_OVER = ("__pycache__", "node_modules", "site-packages")


@dataclass(frozen=True)
class Facts:
    """A node as it describes itself."""

    name: str  # host name
    pid: int
    root: str  # its source tree
    stepguard: str
    python: str
    packages: dict[str, str]
    commit: str  # empty where the tree is no git repository
    sources: str  # digest of every Python source of the tree, and of stepguard's own
    gpus: tuple[Gpu, ...]

    @property
    def label(self) -> str:
        """How a message names the node."""
        return f"{self.name} (pid {self.pid})"


def describe(root: Path, gpus: Sequence[Gpu]) -> Facts:
    """This node."""
    return Facts(
        name=socket.gethostname(),
        pid=os.getpid(),
        root=str(root),
        stepguard=stepguard.__version__,
        python=platform.python_version(),
        packages={name: version for name in PACKAGES if (version := _version(name))},
        commit=current(root, root / "baselines").commit,
        sources=digest_of(root, Path(stepguard.__file__).parent),
        gpus=tuple(gpus),
    )


def as_message(facts: Facts) -> dict[str, Any]:
    """The facts as JSON types."""
    return asdict(facts)


def from_message(message: dict[str, Any]) -> Facts:
    """What as_message() made. Raises ValueError for anything else."""
    try:
        return msgspec.convert(message, Facts)
    except msgspec.ValidationError as error:
        raise ValueError(f"a node describes itself oddly: {error}") from None


def unlike(here: Facts, there: Facts) -> str:
    """How the other node differs from this one where it must not; empty if it does not."""
    found = []
    for name in ("stepguard", "python"):
        old, new = getattr(here, name), getattr(there, name)
        found += [f"{name} {new}, here {old}"] if old != new else []
    for name in sorted(here.packages.keys() | there.packages.keys()):
        old, new = here.packages.get(name, "none"), there.packages.get(name, "none")
        found += [f"{name} {new}, here {old}"] if old != new else []
    if here.commit != there.commit:
        old, new = (commit[:10] or "no commit" for commit in (here.commit, there.commit))
        found.append(f"{there.root} is at {new}, {here.root} here at {old}")
    elif here.sources != there.sources:
        found.append(f"the Python sources under {there.root} differ from those under {here.root}")
    old, new = _cards(here), _cards(there)
    found += [f"{new}, here {old}"] if old != new else []
    return "; ".join(found)


def _cards(facts: Facts) -> str:
    """The kinds of GPU and their drivers; how many there are of each may differ."""
    kinds = sorted({f"{gpu.name} with driver {gpu.driver}" for gpu in facts.gpus})
    return ", ".join(kinds) or "no GPU"


def digest_of(*folders: Path) -> str:
    """One figure for the names and bytes of all Python sources below the folders."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(python_sources(folder)):
            content = path.read_bytes()
            name = str(path.relative_to(folder))
            digest.update(f"{name} {len(content)} ".encode() + content)
    return digest.hexdigest()


def python_sources(folder: Path) -> Iterator[Path]:
    """Every Python source below the folder, but for hidden folders and what is installed."""
    for where, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if name[0] != "."
            and name not in _PASSED_OVER
            and not Path(where, name, "pyvenv.cfg").exists()
        ]
        yield from (Path(where, name) for name in names if name.endswith(".py"))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
