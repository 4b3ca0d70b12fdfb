"""Ask git about the tree that is measured, and where its repository came from."""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from stepguard.core.run_document import HEAD_BYTES, SUFFIXES, describes_a_run
from stepguard.core.text import printable

GIT_LIMIT_S = 30
_NOT_TAKEN = (
    # git sets these inside a hook, for example, and obeys them before -C.
    "GIT_DIR",
    "GIT_COMMON_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    # These change how git reads path patterns and the attributes of files.
    "GIT_LITERAL_PATHSPECS",
    "GIT_GLOB_PATHSPECS",
    "GIT_NOGLOB_PATHSPECS",
    "GIT_ICASE_PATHSPECS",
    "GIT_ATTR_SOURCE",
)
# git must look at the files itself: a monitor that died reports no changes, and an edit may keep a
# file's size and mtime. If a configured order file is missing, git fails.
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
# Of git status --porcelain=v2: how many fields a line has before its path, by the line's kind.
_FIELDS_BEFORE_PATH = {"1": 8, "u": 10, "?": 1}
_OID = "# branch.oid "
_tops: dict[Path, Path] = {}  # the repository's folder, by a folder in it


@dataclass(frozen=True)
class Revision:
    """A tree's commit, and the files that differ from it, without baselines and documents."""

    commit: str = ""
    dirty: tuple[str, ...] = ()
    # A digest of all files' sizes and times. It changes if a file is written, even if the content
    # stays the same.
    state: str = field(default="", compare=False)
    # Those that differ, which is no other tree.
    baselines: tuple[str, ...] = field(default=(), compare=False, repr=False)


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
    # The repository may belong to another user, as in a container. git's answer has the command
    # that allows it.
    if inside.returncode:
        return f"git refuses the repository of {root}: {complaint(inside.stderr)}"
    if git(root, "rev-parse", "--verify", "HEAD") is None:
        return "the repository has no commit yet: git add -A && git commit -m 'Begin'"
    return ""


def current(root: Path, baselines: Path | None) -> Revision:
    """Return the revision of ``root``; empty if there is no repository or no git. Files of
    ``baselines`` may differ; None: no file may.
    """
    if _holder_of_git(root) is None:
        return Revision()
    # git would list a rename as two entries. By default it lists an untracked folder in place of
    # its files, which hides the baselines among them. A configuration may hide untracked files and
    # submodules.
    asked = ("--no-renames", "--untracked-files=all", "--ignore-submodules=none")
    # --branch: the commit. To ask for it alone would be a process more, five times in a run.
    status = git(root, "status", "--porcelain=v2", "-z", "--branch", "--no-ahead-behind", *asked)
    top = None if status is None else top_of(root)
    if status is None or top is None:
        commit = (git(root, "rev-parse", "HEAD") or "").strip()
        return Revision(commit, ("git status failed",) if commit else ())  # not known to be clean
    entries = [entry for entry in status.split("\0") if entry]
    (commit,) = (entry.removeprefix(_OID) for entry in entries if entry.startswith(_OID))
    if commit == "(initial)":
        return Revision()
    # All paths are relative to the repository's folder.
    paths = [
        path
        for entry in entries
        if (path := _path_of(entry)) and (entry[0] != "?" or not _is_document(top / path))
    ]
    listed = _listed(top)
    paths += _unwatched(top, listed)
    excused = {path for path in paths if _is_baseline(top / path, baselines)}
    dirty = [path for path in paths if path not in excused]
    watched = {path for _, path in listed if not _is_baseline(top / path, baselines)}
    # A name may be no UTF-8, and documents of runs have these names.
    shown, those = (tuple(sorted(map(printable, names))) for names in (dirty, excused))
    return Revision(commit, shown, _state(top, watched.union(dirty)), those)


def _path_of(entry: str) -> str:
    """Return the path in a line of git status; empty for a line about the branch."""
    fields = _FIELDS_BEFORE_PATH.get(entry[0])
    return entry.split(" ", fields)[fields] if fields else ""


def top_of(root: Path) -> Path | None:
    """Return the folder of the repository that ``root`` is in; None if git names none."""
    real = root.resolve()
    known = _tops.get(real)
    if known is None or known != _holder_of_git(root):
        folder = git(root, "rev-parse", "--show-toplevel")
        if not folder:
            return None
        # Only the line break is removed: a folder's name may end in a blank.
        known = _tops[real] = Path(folder.removesuffix("\n"))
    return known


def _holder_of_git(folder: Path) -> Path | None:
    """Return the nearest folder with an entry .git; without one git need not be asked."""
    real = folder.resolve()
    return next((one for one in (real, *real.parents) if os.path.exists(one / ".git")), None)


def _listed(top: Path) -> list[tuple[str, str]]:
    lines = (git(top, "ls-files", "-v", "-z") or "").split("\0")
    return [(line[:1], line[2:]) for line in lines if line]


