"""The tree of another revision, with real repositories: what is checked out, and that it goes."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from git_repositories import commit, git, repository
from interrupts import heed_interrupts

from stepguard.machine.git import worktree
from stepguard.machine.git.resolve import TreeError
from stepguard.machine.git.worktree import share, tree_of

ENGINE_ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900.0
HOLD = """
import sys, time
from pathlib import Path
from stepguard.machine.git.worktree import tree_of

with tree_of(Path(sys.argv[1]), sys.argv[2], print) as tree:
    print("TREE", tree.root, flush=True)
    {meanwhile}
"""


@pytest.fixture
def root(tmp_path):
    """A repository at a path with spaces: code.py says 1, then 2; HEAD~1 is tagged "one"."""
    root = repository(tmp_path / "a tree" / "of mine", code="1\n")
    git(root, "tag", "one")
    commit(root, "second", code="2\n")
    return root


@pytest.fixture
def hold():
    """Starts processes that hold a tree: hold(root, rev) -> (process, path of the tree)."""
    started = []

    def start(root, rev, meanwhile="time.sleep(600)"):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD.format(meanwhile=meanwhile), str(root), rev],
            env=os.environ | {"PYTHONPATH": str(ENGINE_ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=heed_interrupts,
        )
        started.append(process)
        for line in process.stdout:
            if line.startswith("TREE "):
                return process, Path(line[5:].rstrip("\n"))
        raise AssertionError(f"ended with {process.wait()} before it had a tree")

    yield start
    for process in started:
        process.kill()
        process.wait(LIMIT_S)
        process.stdout.close()


def left(root):
    """Trees, locks and git's own entries that are there."""
    folder = root / ".stepguard" / "trees"
    entries = git(root, "worktree", "list", "--porcelain").count("worktree ") - 1
    files = sorted(p.name for p in folder.iterdir() if p.name != "lock") if folder.exists() else []
    return files + ["an entry of git's"] * entries


def test_the_tree_of_a_revision(root):
    """The revision's files, at its commit, beside an untouched and still clean tree."""
    (root / "code.py").write_text("3\n")
    with tree_of(root, "HEAD~1") as tree:
        assert (tree.root / "code.py").read_text() == "1\n"
        assert tree.commit == git(root, "rev-parse", "one") == git(tree.root, "rev-parse", "HEAD")
        assert (tree.top, tree.base, tree.rev) == (tree.root, root, "HEAD~1")
        assert tree.root.is_relative_to(root / ".stepguard" / "trees")
        assert git(root, "status", "--porcelain") == "M code.py"
        assert git(root, "branch", "--show-current") == "main"
    assert left(root) == []
    assert (root / "code.py").read_text() == "3\n"


@pytest.mark.parametrize("rev", ["one", "HEAD~1", "main~1", "hash", "short hash", "side", "far"])
def test_every_way_to_name_a_revision(root, tmp_path, rev):
    """Branch, tag, hash and ancestor; a remote's branch by its own name, as git switch has it."""
    first = git(root, "rev-parse", "one")
    git(root, "branch", "side", "one")
    other = tmp_path / "other"
    git(tmp_path, "clone", "-q", str(root), str(other))
    git(other, "branch", "far", first)
    git(root, "remote", "add", "theirs", str(other))
    git(root, "fetch", "-q", "theirs")
    with tree_of(root, {"hash": first, "short hash": first[:8]}.get(rev, rev)) as tree:
        assert tree.commit == first


def test_a_branch_of_several_remotes(root, tmp_path):
    """Two remotes' branches of that name at two commits: neither is guessed."""
    for name, rev in (("a", "one"), ("b", "main")):
        git(tmp_path, "clone", "-q", str(root), str(tmp_path / name))
        git(tmp_path / name, "branch", "far", git(root, "rev-parse", rev))
        git(root, "remote", "add", name, str(tmp_path / name))
        git(root, "fetch", "-q", name)
    with pytest.raises(TreeError, match="several remotes: say a/far or b/far"):
        tree_of(root, "far").__enter__()


