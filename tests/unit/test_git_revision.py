"""What git says of a tree, with real repositories."""

import os
import subprocess

import pytest

from stepguard.host.revision import Revision, current


def git(root, *arguments):
    """Run git in ``root`` with an identity and no configuration of the user's."""
    env = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    name = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", "-C", root, *name, *arguments], env=env, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


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


def test_baselines_do_not_make_a_tree_dirty(root):
    """Recording a baseline must not stop the next one: changes under baselines/ are left out."""
    (root / "baselines" / "cpu.json").write_text("2\n")
    (root / "baselines" / "h200 x1.json").write_text("")
    assert dirty(root) == ()
    (root / "baselines.py").write_text("")
    assert dirty(root) == ("baselines.py",)


def test_another_folder_of_baselines(root):
    """The folder in use is left out, the default one is then code like any other."""
    (root / "baselines" / "cpu.json").write_text("2\n")
    (root / "mine").mkdir()
    (root / "mine" / "cpu.json").write_text("")
    assert current(root, root / "mine").dirty == ("baselines/cpu.json",)


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


def test_no_repository(tmp_path):
    """Outside a repository there is no commit, so nothing can be recorded."""
    assert current(tmp_path, tmp_path / "baselines") == Revision("", ())


def test_a_repository_without_a_commit(tmp_path):
    """Before the first commit there is no revision to record."""
    git(tmp_path, "init", "-q")
    (tmp_path / "x").write_text("")
    assert current(tmp_path, tmp_path / "baselines").commit == ""


def test_no_git(root, monkeypatch):
    """Without git there is no revision, and no exception."""
    monkeypatch.setenv("PATH", "/nonexistent")
    assert current(root, root / "baselines") == Revision("", ())


def test_a_status_that_fails_is_not_clean(root):
    """When git knows HEAD but cannot say what changed, the tree does not pass for clean."""
    (root / "code.py").write_text("2\n")
    (root / ".git" / "index").write_bytes(b"garbage")
    found = current(root, root / "baselines")
    assert found.dirty or not found.commit
