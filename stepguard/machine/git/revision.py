"""Asks git about the tree that is measured."""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from stepguard.core.run_document import HEAD_BYTES, SUFFIXES, describes_a_run

GIT_LIMIT_S = 30
_NOT_TAKEN = (
    # git sets these inside a hook, for example, and obeys them before -C.
    "GIT_DIR",
    "GIT_COMMON_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    # With these git would read our patterns, or the attributes of files, differently.
    "GIT_LITERAL_PATHSPECS",
    "GIT_GLOB_PATHSPECS",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_ICASE_PATHSPECS",
    "GIT_ATTR_SOURCE",
)
# git must look at the files itself: a monitor that died reports no changes, and an edit may keep a
# file's size and mtime. A missing order file would be an error.
_SETTINGS = (
    "core.fsmonitor=false",
    "core.trustctime=true",
    "core.checkStat=default",
    f"diff.orderFile={os.devnull}",
)
_ENVIRONMENT = {
    "LC_ALL": "C",  # callers look for words that git would translate
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": os.devnull,
}


@dataclass(frozen=True)
class Revision:
    """A tree's commit. ``dirty`` lists the files that differ from it, apart from baselines and from
    documents of runs.
    """

    commit: str = ""
    dirty: tuple[str, ...] = ()
    # Of all files. If it changes, a file was written, even with the same content.
    state: str = field(default="", compare=False)


def complaint(stderr: str) -> str:
    """Return git's complaint in one line, without its hints."""
    lines = [line for line in stderr.splitlines() if not line.startswith("hint: ")]
    return " ".join(" ".join(lines).split()) or "git does not say why"


def no_commit(root: Path) -> str:
    """Return why a tree has no commit, and the command that mends it; empty if it has one."""
    if shutil.which("git") is None:
        return "git is not on PATH: install it"
    inside = run_git(root, "rev-parse", "--is-inside-work-tree")
    if inside is None or "not a git repository" in inside.stderr:
        return f"{root} is in no git repository: git init && git add -A && git commit -m 'Begin'"
    # Another user's repository, as in a container; git's answer has the command.
    if inside.returncode:
        return f"git refuses the repository of {root}: {complaint(inside.stderr)}"
    if git(root, "rev-parse", "--verify", "HEAD") is None:
        return "the repository has no commit yet: git add -A && git commit -m 'Begin'"
    return ""


def current(root: Path, baselines: Path | None) -> Revision:
    """Return the revision of ``root``; an empty one if there is no repository or no git.

    Files of ``baselines`` may differ from the commit; if it is None, none of them may. A document
    of a run that git does not have is no part of the tree, wherever an option had it written.
    """
    commit = git(root, "rev-parse", "HEAD")
    if not commit:
        return Revision()
    commit, folder = commit.strip(), git(root, "rev-parse", "--show-toplevel")
    # A rename would be two entries. A configuration may hide untracked files and submodules. A
    # folder listed in place of its files would not show which of them are baselines.
    asked = ("--no-renames", "--untracked-files=all", "--ignore-submodules=none")
    status = git(root, "status", "--porcelain", "-z", *asked)
    if folder is None or status is None:  # it is not known to be clean
        return Revision(commit, ("git status failed",))
    top = Path(folder.removesuffix("\n"))
    entries = [(entry[:2], entry[3:]) for entry in status.split("\0") if entry]
    paths = [path for how, path in entries if how != "??" or not _is_document(top / path)]
    paths += _unwatched(top)
    dirty = [path for path in paths if not _is_baseline(top / path, baselines)]
    tracked = (git(top, "ls-files", "-z") or "").split("\0")
    watched = {path for path in tracked if path and not _is_baseline(top / path, baselines)}
    return Revision(commit, tuple(sorted(dirty)), _state(top, watched.union(dirty)))


def _unwatched(top: Path) -> list[str]:
    """Return the files that git does not look at (assume-unchanged, skip-worktree): they may have
    changed, or be gone. Files that a sparse checkout leaves out are not among them.
    """
    listed = (git(top, "ls-files", "-v", "-z") or "").split("\0")
    marked = [line[2:] for line in listed if line[:1] == "S" or line[:1].islower()]
    if not marked or (git(top, "config", "--bool", "core.sparseCheckout") or "").strip() != "true":
        return marked
    return [path for path in marked if (top / path).exists()]


