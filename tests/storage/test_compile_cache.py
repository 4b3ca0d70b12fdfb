"""A compile cache keeps what was written to its end, and one run at a time uses it."""

import contextlib
import multiprocessing
import os
import re
import time
from pathlib import Path

import pytest

from stepguard.storage.compile_cache import KEPT_EXTENSIONS, CompileCache, Mark, cache_of


@pytest.fixture
def cache(tmp_path):
    """The cache of a run, with one file."""
    with contextlib.closing(CompileCache(tmp_path / "cache")) as cache:
        written(cache, "old.so")
        yield cache


def written(cache, name):
    """A file that a compiler wrote. All that is written later is newer by the file system's clock,
    which may stand still for some milliseconds.
    """
    path = cache.folder / "inductor" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(name)
    probe = cache.folder / "probe"
    while not probe.exists() or probe.stat().st_ctime_ns <= path.stat().st_ctime_ns:
        probe.write_text("")
    return path


def names(cache):
    """What compilers wrote, as far as it is there."""
    return sorted(path.name for path in (cache.folder / "inductor").iterdir())


def launch(cache, token, name, ends=True):
    """A launch that compiles, and ends by itself or is killed meanwhile."""
    mark = Mark(cache.folder, token)
    mark.begin()
    written(cache, name)
    if ends:
        mark.end()
    return mark


def test_what_a_killed_launch_wrote_is_removed(cache):
    """When it is closed, and nothing else is. A launch that answered leaves what it wrote."""
    launch(cache, "a", "whole.so").clean()
    launch(cache, "b", "half.so", ends=False).clean()
    assert names(cache) == ["old.so", "whole.so"]
    launch(cache, "c", "again.so").clean()
    assert names(cache) == ["again.so", "old.so", "whole.so"]


def test_a_mark_is_as_old_as_the_launchs_first_file(cache):
    """A standby that is released before it has imported has written since its start."""
    mark = launch(cache, "a", "first.so", ends=False)
    mark.begin()
    written(cache, "second.so")
    mark.clean()
    assert names(cache) == ["old.so"]


def test_a_command_that_fails_leaves_the_mark(cache):
    """One that is answered removes it."""
    mark = Mark(cache.folder, "a")
    with pytest.raises(KeyboardInterrupt), mark.during():
        written(cache, "half.so")
        raise KeyboardInterrupt
    mark.clean()
    with mark.during():
        written(cache, "whole.so")
    mark.clean()
    assert names(cache) == ["old.so", "whole.so"]


def test_the_next_run_removes_what_a_killed_one_left(cache):
    """All that is as new as its oldest mark, links and locks too, in every compiler's folder."""
    for token in "ab":
        launch(cache, token, f"{token}.so", ends=False)
    (cache.folder / "extensions/tree/gelu").mkdir(parents=True)
    (cache.folder / "extensions/tree/gelu/lock").symlink_to("nowhere")
    cache.close()
    with contextlib.closing(CompileCache(cache.folder)) as fresh:
        assert names(fresh) == ["old.so"]
        assert not list(fresh.folder.glob("extensions/tree/gelu/*"))
        assert not list(fresh.folder.glob("unfinished/*"))


def hold(folder, connection):
    CompileCache(folder)
    connection.send(None)
    connection.recv()


def test_two_runs_at_once_have_a_cache_each(cache, tmp_path):
    """So that none removes what the other one is about to load. A run that is killed holds none."""
    ours, theirs = multiprocessing.get_context("fork").Pipe()
    cache.close()
    other = multiprocessing.get_context("fork").Process(target=hold, args=(cache.folder, theirs))
    other.start()
    ours.recv()
    launch(cache, "theirs", "half.so", ends=False)
    with contextlib.closing(CompileCache(tmp_path / "cache")) as second:
        assert second.folder == tmp_path / "cache-2"
        with contextlib.closing(CompileCache(tmp_path / "cache")) as third:
            assert third.folder == tmp_path / "cache-3"
    assert names(cache) == ["half.so", "old.so"]
    other.kill()
    other.join()
    with contextlib.closing(CompileCache(tmp_path / "cache")) as first:
        assert first.folder == tmp_path / "cache" and names(first) == ["old.so"]


