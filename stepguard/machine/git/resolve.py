"""Find the commit that a name means, and the commit that a slowdown is judged against."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from stepguard.core.text import listed, meant, revision, short_hash
from stepguard.machine.git.revision import complaint, git, run_git, top_of

# Names of the main branch, tried in this order.
MAIN = (
    "refs/remotes/origin/HEAD",
    "refs/remotes/origin/main",
    "refs/heads/main",
    "refs/heads/master",
)
_HASH, _FULL_HASH = re.compile(r"[0-9a-f]{7,64}"), re.compile(r"[0-9a-f]{40,64}")
_CONTROL = re.compile(r"[\0-\x1f\x7f]")
DEEPEN = "git fetch --unshallow (in CI: fetch-depth: 0)"


class TreeError(Exception):
    """A revision's tree is not available. One sentence: what, the value, and what mends it."""


@dataclass(frozen=True)
class Chosen:
    """The commit that a slowdown is judged against, if there is one."""

    commit: str  # the full hash; empty if there is none
    how: str  # how it was chosen, or why there is none
    own: bool = False  # whether it is the recording's own commit, and not a substitute


def resolve(root: Path, rev: str) -> str:
    """Return the full hash of the one commit that ``rev`` names, "main" or "HEAD~2". Raises
    TreeError.
    """
    top, _ = repository(root)
    name = re.split(r"[~^:]|@\{", rev)[0]
    refs = [f"refs/{kind}/{name}" for kind in ("tags", "heads", "remotes") if name]
    commits = _commits(root, rev, *refs)
    # What a tag, a branch and the beginning of a hash mean: by reference, or by hash.
    known = {ref: commits[ref] for ref in refs if commits[ref]}
    if known and _HASH.fullmatch(name) and not _FULL_HASH.fullmatch(name):
        known |= _of_short_hash(root, name)
    # CI has a branch only as its remote's. A local branch may differ from that: it may be older.
    if f"refs/tags/{name}" in known and f"refs/heads/{name}" not in known:
        known |= _branches_of_remotes(root, name)
    # git would take the tag, and somebody may have set it to a commit of the branch that is judged.
    if len(set(known.values())) > 1:
        raise TreeError(f"{name!r} has several meanings: say {' or '.join(known)}")
    commit = commits[rev] or _branch_of_a_remote(root, rev)
    if not commit:
        raise TreeError(_unknown(root, rev, top))
    return commit


@dataclass(frozen=True)
class Main:
    """The branch that HEAD will be merged into, and the last commit that both have."""

    name: str  # the name as git shows it
    tip: str  # the full hash of the branch's newest commit
    base: str  # the full hash of the merge base of HEAD and the branch


def main_branch(root: Path, rev: str = "") -> Main:
    """Return the branch that HEAD will go into: ``rev``, or the main one. Raises TreeError."""
    if rev:
        tip = resolve(root, rev)
        name = revision(rev, tip)
    else:
        commits = _commits(root, *MAIN)
        name, tip = next(((ref, commits[ref]) for ref in MAIN if commits[ref]), ("", ""))
        name = name.removeprefix("refs/remotes/").removeprefix("refs/heads/")
    if not tip:
        raise TreeError("no main branch is known: git fetch origin main")
    base = (git(root, "merge-base", "HEAD", tip) or "").strip()
    if not base:
        hint = f": {DEEPEN}" if is_shallow(root) else ""
        raise TreeError(f"HEAD and {name} have no common commit here{hint}")
    return Main(name, tip, base)


def files_at(root: Path, commit: str, folder: Path) -> dict[str, str]:
    """Return the text of each JSON file of a folder at a commit, by path. Raises TreeError."""
    top, _ = repository(root)
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
    """Choose the commit to measure beside HEAD if a recording of the commit ``recorded`` says
    SLOWER.

    If HEAD and the main branch (or ``rev``) both have the recording's own commit, it is that one. A
    commit that only this branch has may be as slow as HEAD, and would prove nothing. If the
    recording's commit cannot be used, for example after a squash or in a shallow clone, it is the
    merge base of HEAD and the main branch. A merge base that is HEAD itself is not used, since the
    code would be the same.
    """
    commits = _commits(root, "HEAD", recorded)
    if not (head := commits["HEAD"]):
        return Chosen("", f"git knows no commit of {root}")
    own = commits[recorded] if _is_hash_of(recorded, commits[recorded]) else ""
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
        return Chosen("", f"{why}, and HEAD is on {main.name} itself: no merge base")
    how = f"{why}; in its place the merge base with {main.name}, {short_hash(main.base)}"
    return Chosen(main.base, how)


def _unusable(recorded: str) -> str:
    if not recorded:
        return "the recording names no commit"
    return f"the recording's commit {short_hash(recorded)} is not in this repository"