def _state(top: Path, paths: Collection[str]) -> str:
    """Return a digest of the sizes, times and inodes of these files. It changes even if another
    commit was checked out for a while and the first one restored: the content is then the same, the
    times are not.

    A tool can restore a file's mtime, but not its ctime.
    """
    digest = hashlib.sha256()
    for path in sorted(paths):
        with contextlib.suppress(OSError):
            status = (top / path).lstat()
            entry = (path, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
            digest.update("\0".join(map(str, entry)).encode(errors="surrogateescape") + b"\0")
    return digest.hexdigest()


def is_tracked(path: Path) -> bool:
    """Tell whether git has a file of that name in its index, whatever the file holds now."""
    return bool(git(path.parent, "ls-files", "--", path.name))


def untracked(root: Path, paths: Collection[Path]) -> list[Path]:
    """Return the files whose content is in no commit: git ignores them, or knows only a link."""
    if not paths:
        return []
    # The commit of a submodule is part of the commit that names it: another one is a change.
    listed = git(root, "ls-files", "-z", "--recurse-submodules", "--", *map(str, paths))
    known = (listed or "").split("\0")
    there = {(root / path).resolve() for path in known if path}
    return [path for path in paths if path.is_symlink() or path.resolve() not in there]


def differing(top: Path, commit: str, baselines: Path) -> tuple[str, ...] | None:
    """Return the files, without baselines, in which the tree at ``top`` differs from a commit, as
    git names them. Files in no commit count, too. None if git does not say.
    """
    changed = git(
        top, "diff", "--name-only", "-z", "--no-renames", "--ignore-submodules=none", commit, "--"
    )
    others = git(top, "ls-files", "--others", "--exclude-standard", "-z")
    if changed is None or others is None:
        return None
    new = [path for path in others.split("\0") if path and not _is_document(top / path)]
    paths = {path for path in changed.split("\0") if path} | {*new, *_unwatched(top)}
    return tuple(sorted(path for path in paths if not _is_baseline(top / path, baselines)))


def same_files(root: Path, commit: str, other: str) -> bool:
    """Tell whether two commits, given by their hashes, have the same files. Messages and parents do
    not matter. False if git does not know one of them. Names are not accepted: a file of the tree
    could name HEAD, but cannot contain HEAD's hash, which depends on the file.
    """

    def files(rev: str) -> str | None:
        is_hash = re.fullmatch(r"[0-9a-f]{40,64}", rev)
        return git(root, "rev-parse", "--verify", f"{rev}^{{tree}}") if is_hash else None

    return commit == other or (files(commit) or "no commit") == files(other)


def _is_baseline(path: Path, baselines: Path | None) -> bool:
    """Accept only the baseline files themselves: --perf-baselines=. must not excuse the whole
    tree.
    """
    if baselines is None:
        return False
    return path.suffix == ".json" and path.parent.resolve() == baselines.resolve()


def _is_document(path: Path) -> bool:
    """Tell whether a file that git does not have is the document of a run, or its page. A report
    that an earlier run wrote beside the sources is no change of them.
    """
    if path.suffix not in SUFFIXES or path.is_symlink() or not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            return describes_a_run(file.read(HEAD_BYTES))
    except OSError:
        return False


def git(root: Path, *arguments: str) -> str | None:
    """Return what git prints in ``root``; None if it fails."""
    done = run_git(root, *arguments)
    return done.stdout if done is not None and done.returncode == 0 else None


def run_git(
    root: Path, *arguments: str, limit_s: float = GIT_LIMIT_S
) -> "subprocess.CompletedProcess[str] | None":
    """Run git in ``root`` to its end; None without git, or if it takes more than ``limit_s``.

    The environment cannot point it to another repository. It never asks for a password. It has a
    session of its own, so that a Ctrl-C at the terminal is ours to handle. Replacements and grafts
    are ignored: commits are what their hashes say.
    """
    own = {key: value for key, value in os.environ.items() if key not in _NOT_TAKEN}
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    try:
        return subprocess.run(
            ["git", *settings, "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            # Names of files need not be UTF-8.
            errors="surrogateescape",
            timeout=limit_s,
            check=False,
            env=own | _ENVIRONMENT,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
