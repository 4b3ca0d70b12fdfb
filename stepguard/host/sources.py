"""Whether a launch ran the tree that it was started for, and nothing of another revision's.

The worker tells which files its modules came from (worker/sources.py); this decides. Trees may lie
in each other, as one of another revision does (host/worktree.py), and so may what belongs to none:
the deepest folder that holds a file says whose it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepguard.evidence import Fault
from stepguard.host.diagnosis import LaunchFailed
from stepguard.host.engine import ENGINE
from stepguard.host.torchrun import LaunchSpec
from stepguard.verdict import Reason

SHOWN = 3


def check(spec: LaunchSpec, ranks: Sequence[Mapping[str, Any]], during: str) -> None:
    """Take every rank's answer to ``prepare`` or ``sources``.

    Raises LaunchFailed (OTHER_TREE) when a module lies in a tree that the launch forbids, or when
    the engine is not the caller's. Does nothing for a launch that forbids no tree.
    """
    if not spec.forbidden:
        return
    own = [folder.resolve() for folder in (spec.root, *filter(None, [spec.own]))]
    neutral = [folder.resolve() for folder in (spec.cache, spec.folder)]
    forbidden = [folder.resolve() for folder in spec.forbidden]
    for rank, told in enumerate(ranks):
        found = strays(told["sources"], own, forbidden, neutral)
        found += shadowed(told.get("installed", {}), own)
        if found:
            message = f"rank {rank}: {_described(found, spec.root)}"
            where = f"{spec.label}, {during}"
            raise LaunchFailed(Fault(Reason.OTHER_TREE.name, message, "", where))


def strays(
    sources: Mapping[str, str],
    own: Iterable[Path],
    forbidden: Iterable[Path],
    neutral: Iterable[Path],
    engine: Path = ENGINE,
) -> list[tuple[str, str]]:
    """(module, file) of those that came from a forbidden tree, and of another engine's.

    ``own`` wins over ``forbidden`` where both name one folder. All paths are resolved.
    """
    whose = dict.fromkeys(forbidden, "forbidden") | dict.fromkeys(own, "own")
    whose |= dict.fromkeys(neutral, "neutral") | {engine: "engine"}
    found = []
    for name, file in sorted(sources.items()):
        owner = next((whose[folder] for folder in Path(file).parents if folder in whose), "")
        other_engine = owner != "engine" and name.partition(".")[0] == engine.name
        if owner == "forbidden" or other_engine:
            found.append((name, file))
    return found


def shadowed(
    installed: Mapping[str, str], own: Iterable[Path], engine: Path = ENGINE
) -> list[tuple[str, str]]:
    """(module, file) of installed packages whose source the tree has, in itself or in src/: both
    revisions would run the installed copy. The engine excepted.
    """
    folders = [folder for root in own for folder in (root, root / "src")]
    return [
        (name, f"an installed copy, not {folder / file}")
        for name, file in sorted(installed.items())
        for folder in folders
        if name != engine.name and (folder / file).is_file()
    ][:SHOWN]


def _described(found: Sequence[tuple[str, str]], root: Path) -> str:
    shown = ", ".join(f"{name} ({file})" for name, file in found[:SHOWN])
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    what = "a module" if len(found) == 1 else f"{len(found)} modules"
    return (
        f"{what} came from another tree than {root}: {shown}{more}; take that tree off PYTHONPATH, "
        "and uninstall it if it is installed in editable mode (python -m pip list --editable)"
    )