def known_commit(root: Path, text: str) -> str:
    """Return the full hash of a commit; empty if the repository has none with this hash. A name
    such as HEAD is not accepted, since it means another commit tomorrow. Nor is a tag or a branch
    that is named like a short hash, for which git takes it.
    """
    commit = _commits(root, text)[text]
    return commit if _is_hash_of(text, commit) else ""


def _is_hash_of(text: str, commit: str) -> bool:
    return bool(_HASH.fullmatch(text)) and commit.startswith(text)


def has_commit(root: Path, tip: str, commit: str) -> bool:
    """Tell whether ``commit`` is ``tip`` or one of its ancestors."""
    return git(root, "merge-base", "--is-ancestor", commit, tip) is not None


def left_behind(root: Path, rev: str, commit: str) -> str:
    """Return a sentence if HEAD lacks commits of another revision, such as newer ones."""
    both = (git(root, "merge-base", "HEAD", commit) or "").strip()
    if both in ("", commit):
        return ""
    return (
        f"{revision(rev, commit)} has commits that HEAD lacks, and what they changed is compared "
        f"as well; the last commit that both have: --perf-against={short_hash(both)}"
    )


def repository(root: Path) -> tuple[Path, str]:
    """Return the top of the repository, and ``root`` relative to it. Raises TreeError."""
    if shutil.which("git") is None:
        raise TreeError("git is not on the PATH, and it makes other revisions' trees: install git")
    top, real = top_of(root), root.resolve()
    if top is None:
        done = run_git(root, "rev-parse", "--show-toplevel")
        if done is None or "not a git repository" in done.stderr:
            raise TreeError(
                f"{root} lies in no git repository: run it in a git clone of the project"
            )
        raise TreeError(f"git refuses the repository of {root}: {complaint(done.stderr)}")
    below = real.relative_to(top).as_posix() if real.is_relative_to(top) else ""
    return top, "" if below == "." else below


def _commits(root: Path, *names: str) -> dict[str, str]:
    """Return the full hash that each name means; empty if the repository lacks the commit."""
    # One process for all names. It reads one name from each line. No name has a control character,
    # at which a name or an answer might end too early.
    asked = [name for name in names if name and not _CONTROL.search(name)]
    lines = "".join(f"{name}^{{commit}}\n" for name in asked)
    said = git(root, "cat-file", "--batch-check=%(objectname)", given=lines) or ""
    answers = zip(asked, said.split("\n"), strict=False)
    # For an unknown name git prints the name, and that it is missing.
    known = {name: answer for name, answer in answers if _FULL_HASH.fullmatch(answer)}
    return dict.fromkeys(names, "") | known


def _of_short_hash(root: Path, beginning: str) -> dict[str, str]:
    """Return the commits whose hashes begin like this, by hash."""
    objects = (git(root, "rev-parse", f"--disambiguate={beginning}") or "").split()
    return {name: commit for name, commit in _commits(root, *objects).items() if name == commit}


def _branches_of_remotes(root: Path, rev: str) -> dict[str, str]:
    """Return the commit of each remote's branch of this name, by the remote's name and this one."""
    remotes = (git(root, "remote") or "").split("\n")
    commits = _commits(root, *(f"refs/remotes/{remote}/{rev}" for remote in remotes))
    return {
        name.removeprefix("refs/remotes/"): commit for name, commit in commits.items() if commit
    }


def _branch_of_a_remote(root: Path, rev: str) -> str:
    branches = _branches_of_remotes(root, rev)
    if len(set(branches.values())) > 1:
        raise TreeError(
            f"{rev!r} is a branch of several remotes: say {' or '.join(sorted(branches))}"
        )
    return next(iter(branches.values()), "")


def _unknown(root: Path, rev: str, top: Path) -> str:
    refs = ("refs/heads", "refs/tags", "refs/remotes")
    known = (git(root, "for-each-ref", "--format=%(refname:short)", *refs) or "").split()
    if not known and not _commits(root, "HEAD")["HEAD"]:
        return f"{top} has no commit yet, so no revision {rev!r}: git commit"
    names = dict.fromkeys([*known, *(name.partition("/")[2] for name in known)])
    # The repository's main branch may have another name than in the docs' examples.
    hint = meant(rev, filter(None, names)) or (f" (it has: {listed(known, 5)})" if known else "")
    start = re.split("[~^]", rev)[0]
    # In "HEAD~3" the name is right, but the commit does not exist.
    if start != rev and _commits(root, start)[start]:
        hint = ""
    if is_shallow(root):
        return f"{rev!r} is no revision that this shallow clone of {top} has{hint}: {DEEPEN}"
    return f"{rev!r} is no revision of {top}{hint}: git fetch --all brings what is elsewhere"


def is_shallow(root: Path) -> bool:
    """Tell whether a clone lacks older commits: git may then take main's for the branch's."""
    return (git(root, "rev-parse", "--is-shallow-repository") or "").strip() == "true"
