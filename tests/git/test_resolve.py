"""Which commit a slowdown is judged against, with real repositories."""

import pytest
from git_repositories import commit, git, repository

from stepguard.core.text import short_hash
from stepguard.machine.git.resolve import Chosen, commit_for_confirmation, known_commit

GONE = "0123456789abcdef0123456789abcdef01234567"
ABSENT = f"the recording's commit {GONE[:12]} is not in this repository"


@pytest.fixture
def origin(tmp_path):
    """A repository with one commit on main."""
    return repository(tmp_path / "origin", code="1\n")


@pytest.fixture
def clone(origin, tmp_path):
    """A clone on a branch "mine", one commit ahead of main."""
    git(tmp_path, "clone", "-q", str(origin), str(tmp_path / "a clone"))
    git(tmp_path / "a clone", "switch", "-q", "-c", "mine")
    commit(tmp_path / "a clone", "mine", code="2\n")
    return tmp_path / "a clone"


def test_the_recordings_own_commit(clone):
    """As long as HEAD and the main branch have it: the hash in full, and in words."""
    own = git(clone, "rev-parse", "HEAD~1")
    expected = Chosen(own, f"the recording's own commit, {short_hash(own)}", own=True)
    assert commit_for_confirmation(clone, own) == expected
    assert commit_for_confirmation(clone, own[:10]) == expected


def test_a_tag_that_is_named_like_a_short_hash_is_no_commit(clone):
    """It may move. Git would take it."""
    own = git(clone, "rev-parse", "HEAD~1")
    git(clone, "tag", own[:10], "mine")
    assert known_commit(clone, own[:10]) == "" and known_commit(clone, own) == own
    assert not commit_for_confirmation(clone, own[:10]).own
    assert commit_for_confirmation(clone, own).own


def test_a_commit_that_was_squashed_away(origin, clone):
    """The merge base with what the remote calls its main branch stands in, and is called so."""
    base = git(origin, "rev-parse", "main")
    commit(origin, "meanwhile", code="3\n")
    git(clone, "fetch", "-q")
    assert commit_for_confirmation(clone, GONE) == Chosen(
        base, f"{ABSENT}; in its place the merge base with origin/HEAD, {short_hash(base)}"
    )


@pytest.mark.parametrize("where", ["HEAD", "HEAD~1", "other"])
def test_a_commit_that_main_does_not_have_is_not_believed(origin, clone, where):
    """A recording's hash is a line of a file: one of this branch alone, or of another one, would
    call as slow code the machine.
    """
    commit(clone, "slow", code="3\n")
    git(clone, "switch", "-q", "-c", "other", "main")
    commit(clone, "elsewhere", code="4\n")
    git(clone, "switch", "-q", "mine")
    recorded, base = git(clone, "rev-parse", where), git(origin, "rev-parse", "main")
    why = f"the recording's commit {short_hash(recorded)} is not on origin/HEAD"
    expected = f"{why}; in its place the merge base with origin/HEAD, {short_hash(base)}"
    assert commit_for_confirmation(clone, recorded) == Chosen(base, expected)


def test_a_commit_that_main_got_later_is_not_believed(origin, clone):
    """Main's tip may be as slow as HEAD; what both have is what the branch began from."""
    later = commit(origin, "meanwhile", code="3\n")
    git(clone, "fetch", "-q")
    found = commit_for_confirmation(clone, later)
    assert (found.commit, found.own) == (git(clone, "rev-parse", "HEAD~1"), False)


def test_the_branch_that_is_merged_into_may_be_named(origin, clone):
    """Instead of the main branch; one that is not there is said, with what mends it."""
    git(clone, "branch", "release")
    tip = git(clone, "rev-parse", "release")
    found = commit_for_confirmation(clone, tip, "release")
    assert (found.commit, found.own) == (tip, True)
    gone = commit_for_confirmation(clone, tip, "relaese")
    assert gone.commit == "" and "did you mean release" in gone.how


@pytest.mark.parametrize("text", ["", "main", "--all", "HEAD", "unknown"])
def test_what_is_no_hash_is_no_commit(clone, text):
    """A recording without a commit, or with something else, is not taken for a branch's name."""
    found = commit_for_confirmation(clone, text)
    assert found.commit == git(clone, "rev-parse", "HEAD~1")
    assert "own commit" not in found.how
    assert found.how.startswith("the recording names no commit") == (text == "")


@pytest.mark.parametrize(("there", "named"), [
    (["origin/HEAD", "origin/main", "main", "master"], "origin/HEAD"),
    (["origin/main", "main", "master"], "origin/main"),
    (["main", "master"], "main"),
    (["master"], "master"),
])  # fmt: skip
def test_the_order_in_which_main_is_looked_for(clone, there, named):
    """The remote's idea of main before a local branch, which may be old."""
    base = git(clone, "rev-parse", "origin/main")
    for ref in ("refs/remotes/origin/HEAD", "refs/remotes/origin/main", "refs/heads/main"):
        git(clone, "update-ref", "--no-deref", "-d", ref)
    for name in there:
        kind = "remotes" if name.startswith("origin/") else "heads"
        git(clone, "update-ref", f"refs/{kind}/{name}", base)
    found = commit_for_confirmation(clone, GONE)
    assert found == Chosen(
        base, f"{ABSENT}; in its place the merge base with {named}, {short_hash(base)}"
    )


def test_on_the_main_branch_itself(origin):
    """HEAD is no witness against itself: none, and why."""
    found = commit_for_confirmation(origin, GONE)
    assert found.commit == ""
    assert found.how == f"{ABSENT}, and HEAD is on main itself: no merge base"


def test_no_main_branch(clone):
    """Without any of the four names: none, and the command that brings one."""
    for ref in ("refs/remotes/origin/HEAD", "refs/remotes/origin/main", "refs/heads/main"):
        git(clone, "update-ref", "--no-deref", "-d", ref)
    found = commit_for_confirmation(clone, GONE)
    assert found == Chosen("", f"{ABSENT}, and no main branch is known: git fetch origin main")


def test_histories_without_a_common_commit(clone):
    """A branch that shares nothing with main has no merge base."""
    git(clone, "switch", "-q", "--orphan", "other")
    commit(clone, "other", code="4\n")
    found = commit_for_confirmation(clone, GONE)
    assert found == Chosen("", f"{ABSENT}, and HEAD and origin/HEAD have no common commit here")


def test_a_shallow_clone(origin, clone, tmp_path):
    """The merge base lies beyond what was fetched: none, and the command that brings it."""
    commit(origin, "meanwhile", code="3\n")
    git(clone, "push", "-q", "origin", "mine")
    shallow = tmp_path / "shallow"
    url = f"file://{origin}"
    git(tmp_path, "clone", "-q", "--depth=1", "--no-single-branch", "-b", "mine", url, str(shallow))
    found = commit_for_confirmation(shallow, GONE)
    assert found.commit == ""
    assert found.how.endswith(
        "have no common commit here: git fetch --unshallow (in CI: fetch-depth: 0)"
    )


def test_no_repository(tmp_path, monkeypatch):
    """Where git knows nothing, nothing is chosen."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit_for_confirmation(tmp_path, GONE) == Chosen(
        "", f"git knows no commit of {tmp_path}"
    )
