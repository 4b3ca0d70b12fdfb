"""Give every launch the caller's engine, whatever tree is measured.

The tree comes first on a launch's import path, and it may contain another engine: another revision
of this project does. So the caller's package is linked into a folder of its own, which comes before
the tree.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

ENGINE = Path(__file__).resolve().parents[1]  # the package


def command(module: str, python: str = sys.executable) -> list[str]:
    """Return the command that runs a module of the engine with an interpreter. With -P that does
    not put the working directory first on the import path. PYTHONSAFEPATH would do the same, but a
    workload's scripts would inherit it.
    """
    return [python, "-P", "-m", module]


def caches(folder: Path) -> dict[str, str]:
    """Return variables for a process's environment: it then compiles into ``folder``, and numbers
    GPUs as NVML does.
    """
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def import_path(folder: Path, root: Path, theirs: str, forbidden: Iterable[Path]) -> str:
    """Make ``folder``, which must not exist, with a link to the engine. Return PYTHONPATH of a
    launch: ``folder``, ``root``, the caller's own paths (``theirs``), and the folder that contains
    the engine, unless it lies in a forbidden tree.
    """
    folder.mkdir()
    (folder / ENGINE.name).symlink_to(ENGINE, target_is_directory=True)
    beside = ENGINE.parent
    foreign = any(beside.is_relative_to(tree.resolve()) for tree in forbidden)
    paths = [str(folder), str(root), theirs, "" if foreign else str(beside)]
    return os.pathsep.join(dict.fromkeys(path for path in paths if path))
