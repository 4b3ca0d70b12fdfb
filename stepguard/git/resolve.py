"""From a revision's name to its commit, and which commit a slowdown is judged against."""

import difflib
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from stepguard.git.revision import git, run_git

# Where the main branch is looked for, in this order.
MAIN = (
    "refs/remotes/origin/HEAD",
    "refs/remotes/origin/main",
    "refs/heads/main",
    "refs/heads/master",
)
DEEPEN = "git fetch --unshallow (in CI: fetch-depth: 0)"


class TreeError(Exception):
    """A revision's tree cannot be had; one sentence: what, the value, and what mends it."""


@dataclass(frozen=True)
class Named:
    """A revision of the repository that a folder lies in."""

    rev: str  # as it was asked for
    commit: str  # in full
    top: Path  # the repository's folder
    below: str  # the folder that was asked from, relative to it; empty at the top

    @property
    def shown(self) -> str:
        """``main (4f2a91c0d3e7)``."""
        return (
            self.rev if self.commit.startswith(self.rev) else f"{self.rev} ({short(self.commit)})"
        )


@dataclass(frozen=True)
class Confirmation:
    """Names the commit that a slowdown is judged against, or none, and ``how`` it was chosen."""

    commit: str  # in full; empty if there is none
    how: str
    own: bool = False  # whether it is the recording's own, and not one in its place


def short(commit: str) -> str:
    """Return as much of a hash as a reader needs."""
    return commit[:12]


def complaint(stderr: str) -> str:
    """Return what git complained of, in one line."""
    return " ".join(stderr.split()) or "git does not say why"


def resolve(root: Path, rev: str) -> Named:
    """Return the commit that ``rev`` names: a branch, a remote's branch, a tag, a hash, ``HEAD~2``.

    Raises TreeError where there is no git, no repository, no such revision, or more than one.
    """
    top, below = _repository(root)
    commit = _commit(root, rev) or _branch_of_a_remote(root, rev)
    if not commit:
        raise TreeError(_unknown(root, rev, top))
    return Named(rev, commit, top, below)


def commit_for_confirmation(root: Path, commit: str) -> Confirmation:
    """Choose what to measure beside HEAD when a recording of ``commit`` says SLOWER.

    The recording's own commit, where the repository has it. After a squash, or in a shallow clone,
    the merge base of HEAD with the main branch; HEAD itself would prove nothing.
    """
    head = _commit(root, "HEAD")
    if not head:
        return Confirmation("", f"git knows no commit of {root}")
    # A hash alone: a name in the recording, HEAD for one, would be another commit today.
    is_hash = bool(re.fullmatch(r"[0-9a-f]{7,64}", commit))
    if is_hash and (own := _commit(root, commit)):
        return Confirmation(own, f"the recording's own commit, {short(own)}", own=True)
    why = "the recording names no commit"
    if commit:
        why = f"the recording's commit {short(commit)} is not in this repository"
    name, main = next(((ref, found) for ref in MAIN if (found := _commit(root, ref))), ("", ""))
    name = name.removeprefix("refs/remotes/").removeprefix("refs/heads/")
    if not main:
        return Confirmation("", f"{why}, and no main branch is known: git fetch origin main")
    base = (git(root, "merge-base", "HEAD", main) or "").strip()
    if not base:
        hint = f": {DEEPEN}" if _is_shallow(root) else ""
        return Confirmation("", f"{why}, and HEAD and {name} have no common commit here{hint}")
    if base == head:
        return Confirmation("", f"{why}, and HEAD is a commit of {name}, with no other beside it")
    return Confirmation(base, f"{why}; in its place the merge base with {name}, {short(base)}")


def _repository(root: Path) -> tuple[Path, str]:
    """Return the top of the repository, and ``root`` relative to it."""
    if shutil.which("git") is None:
        raise TreeError("git is not on the PATH, and it makes other revisions' trees: install git")
    done = run_git(root, "rev-parse", "--show-toplevel")
    if done is None or "not a git repository" in done.stderr:
        raise TreeError(f"{root} lies in no git repository: run it in a git clone of the project")
    prefix = git(root, "rev-parse", "--show-prefix")
    if done.returncode != 0 or prefix is None:
        raise TreeError(f"git refuses the repository of {root}: {complaint(done.stderr)}")
    # Only the newline goes: a folder's name may end in a blank.
    return Path(done.stdout.removesuffix("\n")), prefix.removesuffix("\n").rstrip("/")


def _commit(root: Path, name: str) -> str:
    """Return the hash in full; empty if the repository has no such commit."""
    if not name or name.startswith("-"):  # git would take it for an option
        return ""
    return (git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}") or "").strip()


def _branch_of_a_remote(root: Path, rev: str) -> str:
    remotes = (git(root, "remote") or "").split("\n")
    found = {f"{remote}/{rev}": _commit(root, f"refs/remotes/{remote}/{rev}") for remote in remotes}
    found = {name: commit for name, commit in found.items() if commit}
    if len(set(found.values())) > 1:
        raise TreeError(f"{rev!r} is a branch of several remotes: say {' or '.join(sorted(found))}")
    return next(iter(found.values()), "")


def _unknown(root: Path, rev: str, top: Path) -> str:
    refs = ("refs/heads", "refs/tags", "refs/remotes")
    known = (git(root, "for-each-ref", "--format=%(refname:short)", *refs) or "").split()
    if not known and not _commit(root, "HEAD"):
        return f"{top} has no commit yet, so no revision {rev!r}: git commit"
    names = dict.fromkeys([*known, *(name.partition("/")[2] for name in known)])
    close = difflib.get_close_matches(rev, [name for name in names if name], n=3)
    meant = f"; did you mean {' or '.join(close)}?" if close else ""
    if _is_shallow(root):
        return f"{rev!r} is no revision that this shallow clone of {top} has{meant or ':'} {DEEPEN}"
    return f"{rev!r} is no revision of {top}{meant or ':'} git fetch --all brings what is elsewhere"


def _is_shallow(root: Path) -> bool:
    return (git(root, "rev-parse", "--is-shallow-repository") or "").strip() == "true"
