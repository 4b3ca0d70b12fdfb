"""Whose a module is: trees that lie in each other, the engine, what belongs to nobody."""

import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest
from git_repositories import git, repository

from stepguard.launch import engine
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.launch.held import Held
from stepguard.launch.sources import check, held_by, strays
from stepguard.launch.torchrun import LaunchSpec
from stepguard.worker.sources import installed, sources

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
        check(spec, ranks, "prepare", Held(), "f")
    fault = caught.value.fault
    assert (fault.code, fault.during) == ("OTHER_TREE", "launch 2, prepare")
    assert fault.message.startswith(
        f"rank 1: a module came from another tree than {spec.root}: b.c ({tmp_path}/c.py); take "
    )


def test_many_strays_are_counted(spec, tmp_path):
    """Of many the first are named and all are counted."""
    many = {f"m{n}": f"{tmp_path}/m{n}.py" for n in range(5)}
    with pytest.raises(LaunchFailed, match=r"5 modules .*: m0 .*, m1 .*, m2 .* and 2 more; "):
        check(spec, [{"sources": many}], "end", Held(), "f")


def test_a_launch_that_forbids_nothing(spec, tmp_path):
    """Without another tree, a module that this one does not hold may come from anywhere."""
    told = [{"sources": {"a": f"{tmp_path}/a.py"}}]
    check(replace(spec, forbidden=()), told, "prepare", Held(["b.py"]), "f")


def test_links_are_followed(spec, tmp_path):
    """A forbidden tree that is named by a link is the folder that the link leads to."""
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    told = [{"sources": {"a": f"{tmp_path}/a.py"}}]
    with pytest.raises(LaunchFailed):
        check(replace(spec, forbidden=(tmp_path / "link",)), told, "prepare", Held(), "f")


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
    assert sources()["stepguard.launch.engine"] == engine.__file__
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


@pytest.fixture
def tree(tmp_path):
    """A repository with src/, a link, a folder that launches run in, and what git ignores."""
    tree = tmp_path / "tree"
    for file in ("src/kernels/__init__.py", "perf/work.py", "build/lib/kernels/__init__.py"):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        (tree / file).write_text("")
    (tmp_path / "shared.py").write_text("")
    (tree / "src" / "linked.py").symlink_to(tmp_path / "shared.py")
    (tree / "pyproject.toml").write_text("")
    (tree / ".gitignore").write_text("build/\n")
    repository(tree)
    (tree / "perf" / "new.py").write_text("")
    (tree / "other.py").write_text("")
    return tree


def test_the_files_of_a_tree(tree):
    """What git knows of the whole repository, and what is new where launches run; nothing that it
    ignores, of a worktree as well. Without git, or below what it ignores: every source.
    """
    known = {"src/kernels/__init__.py", "src/linked.py", "perf/work.py", "pyproject.toml"}
    held = held_by(tree / "perf")
    assert (held.files, held.below) == (known | {"perf/new.py"}, "perf")
    assert held_by(tree).files == known | {"perf/new.py", "other.py"}
    git(tree, "worktree", "add", "-q", str(tree / ".stepguard" / "trees" / "r"))
    other = tree / ".stepguard" / "trees" / "r"
    assert held_by(other / "perf", other).files == known
    built = held_by(tree / "build" / "lib")
    assert (built.below, built.files - known) == ("build/lib", {"build/lib/kernels/__init__.py"})
    (tree / ".git").rename(tree / "git")
    assert held_by(tree).files >= {"src/kernels/__init__.py", "other.py"}


ELSEWHERE = {  # what a rank imported, told relative to the tree: whether that is a copy
    "the tree's own": ({"kernels": "src/kernels/__init__.py"}, {}, False),
    "what a link of the tree leads to": ({"linked": "../shared.py"}, {}, False),
    "a third tree's": ({"kernels": "../srcA/src/kernels/__init__.py"}, {}, True),
    "what was built in the tree": ({"kernels": "build/lib/kernels/__init__.py"}, {}, True),
    "an installed one": ({}, {"kernels": "../site-packages/kernels/__init__.py"}, True),
    "installed in the tree": ({}, {"kernels": ".venv/site/kernels/__init__.py"}, True),
    "what the tree lacks": ({"apex": "../apex/__init__.py"}, {"torch": "../torch/x.py"}, False),
}


@pytest.mark.parametrize("which", ELSEWHERE)
@pytest.mark.parametrize("forbids", [False, True], ids=["alone", "beside another"])
def test_what_the_tree_holds_comes_from_it(spec, tree, tmp_path, which, forbids):
    """In every launch: a module that the tree holds and that came from elsewhere is a fault, which
    names it, both files, and what has the tree's own imported from where launches run.
    """
    *modules, copied = ELSEWHERE[which]
    sources, beside = ({k: str((tree / v).resolve()) for k, v in m.items()} for m in modules)
    forbidden = (tmp_path / "other",) if forbids else ()
    spec = replace(spec, root=tree / "perf", forbidden=forbidden, label="launch 1")
    told = [{"sources": sources, "installed": beside, "root": str(tree / "perf")}]
    if not copied:
        check(spec, told, "prepare", held_by(spec.root), "work")
        return
    with pytest.raises(LaunchFailed) as caught:
        check(spec, told, "prepare", held_by(spec.root), "work")
    fault, (file,) = caught.value.fault, (sources | beside).values()
    assert (fault.code, fault.during) == ("OTHER_TREE", "launch 1, prepare")
    assert (
        f"{tree} holds the source: kernels ({file}, not src/kernels/__init__.py)" in fault.message
    )
    assert "pip uninstall kernels), and say PYTHONPATH=../src, which is" in fault.message


def test_a_tree_on_another_node_lies_elsewhere(spec, tree):
    """Ranks of another node run the same tree in another folder: that one is theirs."""
    spec, held = replace(spec, root=tree / "perf", forbidden=()), held_by(tree / "perf")
    sources = {"kernels": "/node/src/kernels/__init__.py", "work": "/node/perf/work.py"}
    check(spec, [{"sources": sources, "root": "/node/perf"}], "end", held, "work")
    with pytest.raises(LaunchFailed, match="2 modules came from elsewhere"):
        check(spec, [{"sources": sources, "root": "/other/perf"}], "end", held, "work")


def test_a_source_that_was_taken_away_is_not_held(spec, tree):
    """What git still lists and nobody can import does not count."""
    (tree / "src" / "kernels" / "__init__.py").unlink()
    told = [{"sources": {"kernels": "/elsewhere/kernels/__init__.py"}}]
    check(replace(spec, root=tree, forbidden=()), told, "end", held_by(tree), "work")


def test_what_is_installed_is_reported_as_far_as_it_must_be():
    """Top-level modules and what lies directly in a package, by their whole paths; nothing else."""
    found = installed()
    assert found["pytest"] == str(Path(pytest.__file__).resolve())
    assert "_pytest.config" in found and "_pytest.config.argparsing" not in found
    assert not {"json", "sys", "stepguard", "repositories"} & set(found)
