"""Trailers of commits: what they permit, and every wrong one refused by commit and line."""

import pytest
from git_repositories import commit, git, repository

from stepguard.machine.git.resolve import TreeError
from stepguard.machine.git.trailers import trailers

CASE = "train_step[124m-bf16]"
LINE = f"Perf-Expect: {CASE} step_ms: a larger vocabulary"


@pytest.fixture
def root(tmp_path):
    """A repository with the tag "base"."""
    found = repository(tmp_path / "repository")
    git(found, "tag", "base")
    return found


def read(root, cases=None):
    """What the range from "base" on permits."""
    return trailers(root, "base", "HEAD", cases)


def test_trailers_of_the_range_are_read(root):
    """Of all its commits, with other trailers between, and folded lines; not those of the base."""
    first = commit(root, f"Change\n\nWhy.\n\nSigned-off-by: a <a@b>\n{LINE}")
    folded = "Perf-Expect: forward[nano-cpu] launches_per_step: one more\n  launch a layer"
    second = commit(root, f"Another\n\n{folded}\n{LINE}")
    found = read(root)
    assert [(one.case, one.metric, one.commit) for one in found] == [
        ("forward[nano-cpu]", "launches_per_step", second),
        (CASE, "step_ms", second),
        (CASE, "step_ms", first),
    ]
    assert found[0].reason == "one more launch a layer" and found[1].who == "a"
    assert trailers(root, "HEAD", "HEAD") == []
    git(root, "tag", "-f", "base")
    commit(root, "no trailer: perf is as it was")
    assert read(root) == []


def test_what_was_reverted_declares_nothing(root):
    """What is slower at the end is something else; a revert of the revert brings it back."""
    declares = commit(root, f"Slow\n\n{LINE}", slow="1\n")
    git(root, "revert", "--no-edit", declares)
    assert read(root) == []
    reverts = git(root, "rev-parse", "HEAD")
    again = commit(root, f"Slow in another way\n\n{LINE}")
    assert [one.commit for one in read(root)] == [again]
    git(root, "revert", "--no-edit", reverts)
    assert [one.commit for one in read(root)] == [again, declares]
    commit(root, f"Out\n\nThis reverts commit {again[:9]} (Slow in another way, 2026-11-24).")
    assert [one.commit for one in read(root)] == [declares]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (f"x\n\nPerf-Expect: {CASE} step_ms:", "not of that form"),
        (f"x\n\nPerf-Expect: {CASE} step_ms because", "not of that form"),
        (f"x\n\nPerf-Expect: {CASE} step_ms:   ", "not of that form"),
        (f"x\n\nPerf-Expect: {CASE}: too large", "not of that form"),
        (
            f"x\n\nPerf-Expect: {CASE} step_time: too large",
            "'step_time' is no metric that can be gated (did you mean step_ms?)",
        ),
        (f"x\n\nPerf-Expect: {CASE} mfu_pct: too large", "'mfu_pct' is no metric"),
        ("x\n\nPerf-Expect: train_step[124m] step_ms: x", "no case 'train_step[124m]'"),
        (f"x\n\n{LINE}\n\nMore words.", "git does not take it for a trailer"),
        (f"x\n\n{LINE}\n\nWords.\n\n{LINE}", "git does not take it for a trailer"),
        (f"x\n\nPerf-Expect: {CASE} step_ms: ...", "no line of words"),
    ],
)
def test_a_wrong_trailer_is_refused_loudly(root, message, why):
    """With the commit, the line, and the right form."""
    wrong = commit(root, message)
    with pytest.raises(TreeError) as raised:
        read(root, {CASE})
    text = str(raised.value)
    assert why in text and wrong[:12] in text and "Perf-Expect: CASE METRIC: reason" in text
    line = next(x for x in message.splitlines() if x.lower().startswith("perf"))
    assert line.strip() in text


PROSE = ["perf expectations: none", "Perf-Expects: x", "  Perf-Expect: as below", "Perf-Expect"]


@pytest.mark.parametrize("line", PROSE)
def test_prose_is_no_trailer(root, line):
    """Nor is a line that is indented, as a message quotes another."""
    commit(root, f"x\n\n{line}\n\nMore words.")
    assert read(root) == []


SQUASH = f"""Larger vocabulary (#12)

* A first attempt

{LINE}

* Mend it

Perf-Expect: {CASE} flops: all

---------

Co-authored-by: a <a@b>
"""


def test_a_squash_on_main_is_what_it_is(root):
    """GitHub's message has the trailer in its middle: nobody can amend it, so that it permits what
    it says, with a notice. What is malformed is a notice, too. On a branch both end the run.
    """
    squashed = commit(root, SQUASH)
    with pytest.raises(TreeError, match="git does not take it for a trailer"):
        read(root, {CASE})
    git(root, "update-ref", "refs/remotes/origin/main", squashed)
    told = []
    (found,) = trailers(root, "base", "HEAD", {CASE}, told.append)
    assert (found.case, found.metric, found.commit) == (CASE, "step_ms", squashed)
    assert found.reason == "a larger vocabulary"
    assert ["take it for a trailer" in text for text in told] == [True, False]
    assert all(squashed[:12] in text for text in told)
    renamed = []
    assert trailers(root, "base", "HEAD", {"another"}, renamed.append) == []
    assert "there is no case" in renamed[0]
    commit(root, f"of a branch\n\n{LINE}\n\nMore words.")
    with pytest.raises(TreeError, match="git does not take it for a trailer"):
        read(root, {CASE})


def test_a_range_that_cannot_be_read_is_refused(root):
    """A base that a shallow clone lacks."""
    with pytest.raises(TreeError, match="cannot be read"):
        trailers(root, "0" * 40, "HEAD")


def test_a_shallow_clone_takes_no_old_trailer_for_the_branchs(root, tmp_path):
    """Where main is cut off, commits that it has had for long seem to be the branch's own."""
    commit(root, f"Of main\n\n{LINE}")
    git(root, "branch", "mine")
    commit(root, "of main, too")
    git(root, "switch", "-q", "mine")
    commit(root, "slow")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--depth=1", "-b", "main", f"file://{root}", str(clone))
    git(clone, "fetch", "-q", "--depth=9", "origin", "mine:mine")
    assert trailers(root, "main", "mine") == []
    with pytest.raises(TreeError, match="a shallow clone cannot tell .*: git fetch --unshallow"):
        trailers(clone, "origin/main", "mine")


@pytest.mark.parametrize("reason", ["\u200b", "larger\u202e", "red \x1b[31m", "a\x01b", "a\x02b"])
def test_a_reason_that_nobody_can_read_is_refused(root, reason):
    """It is shown to whoever approves; and no character of it is one that git's answer is cut at,
    so that one line declares one metric.
    """
    commit(root, f"x\n\nPerf-Expect: {CASE} step_ms: {reason}")
    with pytest.raises(TreeError, match="no line of words|control characters"):
        read(root)
