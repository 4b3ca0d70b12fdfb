"""A data file travels with a manifest, and is checked against it whenever it is opened.

A benchmark on the wrong tokens still runs, and still prints a time. So every file has a JSON
beside it with its size, its SHA-256 and the command that rebuilds it, and ``verify`` refuses to
go on when they disagree.

    write(Path("tokens.bin"), command="python -m model.data ...", tokens=1024)
    facts = verify(Path("tokens.bin"))
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

TOKENS_FOLDER = Path(__file__).resolve().parent / "tokens"  # the committed files


def manifest_path(path: Path) -> Path:
    """``stdlib8k.bin`` is described by ``stdlib8k.bin.json``."""
    return path.with_name(path.name + ".json")


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's bytes, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(path: Path, *, command: str, **facts: Any) -> None:
    """Describe the finished file at ``path``: size in bytes, SHA-256, ``command`` and ``facts``."""
    described = {
        "bytes": path.stat().st_size,
        "command": command,
        "sha256": sha256_of(path),
        **facts,
    }
    text = json.dumps(described, indent=2, sort_keys=True) + "\n"
    manifest_path(path).write_text(text, encoding="ascii")


def verify(path: Path) -> dict[str, Any]:
    """Return the manifest of ``path`` after checking the file against it.

    Raises:
        FileNotFoundError: the file or its manifest is missing.
        ValueError: the manifest is unreadable, or size or SHA-256 are not what it says. The
            message has the value found and the command that rebuilds the file.
    """
    facts = _read(manifest_path(path))
    rebuild = f"rebuild it with: {facts['command']}"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; {rebuild}")
    found_bytes = path.stat().st_size
    if found_bytes != facts["bytes"]:
        raise ValueError(
            f"{path} has {found_bytes} bytes, its manifest says {facts['bytes']}; {rebuild}"
        )
    found_sha256 = sha256_of(path)
    if found_sha256 != facts["sha256"]:
        raise ValueError(
            f"{path} has SHA-256 {found_sha256}, its manifest says {facts['sha256']}; {rebuild}"
        )
    return facts


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing; a data file without its manifest cannot be checked"
        )
    try:
        facts = json.loads(path.read_text(encoding="ascii"))
    except ValueError as error:
        raise ValueError(f"{path} is not a manifest: {error}") from error
    absent = {"bytes", "command", "sha256"} - set(facts if isinstance(facts, dict) else ())
    if absent:
        raise ValueError(f"{path} is not a manifest: it lacks {', '.join(sorted(absent))}")
    return dict(facts)
