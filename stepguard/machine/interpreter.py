"""Commands that are printed for pasting. They use the interpreter that prints them."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def source_folders() -> str:
    """Return "env PYTHONPATH=src " if sources are found by a path relative to the current folder,
    so that each revision uses its own; else empty.
    """
    paths = os.environ.get("PYTHONPATH", "")
    relative = any(path and not os.path.isabs(path) for path in paths.split(os.pathsep))
    return f"env PYTHONPATH={shlex.quote(paths)} " if relative else ""


def interpreter(start: Path = Path()) -> str:
    """Return how to call this interpreter from a shell in ``start``: ``python`` if PATH has it,
    else its path, which is relative to ``start`` if it lies below it. source_folders() comes before
    it.
    """
    return source_folders() + _python(start)


def _python(start: Path) -> str:
    command, path = shutil.which("python"), Path(sys.executable)
    # The path is not resolved: an environment's python is often a link to the one on PATH.
    if command and Path(command).absolute() == path.absolute():
        return "python"
    return shlex.quote(str(path.relative_to(start) if path.is_relative_to(start) else path))


def called(python: str, words: str) -> str:
    """Return the command that runs a module, such as "pytest perf_tests", with that interpreter."""
    # If PATH has an environment's python, it has its pytest, too.
    return words if (python, words[:6]) == ("python", "pytest") else f"{python} -m {words}"


def as_typed(words: str) -> str:
    """Return the command that runs a module, as it is typed here."""
    return called(interpreter(Path.cwd()), words)
