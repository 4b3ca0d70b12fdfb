"""Commands that are printed to be pasted: they are run by the interpreter that prints them."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def source_folders() -> str:
    """Return "env PYTHONPATH=src " where sources are found by a path that is relative to where the
    command is typed: each revision has its own, and nothing else would find them. Else nothing.
    """
    paths = os.environ.get("PYTHONPATH", "")
    relative = any(path and not os.path.isabs(path) for path in paths.split(os.pathsep))
    return f"env PYTHONPATH={shlex.quote(paths)} " if relative else ""


def interpreter(start: Path = Path()) -> str:
    """Return how this interpreter is called from a shell in ``start``: ``python`` if that is what
    PATH has; its absolute path where ``start`` is not known. Before it are the source_folders().
    """
    return source_folders() + _python(start)


def _python(start: Path) -> str:
    command, path = shutil.which("python"), Path(sys.executable)
    # Not resolved: the python of an environment is often a link to the one that PATH has.
    if command and Path(command).absolute() == path.absolute():
        return "python"
    return shlex.quote(str(path.relative_to(start) if path.is_relative_to(start) else path))


def called(python: str, words: str) -> str:
    """Return a command of a module, "pytest perf_tests" say, by that interpreter."""
    # Where PATH has an environment's python it has its pytest.
    return words if (python, words[:6]) == ("python", "pytest") else f"{python} -m {words}"


def as_typed(words: str) -> str:
    """Return a command of a module as it is typed here."""
    return called(interpreter(Path.cwd()), words)
