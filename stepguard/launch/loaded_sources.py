"""Tell whether a launch ran the tree that it was started for. There are three rules:

* All modules of the factory's top-level package are sources of the measured tree. They are not
  installed packages. Otherwise a change of the tree would not be measured.
* In pairs, no side imports from the other side's tree, and both use the caller's engine.
* A module from outside of the tree must not also be in the tree with another text. In pairs, its
  files must not differ between the two trees. Otherwise both sides would run the outside module.

Trees may contain each other: another revision's tree lies in HEAD's (git/worktree.py). So may
folders that belong to no tree. A file belongs to the deepest of these folders that contains it.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stepguard.core.evidence import Fault
from stepguard.core.reasons import Reason
from stepguard.core.replies import Sources
from stepguard.core.text import listed
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.torchrun import ENGINE, LaunchSpec
from stepguard.machine.git.revision import top_of
from stepguard.machine.git.worktree import FOLDER

SHOWN = 3
NOT_SOURCES = {FOLDER, "site-packages", "dist-packages"}
Module = tuple[str, str]  # its name and its file
_BY_FOLDER = (
    "and if the sources are not importable from where pytest runs, name their folder relative to "
    "it, PYTHONPATH=src for one: each revision then imports its own"
)


def tree_of_root(root: Path) -> Path:
    """Return the top of the repository that contains ``root``; ``root`` if there is none."""
    return (top_of(root) or root).resolve()


def changed_modules(trees: Sequence[Path], files: Iterable[str]) -> frozenset[str]:
    """Return the names by which changed files may be imported. ``files`` are relative to the trees.
    A file in a package stands for its outermost package. A name may begin at any folder above,
    since each may be a namespace or on the import path.
    """
    names = set()
    for path in map(Path, files):
        folders = [Path(*path.parts[:n], "__init__.py") for n in range(1, len(path.parts))]
        inits = (init for init in folders if any((tree / init).is_file() for tree in trees))
        package = next((init.parent for init in inits), None)
        if package is None and path.suffix != ".py":
            continue
        parts = (package or path.with_suffix("")).parts
        # The bare name of a module outside of packages counts only in a folder src: a script may
        # have another module's name, as in scripts/numpy.py.
        alone = package is not None or path.parent.name == "src"
        names |= {".".join(parts[n:]) for n in range(len(parts)) if alone or n < len(parts) - 1}
    return frozenset(names - {ENGINE.name})


def check(
    spec: LaunchSpec,
    ranks: Sequence[Sources],
    during: str,
    top: Path,
    package: str,
    changed: frozenset[str] = frozenset(),
) -> None:
    """Check all ranks' modules. Raises LaunchFailed if one of ``changed`` is from another place."""
    top = top.resolve()
    for rank, answer in enumerate(ranks):
        if problem := _problem(spec, answer, top, package, changed):
            where = f"{spec.label}, {during}"
            raise LaunchFailed(Fault(Reason.OTHER_TREE, f"rank {rank}: {problem}", "", where))


def _problem(
    spec: LaunchSpec, answer: Sources, top: Path, package: str, changed: frozenset[str]
) -> str:
    """Return which modules came from another place, and what mends it; else empty."""
    own = [folder.resolve() for folder in (spec.root, *filter(None, [spec.own]))]
    # Code that a compiler wrote is imported from the cache, which for both sides lies in HEAD's
    # tree.
    neutral = [folder.resolve() for folder in (spec.cache, spec.folder)]
    forbidden = [folder.resolve() for folder in spec.forbidden]
    sources = answer.sources
    if forbidden and (modules := strays(sources, own, forbidden, neutral)):
        return (
            f"{_came(modules, f'another tree than {spec.root}')}; take that tree off PYTHONPATH, "
            "uninstall it if it is installed in editable mode (python -m pip list --editable), "
            f"load a library by its path in the tree that loads it, {_BY_FOLDER}"
        )
    outside, off = f"outside of {top}", "take that folder off PYTHONPATH or uninstall"
    # The engine is always the caller's.
    of_package = _outside(sources, top) if package != ENGINE.name else []
    if modules := [one for one in of_package if one[0].partition(".")[0] == package]:
        return f"{_came(modules, outside)}; {off} {package} ({_pip([package])}), {_BY_FOLDER}"
    if modules := others(answer, top, spec.root.resolve(), changed):
        packages = sorted({name.partition(".")[0] for name, _ in modules})
        has = "the two revisions have different sources" if changed else "the tree has another"
        names = f"{listed(packages, SHOWN)} ({_pip(packages)})"
        return f"{_came(modules, outside)}, of which {has}; {off} {names}, {_BY_FOLDER}"
    return ""


