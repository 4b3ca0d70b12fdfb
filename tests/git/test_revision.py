"""What git says of a tree, with real repositories."""

import os
import shutil
import time

import pytest
from git_repositories import git, repository

from stepguard.machine.git.revision import (
    Revision,
    current,
    differing,
    no_commit,
    run_git,
    tracked_files,
    untracked,
)


@pytest.fixture
def root(tmp_path):
    """A repository with one commit: code.py, a b.py, baselines/cpu.json, .gitignore."""
    root = tmp_path / "a tree"
    (root / "baselines").mkdir(parents=True)
    for name in ("code.py", "a b.py", "baselines/cpu.json"):
        (root / name).write_text("1\n")
    (root / ".gitignore").write_text("ignored/\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "first")
    return root


def dirty(root):
    """What differs, as seen from ``root``."""
    return current(root, root / "baselines").dirty


def test_a_clean_tree(root):
    """The commit is HEAD's and nothing is dirty, ignored files included."""
    (root / "ignored").mkdir()
    (root / "ignored" / "x").write_text("")
    assert current(root, root / "baselines") == Revision(git(root, "rev-parse", "HEAD"), ())


def test_every_kind_of_change_is_dirty(root):
    """Modified, staged, deleted, renamed and untracked files are listed, sorted, unquoted."""
    (root / "code.py").write_text("2\n")
    (root / 'new \u00e9 "x".py').write_text("")
    git(root, "mv", "a b.py", "c d.py")
    assert dirty(root) == ("a b.py", "c d.py", "code.py", 'new \u00e9 "x".py')
    git(root, "add", "-A")
    assert dirty(root) == ("a b.py", "c d.py", "code.py", 'new \u00e9 "x".py')
    git(root, "commit", "-q", "-m", "second")
    (root / "code.py").unlink()
    assert dirty(root) == ("code.py",)


def test_what_is_dirty_can_be_written_down(root):
    """Also a name that is no UTF-8. It is read from disk by its real name."""
    (root / "b\udcff.py").write_text("")
    assert dirty(root) == (r"b\udcff.py",)
    before = current(root, None).state
    (root / "b\udcff.py").write_text("more")
    assert current(root, None).state != before


def test_baselines_do_not_make_a_tree_dirty(root):
    """Recording a baseline must not stop the next one: changes under baselines/ are left out."""
    (root / "baselines" / "cpu.json").write_text("2\n")
    (root / "baselines" / "h200 x1.json").write_text("")
    assert dirty(root) == ()
    (root / "baselines.py").write_text("")
    assert dirty(root) == ("baselines.py",)


PAGE = "<!DOCTYPE html>\n<!-- stepguard report -->\n<html>"
RUN = '{\n "schema": 3,\n "date": "2026-11-25T10:00:00+00:00"'


@pytest.mark.parametrize(("name", "text", "is_change"), [
    ("out.html", PAGE, False),
    ("out.md", "<!-- stepguard report -->\n**same**", False),
    ("out.json", RUN, False),
    ("out.html", "<!DOCTYPE html>\n<html>", True),
    ("out.json", '{"schema": 3, "lr": 0.1}', True),
    ("out.py", RUN, True),
])  # fmt: skip
def test_a_document_of_a_run_is_no_change_unless_git_has_it(root, name, text, is_change):
    """It is known by how it begins: any other file may steer the step."""
    (root / name).write_text(text)
    first = git(root, "rev-parse", "HEAD")
    expected = (name,) if is_change else ()
    assert dirty(root) == differing(root, first, root / "baselines") == expected
    git(root, "add", name)
    assert dirty(root) == (name,)


def test_a_subfolder_sees_the_whole_repository(root):
    """Run below the top, a change beside it is seen too, and baselines/ there is left out."""
    below = root / "sub dir"
    (below / "baselines").mkdir(parents=True)
    (below / "x.py").write_text("")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "sub")
    (below / "baselines" / "cpu.json").write_text("")
    assert dirty(below) == ()
    (root / "code.py").write_text("2\n")
    assert dirty(below) == ("code.py",)


def test_a_repository_that_begins_inside_of_another(root):
    """From then on the inner one is the folder's, and it ends with its folder .git."""
    repository(root / "inner", code="1")
    shutil.move(root / "inner" / ".git", root / "kept")
    outer = current(root / "inner", None)
    assert (outer.commit, outer.dirty[0]) == (git(root, "rev-parse", "HEAD"), "inner/code.py")
    shutil.move(root / "kept", root / "inner" / ".git")
    inner = current(root / "inner", None)
    assert (inner.commit, inner.dirty) == (git(root / "inner", "rev-parse", "HEAD"), ())
    (root / "inner" / "code.py").write_text("1")
    written = current(root / "inner", None)
    assert written == inner and written.state != inner.state


