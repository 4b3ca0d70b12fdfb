"""Whose a module is: trees that lie in each other, the engine, what belongs to nobody."""

import ctypes
import shutil
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from git_repositories import repository

from stepguard.core.replies import Sources
from stepguard.launch import torchrun
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.loaded_sources import changed_modules, check, others, strays, tree_of_root
from stepguard.launch.torchrun import LaunchSpec, launch_environment
from stepguard.machine.packages import Python
from stepguard.worker.rank_fingerprint import modules as modules_of


def sources(package):
    """What a rank tells of its sources."""
    return modules_of(package).sources


HEAD = Path("/h")
REV = Path("/h/sub/.stepguard/trees/r")
ENGINE = Path("/h/stepguard")
CACHE = Path("/h/.stepguard/cache")
WHERE = {  # file: what it is to a launch from HEAD's tree, and to one from the other revision's
    "/h/model/gpt.py": ("own", "stray"),
    "/h/sub/x.py": ("own", "stray"),
    "/h/sub/.stepguard/trees/r/model/gpt.py": ("stray", "own"),
    "/h/sub/.stepguard/trees/r/sub/x.py": ("stray", "own"),
    "/h/sub/.stepguard/trees/r2/x.py": ("own", "stray"),
    "/h/stepguard/allow.py": ("nobody's", "nobody's"),
    "/h/.stepguard/cache/inductor/a/b.py": ("nobody's", "nobody's"),
    "/elsewhere/x.py": ("nobody's", "nobody's"),
    "/h2/x.py": ("nobody's", "nobody's"),
}


@pytest.mark.parametrize("file", WHERE)
def test_the_deepest_folder_says_whose_a_file_is(file):
    """A tree inside the other one is not the other one's; nor is the engine or a cache in it."""
    for own, other, what in zip((HEAD, REV), (REV, HEAD), WHERE[file], strict=True):
        found = strays({"m": file}, [own], [other], [CACHE], ENGINE)
        assert found == ([("m", file)] if what == "stray" else [])


@pytest.mark.parametrize("file", [f"{REV}/stepguard/case.py", "/site-packages/stepguard/case.py"])
def test_the_engine_is_the_callers(file):
    """Another stepguard than the caller's is a stray even in the launch's own tree."""
    assert strays({"stepguard.core.case": file}, [REV], [HEAD], [], ENGINE) == [
        ("stepguard.core.case", file)
    ]
    assert strays({"stepguards": file}, [REV], [HEAD], [], ENGINE) == []


def test_the_engine_is_no_difference():
    """Of two environments, installed in each of them or not: both sides run the caller's."""
    files = {"kept": "/a/b.py", "stepguard.x": torchrun.__file__, "__mp_main__": torchrun.__file__}
    versions = {"kept": "2", "stepguard": "1"}
    python = Python("a", "a", "/a", (3, 12), True, versions, {name: (name,) for name in versions})
    for seen in (Sources(sources=files, installed={}), Sources(sources={}, installed=files)):
        assert python.versions(seen) == {"kept": "2"}


@pytest.fixture
def spec(tmp_path):
    """A launch from a tree inside the one that it forbids."""
    return LaunchSpec(
        device="cpu", preload=(), world_size=1, root=tmp_path / "trees" / "r",
        folder=tmp_path / "runs", cache=tmp_path / "cache", label="launch 2", time_limit_s=1.0,
        forbidden=(tmp_path,))  # fmt: skip


def test_the_fault_names_rank_module_and_file(spec, tmp_path):
    """The second rank's stray is found, and what was at work when it was."""
    ranks = [
        Sources(sources={"a": f"{spec.root}/a.py"}, installed={}),
        Sources(sources={"b.c": f"{tmp_path}/c.py"}, installed={}),
    ]
    with pytest.raises(LaunchFailed) as caught:
        check(spec, ranks, "prepare", tmp_path, "f")
    fault = caught.value.fault
    assert (fault.code, fault.during) == ("OTHER_TREE", "launch 2, prepare")
    assert fault.message.startswith(
        f"rank 1: a module came from another tree than {spec.root}: b.c ({tmp_path}/c.py); take "
    )


