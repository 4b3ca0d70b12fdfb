"""Which files this rank's modules came from. Standard library."""

import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path


def sources() -> dict[str, str]:
    """By module name: the file that it was loaded from, links followed.

    What is installed with this Python is left out, unless it is a link or a path that leads
    elsewhere: an editable install shows where its source is. A module without a file (built in, a
    namespace) has no code of its own; code that was run but not imported is not seen.
    """
    known = sysconfig.get_paths()
    library = [Path(known[name]).resolve() for name in ("stdlib", "platstdlib")]
    left_out = tuple(f"{folder}/" for folder in [*library, *_packages()])
    return {name: str(path) for name, path in _files() if not str(path).startswith(left_out)}


def installed() -> dict[str, str]:
    """By name of each top-level module that is installed beside this Python: its file, relative to
    the folder that it is installed in.
    """
    roots, found = _packages(), {}
    for name, path in _files(top_level=True):
        root = next((root for root in roots if root in path.parents), None)
        if root is not None:
            found[name] = str(path.relative_to(root))
    return found


def _files(top_level: bool = False) -> Iterator[tuple[str, Path]]:
    """The file of each module that has one, links followed."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not (top_level and "." in name):
            yield name, Path(file).resolve()


def _packages() -> list[Path]:
    """The folders of what is installed beside this Python."""
    known = sysconfig.get_paths()
    folders = [known["purelib"], known["platlib"], *site.getsitepackages()]
    return [Path(folder).resolve() for folder in (*folders, site.getusersitepackages())]
