"""Make commands that a user can paste. They use the interpreter that prints them."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def source_folders() -> str:
    """Return "env PYTHONPATH=src " if PYTHONPATH has a relative path; else empty. With such a path
    each revision imports its own sources.
    """
    paths = os.environ.get("PYTHONPATH", "")
    relative = any(path and not os.path.isabs(path) for path in paths.split(os.pathsep))
    return f"env PYTHONPATH={shlex.quote(paths)} " if relative else ""


def interpreter(start: Path = Path()) -> str:
    """Return how a shell in ``start`` calls this interpreter: source_folders(), then ``python`` if
    that is what PATH finds, else the path. The path is relative if it lies below ``start``.
    """
    command, path = shutil.which("python"), Path(sys.executable)
    # The path is not resolved: an environment's python is often a link to the one on PATH.
    if command and Path(command).absolute() == path.absolute():
        return f"{source_folders()}python"
    shown = path.relative_to(start) if path.is_relative_to(start) else path
    return source_folders() + shlex.quote(str(shown))


def called(python: str, words: str) -> str:
    """Return the command that runs a module, such as "pytest perf_tests", with that interpreter."""
    # If PATH finds an environment's python, it also finds its pytest.
    return words if (python, words[:6]) == ("python", "pytest") else f"{python} -m {words}"


def as_typed(words: str) -> str:
    """Return the command that runs a module, for a shell in the current folder."""
    return called(interpreter(Path.cwd()), words)
