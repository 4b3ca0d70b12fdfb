"""Steps that a compile cache has, by the code that they compile from.

Such a step compiles nothing, and tries no kernels. So its first run may be beside that of another
launch. But this is a guess, since a step may import more code while it runs. Whoever relies on it
asks the launch afterwards whether it compiled.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stepguard.storage.json_file import replace_file

_FOLDER = "compiled_steps"  # of a compile cache; it has a file for each step


class CompiledStep:
    """A step's file in a compile cache. ``made_of`` is its case and fingerprint, as JSON.
    ``modules`` of ``tree`` are its imports before it first runs.
    """

    def __init__(self, cache: Path, made_of: Any, tree: Path, modules: Iterable[Path]) -> None:
        key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode())
        self._path: Path | None = None
        # A module may be in an archive or on another node, or be gone. Then no cache has the step.
        with contextlib.suppress(OSError):
            for module in sorted(modules):
                key.update(os.fsencode(module.relative_to(tree)))
                key.update(hashlib.sha256(module.read_bytes()).digest())
            self._path = cache / _FOLDER / key.hexdigest()

    @property
    def reserved_bytes(self) -> int:
        """Return the GPU memory that a rank reserved for the step. 0 if the cache has no step."""
        try:
            return max(int(self._path.read_bytes()), 0) if self._path else 0
        except (OSError, ValueError):
            return 0

    def note(self, reserved_bytes: int) -> None:
        """Note that a launch has run the step, and the GPU memory that a rank reserved for it. 0 if
        the cache cannot keep the step.
        """
        if self._path and self.reserved_bytes != reserved_bytes:
            with contextlib.suppress(OSError):  # it only saves seconds
                replace_file(self._path, b"%d\n" % reserved_bytes)
