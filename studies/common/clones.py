"""Clones of this repository to plant changes into, and the verdict on one case there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from studies.common.results import ROOT


def clone_head(tree: Path) -> Path:
    """Clone HEAD into ``tree``, which must not exist."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)
    return tree


def share_cache(tree: Path, cache: Path | None) -> None:
    """Let runs in ``tree`` use these compile caches: a clone of its own would compile for half a
    minute.
    """
    if cache:
        cache.mkdir(parents=True, exist_ok=True)
        (tree / ".stepguard").mkdir()
        (tree / ".stepguard" / "cache").symlink_to(cache.resolve(), target_is_directory=True)


def commit_all(tree: Path, message: str) -> None:
    """Commit every change to tracked files, under a name of its own."""
    name = ["-c", "user.name=studies", "-c", "user.email=studies"]
    subprocess.run(["git", *name, "commit", "-qam", message], cwd=tree, check=True)


def plant(tree: Path, step_ms: float, *options: str) -> None:
    """Make the train step of ``tree`` slower; ``options`` are further ones of plant.py."""
    command = [sys.executable, "-m", "studies.common.plant", str(tree), "--step-ms", str(step_ms)]
    subprocess.run([*command, *options], cwd=ROOT, check=True)


def only_case(document: Path, printed: str) -> dict[str, Any]:
    """Return the one case of a --perf-json document, or raise SystemExit with the output."""
    cases = json.loads(document.read_text())["results"] if document.exists() else []
    if len(cases) != 1:
        raise SystemExit(f"no single case was measured:\n{printed}")
    found: dict[str, Any] = cases[0]
    return found