@pytest.mark.parametrize("rev", ["side", "side~0"])
def test_a_tag_that_is_called_like_a_branch(root, rev):
    """Git would take the tag, which may be as slow as HEAD: none is guessed, both can be said."""
    git(root, "branch", "side", "one")
    git(root, "tag", "side", "main")
    with pytest.raises(TreeError, match="several meanings: say refs/tags/side or refs/heads/side"):
        tree_of(root, rev).__enter__()
    with tree_of(root, "refs/heads/side") as tree:
        assert tree.commit == git(root, "rev-parse", "one")


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_a_name_that_is_a_short_hash(root, kind):
    """Git would take the tag or the branch: none is guessed, both can be said. A whole hash is
    nothing else.
    """
    hash_of_one = git(root, "rev-parse", "one")
    for name in (hash_of_one[:8], hash_of_one):
        git(root, "update-ref", f"refs/{'tags' if kind == 'tag' else 'heads'}/{name}", "main")
    with pytest.raises(TreeError, match=f"several meanings: say refs/.* or {hash_of_one}"):
        tree_of(root, hash_of_one[:8]).__enter__()
    with tree_of(root, hash_of_one) as tree:
        assert tree.commit == hash_of_one


def test_a_tag_that_is_called_like_a_branch_of_a_remote(root, tmp_path):
    """In CI the main branch is there only as its remote's: a tag of that name is not taken for it.
    A tag that no branch is called like is.
    """
    git(tmp_path, "clone", "-q", str(root), str(tmp_path / "ci"))
    git(tmp_path / "ci", "switch", "-q", "--detach", "one")
    git(tmp_path / "ci", "branch", "-q", "-D", "main")
    git(tmp_path / "ci", "tag", "main", "one")
    with pytest.raises(TreeError, match="several meanings: say refs/tags/main or origin/main"):
        tree_of(tmp_path / "ci", "main").__enter__()
    with tree_of(tmp_path / "ci", "one") as tree:
        assert tree.commit == git(root, "rev-parse", "one")


@pytest.mark.parametrize("end", ["\r", "\n", "\0x", "\r\n"])
def test_a_name_with_a_control_character(root, end):
    """What follows is not left out, so the part before it is neither name nor hash."""
    for name in ("main", "0" * 40):
        with pytest.raises(TreeError, match="is no revision"):
            tree_of(root, f"{name}{end}").__enter__()


def test_a_commit_is_not_replaced(root):
    """A replacement (git replace), by HEAD for one, would compare the tree with itself."""
    first = git(root, "rev-parse", "one")
    git(root, "replace", first, "main")
    with tree_of(root, first) as tree:
        assert (tree.root / "code.py").read_text() == "1\n"


def test_a_folder_of_the_repository(root):
    """From a folder below the top the tree's root is the same folder in the checkout."""
    below = root / "sub dir" / "deep"
    below.mkdir(parents=True)
    (below / "x.py").write_text("x\n")
    commit(root, "sub")
    with tree_of(below, "main") as tree:
        assert tree.root == tree.top / "sub dir" / "deep"
        assert (tree.root / "x.py").read_text() == "x\n"
        assert (tree.top / "code.py").exists()
        assert tree.base == root and tree.top.is_relative_to(below / ".stepguard")
    assert left(below) == []
    with pytest.raises(TreeError, match=r"one \(\w{12}\) has no folder 'sub dir/deep'"):
        tree_of(below, "one").__enter__()
    assert left(below) == []


def test_data_that_git_ignores_is_linked(root):
    """A folder and a file, however deep; never what git tracks, or what the tree has itself. After
    the block the links are gone, and the data is not.
    """
    (root / ".gitignore").write_text("data/\n*.bin\nold\n")
    (root / "old").mkdir()
    (root / "data" / "inner").mkdir(parents=True)
    (root / "data" / "inner" / "a.txt").write_text("a")
    (root / "some" / "where").mkdir(parents=True)
    (root / "some" / "where" / "b.bin").write_text("b")
    commit(root, "third", tracked="1")
    with tree_of(root, "one") as tree:
        share(tree, root, ["data/", "some/where/b.bin", "code.py", "tracked.py", "missing", "old"])
        share(tree, root, ["data"])  # again, as the next case may
        share(tree, root / "some", ["../data", "../../beyond"])
        assert (tree.root / "data/inner/a.txt").read_text() == "a"
        assert (tree.root / "some/where/b.bin").read_text() == "b"
        assert (tree.root / "code.py").read_text() == "1\n" and (tree.root / "old").is_symlink()
        assert not (tree.root / "tracked.py").exists() and not (tree.root / "missing").exists()
    assert not tree.top.exists()
    assert (root / "data/inner/a.txt").read_text() == "a"
    assert (root / "some/where/b.bin").read_text() == "b"


