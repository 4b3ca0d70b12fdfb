"""Names in a file that nothing defines, where no test can run it: it needs a GPU."""

import subprocess
import sys
from pathlib import Path


def undefined_names(path: Path) -> str:
    """Return what ruff says of them, or why it does not; empty if there are none."""
    lint = ["-m", "ruff", "check", "--isolated", "--select", "F821", str(path)]
    found = subprocess.run([sys.executable, *lint], capture_output=True, text=True)
    return found.stdout + found.stderr if found.returncode else ""
