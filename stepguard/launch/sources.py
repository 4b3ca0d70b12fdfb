"""Tells if a launch ran the tree that it was started for. Three rules, none of which guesses.

* What a rank imported of the factory's top-level package lies in the measured tree, and not in what
  is installed there. A copy from elsewhere would be measured whatever is changed in the tree.
* Beside another revision nothing at all comes from that one's tree, and the engine is the caller's.
* A package that is installed is on both sides of a comparison: neither has sources of it that the
  other has not.

Trees may lie in each other, as one of another revision does (git/worktree.py), and so may what
belongs to none: the deepest folder that holds a file says whose it is.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepguard.evidence import Fault
from stepguard.git.revision import git
from stepguard.git.worktree import FOLDER
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.engine import ENGINE
from stepguard.launch.torchrun import LaunchSpec
from stepguard.text import listed
from stepguard.verdict import Reason

SHOWN = 3
NOT_SOURCES = {FOLDER, "site-packages", "dist-packages"}
Module = tuple[str, str]  # its name and its file


def tree_of_root(root: Path) -> Path:
    """Return the top of the repository that ``root`` lies in, or ``root`` where there is none."""
    top = git(root, "rev-parse", "--show-toplevel")
    return Path(top.removesuffix("\n")).resolve() if top else root.resolve()


def changed_packages(trees: Sequence[Path], files: Iterable[str]) -> frozenset[str]:
    """Return the top-level packages, in either of two trees, of files that differ between them."""
    found = set()
    for folder in (tree / Path(file).parent for tree in trees for file in files):
        package = ""
        while (folder / "__init__.py").is_file():
            package, folder = folder.name, folder.parent
        found.add(package)
    return frozenset(found - {"", ENGINE.name})


def check(
    spec: LaunchSpec,
    ranks: Sequence[Mapping[str, Any]],
    during: str,
    top: Path,
    package: str,
    changed: Collection[str] = (),
) -> None:
    """Take every rank's answer to ``prepare`` or ``sources``. ``top``: the measured tree;
    ``package``: the top-level package of the workload's factory; ``changed``: packages of which the
    two sides of a comparison have other sources. Raises LaunchFailed (OTHER_TREE).
    """
    own = [folder.resolve() for folder in (spec.root, *filter(None, [spec.own]))]
    # Code that a compiler wrote is imported from the cache, which lies in HEAD's tree for both.
    neutral = [folder.resolve() for folder in (spec.cache, spec.folder)]
    forbidden = [folder.resolve() for folder in spec.forbidden]
    for rank, answer in enumerate(ranks):
        sources = answer["sources"]
        if forbidden and (found := strays(sources, own, forbidden, neutral)):
            text = (
                f"{_came(found, f'another tree than {spec.root}')}; take that tree off PYTHONPATH, "
                "uninstall it if it is installed in editable mode (python -m pip list --editable), "
                "and load a library by its path in the tree that loads it"
            )
        elif found := copies(sources, package, top.resolve()):
            text = (
                f"{_came(found, f'outside of {top}')}; take that folder off PYTHONPATH or "
                f"{_uninstall([package])}"
            )
        elif changed and (both := sorted({*changed} & {*answer["installed"]})):
            text = (
                f"both revisions run the {listed(both)} that is installed, and what is in their "
                f"trees differs; {_uninstall(both)}"
            )
        else:
            continue
        where = f"{spec.label}, {during}"
        raise LaunchFailed(Fault(Reason.OTHER_TREE.name, f"rank {rank}: {text}", "", where))


def of_the_tree(ranks: Sequence[Mapping[str, Any]], top: Path) -> set[Path]:
    """Return the files below ``top`` that modules of the ranks came from, and are sources of it."""
    files = {Path(file) for answer in ranks for file in answer["sources"].values()}
    return {path for path in files if _is_source(path, top)}


def copies(sources: Mapping[str, str], package: str, top: Path) -> list[Module]:
    """Return the modules of the factory's package that are no sources of the tree at ``top``."""
    if package == ENGINE.name:  # is always the caller's
        return []
    ours = ((n, file) for n, file in sorted(sources.items()) if n.partition(".")[0] == package)
    return [(name, file) for name, file in ours if not _is_source(Path(file), top)]


def _is_source(path: Path, top: Path) -> bool:
    return path.is_relative_to(top) and not NOT_SOURCES & {*path.relative_to(top).parts}


def strays(
    sources: Mapping[str, str],
    own: Iterable[Path],
    forbidden: Iterable[Path],
    neutral: Iterable[Path],
    engine: Path = ENGINE,
) -> list[Module]:
    """Return the modules that came from a forbidden tree, and those of another engine.

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


def _uninstall(packages: Sequence[str]) -> str:
    names = " ".join(packages)
    return (
        f"uninstall {listed(packages)} (python -m pip uninstall {names}), and if the sources are "
        "not importable from where pytest runs, name their folder relative to it, "
        "PYTHONPATH=src for one: each revision then imports its own"
    )


def _came(found: Sequence[Module], where: str) -> str:
    many = "a module" if len(found) == 1 else f"{len(found)} modules"
    shown = listed([f"{name} ({file})" for name, file in found], SHOWN)
    return f"{many} came from {where}: {shown}"