@pytest.mark.parametrize("first", ["data/inner", "data"])
def test_data_that_contains_other_data_is_whole(root, first):
    """Two cases name a folder and a part of it, in any order."""
    (root / ".gitignore").write_text("data/\n")
    (root / "data" / "inner").mkdir(parents=True)
    for name in ("inner/a.txt", "b.txt"):
        (root / "data" / name).write_text(name)
    with tree_of(root, "one") as tree:
        for path in (first, "data", "data/inner"):
            share(tree, root, [path])
        for name in ("inner/a.txt", "b.txt"):
            assert (tree.root / "data" / name).read_text() == name
    assert sorted(path.name for path in (root / "data").rglob("*")) == ["a.txt", "b.txt", "inner"]


def test_nothing_is_linked_outside_of_the_tree(root, tmp_path):
    """The other revision tracks a link to a disk where this one has a folder."""
    (tmp_path / "disk").mkdir()
    (root / "cache").symlink_to(tmp_path / "disk")
    (root / ".gitignore").write_text("cache/\n")
    commit(root, "a link")
    git(root, "tag", "linked")
    (root / "cache").unlink()
    commit(root, "a folder")
    (root / "cache" / "corpus").mkdir(parents=True)
    with tree_of(root, "linked") as tree:
        share(tree, root, ["cache/corpus"])
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_link_to_tracked_files_is_no_data(root):
    """The other revision would read this one's files, and a change of them would not show."""
    (root / "settings").mkdir()
    (root / "settings" / "lr").write_text("1")
    (root / ".gitignore").write_text("data\n")
    commit(root, "settings")
    (root / "data").symlink_to("settings")
    with tree_of(root, "main") as tree:
        share(tree, root, ["data"])
        assert not (tree.root / "data").exists()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_gone_whatever_is_raised(root, error):
    """An exception, Ctrl-C and an exit pass through and leave nothing."""
    with pytest.raises(error), tree_of(root, "one"):
        raise error
    assert left(root) == []


def test_whatever_was_done_to_the_tree(root):
    """New files, a folder without rights and a lost .git file do not stop the removal."""
    told = []
    with tree_of(root, "one", told.append) as tree:
        (tree.root / "__pycache__").mkdir()
        (tree.root / "__pycache__" / "x.pyc").write_text("")
        (tree.root / "__pycache__").chmod(0)
        (tree.root / ".git").unlink()
    assert (left(root), told) == ([], [])


def test_nobody_elses_worktree_is_forgotten(root, tmp_path):
    """A worktree on a disk that is not mounted stays listed: trees go without git's prune."""
    git(root, "worktree", "add", "-q", "--detach", str(tmp_path / "mounted"))
    shutil.move(tmp_path / "mounted", tmp_path / "unmounted")
    with tree_of(root, "one"):
        pass
    assert left(root) == ["an entry of git's"]


def test_a_second_ctrl_c_while_it_is_removed(root, hold, tmp_path, monkeypatch):
    """An impatient Ctrl-C during the removal waits until nothing is left."""
    fake_git(tmp_path / "bin", monkeypatch, "'worktree remove'", "sleep 1")
    process, tree = hold(root, "one")
    process.send_signal(signal.SIGINT)
    until = time.monotonic() + LIMIT_S
    while tree.exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == -signal.SIGINT
    assert left(root) == []


def test_a_killed_run_leaves_a_tree_that_the_next_removes(root, hold):
    """After SIGKILL the tree is there; the next start removes it and says whose it was."""
    process, tree = hold(root, "one")
    process.kill()
    process.wait(LIMIT_S)
    assert left(root) != [] and tree.is_dir()
    told = []
    with tree_of(root, "main", told.append):
        assert not tree.exists()
    assert told == [
        f"{tree} removed: the run that made it was killed "
        f"(one ({git(root, 'rev-parse', 'one')[:12]}), process {process.pid})"
    ]
    assert left(root) == []


def notices(root):
    """What the start of another run had to say."""
    found = []
    with tree_of(root, "main", found.append):
        pass
    return found


def test_a_tree_in_use_is_not_removed(root, hold):
    """Another run's tree survives other starts while its process lives, and no longer."""
    process, tree = hold(root, "one")
    assert notices(root) == []
    assert (tree / "code.py").read_text() == "1\n"
    process.kill()
    process.wait(LIMIT_S)
    assert len(notices(root)) == 1
    assert left(root) == []