def test_a_repository_of_somebody_else(root, monkeypatch):
    """What a container finds in a mounted clone is refused in git's own words, which have the
    command; git init would not mend it.
    """
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    said = no_commit(root)
    assert said.startswith(f"git refuses the repository of {root}: fatal: detected dubious")
    assert "git config --global --add safe.directory" in said and "git init" not in said


def test_a_status_that_fails_is_not_clean(root):
    """When git knows HEAD but cannot say what changed, the tree does not pass for clean."""
    (root / "code.py").write_text("2\n")
    (root / ".git" / "index").write_bytes(b"garbage")
    found = current(root, root / "baselines")
    assert found.dirty or not found.commit


def hooked(other, name):
    """What git sets in a hook of ``other``, and what a user may have set."""
    folder = other / ".git"
    return {
        "GIT_DIR": folder,
        "GIT_WORK_TREE": other,
        "GIT_INDEX_FILE": folder / "index",
        "GIT_OBJECT_DIRECTORY": folder / "objects",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": folder / "objects",
        "GIT_COMMON_DIR": folder,
        "GIT_NAMESPACE": "elsewhere",
        "GIT_PREFIX": "sub/",
    }[name]


@pytest.mark.parametrize("names", [
    ("GIT_DIR",),
    ("GIT_WORK_TREE",),
    ("GIT_DIR", "GIT_WORK_TREE"),
    ("GIT_INDEX_FILE",),
    ("GIT_OBJECT_DIRECTORY",),
    ("GIT_COMMON_DIR",),
    ("GIT_DIR", "GIT_COMMON_DIR"),
    ("GIT_NAMESPACE",),
    ("GIT_DIR", "GIT_INDEX_FILE", "GIT_PREFIX"),
], ids=" ".join)  # fmt: skip
def test_the_environment_points_to_no_other_repository(root, tmp_path, monkeypatch, names):
    """Inside a hook of another repository, the tree that is measured is asked all the same."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "x.py").write_text("")
    git(other, "init", "-q")
    git(other, "add", "-A")
    git(other, "commit", "-q", "-m", "another")
    head = git(root, "rev-parse", "HEAD")
    (root / "code.py").write_text("2\n")
    for name in names:
        monkeypatch.setenv(name, str(hooked(other, name)))
    assert current(root, root / "baselines") == Revision(head, ("code.py",))


def test_another_commit_checked_out_for_a_while_is_another_state(root):
    """HEAD, list and content are what they were: who imported meanwhile imported something else."""
    (root / "code.py").write_text("2\n")
    git(root, "commit", "-qam", "second")
    first = current(root, root / "baselines")
    git(root, "checkout", "-q", "HEAD~1")
    git(root, "checkout", "-q", "-")
    again = current(root, root / "baselines")
    assert again == first and not again.dirty and again.state != first.state


def test_a_baseline_that_is_written_leaves_the_state(root):
    """Recording in the middle of a run is no edit of what is measured."""
    (root / "baselines").mkdir(exist_ok=True)
    (root / "baselines" / "cpu.json").write_text("333\n")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "recorded")
    first = current(root, root / "baselines")
    (root / "baselines" / "cpu.json").write_text("22\n")
    assert current(root, root / "baselines").state == first.state


@pytest.mark.parametrize("flag", ["--assume-unchanged", "--skip-worktree"])
def test_what_git_was_told_not_to_look_at_is_not_known_to_be_clean(root, flag):
    """Marked files count as dirty, also those that are gone: the tree lacks what the commit has."""
    git(root, "update-index", flag, "code.py")
    (root / "code.py").write_text("2\n")
    assert dirty(root) == ("code.py",)
    (root / "code.py").unlink()
    assert git(root, "status", "--porcelain") == "" and dirty(root) == ("code.py",)
    assert differing(root, git(root, "rev-parse", "HEAD"), root / "baselines") == ("code.py",)


def test_what_a_sparse_checkout_leaves_out_is_no_change(root):
    """Another revision's tree is as sparse. What is there all the same nobody looks at."""
    git(root, "sparse-checkout", "set", "--no-cone", "/*", "!/code.py")
    assert not (root / "code.py").exists() and dirty(root) == ()
    (root / "code.py").write_text("2\n")
    assert dirty(root) == ("code.py",)


