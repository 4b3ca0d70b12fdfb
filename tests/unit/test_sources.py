"""Whose a module is: trees that lie in each other, the engine, what belongs to nobody."""

import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from stepguard.host import engine
from stepguard.host.diagnosis import LaunchFailed
from stepguard.host.sources import check, shadowed, strays
from stepguard.host.torchrun import LaunchSpec
from stepguard.worker.sources import sources

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
    assert strays({"stepguard.case": file}, [REV], [HEAD], [], ENGINE) == [("stepguard.case", file)]
    assert strays({"stepguards": file}, [REV], [HEAD], [], ENGINE) == []


@pytest.fixture
def spec(tmp_path):
    """A launch from a tree inside the one that it forbids."""
    return LaunchSpec(
        device="cpu",
        preload=(),
        world_size=1,
        root=tmp_path / "trees" / "r",
        folder=tmp_path / "runs",
        cache=tmp_path / "cache",
        label="launch 2",
        time_limit_s=1.0,
        forbidden=(tmp_path,),
    )


def test_the_fault_names_rank_module_and_file(spec, tmp_path):
    """The second rank's stray is found, and what was at work when it was."""
    ranks = [{"sources": {"a": f"{spec.root}/a.py"}}, {"sources": {"b.c": f"{tmp_path}/c.py"}}]
    with pytest.raises(LaunchFailed) as caught:
        check(spec, ranks, "prepare")
    fault = caught.value.fault
    assert (fault.code, fault.during) == ("OTHER_TREE", "launch 2, prepare")
    assert fault.message.startswith(
        f"rank 1: a module came from another tree than {spec.root}: b.c ({tmp_path}/c.py); take "
    )


def test_many_strays_are_counted(spec, tmp_path):
    """Of many the first are named and all are counted."""
    many = {f"m{n}": f"{tmp_path}/m{n}.py" for n in range(5)}
    with pytest.raises(LaunchFailed, match=r"5 modules .*: m0 .*, m1 .*, m2 .* and 2 more; "):
        check(spec, [{"sources": many}], "end")


def test_a_launch_that_forbids_nothing(spec, tmp_path):
    """Without another tree there is nothing to tell apart."""
    check(replace(spec, forbidden=()), [{"sources": {"a": f"{tmp_path}/a.py"}}], "prepare")


def test_links_are_followed(spec, tmp_path):
    """A forbidden tree that is named by a link is the folder that the link leads to."""
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    told = [{"sources": {"a": f"{tmp_path}/a.py"}}]
    with pytest.raises(LaunchFailed):
        check(replace(spec, forbidden=(tmp_path / "link",)), told, "prepare")


def test_what_a_rank_reports(tmp_path, monkeypatch):
    """Modules with a file that is not installed; links are followed, also out of site-packages."""
    source = tmp_path / "a.py"
    source.write_text("")
    (tmp_path / "link.py").symlink_to(source)
    for name, file in {
        "planted_plain": str(source),
        "planted_link": str(tmp_path / "link.py"),
        "planted_installed": pytest.__file__,
        "planted_without": None,
    }.items():
        module = types.ModuleType(name)
        module.__file__ = file
        monkeypatch.setitem(sys.modules, name, module)
    found = {name: file for name, file in sources().items() if name.startswith("planted")}
    assert found == {"planted_plain": str(source), "planted_link": str(source)}
    assert sources()["stepguard.host.engine"] == engine.__file__
    assert not {"json", "pytest", "sys"} & set(sources())


def test_the_import_path(tmp_path):
    """Engine, tree, the caller's own; beside the engine only where that is not forbidden."""
    beside = str(engine.ENGINE.parent)
    for n, (forbidden, last) in enumerate([((), [beside]), ((engine.ENGINE.parent,), [])]):
        folder = tmp_path / str(n)
        path = engine.import_path(folder, Path("/tree"), "/a:/b", forbidden)
        assert path.split(":") == [str(folder), "/tree", "/a", "/b", *last]
        assert (folder / "stepguard" / "__init__.py").samefile(engine.ENGINE / "__init__.py")
        assert [entry.name for entry in folder.iterdir()] == ["stepguard"]


def test_an_installed_copy_of_the_trees_own_package_is_a_stray(tmp_path):
    """Both revisions would run it; in src/ or not. Other packages, and the engine, are none."""
    tree = tmp_path / "tree"
    for file in ("src/kernels/__init__.py", "work.py", "stepguard/__init__.py"):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / file).write_text("")
    installed = {
        "kernels": "kernels/__init__.py",
        "work": "work.py",
        "stepguard": "stepguard/__init__.py",
        "torch": "torch/__init__.py",
    }
    engine = tmp_path / "site" / "stepguard"
    found = shadowed(installed, [tree], engine)
    assert [name for name, _ in found] == ["kernels", "work"]
    assert str(tree / "src/kernels/__init__.py") in found[0][1]
    assert not shadowed({"torch": "torch/__init__.py"}, [tree], engine)