def test_what_a_rank_reports(tmp_path, monkeypatch):
    """Modules with a file that is there and not installed; links are followed, also out of
    site-packages. What is installed is told with its file, too.
    """
    source = tmp_path / "a.py"
    source.write_text("")
    (tmp_path / "link.py").symlink_to(source)
    for name, file in {
        "planted_plain": str(source),
        "planted_link": str(tmp_path / "link.py"),
        "planted_installed": pytest.__file__,
        "planted_without": None,
        "planted_absent": "_ops.py",  # as torch.ops says of itself
    }.items():
        module = types.ModuleType(name)
        module.__file__ = file
        monkeypatch.setitem(sys.modules, name, module)
    found = {name: file for name, file in sources("x").items() if name.startswith("planted")}
    assert found == {"planted_plain": str(source), "planted_link": str(source)}
    assert sources("x")["stepguard.launch.torchrun"] == torchrun.__file__
    assert not {"json", "pytest", "sys"} & set(sources("x"))
    installed = modules_of("x").installed
    assert {"pytest", "planted_installed", "torch"} <= {*installed}
    assert not {"json", "os", "tests", "planted_plain"} & {*installed}


def test_a_library_that_no_module_is_told(tmp_path):
    """Of its place in the tree is seen whose it is; those of Python and of torch are not told."""
    library = tmp_path / "build" / "own kernels.so"
    library.parent.mkdir()
    libm = next(path for path in sources("x").values() if "/libm.so" in path)
    shutil.copy(libm, library)
    assert f"library {library}" not in sources("x")
    handle = ctypes.CDLL(str(library))
    assert sources("x")[f"library {library}"] == str(library), handle
    torch = [path for path in sources("x").values() if "/torch/lib/" in path]
    assert not torch and strays(sources("x"), [], [tmp_path], []) == [
        (f"library {library}", str(library))
    ]


def test_extensions_are_built_for_one_tree(spec, tmp_path):
    """Neither beside another revision nor alone does a launch load what another checkout builds
    under the same name in the user's cache.
    """
    alone = replace(spec, forbidden=())
    found = []
    for number, one in enumerate([spec, alone, replace(alone, root=tmp_path / "other")]):
        (scratch := tmp_path / str(number)).mkdir()
        found.append(launch_environment(one, "token", scratch, {"TORCH_EXTENSIONS_DIR": "/mine"}))
    first, again, another = (Path(one["TORCH_EXTENSIONS_DIR"]) for one in found)
    assert first == again != another and first.is_relative_to(spec.cache)


def test_the_import_path(tmp_path):
    """Engine, tree, the caller's own; nothing that lies beside the engine."""
    folder = tmp_path / "engine"
    path = torchrun.import_path(folder, Path("/tree"), "/a:/b")
    assert path.split(":") == [str(folder), "/tree", "/a", "/b"]
    assert (folder / "stepguard" / "__init__.py").samefile(torchrun.ENGINE / "__init__.py")
    assert [entry.name for entry in folder.iterdir()] == ["stepguard"]


@pytest.fixture
def tree(tmp_path):
    """A repository whose launches run in perf/, and which lies in a folder with others."""
    tree = tmp_path / "tree"
    (tree / "perf").mkdir(parents=True)
    (tree / "perf" / "work.py").write_text("")
    return repository(tree)


def test_the_measured_tree_is_the_repository(tree, tmp_path):
    """Where launches run may be a folder of it; without a repository it is the whole tree."""
    assert tree_of_root(tree / "perf") == tree_of_root(tree) == tree.resolve()
    assert tree_of_root(tmp_path) == tmp_path.resolve()


PLACES = {  # where a module of the factory's package came from, told from the tree's folder
    "the tree's own": ("tree/src/kernels/__init__.py", True),
    "beside the folder that launches run in": ("tree/other/kernels.py", True),
    "a third tree": ("srcA/src/kernels/__init__.py", False),
    "a tree with a longer name": ("tree2/kernels.py", False),
    "installed": ("venv/lib/python3.11/site-packages/kernels/__init__.py", False),
    "installed in the tree": ("tree/.venv/lib/python3.11/site-packages/kernels/x.so", False),
    "a distribution's": ("tree/usr/lib/python3/dist-packages/kernels.py", False),
    "another revision's tree": ("tree/.stepguard/trees/r/kernels.py", False),
}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("forbids", [False, True], ids=["alone", "beside another"])
def test_the_factorys_package_comes_from_the_tree(spec, tree, tmp_path, where, forbids):
    """In every launch a module of the factory's package that came from elsewhere is a fault, which
    names it, its file and what mends it.
    """
    place, own = PLACES[where]
    forbidden = (tmp_path / "other",) if forbids else ()
    spec = replace(spec, root=tree / "perf", forbidden=forbidden, label="launch 1")
    ranks = [
        Sources(sources={"kernels.x": str(tmp_path / place), "os": "/usr/lib/os.py"}, installed={})
    ]
    if own:
        check(spec, ranks, "prepare", tree, "kernels")
        return
    with pytest.raises(LaunchFailed) as caught:
        check(spec, ranks, "prepare", tree, "kernels")
    fault = caught.value.fault
    assert (fault.code, fault.during) == ("OTHER_TREE", "launch 1, prepare")
    assert f"came from outside of {tree}: kernels.x ({tmp_path / place}); " in fault.message
    assert "(python -m pip uninstall kernels)" in fault.message