def _unwatched(top: Path, listed: Collection[tuple[str, str]]) -> list[str]:
    """Return the files that git does not look at, though they should be there."""
    marked = [path for how, path in listed if how == "S" or how.islower()]
    if not marked or (git(top, "config", "--bool", "core.sparseCheckout") or "").strip() != "true":
        return marked
    return [path for path in marked if (top / path).exists()]


def _state(top: Path, paths: Collection[str]) -> str:
    """Return a digest of the sizes, times and inodes of these files. It changes even if another
    commit was checked out for a while and the first one was restored: then only the times differ.

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
    """Tell whether git has a file of that name in its index, whatever it holds now."""
    above = path.parent.resolve()
    top = _holder_of_git(above)
    return top is not None and bool(git(top, "ls-files", "--", str(above / path.name)))


def tracked_files(root: Path, *paths: Path) -> list[str]:
    """Return which of these files, or files in these folders, git tracks; empty if git fails."""
    # A submodule's files count as tracked: the outer commit names the submodule's commit.
    listed = git(root, "ls-files", "-z", "--recurse-submodules", "--", *map(str, paths))
    return [path for path in (listed or "").split("\0") if path]


def untracked(root: Path, paths: Iterable[Path], tracked: Iterable[str]) -> list[Path]:
    """Return the files that are not ``tracked``, or of which git tracks only a link."""
    # Not by Path.resolve(), which fails at a link that leads to itself.
    there = {os.path.realpath(root / path) for path in tracked}
    return [path for path in paths if path.is_symlink() or os.path.realpath(path) not in there]


def differing(top: Path, commit: str, baselines: Path) -> tuple[str, ...] | None:
    """Return the files, as git names them, in which the tree at ``top`` differs from a commit.
    Untracked files count, too. Baselines and untracked documents of runs do not. None if git fails.
    """
    changed = git(
        top, "diff", "--name-only", "-z", "--no-renames", "--ignore-submodules=none", commit, "--"
    )
    others = git(top, "ls-files", "--others", "--exclude-standard", "-z")
    if changed is None or others is None:
        return None
    new = [path for path in others.split("\0") if path and not _is_document(top / path)]
    paths = {path for path in changed.split("\0") if path} | {*new, *_unwatched(top, _listed(top))}
    return tuple(sorted(path for path in paths if not _is_baseline(top / path, baselines)))


def _is_baseline(path: Path, baselines: Path | None) -> bool:
    """Accept only baseline files: --perf-baselines=. must not excuse the whole tree."""
    if baselines is None:
        return False
    return path.suffix == ".json" and path.parent.resolve() == baselines.resolve()


def _is_document(path: Path) -> bool:
    """Tell whether an untracked file is the document or the page of a run: no source."""
    if path.suffix not in SUFFIXES or path.is_symlink() or not path.is_file():
        return False
    return describes_a_run(head_of(path, HEAD_BYTES))


def head_of(path: Path, size_bytes: int) -> bytes:
    """Return the first bytes of a file; none if it cannot be read."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(size_bytes)
    return b""


def git(root: Path, *arguments: str, given: str | None = None) -> str | None:
    """Return what git prints in ``root``; None if it fails. ``given`` is what git reads."""
    done = run_git(root, *arguments, given=given)
    return done.stdout if done is not None and done.returncode == 0 else None


def run_git(
    root: Path, *arguments: str, limit_s: float = GIT_LIMIT_S, given: str | None = None
) -> "subprocess.CompletedProcess[str] | None":
    """Run git in ``root`` to its end; None without git, or if it takes more than ``limit_s``.

    The environment cannot point git to another repository. git never asks for a password. It runs
    in a session of its own, so a Ctrl-C at the terminal reaches only this process. It ignores
    replacements and grafts, so a hash always names the same commit.
    """
    own = {key: value for key, value in os.environ.items() if key not in _NOT_TAKEN}
    settings = [part for setting in _SETTINGS for part in ("-c", setting)]
    try:
        return subprocess.run(
            ["git", *settings, "-C", str(root), *arguments],
            stdin=subprocess.DEVNULL if given is None else None,
            input=given,
            capture_output=True,
            text=True,
            # File names may be no UTF-8.
            errors="surrogateescape",
            timeout=limit_s,
            check=False,
            env=own | _ENVIRONMENT,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


_GITHUB = re.compile(
    r"(?:(?:https?|ssh|git)://(?:[^/@]*@)?(?:www\.)?github\.com(?::\d+)?/|(?:[\w.-]+@)?github\.com:)"
    r"([\w.-]+/[\w.-]+?)(?:\.git)?/?"
)


def origin(root: Path) -> str:
    """Return the address of the remote ``origin`` of a folder's repository; empty without one."""
    return (git(root, "remote", "get-url", "origin") or "").strip()


def name_on_github(remote: str) -> str:
    """Return "owner/name" of a remote; empty if it is not on GitHub."""
    match = _GITHUB.fullmatch(remote)
    return match[1] if match else ""