def test_killed_while_git_checks_out(root):
    """git killed half-way leaves a folder and a locked entry; both are removed."""
    folder = root / ".stepguard" / "trees"
    folder.mkdir(parents=True)
    git(root, "worktree", "add", "-q", "--detach", str(folder / "half"), "one")
    (root / ".git" / "worktrees" / "half" / "locked").write_text("initializing\n")
    (folder / "half" / "code.py").unlink()
    assert notices(root) == [f"{folder / 'half'} removed: nobody holds it"]
    assert left(root) == []


def test_several_at_once(root):
    """Threads that make and remove trees of one repository get their own, and leave none."""
    found, failed = [], []

    def one(rev):
        try:
            for _ in range(3):
                with tree_of(root, rev) as tree:
                    found.append((tree.root, (tree.root / "code.py").read_text()))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(rev,)) for rev in ("one", "main", "one", "main")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert failed == []
    assert len({path for path, _ in found}) == 12
    assert sorted(text for _, text in found) == ["1\n"] * 6 + ["2\n"] * 6
    assert left(root) == []


@pytest.mark.parametrize("why", [
    "failed to read .git/worktrees/a/commondir: Success",
    "Invalid path '/r/.git/worktrees/a': No such file or directory",
    "could not create directory of '.git/worktrees/a': No such file or directory",
])  # fmt: skip
@pytest.mark.parametrize(("collisions", "made"), [(1, True), (3, True), (4, False)])
def test_what_another_process_does_to_the_entries_is_waited_for(
    root, monkeypatch, collisions, made, why
):
    """git reads every worktree's entry and locks none: half of one is no reason to give up, nor is
    the folder of all, which goes with the last.
    """
    asked, real = [], worktree.run_git

    def run_git(folder, *arguments, **options):
        if "add" in arguments:
            asked.append(arguments)
            if len(asked) <= collisions:
                hint = "hint: Support for <GIT_DIR>/info/grafts is deprecated\n"
                return subprocess.CompletedProcess(arguments, 128, "", f"{hint}fatal: {why}\n")
        return real(folder, *arguments, **options)

    monkeypatch.setattr(worktree, "run_git", run_git)
    monkeypatch.setattr(worktree, "COLLISION_PAUSES_S", (0.0,) * 3)
    refused = pytest.raises(
        TreeError, match=f"cannot be checked out to .*: fatal: {re.escape(why)}"
    )
    with contextlib.nullcontext() if made else refused, tree_of(root, "one") as tree:
        assert (tree.root / "code.py").exists()
    assert len(asked) == min(collisions + 1, 4) and left(root) == []


def test_a_hook_does_not_run(root):
    """A post-checkout hook of the user's is for branches that are switched, not for this."""
    hook = root / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {str(root / 'ran')!r}\nexit 1\n")
    hook.chmod(0o755)
    with tree_of(root, "one"):
        pass
    assert not (root / "ran").exists()


def fails(root, rev):
    """The sentence that it fails with; nothing may be left."""
    with pytest.raises(TreeError) as caught, tree_of(root, rev):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("rev", ["mian", "", "--help", "one..main", "main:code.py", "deadbeef"])
def test_an_unknown_revision(root, rev):
    """What names no commit is refused with its value; a name close to it is offered."""
    message = fails(root, rev)
    assert repr(rev) in message and str(root) in message
    assert "(did you mean main?): git fetch" in message or rev != "mian"
    assert "(it has: main" in message or rev != "deadbeef"
    assert "git fetch" in message
    assert not (root / ".stepguard").exists()


def test_a_shallow_clone(root, tmp_path):
    """What a shallow clone lacks is not called unknown: the command that deepens it is named."""
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{root}", str(tmp_path / "shallow"))
    message = fails(tmp_path / "shallow", "HEAD~1")
    assert "shallow clone" in message and "git fetch --unshallow (in CI: fetch-depth: 0)" in message
    assert "did you mean" not in message  # HEAD is right, and its parent is what is not there


def test_a_repository_without_a_commit(tmp_path):
    """Before the first commit the sentence says what to do."""
    git(tmp_path, "init", "-q")
    assert fails(tmp_path, "main").endswith("no revision 'main': git commit")


