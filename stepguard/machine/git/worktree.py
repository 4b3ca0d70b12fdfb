"""Check out another revision's tree beside this one, for as long as it is measured.

    .stepguard/trees/4f2a91c0d3e7-1b6c/       a git worktree, detached at the revision
    .stepguard/trees/4f2a91c0d3e7-1b6c.lock   locked (flock) by the process that uses the tree
    .stepguard/trees/lock                     locked while a process claims or gives up a tree

The kernel releases a process' lock however the process dies. The next run removes the tree that was
left. A worktree has only tracked files: ignored and untracked files are missing, but for links to
the data that a case names (share).
"""

import contextlib
import fcntl
import os
import re
import secrets
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from stepguard.core.text import revision, short_hash
from stepguard.machine.git.resolve import TreeError, repository, resolve
from stepguard.machine.git.revision import GIT_LIMIT_S, complaint, git, head_of, run_git
from stepguard.machine.lifeline import interrupts_deferred

FOLDER = ".stepguard"  # contains all that is kept in a checkout: trees, runs, caches
CHECKOUT_LIMIT_S = 600.0
LOCK_LIMIT_S = 60.0
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\n"
COLLISION_PAUSES_S = (0.05, 0.2, 1.0)
# What git prints if another git removes an entry that this one reads. With the last worktree git
# also removes the folder of all entries.
_COLLIDED = re.compile(
    r"(failed to read|Invalid path) .*worktrees/"
    r"|could not create directory of .*worktrees/.*No such file"
)
# Neither hooks nor submodules are needed, and their processes might outlive this one.
PLAIN = ("core.hooksPath=/dev/null", "submodule.recurse=false")

Notice = Callable[[str], None]


@dataclass(frozen=True)
class Tree:
    """Another revision, checked out."""

    rev: str  # as given
    commit: str  # the full hash
    root: Path  # the counterpart of the caller's root; launches start here
    top: Path  # the whole checkout, which contains root
    base: Path  # the caller's own repository

    @property
    def shown(self) -> str:
        """Return ``main (4f2a91c0d3e7)``."""
        return revision(self.rev, self.commit)


@contextlib.contextmanager
def tree_of(root: Path, rev: str, notice: Notice = lambda text: None) -> Iterator[Tree]:
    """Check out the tree of ``rev`` beside ``root`` for the block. ``notice`` gets a sentence for
    each tree that a killed run left, or that cannot be removed. Raises TreeError.
    """
    commit, (base, below) = resolve(root, rev), repository(root)
    folder = root.resolve() / FOLDER / "trees"
    top = folder / f"{short_hash(commit)}-{secrets.token_hex(4)}"
    tree = Tree(rev, commit, top / below, top, base)
    with _alone(folder):
        for sentence in _remove_orphans(root, folder):
            notice(sentence)
        lock = _claim(tree)
    try:
        _check_out(tree)
        _check_complete(tree)
        if not tree.root.is_dir():
            raise TreeError(
                f"{tree.shown} has no folder {below!r}, which {root} is here: "
                "choose a revision that has it"
            )
        yield tree
    finally:
        with interrupts_deferred():
            _give_up(root, folder, top, lock, notice)


def share(tree: Tree, root: Path, paths: Iterable[str]) -> None:
    """Link files and folders that git does not track into another revision's tree. ``paths`` are
    relative to ``root``, and in its repository. Nothing is linked where that tree has a file of its
    own, or the caller's has none: the workload then says what it lacks.
    """
    for path in paths:
        source, link = (
            Path(os.path.normpath(os.path.realpath(top) + f"/{path}")) for top in (root, tree.root)
        )
        # A folder on the way to it may be a link, which leads out of the tree.
        place = Path(os.path.realpath(link.parent), link.name)
        if _untracked(tree.base, source) and _untracked(tree.top, place):
            with contextlib.suppress(OSError):
                _link(Path(os.path.realpath(source)), place)