def test_checkouts_that_share_a_cache_share_the_others_too(cache, tmp_path):
    """By a link, as benchmarks do with their clones."""
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone/cache").symlink_to(cache.folder)
    with contextlib.closing(CompileCache(tmp_path / "clone/cache")) as other:
        assert other.folder == tmp_path / "cache-2"


def test_a_cache_that_is_set_aside_can_come_back(cache):
    """Whole, without what was compiled meanwhile. Set aside again, it replaces what was there."""
    aside = cache.set_aside()
    assert [path.name for path in aside.rglob("*.so")] == ["old.so"]
    written(cache, "new.so")
    cache.put_back()
    assert names(cache) == ["old.so"] and not list(aside.iterdir())
    cache.set_aside()
    written(cache, "new.so")
    assert [path.name for path in cache.set_aside().rglob("*.so")] == ["new.so"]


def test_a_failure_names_a_file_that_was_there_before(cache, tmp_path):
    """The one in the message, not in the stack. What the failed launch wrote itself is no damage of
    the cache; nor are other files.
    """
    caller = written(cache, "caller.py")
    old, begin_ns = cache.folder / "inductor/old.so", (cache.folder / "probe").stat().st_ctime_ns
    new = written(cache, "new.so")
    (tmp_path / "other.so").write_text("")
    text = f'File "{tmp_path}/other.so", line 3\n{new}: file too short; {cache.folder}/gone.so'
    assert cache.older_file(text, begin_ns) == ""
    stack = f'{text}\nFile "{caller}", line 8\nImportError: {old}: file too short'
    assert cache.older_file(stack, begin_ns) == str(old)


def test_a_cache_that_cannot_be_written_fails_no_run(tmp_path):
    """It costs seconds."""
    (tmp_path / "cache").write_text("a file")
    with contextlib.closing(CompileCache(tmp_path / "cache")) as cache:
        mark = Mark(cache.folder, "a")
        with mark.during():
            pass
        mark.clean()
        assert cache.older_file(f"{cache.folder}/x.so", 0) == ""


def test_a_cache_that_cannot_be_locked_is_not_set_aside(tmp_path, monkeypatch):
    """Another run may be using it. So no failure names its files."""

    def flock(*arguments):
        raise OSError("no locks")

    monkeypatch.setattr("fcntl.flock", flock)
    cache = CompileCache(tmp_path / "cache")
    old = written(cache, "old.so")
    assert cache.older_file(f"ImportError: {old}: file too short", time.time_ns()) == ""


def test_extensions_of_trees_that_are_gone_are_removed(cache):
    """Every checkout of another revision has a folder of its own, which no later run uses; this
    tree's is older, but its extension was loaded last.
    """
    for number in range(2 * KEPT_EXTENSIONS):
        built = cache.folder / "extensions" / f"tree{number}" / "gelu"
        built.mkdir(parents=True)
        for path in (built, built.parent):
            os.utime(path, (number, number))
    os.utime(cache.folder / "extensions" / "tree0" / "gelu", (99, 99))
    cache.close()
    CompileCache(cache.folder).close()
    left = sorted(path.name for path in (cache.folder / "extensions").iterdir())
    assert left == ["tree0", "tree5", "tree6", "tree7"]


@pytest.mark.parametrize(
    ("name", "inside"),
    [("plain-1.0_a", True), ("my models", False), ("modèles", False), ("a'b", False)],
)
def test_the_compile_caches_have_a_path_that_a_compiler_takes(monkeypatch, name, inside):
    """torch's compiler does not quote it: at a blank g++ would be given two files."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    folder = Path("/srv") / name / ".stepguard"
    cache = cache_of(folder)
    assert (cache == folder / "cache") == inside
    assert re.fullmatch(r"[\w./-]+", str(cache), re.ASCII)
    assert cache == cache_of(folder), "the same one the next time"
    assert cache != cache_of(Path("/srv/other models/.stepguard"))
