"""Which steps a compile cache is known to have, and what a launch does without that."""

import contextlib
import os

import pytest
from builders import replace
from short_launches import launch_spec

from stepguard import Case
from stepguard.core.replies import Prepared
from stepguard.machine.git.revision import Revision
from stepguard.measure.case_workers import Bench, CaseWorkers, Ticker
from stepguard.storage.compile_cache import CompiledStep

CASE = Case("a", "work:step", {"width": 2}, launches=2)
MACHINE = {"device_name": "H100", "device_uuid": "GPU-1", "torch": "2.13", "environment": {}}
GIB = 2**30


def built(trees, tree, case=CASE, cache="cache", modules=("work.py",), **changes):
    """The workers of a case of a tree, whose first launch has built it and has run no step."""
    root = trees / tree
    own = Bench(root, trees / cache, trees, (), Revision("f" * 40), "pytest", own=root)
    workers = CaseWorkers(case, own, Ticker(print), None, contextlib.ExitStack())
    sources = {name: str(root / name) for name in modules}
    rank = Prepared(tokens_per_step=0, fingerprint=MACHINE | changes, sources=sources, installed={})
    workers.take_description([rank], launch_spec(root))
    return workers


def ran(workers, reserved_bytes=3 * GIB, kept=True):
    """The same workers, after their first step."""
    workers.take_reserved(reserved_bytes, kept)
    return workers


@pytest.fixture
def trees(tmp_path):
    """Two trees of the same code, in folders that are called ``one`` and ``other``."""
    for tree in ("one", "other"):
        (tmp_path / tree).mkdir()
        for name in ("work.py", "part.py"):
            (tmp_path / tree / name).write_text(f"# {name}\n")
    return tmp_path


def markers(trees):
    """The files that say which steps the cache has."""
    return [*(trees / "cache" / "compiled_steps").iterdir()]


def test_equal_code_is_known_from_another_run(trees):
    """In any tree, and on any GPU of the kind. What the newest launch reserved counts."""
    assert built(trees, "one").reserved_bytes == 0
    ran(ran(built(trees, "one")), 4 * GIB)
    assert built(trees, "other", device_uuid="GPU-2").reserved_bytes == 4 * GIB
    assert [marker.parent.name for marker in markers(trees)] == ["compiled_steps"]  # and no part


@pytest.mark.parametrize(
    "differs",
    [
        {"case": replace(CASE, params={"width": 3})},
        {"case": replace(CASE, world_size=2)},
        {"device_name": "H200"},
        {"torch": "2.14"},
        {"environment": {"TORCH_X": "1"}},
        {"modules": ("work.py", "part.py")},
        {"modules": ("part.py",)},
        {"modules": ()},
        {"cache": "another"},
    ],
)
def test_what_differs_is_unknown(trees, differs):
    """Another parameter, machine, software, module or cache."""
    ran(built(trees, "one"))
    assert built(trees, "one", **differs).reserved_bytes == 0


def test_another_text_is_unknown(trees):
    """So is the same text in a module of another name, and in another one of two modules."""
    ran(built(trees, "one", modules=("work.py", "part.py")))
    (trees / "other" / "work.py").write_text("# part.py\n")
    (trees / "other" / "part.py").write_text("# work.py\n")
    assert built(trees, "other", modules=("work.py", "part.py")).reserved_bytes == 0
    ran(built(trees, "one"))
    (trees / "other" / "part.py").write_text("# work.py\n")
    assert built(trees, "other", modules=("part.py",)).reserved_bytes == 0
    assert built(trees, "other", modules=("work.py",)).reserved_bytes == 0


