"""Which engine a launch runs: always the caller's, whatever tree is measured.

The tree comes first on a launch's import path, and it may hold an engine of its own: another
revision of this project does. So the caller's package is linked into a folder that holds nothing
else, which stands before the tree.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

ENGINE = Path(__file__).resolve().parents[1]  # the package


def command(module: str) -> list[str]:
    """Runs a module of the engine. With -m alone Python would put the working directory first.

    Said by -P and not by PYTHONSAFEPATH, which scripts that a workload starts would inherit.
    """
    return [sys.executable, "-P", "-m", module]


def import_path(folder: Path, root: Path, theirs: str, forbidden: Iterable[Path]) -> str:
    """PYTHONPATH of a launch: the engine, by a link in ``folder``, which must not exist; ``root``;
    the caller's own PYTHONPATH; and what lies beside the engine, unless that is a forbidden tree.
    """
    folder.mkdir()
    (folder / ENGINE.name).symlink_to(ENGINE, target_is_directory=True)
    beside = ENGINE.parent
    foreign = any(beside.is_relative_to(tree.resolve()) for tree in forbidden)
    paths = [str(folder), str(root), theirs, "" if foreign else str(beside)]
    return os.pathsep.join(dict.fromkeys(path for path in paths if path))
