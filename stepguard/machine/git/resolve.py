"""From a revision's name to its commit, and which commit a slowdown is judged against."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from stepguard.core.text import listed, meant, revision, short_hash
from stepguard.machine.git.revision import complaint, git, run_git

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
        return revision(self.rev, self.commit)


@dataclass(frozen=True)
class Chosen:
    """Names the commit that a slowdown is judged against, or none, and ``how`` it was chosen."""

    commit: str  # in full; empty if there is none
    how: str
    own: bool = False  # whether it is the recording's own, and not one in its place


def resolve(root: Path, rev: str) -> Named:
    """Return the commit that ``rev`` names: a branch, a remote's branch, a tag, a hash, ``HEAD~2``.

    Raises TreeError where there is no git, no repository, no such revision, or more than one.
    """
    top, below = _repository(root)
    _refuse_two_meanings(root, rev)
    commit = _commit(root, rev) or _branch_of_a_remote(root, rev)
    if not commit:
        raise TreeError(_unknown(root, rev, top))
    return Named(rev, commit, top, below)


@dataclass(frozen=True)
class Main:
    """The branch that a tree is merged into, and the last commit that both have."""

    name: str  # as git shows it
    tip: str  # in full, like the base
    base: str


def main_branch(root: Path, rev: str = "") -> Main:
    """Return the branch that HEAD is to be merged into: ``rev``, or the main branch.

    Raises TreeError where none is known, or HEAD has no commit in common with it.
    """
    if rev:
        named = resolve(root, rev)
        name, tip = named.shown, named.commit
    else:
        name, tip = next(
            ((ref, commit) for ref in MAIN if (commit := _commit(root, ref))), ("", "")
        )
        name = name.removeprefix("refs/remotes/").removeprefix("refs/heads/")
    if not tip:
        raise TreeError("no main branch is known: git fetch origin main")
    base = (git(root, "merge-base", "HEAD", tip) or "").strip()
    if not base:
        hint = f": {DEEPEN}" if is_shallow(root) else ""
        raise TreeError(f"HEAD and {name} have no common commit here{hint}")
    return Main(name, tip, base)


def files_at(root: Path, commit: str, folder: Path) -> dict[str, str]:
    """Return the text of every JSON file that a folder of the repository had at a commit, by its
    path below the folder. Raises TreeError if the folder is not the repository's, or git fails.
    """
    top, _ = _repository(root)
    inside, own = folder.resolve(), top.resolve()
    if not inside.is_relative_to(own):
        raise TreeError(
            f"{folder} is not in the repository {top}, so no revision of it has its files"
        )
    below = inside.relative_to(own).as_posix()
    listed = git(
        top, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit, "--", f"{below}/"
    )
    if listed is None:
        raise TreeError(f"git cannot list {below} at {short_hash(commit)}: git fsck")
    texts = {}
    for path in filter(None, listed.split("\0")):
        if path.endswith(".json"):
            text = git(top, "cat-file", "blob", f"{commit}:{path}")
            if text is None:
                raise TreeError(f"git cannot read {path} at {short_hash(commit)}: {DEEPEN}")
            texts[path.removeprefix(f"{below}/")] = text
    return texts


def commit_for_confirmation(root: Path, recorded: str, rev: str = "") -> Chosen:
    """Choose what to measure beside HEAD when a recording of the commit ``recorded`` says SLOWER.

    The recording's own commit, if HEAD and the main branch (``rev``, where it is named) both have
    it: one of this branch alone may be as slow as HEAD, and prove nothing. After a squash, or in a
    shallow clone, the merge base of the two; HEAD itself would prove nothing either.
    """
    head = _commit(root, "HEAD")
    if not head:
        return Chosen("", f"git knows no commit of {root}")
    own = known_commit(root, recorded)
    try:
        main = main_branch(root, rev)
    except TreeError as error:
        why = "" if own else f"{_unusable(recorded)}, and "
        return Chosen("", f"{why}{error}")
    if own and has_commit(root, main.base, own):
        return Chosen(own, f"the recording's own commit, {short_hash(own)}", own=True)
    why = f"the recording's commit {short_hash(own)} is not on {main.name}"
    why = why if own else _unusable(recorded)
    if main.base == head:
        return Chosen("", f"{why}, and HEAD is a commit of {main.name}, with no other beside it")
    how = f"{why}; in its place the merge base with {main.name}, {short_hash(main.base)}"
    return Chosen(main.base, how)


def _unusable(recorded: str) -> str:
    if not recorded:
        return "the recording names no commit"
    return f"the recording's commit {short_hash(recorded)} is not in this repository"


def known_commit(root: Path, text: str) -> str:
    """Return the commit with this hash in full; empty if the repository has none. A name, HEAD for
    one, is no hash: it would be another commit tomorrow.
    """
    return _commit(root, text) if re.fullmatch(r"[0-9a-f]{7,64}", text) else ""


def has_commit(root: Path, tip: str, commit: str) -> bool:
    """Tell whether ``commit`` is ``tip`` or one of its ancestors."""
    return git(root, "merge-base", "--is-ancestor", commit, tip) is not None


def left_behind(root: Path, rev: str, commit: str) -> str:
    """Return a sentence where HEAD lacks commits of another revision, as a branch does whose main
    went on; empty where it has them all, or nothing in common.
    """
    both = (git(root, "merge-base", "HEAD", commit) or "").strip()
    if both in ("", commit):
        return ""
    return (
        f"{revision(rev, commit)} has commits that HEAD lacks, and what they changed is compared "
        f"as well; the last that both have: --perf-against={short_hash(both)}"
    )


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


def _refuse_two_meanings(root: Path, rev: str) -> None:
    """Raise TreeError for the name of a tag and a branch that are not the same commit: git would
    take the tag, which may be of the branch that is judged.
    """
    name = re.split(r"[~^:]|@\{", rev)[0]
    refs = [f"refs/{kind}/{name}" for kind in ("tags", "heads", "remotes") if name]
    commits = {ref: commit for ref in refs if (commit := _commit(root, ref))}
    if len(set(commits.values())) > 1:
        raise TreeError(f"{name!r} has several meanings: say {' or '.join(commits)}")


def _branch_of_a_remote(root: Path, rev: str) -> str:
    remotes = (git(root, "remote") or "").split("\n")
    branches = {
        f"{remote}/{rev}": _commit(root, f"refs/remotes/{remote}/{rev}") for remote in remotes
    }
    branches = {name: commit for name, commit in branches.items() if commit}
    if len(set(branches.values())) > 1:
        raise TreeError(
            f"{rev!r} is a branch of several remotes: say {' or '.join(sorted(branches))}"
        )
    return next(iter(branches.values()), "")


def _unknown(root: Path, rev: str, top: Path) -> str:
    refs = ("refs/heads", "refs/tags", "refs/remotes")
    known = (git(root, "for-each-ref", "--format=%(refname:short)", *refs) or "").split()
    if not known and not _commit(root, "HEAD"):
        return f"{top} has no commit yet, so no revision {rev!r}: git commit"
    names = dict.fromkeys([*known, *(name.partition("/")[2] for name in known)])
    # A repository whose main branch has another name than the one that a page says.
    hint = meant(rev, filter(None, names)) or (f" (it has: {listed(known, 5)})" if known else "")
    start = re.split("[~^]", rev)[0]
    # Of "HEAD~3" the name is right, and the commit is not there.
    if start != rev and _commit(root, start):
        hint = ""
    if is_shallow(root):
        return f"{rev!r} is no revision that this shallow clone of {top} has{hint}: {DEEPEN}"
    return f"{rev!r} is no revision of {top}{hint}: git fetch --all brings what is elsewhere"


def is_shallow(root: Path) -> bool:
    """Tell whether a clone lacks older commits, so that git may take one of main for a branch's."""
    return (git(root, "rev-parse", "--is-shallow-repository") or "").strip() == "true"