def of_the_tree(ranks: Sequence[Sources], top: Path) -> set[Path]:
    """Return the sources of the tree at ``top`` that the ranks imported."""
    files = {file for answer in ranks for file in answer.sources.values()}
    below = os.path.join(top, "")
    return {Path(file) for file in files if _is_source(file, below)}


def others(
    answer: Sources, top: Path, root: Path, changed: frozenset[str] = frozenset()
) -> list[Module]:
    """Return the modules from outside of the tree at ``top`` that are ``changed``, or that the tree
    also has, with another text. The tree has a module if it is in the ranks' working folder or in
    a folder src.
    """
    folders = [folder for folder in {root, root / "src", top / "src"} if folder.is_dir()]
    here = {path.name.removesuffix(".py") for folder in folders for path in folder.iterdir()}
    here.discard(ENGINE.name)
    return [
        (name, file)
        for name, file in _outside({**answer.installed, **answer.sources}, top)
        if name in changed or name.partition(".")[0] in here and _differs(name, file, folders)
    ]


def _differs(name: str, file: str, folders: Sequence[Path]) -> bool:
    """Tell whether these folders have a module of that name with another text."""
    relative = name.replace(".", "/")
    places = (folder / f"{relative}{end}" for folder in folders for end in (".py", "/__init__.py"))
    own = [path.read_bytes() for path in places if path.is_file()]
    try:  # a compiled library has no text, and files in archives are not read
        return bool(own) and file.endswith(".py") and Path(file).read_bytes() not in own
    except OSError:
        return True


def _outside(modules: Mapping[str, str], top: Path) -> list[Module]:
    # Not by Path: of torch's two thousand modules that would take as long as all else here.
    below = os.path.join(top, "")
    return sorted(module for module in modules.items() if not _is_source(module[1], below))


def _is_source(file: str, below: str) -> bool:
    return file.startswith(below) and NOT_SOURCES.isdisjoint(file[len(below) :].split(os.sep))


def strays(
    sources: Mapping[str, str],
    own: Iterable[Path],
    forbidden: Iterable[Path],
    neutral: Iterable[Path],
    engine: Path = ENGINE,
) -> list[Module]:
    """Return the modules of a forbidden tree that is not ``own``, and those of another engine."""
    whose = dict.fromkeys(forbidden, "forbidden") | dict.fromkeys(own, "own")
    whose |= dict.fromkeys(neutral, "neutral") | {engine: "engine"}
    modules = []
    for name, file in sorted(sources.items()):
        owner = next((whose[folder] for folder in Path(file).parents if folder in whose), "")
        other_engine = owner != "engine" and name.partition(".")[0] == engine.name
        if owner == "forbidden" or other_engine:
            modules.append((name, file))
    return modules


def _pip(packages: Sequence[str]) -> str:
    return f"python -m pip uninstall {' '.join(packages)}"


def _came(modules: Sequence[Module], where: str) -> str:
    many = "a module" if len(modules) == 1 else f"{len(modules)} modules"
    shown = listed([f"{name} ({file})" for name, file in modules], SHOWN)
    return f"{many} came from {where}: {shown}"
