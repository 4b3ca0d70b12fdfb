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
    """By module name: the file, where that is installed beside this Python, links followed.

    Top-level modules and what lies directly in a package, that of a namespace included: enough to
    tell whose a package is, and torch alone has thousands.
    """
    roots = tuple(f"{folder}/" for folder in _packages())
    return {name: str(path) for name, path in _files(2) if str(path).startswith(roots)}


def _depth(name: str) -> int:
    """How many of the module's parents have a file."""
    parents = 0
    while name := name.rpartition(".")[0]:
        parents += _has_file(name)
    return parents


def _has_file(name: str) -> bool:
    return isinstance(getattr(sys.modules.get(name), "__file__", None), str)


def _files(depth: int = sys.maxsize) -> Iterator[tuple[str, Path]]:
    """The file of each module that has one and lies less deep, links followed."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and _depth(name) < depth:
            yield name, Path(file).resolve()


def _packages() -> list[Path]:
    """The folders of what is installed beside this Python."""
    known = sysconfig.get_paths()
    folders = [known["purelib"], known["platlib"], *site.getsitepackages()]
    return [Path(folder).resolve() for folder in (*folders, site.getusersitepackages())]