def _untracked(top: Path, path: Path) -> bool:
    """Tell whether git tracks neither a path in the tree at ``top`` nor what it leads to."""
    own = os.path.realpath(top)
    inside = [one for one in {path, Path(os.path.realpath(path))} if one.is_relative_to(own)]
    return path in inside and all(git(top, "ls-files", "--", str(one)) == "" for one in inside)


def _link(data: Path, place: Path) -> None:
    """Link data. A folder of the tree, in which a part was linked before, gets what it lacks."""
    if not os.path.lexists(place):
        if data.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(data)
    elif data.is_dir() and place.is_dir() and not place.is_symlink():
        for inner in data.iterdir():
            _link(inner, place / inner.name)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other processes from claiming or giving up trees. Raises TreeError if none can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        keep_out_of_git(folder.parent)
        file = (folder / "lock").open("a")
    except OSError as error:
        raise TreeError(_not_made(folder, error)) from None
    with file:
        until = time.monotonic() + LOCK_LIMIT_S
        while not _locked(file):
            if time.monotonic() > until:
                raise TreeError(
                    f"{file.name} is held by another process for {LOCK_LIMIT_S:.0f} s: "
                    f"fuser {file.name!r} names it"
                )
            time.sleep(0.02)
        yield


def _not_made(path: Path, error: OSError) -> str:
    top = path.parents[1] if path.name == "trees" else path.parents[2]
    return f"{path} cannot be made: {error.strerror}; make {top} writable or free some space"