def test_a_monitor_that_sees_nothing_is_not_asked(root, tmp_path):
    """A hook of fsmonitor that answers "nothing changed", whatever did, hides no change."""
    monitor = tmp_path / "monitor"
    monitor.write_text("#!/bin/sh\nprintf 'token\\0'\n")
    monitor.chmod(0o755)
    git(root, "config", "core.fsmonitor", str(monitor))
    for _ in range(2):  # the first one starts it
        git(root, "status", "--short")
    (root / "code.py").write_text("2\n")
    assert git(root, "status", "--short") == ""
    assert dirty(root) == ("code.py",)


@pytest.mark.parametrize("setting", ["core.checkStat=minimal", "core.trustctime=false"])
def test_an_edit_of_the_old_size_and_time_is_dirty_whatever_the_configuration_says(root, setting):
    """Settings that have git trust size and mtime alone hide no edit that restores both."""
    code, old_s = root / "code.py", 1_600_000_000
    os.utime(code, (old_s, old_s))
    git(root, "update-index", "--refresh")
    git(root, "config", *setting.split("="))
    if setting == "core.checkStat=minimal":
        (root / "new").write_text("2\n")
        (root / "new").replace(code)  # another inode
    else:
        time.sleep(1.1)  # git compares whole seconds of ctime
        code.write_text("2\n")
    os.utime(code, (old_s, old_s))
    assert git(root, "status", "--short") == ""
    assert dirty(root) == ("code.py",)


def test_a_graft_gives_a_commit_no_other_parents(root):
    """A file of the clone, that no push shows: the parents are those that the hash says."""
    git(root, "commit", "-q", "--allow-empty", "-m", "second")
    (root / ".git/info").mkdir(exist_ok=True)
    (root / ".git/info/grafts").write_text(git(root, "rev-parse", "HEAD"))
    assert run_git(root, "rev-list", "--count", "HEAD").stdout == "2\n"


def test_a_submodule_that_moved_is_dirty_whatever_the_configuration_says(root, tmp_path):
    """Settings that hide submodules from git status do not hide them from us."""
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    git(other, "commit", "-q", "--allow-empty", "-m", "one")
    git(root, "submodule", "--quiet", "add", str(other), "sub")
    git(root, "commit", "-q", "-m", "sub")
    git(root, "config", "submodule.sub.ignore", "all")
    git(root / "sub", "commit", "-q", "--allow-empty", "-m", "two")
    assert dirty(root) == ("sub",)


def test_a_module_of_a_submodule_is_in_a_commit(root, tmp_path):
    """The commit names the submodule's, which has the file; one that it ignores is in none."""
    other = repository(tmp_path / "other", lib="1")
    git(root, "submodule", "--quiet", "add", str(other), "third")
    git(root, "commit", "-q", "-m", "third")
    (root / "third" / "made.py").write_text("1")
    modules = [root / "code.py", root / "third" / "lib.py", root / "third" / "made.py"]
    assert untracked(root, modules, tracked_files(root, *modules)) == modules[2:]


def test_a_link_that_leads_to_itself_hides_no_file(root):
    """git has it. What is beside it is told all the same."""
    for name in ("loop.json", "new.json"):
        (root / "baselines" / name).symlink_to("loop.json")
    git(root, "add", "-A")
    tracked = tracked_files(root, root / "baselines")
    paths = sorted((root / "baselines").iterdir())
    assert [path.name for path in untracked(root, paths, tracked)] == ["loop.json", "new.json"]


@pytest.mark.parametrize("hide", [False, True])
def test_files_that_differ_from_a_commit(root, hide):
    """Committed since, edited, new, deleted or hidden; no baselines, nothing that git ignores."""
    first = git(root, "rev-parse", "HEAD")
    assert differing(root, first, root / "baselines") == ()
    (root / "later.py").write_text("2")
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "second")
    if hide:
        git(root, "update-index", "--assume-unchanged", "code.py")
    (root / "code.py").write_text("2")
    (root / "a b.py").unlink()
    (root / "new data.bin").write_text("2")
    (root / "baselines" / "cpu.json").write_text("2")
    (root / "ignored").mkdir()
    (root / "ignored" / "x").write_text("2")
    found = differing(root, first, root / "baselines")
    assert found == ("a b.py", "code.py", "later.py", "new data.bin")
    assert differing(root, "0" * 40, root / "baselines") is None
    assert "baselines/cpu.json" in differing(root, first, root)
