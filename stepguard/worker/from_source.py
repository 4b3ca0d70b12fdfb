"""Imports the measured tree from its sources, never from bytecode beside them, which git ignores.

Python believes bytecode that names its source's size and the second that it was written: those of
an older one where a tool has restored both (``cp -p``, ``rsync -t``, a cache of CI). Of some it
does not even look at the source. Then what runs is not what the commit says.
"""

import sys
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from typing import Any

_INSTALLED = {"site-packages", "dist-packages"}  # large, and nobody edits it
_ENGINE = Path(__file__).resolve().parents[1]  # in this project's own tree: measures, and is not


class _FromSource(SourceFileLoader):
    """Loads a module without bytecode."""

    def path_stats(self, path: Any) -> Any:
        """Say that nothing is known of a source: then none is read or written."""
        raise OSError


def import_from_source(folder: Path) -> None:
    """Have this process import from its source what lies in the folder's repository, or in the
    folder where there is none, and is not installed there.
    """
    folder = folder.resolve()
    top = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)
    finder = FileFinder.path_hook(
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (_FromSource, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),  # its file is the source, as git sees it
    )

    def of_the_tree(path: str) -> Any:
        where = Path(path).resolve()
        installed = where.is_relative_to(_ENGINE) or _INSTALLED & {*where.parts}
        if installed or not where.is_relative_to(top):
            raise ImportError(path)  # which asks the next hook
        return finder(path)

    sys.path_hooks.insert(0, of_the_tree)
    sys.path_importer_cache.clear()