def _locked(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _claim(tree: Tree) -> TextIO:
    """Return the lock of a tree that will be checked out, until it is closed."""
    try:
        lock = tree.top.with_suffix(".lock").open("x")
        lock.write(f"{tree.shown}, process {os.getpid()}")
        lock.flush()
    except OSError as error:
        raise TreeError(_not_made(tree.top, error)) from None
    # This always succeeds: the file is new, and others look for orphans only under _alone().
    _locked(lock)
    return lock


def _remove_orphans(root: Path, folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.lock")):
        try:
            with path.open() as lock:
                if not _locked(lock):
                    continue
                tree, whose = path.with_suffix(""), lock.read()
                problem = _remove(root, tree)
                if not problem:
                    path.unlink()
        except OSError as error:
            yield f"{path} cannot be taken over: {error.strerror}"
        else:
            yield problem or f"{tree} removed: the run that made it was killed ({whose})"
    for tree in sorted(folder.iterdir()):
        if tree.is_dir() and not (tree.is_symlink() or tree.with_suffix(".lock").exists()):
            yield _remove(root, tree) or f"{tree} removed: nobody holds it"


def _give_up(root: Path, folder: Path, path: Path, lock: TextIO, notice: Notice) -> None:
    """Remove the tree and its lock. If something remains, the next run removes it."""
    # The lock is kept until the tree is removed, so that no other run takes it for an orphan.
    problem = _remove(root, path)
    with lock:
        try:
            with _alone(folder):
                if not problem:
                    path.with_suffix(".lock").unlink(missing_ok=True)
                lock.close()
        except TreeError as error:
            problem = str(error)
    if problem:
        notice(problem)


def _remove(root: Path, path: Path) -> str:
    """Remove a tree and its entry; return a sentence if that fails. Prune would forget worktrees
    whose disk is not mounted. A second --force also removes what is locked.
    """
    try:
        for parent, folders, _ in os.walk(path):
            for name in folders:  # a workload may have removed its own folder's rights
                if not os.path.islink(inner := os.path.join(parent, name)):
                    os.chmod(inner, 0o700)
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)
    except OSError as error:
        return f"{path} cannot be removed: {error.strerror}; rm -rf {str(path)!r}"
    done = _worktree(root, "remove", "--force", "--force", str(path))
    if done is None or done.returncode != 0 and "is not a working tree" not in done.stderr:
        why = complaint(done.stderr) if done else "git did not answer"
        return f"git still lists the worktree {path}: {why}; git worktree remove -ff {str(path)!r}"
    return ""


def _worktree(
    root: Path, *arguments: str, limit_s: float = GIT_LIMIT_S
) -> "subprocess.CompletedProcess[str] | None":
    """Run git worktree. Repeat it while another process writes or removes an entry."""
    plain = [part for setting in PLAIN for part in ("-c", setting)]
    for pause_s in (*COLLISION_PAUSES_S, None):
        done = run_git(root, *plain, "worktree", *arguments, limit_s=limit_s)
        if pause_s is None or done is None or not _COLLIDED.search(done.stderr):
            break
        time.sleep(pause_s)
    return done


def _check_out(tree: Tree) -> None:
    add = ("add", "--quiet", "--detach", str(tree.top), tree.commit)
    done = _worktree(tree.base, *add, limit_s=CHECKOUT_LIMIT_S)
    if done is None:
        raise TreeError(
            f"{tree.shown} was not checked out to {tree.top} in {CHECKOUT_LIMIT_S:.0f} s: "
            "see that its disk answers (df), and that git can reach what a partial clone lacks"
        )
    if done.returncode != 0:
        raise TreeError(
            f"{tree.shown} cannot be checked out to {tree.top}: {complaint(done.stderr)}; make "
            f"room for it and see that {tree.top.parent} and the repository are writable"
        )


def _check_complete(tree: Tree) -> None:
    """Raise TreeError if this tree lacks submodules or git-lfs files that the caller's tree has, or
    if its absolute links lead into the caller's tree.

    The step could silently do other work then. What both trees lack makes no difference.
    """
    path, own = tree.top, tree.base
    listed = _files(path, "--stage")
    modules = _of_mode("160000", listed)
    if back := [name for name in _of_mode("120000", listed) if _leads_back(path / name, own)]:
        place = os.path.realpath((own / back[0]).parent)
        target = os.path.relpath(os.path.realpath(os.readlink(path / back[0])), place)
        raise TreeError(
            f"{tree.shown} has links that lead into this tree: {', '.join(back[:3])}; "
            f"so that each tree has its own: ln -sfn {shlex.quote(target)} {shlex.quote(back[0])}"
        )
    filled = [name for name in modules if any((own / name).glob("*"))]
    if filled:
        raise TreeError(
            f"{tree.shown} has submodules, which are not checked out for another revision: "
            f"{', '.join(filled)}; if the workload needs none: git submodule deinit {filled[0]}"
        )
    empty = [name for name in _files(path, "--", ":(attr:filter=lfs)") if _is_pointer(path / name)]
    empty = [name for name in empty if not _is_pointer(own / name)]
    if empty:
        raise TreeError(
            f"{tree.shown} has git-lfs files whose content is not here: {', '.join(empty[:3])}; "
            f"git lfs install && git lfs fetch origin {tree.commit}"
        )


def _of_mode(mode: str, listed: Sequence[str]) -> list[str]:
    return [line.partition("\t")[2] for line in listed if line.startswith(f"{mode} ")]


def _leads_back(link: Path, top: Path) -> bool:
    """Tell whether an absolute link in another revision's tree ends in the tree at ``top``."""
    if not link.is_symlink():  # with core.symlinks=false git writes a file with the path
        return False
    target, own = os.readlink(link), os.path.realpath(top)
    return os.path.isabs(target) and Path(os.path.realpath(target)).is_relative_to(own)


def _files(path: Path, *arguments: str) -> list[str]:
    """Return what git lists of a tree. Raises TreeError: an empty list would mislead."""
    done = run_git(path, "ls-files", "-z", *arguments, limit_s=CHECKOUT_LIMIT_S)
    if done is None or done.returncode != 0:
        why = complaint(done.stderr) if done else "no answer"
        raise TreeError(f"git cannot list the files of {path}: {why}; git -C {str(path)!r} status")
    return [entry for entry in done.stdout.split("\0") if entry]


def _is_pointer(path: Path) -> bool:
    return head_of(path, len(LFS_POINTER)) == LFS_POINTER


def keep_out_of_git(folder: Path) -> None:
    """Make git ignore an existing folder, so that its content does not make the tree dirty."""
    path, text = folder / ".gitignore", "*\n"
    # The file is not rewritten: it would be empty for a moment, and another run could see a dirty
    # tree.
    if not path.is_file() or path.read_bytes() != text.encode():
        path.write_text(text)