def test_a_repository_of_somebody_else(root, monkeypatch):
    """git's refusal of a repository with another owner is passed on, with its own remedy."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    message = fails(root, "one")
    assert "dubious ownership" in message and "git config --global --add safe.directory" in message


def test_no_room_for_the_folder(root):
    """.stepguard cannot be made: the path and the reason are named."""
    (root / ".stepguard").write_text("in the way")
    message = fails(root, "one")
    assert message.startswith(f"{root / '.stepguard' / 'trees'} cannot be made: ")
    assert f"make {root} writable or free some space" in message


def fake_git(folder, monkeypatch, when, script):
    """A git that does ``script`` when its arguments contain ``when``, and else what git does."""
    folder.mkdir()
    real = shutil.which("git")
    (folder / "git").write_text(
        f'#!/bin/sh\ncase "$*" in *{when}*) {script};; esac\nexec {real} "$@"\n'
    )
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_a_full_disk(root, tmp_path, monkeypatch):
    """A checkout that breaks off half-way is reported in git's words and leaves nothing."""
    script = "for last; do :; done; echo fatal: No space left on device >&2; exit 128"
    fake_git(tmp_path / "bin", monkeypatch, "'worktree add'", script)
    message = fails(root, "one")
    assert "No space left on device; make room for it" in message
    assert left(root) == []


def test_a_checkout_that_hangs(root, tmp_path, monkeypatch):
    """A checkout has a time limit, beyond which it is given up and removed."""
    fake_git(tmp_path / "bin", monkeypatch, "'worktree add'", "exec sleep 600")
    monkeypatch.setattr(worktree, "CHECKOUT_LIMIT_S", 0.5)
    assert "was not checked out" in fails(root, "one")
    assert left(root) == []


def test_a_list_that_git_cannot_give_is_not_empty(root, tmp_path, monkeypatch):
    """Where git cannot say whether there are submodules, the tree is not taken for whole."""
    fake_git(tmp_path / "bin", monkeypatch, "ls-files", "echo fatal: planted >&2; exit 128")
    assert "cannot list the files" in fails(root, "one")
    assert left(root) == []


def test_a_lock_that_is_never_let_go(root, monkeypatch):
    """A stopped process that holds the common lock is waited for with a limit, and named."""
    monkeypatch.setattr(worktree, "LOCK_LIMIT_S", 0.2)
    folder = root / ".stepguard" / "trees"
    with worktree._alone(folder):
        message = fails(root, "one")
    assert f"fuser {str(folder / 'lock')!r}" in message


def test_submodules(root, tmp_path):
    """Submodules that are here would be missing there: refused. Empty on both sides: allowed."""
    git(root, "submodule", "--quiet", "add", str(repository(tmp_path / "m", m="m\n")), "third")
    commit(root, "third party")
    message = fails(root, "HEAD")
    assert "has submodules" in message and message.endswith("git submodule deinit third")
    assert left(root) == []
    git(root, "submodule", "--quiet", "deinit", "-f", "third")
    with tree_of(root, "HEAD") as tree:
        assert list((tree.root / "third").iterdir()) == []


def test_a_link_that_leads_back(root):
    """By an absolute link the other tree would read this one's file, whatever it was there: it is
    refused. What lies elsewhere is one file for both, and a relative link is its own's.
    """
    (root / "third").mkdir()
    (root / "third" / "settings").symlink_to(root / "data.txt")
    commit(root, "a link")
    message = fails(root, "HEAD")
    assert "links that lead into this tree: third/settings; " in message
    assert message.endswith("ln -sfn ../data.txt third/settings")
    assert left(root) == []
    (root / "third" / "settings").unlink()
    (root / "third" / "settings").symlink_to("../data.txt")
    (root / "third" / "shell").symlink_to("/bin/sh")
    (root / "third" / "gone").symlink_to("nowhere")
    commit(root, "links that do not")
    with tree_of(root, "HEAD") as tree:
        assert (tree.root / "third" / "settings").is_symlink()


@pytest.mark.parametrize("variable", ["", "GIT_LITERAL_PATHSPECS"])
def test_git_lfs(root, monkeypatch, variable):
    """A large file whose content is here and there only a pointer is refused; alike is allowed.
    So it is where a variable would have git take a pattern for a name.
    """
    if variable:
        monkeypatch.setenv(variable, "1")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    (root / ".gitattributes").write_text("*.bin filter=lfs\n")
    (root / "data.bin").write_text(pointer)
    (root / "text.md").write_text(pointer)
    commit(root, "large")
    with tree_of(root, "HEAD"):
        pass
    (root / "data.bin").write_text("content")
    message = fails(root, "HEAD")
    assert "git-lfs files whose content is not here: data.bin; " in message
    assert message.endswith(f"git lfs fetch origin {git(root, 'rev-parse', 'HEAD')}")
    assert left(root) == []
