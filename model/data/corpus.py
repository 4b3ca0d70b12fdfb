"""Text that every machine already has: the source of the Python standard library.

A performance suite needs real token statistics (some words common, most rare) but must not
depend on a download. The running interpreter ships tens of megabytes of prose-rich source, in
an order that this module makes deterministic.

    for name, text in stdlib_texts():
        ...
"""

from __future__ import annotations

import hashlib
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Tests are missing from many distributions, tables of hex codes teach a tokenizer nothing, and
# third-party packages differ between machines.
_SKIPPED_FOLDERS = frozenset(
    {"__pycache__", "dist-packages", "encodings", "site-packages", "test", "tests", "idle_test"}
)


def stdlib_name() -> str:
    """Which interpreter's library ``stdlib_texts`` reads, for the manifests."""
    return f"CPython {platform.python_version()} standard library"


def stdlib_texts(root: Path | None = None) -> Iterator[tuple[str, str]]:
    """Yield (path relative to ``root``, text) of every module, in an order fixed by the names.

    The order is by the SHA-256 of the relative path: the same on every machine, and spread over
    the alphabet, so that a prefix of the stream is a fair sample of the whole.

    Args:
        root: the folder to read; the running interpreter's standard library when None.
    """
    root = root or Path(sysconfig.get_paths()["stdlib"])
    files = {
        path.relative_to(root).as_posix(): path
        for path in root.rglob("*.py")
        if not _SKIPPED_FOLDERS.intersection(path.relative_to(root).parts)
        # Written when the interpreter was built, with that machine's paths in them:
        and not path.name.startswith("_sysconfigdata")
        and not path.parent.name.startswith("config-")
    }
    for name in sorted(files, key=lambda name: hashlib.sha256(name.encode()).hexdigest()):
        yield name, files[name].read_text(encoding="utf-8", errors="replace")
