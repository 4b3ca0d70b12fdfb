"""Which files this rank's modules came from. Standard library."""

import site
import sys
import sysconfig
from pathlib import Path


def sources() -> dict[str, str]:
    """By module name: the file that it was loaded from, links followed.

    What is installed with this Python is left out, unless it is a link or a path that leads
    elsewhere: an editable install shows where its source is. A module without a file (built in, a
    namespace) has no code of its own; code that was run but not imported is not seen.
    """
    installed = _installed()
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            path = str(Path(file).resolve())
            if not path.startswith(installed):
                found[name] = path
    return found


def installed() -> dict[str, str]:
    """By name of each top-level module that is installed beside this Python: its file, relative to
    the folder that it is installed in.
    """
    known = sysconfig.get_paths()
    folders = [known["purelib"], known["platlib"], *site.getsitepackages()]
    folders.append(site.getusersitepackages())
    roots = [Path(folder).resolve() for folder in folders]
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." in name or not isinstance(file, str):
            continue
        path = Path(file).resolve()
        root = next((root for root in roots if root in path.parents), None)
        if root is not None:
            found[name] = str(path.relative_to(root))
    return found


def _installed() -> tuple[str, ...]:
    """The folders of this Python's own library and of what is installed beside it."""
    known = sysconfig.get_paths()
    folders = {known[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages()}
    return tuple(f"{Path(folder).resolve()}/" for folder in folders)
