"""Clones of this repository to plant things into, and what the gate said of one case there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def clone_head(tree: Path) -> Path:
    """``tree``, which must not exist, as a clone of HEAD."""
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
    """Commit what differs in files that git knows, whoever the user is."""
    name = ["-c", "user.name=benchmarks", "-c", "user.email=benchmarks"]
    subprocess.run(["git", *name, "commit", "-qam", message], cwd=tree, check=True)


def plant(tree: Path, step_ms: float, *options: str) -> None:
    """Make its train step slower by plant.py, whose other ``options`` these are."""
    command = [sys.executable, "benchmarks/plant.py", str(tree), "--step-ms", str(step_ms)]
    subprocess.run([*command, *options], cwd=ROOT, check=True)


def only_case(document: Path, printed: str) -> dict[str, Any]:
    """The one case of a --perf-json document; SystemExit with what was printed otherwise."""
    cases = json.loads(document.read_text())["cases"] if document.exists() else []
    if len(cases) != 1:
        raise SystemExit(f"no single case was measured:\n{printed}")
    found: dict[str, Any] = cases[0]
    return found
