"""Real git repositories for tests."""

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path


def git(root, *arguments, **env):
    """Run git in ``root`` with an identity; what it prints."""
    name = ["-c", "user.name=a", "-c", "user.email=a@b"]
    name += ["-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"]
    done = subprocess.run(
        ["git", "-C", root, *name, *arguments],
        env=os.environ | env,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def commit(root: Path, message: str, **files: str) -> str:
    """Write ``name="text"`` as name.py, commit everything; the hash."""
    _committed(root, message, files)
    return git(root, "rev-parse", "HEAD")


def _committed(root: Path, message: str, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / f"{name}.py").write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", message)


def repository(root: Path, **files: str) -> Path:
    """A repository with one commit: where nothing is yet, a copy of the first one like it."""
    root.mkdir(parents=True, exist_ok=True)
    if any(root.iterdir()):
        return _begun(root, files)
    shutil.copytree(_like(tuple(files.items())), root, dirs_exist_ok=True)
    git(root, "update-index", "-q", "--refresh")  # a copy has other times than the index says
    return root


@cache
def _like(files: tuple[tuple[str, str], ...]) -> Path:
    root = Path(tempfile.mkdtemp(prefix="repository-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return _begun(root, dict(files))


def _begun(root: Path, files: Mapping[str, str]) -> Path:
    git(root, "init", "-q")
    _committed(root, "first", files)
    return root
