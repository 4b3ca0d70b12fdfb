"""Real git repositories for tests."""

import os
import subprocess
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
    for name, text in files.items():
        (root / f"{name}.py").write_text(text)
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", message)
    return git(root, "rev-parse", "HEAD")


def repository(root: Path, **files: str) -> Path:
    """A repository with one commit."""
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "-q")
    commit(root, "first", **files)
    return root
