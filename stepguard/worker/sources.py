"""Which files this rank's modules came from. Standard library."""

import site
import sys
import sysconfig
from pathlib import Path


def sources(package: str) -> dict[str, str]:
    """Return, by module name, the file that it was loaded from, links followed.

    What is installed with this Python is left out, except of ``package``, unless it is a link or a
    path that leads elsewhere: an editable install shows where its source is. A module without a
    file (built in, a namespace) has no code of its own; code that was run but not imported is not
    seen.
    """
    known = sysconfig.get_paths()
    folders = [known[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages()]
    installed = tuple(f"{Path(folder).resolve()}/" for folder in folders)
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str):
            path = str(Path(file).resolve())
            if name.partition(".")[0] == package or not path.startswith(installed):
                found[name] = path
    return found
