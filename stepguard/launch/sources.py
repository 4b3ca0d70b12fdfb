"""Whether a launch ran the tree that it was started for: nothing of another revision's, and nothing
from anywhere else that the tree holds itself (launch/held.py).

The worker tells which files its modules came from (worker/sources.py); this decides. Trees may lie
in each other, as one of another revision does (git/worktree.py), and so may what belongs to none:
the deepest folder that holds a file says whose it is.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepguard.evidence import Fault
from stepguard.git.revision import git
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.engine import ENGINE
from stepguard.launch.held import INSTALLABLE, Copy, Held, copies
from stepguard.launch.torchrun import LaunchSpec
from stepguard.verdict import Reason

SHOWN = 3
_PASSED_OVER = ("__pycache__", "node_modules", "site-packages")
LISTED = ("*.py", *(f":(glob)**/{name}" for name in INSTALLABLE))


def held_by(root: Path, own: Path | None = None) -> Held:
    """The sources of the tree that is ``own``, or that git says ``root`` lies in: what git knows,
    what is not added yet below ``root``, and all of that where git knows nothing.
    """
    root = root.resolve()
    found = git(root, "rev-parse", "--show-toplevel")
    top = own or (Path(found.removesuffix("\n")) if found else root)
    top = top.resolve() if root.is_relative_to(top.resolve()) else root
    new = ("--others", "--exclude-standard", "--full-name")
    listed = git(top, "ls-files", "-z", "--cached", "--", *LISTED) or ""
    listed += git(root, "ls-files", "-z", *new, "--", *LISTED) or ""
    files, below = set(filter(None, listed.split("\0"))), root.relative_to(top).as_posix()
    if not any((top / file).is_relative_to(root) for file in files):
        files |= {path.relative_to(top).as_posix() for path in python_sources(root)}
    return Held(files, "" if below == "." else below)


def python_sources(folder: Path) -> Iterator[Path]:
    """Every Python source below the folder, but for hidden folders and what is installed."""
    for where, folders, names in os.walk(folder):
        folders[:] = [
            name
            for name in folders
            if name[0] != "."
            and name not in _PASSED_OVER
            and not Path(where, name, "pyvenv.cfg").exists()
        ]
        yield from (Path(where, name) for name in names if name.endswith(".py"))


def check(
    spec: LaunchSpec,
    ranks: Sequence[Mapping[str, Any]],
    during: str,
    held: Held,
    factory: str,
) -> None:
    """Take every rank's answer to ``prepare`` or ``sources``; ``held`` is what the tree holds,
    ``factory`` the module of the workload's factory.

    Raises LaunchFailed (OTHER_TREE) when a module lies in a tree that the launch forbids, when the
    engine is then not the caller's, and when a module came from elsewhere that the tree holds.
    """
    own = [folder.resolve() for folder in (spec.root, *filter(None, [spec.own]))]
    neutral = [folder.resolve() for folder in (spec.cache, spec.folder)]
    forbidden = [folder.resolve() for folder in spec.forbidden]
    for rank, told in enumerate(ranks):
        if forbidden and (found := strays(told["sources"], own, forbidden, neutral)):
            message = _described(found, spec.root)
        elif copied := _copied(told, spec.root.resolve(), held, factory):
            message = _described_copies(copied, _top(spec.root.resolve(), held), held)
        else:
            continue
        where = f"{spec.label}, {during}"
        raise LaunchFailed(Fault(Reason.OTHER_TREE.name, f"rank {rank}: {message}", "", where))


def _top(root: Path, held: Held) -> Path:
    """The top of the tree that launches run in ``root`` of."""
    return root.parents[held.below.count("/")] if held.below else root


def _copied(told: Mapping[str, Any], root: Path, held: Held, factory: str) -> list[Copy]:
    """What the rank imported from elsewhere though the tree holds it; a link is its target."""
    top, theirs = _top(root, held), _top(Path(told.get("root", root)), held)
    here, elsewhere = {}, dict(told.get("installed", {}))
    for name, file in told["sources"].items():
        path = Path(file)
        inner = path.relative_to(theirs).as_posix() if path.is_relative_to(theirs) else ""
        if inner in held.files:
            here[name] = inner
        else:  # in the tree as well: what was built or generated there may be a copy, and old
            elsewhere[name] = file
    return [
        copy
        for copy in copies(elsewhere, here, held, factory)
        if (top / copy.held).is_file() and (top / copy.held).resolve() != Path(copy.file)
    ]


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


def _came(files: Sequence[str], where: str) -> str:
    what = "a module" if len(files) == 1 else f"{len(files)} modules"
    more = f" and {len(files) - SHOWN} more" if len(files) > SHOWN else ""
    return f"{what} came from {where}: {', '.join(files[:SHOWN])}{more}"


def _described(found: Sequence[tuple[str, str]], root: Path) -> str:
    told = _came([f"{name} ({file})" for name, file in found], f"another tree than {root}")
    return (
        f"{told}; take that tree off PYTHONPATH, "
        "and uninstall it if it is installed in editable mode (python -m pip list --editable)"
    )


def _described_copies(found: Sequence[Copy], top: Path, held: Held) -> str:
    """With what has this tree's own imported, the other revision's in its turn as well."""
    files = [f"{copy.module} ({copy.file}, not {copy.held})" for copy in found]
    told = _came(files, f"elsewhere, and {top} holds the source")
    root, package = found[0].root or ".", found[0].module.partition(".")[0]
    path = os.path.relpath(root, held.below or ".")
    instead = "" if path == "." else f", and say PYTHONPATH={path}, which is each tree's own"
    return (
        f"{told}; take that folder "
        f"off PYTHONPATH or uninstall {package} (python -m pip uninstall {package}){instead}"
    )