@pytest.mark.parametrize("text", [b"", b"\n", b"3.5\n", b"\xff", b"12 34", b"9" * 5000, b"-7", 0])
def test_a_damaged_marker_is_unknown(trees, text):
    """Also if it was written by halves, or is a folder. The next launch mends what it can."""
    ran(built(trees, "one"))
    (marker,) = markers(trees)
    marker.unlink()
    marker.mkdir() if text == 0 else marker.write_bytes(text)
    assert built(trees, "one").reserved_bytes == 0
    ran(built(trees, "one"))
    assert built(trees, "one").reserved_bytes == (0 if text == 0 else 3 * GIB)


@pytest.mark.parametrize("taken", ["cache", "cache/compiled_steps"])
def test_a_cache_that_cannot_be_written_is_no_failure(trees, taken):
    """A file is where the folder should be. The memory is known to this run alone."""
    (trees / taken).parent.mkdir(exist_ok=True)
    (trees / taken).write_text("")
    assert ran(built(trees, "one")).reserved_bytes == 3 * GIB
    assert built(trees, "one").reserved_bytes == 0 and (trees / taken).is_file()


@pytest.mark.parametrize("module", ["gone.py", "archive.zip/part.py", "folder"])
def test_a_module_that_cannot_be_read_makes_the_step_unknown(trees, module):
    """It was deleted after the import, is on another node, or in an archive. All else goes on."""
    (trees / "one" / "archive.zip").write_text("")
    (trees / "one" / "folder").mkdir()
    modules = ("work.py", module)
    assert ran(built(trees, "one", modules=modules)).reserved_bytes == 3 * GIB
    assert built(trees, "one", modules=modules).reserved_bytes == 0
    assert not (trees / "cache").exists()


def test_a_module_may_have_any_name(trees):
    """It need not be UTF-8."""
    name = os.fsdecode(b"\xff.py")
    (trees / "one" / name).write_text("")
    ran(built(trees, "one", modules=(name,)))
    assert built(trees, "one", modules=(name,)).reserved_bytes == 3 * GIB


def test_a_step_that_the_cache_cannot_keep_is_unknown(trees):
    """Each launch compiles it. If the cache had it once, that is over."""
    ran(built(trees, "one"), kept=False)
    assert built(trees, "one").reserved_bytes == 0 and not (trees / "cache").exists()
    ran(built(trees, "one"))
    ran(built(trees, "one"), kept=False)
    assert built(trees, "one").reserved_bytes == 0


def test_what_this_run_reserved_is_not_forgotten(trees):
    """A later launch of a case is described, too. It does not say what the cache has."""
    workers = ran(built(trees, "one"), kept=False)
    workers._compiled.note(9)
    rank = Prepared(tokens_per_step=0, fingerprint=MACHINE, sources={}, installed={})
    workers.take_description([rank], launch_spec(trees / "one"))
    assert workers.reserved_bytes == 3 * GIB


def test_a_marker_that_is_true_is_not_written_again(trees):
    """Each pair's launches run the step once more."""
    ran(built(trees, "one"))
    written = markers(trees)[0].stat()
    ran(built(trees, "other"))
    now = markers(trees)[0].stat()
    assert (now.st_ino, now.st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


def test_no_order_counts(trees):
    """A set of modules has another order in each process."""
    modules = [trees / "one" / name for name in ("work.py", "part.py")]
    CompiledStep(trees, {"a": 1, "b": 2}, trees / "one", modules).note(7)
    assert CompiledStep(trees, {"b": 2, "a": 1}, trees / "one", modules[::-1]).reserved_bytes == 7


def test_what_a_step_imports_makes_no_other_step(trees):
    """A later launch of this run knows more modules. Another run's first launch does not."""
    workers, root = ran(built(trees, "one")), trees / "one"
    sources = {name: str(root / name) for name in ("work.py", "part.py")}
    rank = Prepared(tokens_per_step=0, fingerprint=MACHINE, sources=sources, installed={})
    workers.check_sources([rank], launch_spec(root), "end")
    workers.take_description([rank], launch_spec(root))
    ran(workers, 5 * GIB)
    assert built(trees, "one").reserved_bytes == 5 * GIB and len(markers(trees)) == 1
