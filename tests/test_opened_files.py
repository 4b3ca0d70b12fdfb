"""Which files of a tree are opened, by whatever process and library."""

import ctypes
import mmap
import os
import resource
import subprocess
import sys

import pytest

from stepguard.machine import opened_files
from stepguard.machine.opened_files import OpenedFiles


def replaced(path):
    """Replace a file by another one, as git and editors do."""
    new = path.with_name("new")
    new.write_text("")
    new.rename(path)


REPLACERS = {
    "replaced": replaced,
    "replaced, with another name": lambda path: [
        path.with_name("hard").hardlink_to(path),
        replaced(path),
    ],
    "moved away": lambda path: path.rename(path.with_name("old")),
}
OPENERS = {
    "read": lambda path: path.read_text(),
    "by a program": lambda path: subprocess.run(["cat", path], check=True, capture_output=True),
    "by C": lambda path: ctypes.CDLL(None).fclose(fopen(path)),
    "mapped": lambda path: mapped(path),
    "by a link": lambda path: linked(path).read_text(),
    "executed": lambda path: subprocess.run([sys.executable, path], check=True),
}


def fopen(path):
    """Open a file as a C library does."""
    call = ctypes.CDLL(None).fopen
    call.restype = ctypes.c_void_p
    return ctypes.c_void_p(call(str(path).encode(), b"r"))


def mapped(path):
    """Map a file into memory, as datasets of tokens are."""
    with path.open("rb") as file:
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ).close()


def linked(path):
    """Return a link to the file."""
    link = path.with_name("link")
    link.symlink_to(path)
    return link


@pytest.fixture
def tree(tmp_path):
    """A folder with a module, a page, and a folder in it."""
    (tmp_path / "step.py").write_text("width = 1\n")
    (tmp_path / "notes.md").write_text("notes\n")
    (tmp_path / "data").mkdir()
    return tmp_path


@pytest.fixture
def watch(request):
    """Watches files until the test ends."""

    def watch(*paths):
        watched = OpenedFiles(paths)
        request.addfinalizer(watched.close)
        return watched

    return watch


@pytest.mark.parametrize("how", OPENERS)
def test_whoever_opens_a_file_is_heard(tree, watch, how):
    """Python, another program, or a library; and only that file counts."""
    watched = watch(tree / "notes.md", tree / "step.py")
    assert watched.opened() == frozenset()
    OPENERS[how](tree / "step.py")
    assert watched.opened() == {tree / "step.py"}


@pytest.mark.parametrize("how", REPLACERS)
def test_a_file_that_is_replaced_counts_as_opened(tree, watch, how):
    """Nobody hears who opens the new one of that name."""
    watched = watch(tree / "notes.md", tree / "step.py")
    REPLACERS[how](tree / "step.py")
    assert watched.opened() == {tree / "step.py"}


def test_looking_at_a_file_does_not_open_it(tree, watch):
    """Nor does a listing of its folder. git looks at files like that."""
    watched = watch(tree / "step.py")
    assert (tree / "step.py").exists() and (tree / "step.py").stat() and [*tree.iterdir()]
    assert watched.opened() == frozenset()


@pytest.mark.parametrize("known", [True, False])
def test_an_imported_module_was_opened(tree, watch, known):
    """Also if its bytecode was there, so that nobody needs the source."""
    run = [sys.executable, "-c", "import step"]
    writes = {"PYTHONDONTWRITEBYTECODE": ""}
    if known:
        subprocess.run(run, cwd=tree, env=writes, check=True)
        assert (tree / "__pycache__").is_dir()
    watched = watch(tree / "step.py")
    subprocess.run(run, cwd=tree, env=writes, check=True)
    assert watched.opened() == {tree / "step.py"}


def test_a_file_that_is_gone_cannot_be_opened(tree, watch):
    """One side of a comparison may have deleted it."""
    assert watch(tree / "gone.py").opened() == frozenset()
    assert watch().opened() == frozenset()


def test_a_folder_counts_as_opened(tree, watch):
    """A submodule, or a link to a folder: what is opened in it is not heard."""
    assert watch(tree / "data").opened() == {tree / "data"}


@pytest.mark.parametrize("name", ["a[1].py", "*.py", "**.py", "x\udcff.py"])
def test_a_name_is_no_pattern(tree, watch, name):
    """Its bytecode is watched as that of any other file, and nothing fails."""
    (tree / name).write_text("")
    (tree / "__pycache__").mkdir()
    bytecode = tree / "__pycache__" / f"{name.removesuffix('.py')}.cpython-311.pyc"
    bytecode.write_text("")
    watched = watch(tree / name)
    assert watched.opened() == frozenset()
    bytecode.read_bytes()
    assert watched.opened() == {tree / name}


def test_what_is_no_file_counts_as_opened(tree, watch):
    """To open a pipe, as the first watched file is on trial, would wait for its other end. A link
    that leads to itself cannot be opened.
    """
    os.mkfifo(tree / "pipe")
    (tree / "link").symlink_to("pipe")
    (tree / "loop").symlink_to("loop")
    assert watch(tree / "link", tree / "loop").opened() == {tree / "link"}


@pytest.mark.parametrize(
    "name", ["step.py/a.py", "loop/a.py", f"{'a' * 300}.py", ".py", "data/a.py"]
)
def test_where_no_file_can_be_nothing_is_opened(tree, watch, name):
    """A folder of one tree may be a file of the other, or a link that leads nowhere."""
    (tree / "loop").symlink_to("loop")
    assert watch(tree / name, tree / "notes.md").opened() == frozenset()


def test_a_folder_that_nobody_may_enter_is_no_error(tree, watch, monkeypatch):
    """What is in it cannot be opened either."""

    def refuse(*path, **options):
        raise PermissionError

    for looks in (opened_files.Path, opened_files.os):
        monkeypatch.setattr(looks, "stat", refuse)
    assert watch(tree / "data" / "step.py").opened() == frozenset()


def test_events_are_read_by_a_process_with_many_files(tree, watch):
    """Above a number of 1023 select() fails."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, limits[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        watched = watch(tree / "step.py")
        (tree / "step.py").read_text()
        assert watched.opened() == {tree / "step.py"}
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_what_was_opened_stays_known_after_the_end(tree, watch):
    """The evidence is written when nobody watches any more."""
    watched = watch(tree / "step.py")
    (tree / "step.py").read_text()
    watched.close()
    (tree / "step.py").read_text()
    assert watched.opened() == {tree / "step.py"}


@pytest.mark.parametrize("fault", ["no queue", "no watch", "deaf"])
def test_nothing_is_known_where_the_kernel_does_not_tell(tree, watch, monkeypatch, fault):
    """A sandbox or a file system without these events: a file may have been opened unheard."""
    real = ctypes.CDLL(None, use_errno=True)

    class Libc:
        inotify_init1 = (lambda flags: -1) if fault == "no queue" else real.inotify_init1
        inotify_add_watch = {"no watch": lambda *rest: -1, "deaf": lambda *rest: 1}.get(
            fault, real.inotify_add_watch
        )

    monkeypatch.setattr(opened_files.ctypes, "CDLL", lambda *rest, **options: Libc)
    assert watch(tree / "step.py").opened() is None


def test_too_many_events_are_not_known(tree, watch):
    """The kernel drops those that nobody reads, and says so."""
    watched = watch(tree / "step.py")
    others = [tree / f"{number}.py" for number in range(2)]
    for other in others:
        other.write_text("")
        watched._watch(other)
    for _ in range(10_000):  # the kernel merges equal ones that follow each other
        for other in others:
            other.open().close()
    assert watched.opened() is None