def test_other_packages_may_come_from_anywhere(spec, tree, tmp_path):
    """A namesake is none of the factory's package; the engine is always the caller's."""
    spec = replace(spec, root=tree, forbidden=())
    sources = {"kernels2": f"{tmp_path}/k.py", "stepguard.x": f"{tmp_path}/s.py"}
    ranks = [Sources(sources=sources, installed={})]
    for package in ("kernels", "stepguard"):
        check(spec, ranks, "end", tree, package)


def test_what_changed_is_not_from_outside(spec, tree):
    """What both revisions run from outside of their trees is not what changed in these; any other
    package may be from there.
    """
    found = {"torch": "/p/torch/__init__.py", "kernels.fast": "/p/kernels/fast.py"}
    for told in (Sources(sources={}, installed=found), Sources(sources=found, installed={})):
        check(spec, [told], "prepare", tree, "work", frozenset({"others"}))
        with pytest.raises(LaunchFailed) as caught:
            check(spec, [told], "prepare", tree, "work", frozenset({"others", "kernels.fast"}))
        fault = caught.value.fault
        assert (
            fault.code == "OTHER_TREE" and "kernels.fast (/p/kernels/fast.py), of" in fault.message
        )
        assert "(python -m pip uninstall kernels)" in fault.message


DIFFERING = {  # a file, and what it may be imported as
    "src/kernels/fast/a.cu": {"kernels", "src.kernels"},
    "src/kernels/plain/b.py": {"kernels", "src.kernels"},
    "old/gone.py": {"old"},
    "src/org/c.py": {"org.c", "src.org.c"},
    "src/d.py": {"d", "src.d"},
    "scripts/numpy.py": {"scripts.numpy"},
    "train.py": set(),
    "README.md": set(),
    "docs/e.md": set(),
    "stepguard/core/case.py": set(),
}


@pytest.mark.parametrize("file", DIFFERING)
def test_what_a_file_may_be_imported_as(tmp_path, file):
    """A file is of the outermost package around it, in whichever tree that is still there, however
    deep it lies; a module of no package has the folders before it in its name. The engine is always
    the caller's.
    """
    one, other = tmp_path / "one", tmp_path / "other"
    for package in ("one/src/kernels", "one/src/kernels/fast", "other/old", "one/stepguard"):
        (tmp_path / package).mkdir(parents=True, exist_ok=True)
        (tmp_path / package / "__init__.py").write_text("")
    assert changed_modules((one, other), [file]) == DIFFERING[file]
    assert changed_modules((one, other), ()) == frozenset()


@pytest.mark.parametrize("folder", ["src", "perf", "perf/src"])
def test_a_copy_has_the_text_of_its_source(tree, tmp_path, folder):
    """What the tree has in another form, where imports begin, is not run from elsewhere: a copy
    that was installed some commits ago. A compiled module has no text, an archive is not read.
    """
    copy = tmp_path / "site" / "kernels" / "fast.py"
    source = tree / folder / "kernels" / "fast.py"
    for path in (copy, source):
        path.parent.mkdir(parents=True)
        path.write_text("FAST = 1")

    def found(**modules):
        return others(Sources(sources={}, installed=modules), tree, tree / "perf")

    name = "kernels.fast"
    assert not found(**{name: str(copy)})
    source.write_text("FAST = 2")
    assert found(**{name: str(copy)}) == [(name, str(copy))]
    assert not found(**{name: str(source)}) and not found(**{"kernels.slow": str(copy)})
    assert not found(**{name: str(copy.with_suffix(".so"))})
    assert found(**{name: str(copy / "in.zip" / "fast.py")})
