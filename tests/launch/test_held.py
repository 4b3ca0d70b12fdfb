"""Which modules should have come from the tree: layouts it must see, and namesakes it must not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepguard.launch.held import Copy, Held, copies

PACKAGE = ("mypkg", "mypkg.train", "mypkg.model")
HELD = {  # the tree's files, imported, the source that should have been
    "flat": (["mypkg/__init__.py"], ["mypkg"], "mypkg/__init__.py"),
    "src": (["src/mypkg/__init__.py"], ["mypkg"], "src/mypkg/__init__.py"),
    "python": (["python/mypkg/__init__.py"], ["mypkg"], "python/mypkg/__init__.py"),
    "lib": (["lib/mypkg/__init__.py"], ["mypkg"], "lib/mypkg/__init__.py"),
    "a package of several": (
        ["packages/x/src/mypkg/__init__.py", "packages/y/src/other/__init__.py"],
        ["mypkg"],
        "packages/x/src/mypkg/__init__.py",
    ),
    "an installable folder": (
        ["packages/x/pyproject.toml", "packages/x/mypkg/__init__.py"],
        ["mypkg"],
        "packages/x/mypkg/__init__.py",
    ),
    "any folder, most of the package": (
        ["code/mypkg/__init__.py", "code/mypkg/train.py", "code/mypkg/new.py"],
        PACKAGE,
        "code/mypkg/__init__.py",
    ),
    "a namespace": (["src/ns/mypkg/__init__.py"], ["ns.mypkg"], "src/ns/mypkg/__init__.py"),
    "one module": (["src/mymodel.py"], ["mymodel"], "src/mymodel.py"),
    "the factory's one module": (["bench/factory.py"], ["factory"], "bench/factory.py"),
    "the factory among tests": (["tests/perf/factory.py"], ["factory"], "tests/perf/factory.py"),
    "the factory, a package now": (
        ["bench/factory/__init__.py"],
        ["factory"],
        "bench/factory/__init__.py",
    ),
}
NAMESAKES = {  # the tree's files, imported by somebody else's names
    "test data": (["tests/data/numpy/__init__.py"], ["numpy", "numpy.core", "numpy.linalg"]),
    "stubs": (["tests/stubs/src/torch/__init__.py"], ["torch", "torch.nn"]),
    "vendored": (["third_party/apex/setup.py", "third_party/apex/apex/__init__.py"], ["apex"]),
    "built": (["build/lib/mypkg/__init__.py"], ["mypkg"]),
    "an environment": ([".venv/lib/python3.11/site-packages/six.py"], ["six"]),
    "a script": (["scripts/utils.py", "tools/evaluate.py"], ["utils", "evaluate"]),
    "a folder of a part": (
        ["evals/datasets/__init__.py", "evals/datasets/load.py"],
        ["datasets", "datasets.load", "datasets.utils", "datasets.features", "datasets.info"],
    ),
    "a part of a package": (["src/mypkg/__init__.py", "src/mypkg/utils.py"], ["utils"]),
    "a module, not a package": (["evaluate.py"], ["evaluate/"]),
    "the engine": (["stepguard/__init__.py"], ["stepguard"]),
    "the interpreter's start": (["__main__.py", "sitecustomize.py"], ["__main__", "sitecustomize"]),
    "nothing of it": (["src/mypkg/__init__.py"], ["torch", "mypkgs", "pkg"]),
    "no source": (["src/mypkg/data.json", "src/mypkg.txt"], ["mypkg"]),
}


def imported(names):
    """Modules of another tree: packages where something below them is imported, or named so."""
    parents = {name.rpartition(".")[0] for name in names}
    found = {}
    for name in names:
        package = name in parents or name.endswith("/") or name.endswith("mypkg")
        path = name.strip("/").replace(".", "/")
        found[name.strip("/")] = f"/other/{path}{'/__init__' if package else ''}.py"
    return found


@pytest.mark.parametrize("layout", HELD)
def test_what_the_tree_holds_is_found_in_every_layout(layout):
    """The first module is named, with its file, the tree's own and the folder to import from."""
    files, names, source = HELD[layout]
    found = copies(imported(names), {}, Held(files), "factory")
    first = names[0]
    root = (
        source.removesuffix(".py").removesuffix("/__init__").removesuffix(first.replace(".", "/"))
    )
    assert found[0] == Copy(first, imported(names)[first], source, root.rstrip("/"))


@pytest.mark.parametrize("below", ["", "bench"], ids=["at the top", "from a folder"])
@pytest.mark.parametrize("which", NAMESAKES)
def test_a_namesake_is_none_of_the_trees(which, below):
    """Wherever launches run, what only has the name of a file of the tree is left alone."""
    files, names = NAMESAKES[which]
    assert copies(imported(names), {}, Held(files, below), "factory") == []


def test_where_launches_run_counts_wherever_that_is():
    """A suite below tests/ holds its own modules, and a hidden folder on the way there is none."""
    held = Held(["tests/work.py", "tests/part/src/kernels.py", "examples/other.py"], "tests")
    found = copies(imported(["work", "kernels", "other"]), {}, held, "factory")
    assert [(copy.module, copy.root) for copy in found] == [
        ("kernels", "tests/part/src"),
        ("work", "tests"),
    ]


def test_a_folder_that_is_part_of_a_name_is_not_imported_from():
    """lib/datasets.py is lib.datasets where that was imported, and no datasets of somebody else."""
    held = Held(["lib/datasets.py"])
    elsewhere = imported(["datasets"])
    assert copies(elsewhere, {}, held, "factory")
    assert not copies(elsewhere, {"lib.datasets": "lib/datasets.py"}, held, "factory")


def test_a_compiled_copy_is_one():
    """A package whose installed modules are compiled is the tree's own all the same."""
    held = Held(["code/mypkg/__init__.py", "code/mypkg/train.py"])
    compiled = {name: file.replace(".py", ".so") for name, file in imported(PACKAGE).items()}
    assert [copy.module for copy in copies(compiled, {}, held, "f")] == ["mypkg", "mypkg.train"]


PARTS = st.sampled_from(["a", "b", "c", "src", "tests", "__init__"])
FILES = st.sets(st.lists(PARTS, min_size=1, max_size=4).map("/".join).map("{}.py".format))


@given(FILES, st.sets(st.lists(PARTS, min_size=1, max_size=3).map(".".join)), PARTS)
def test_a_copy_is_a_file_of_the_tree_and_only_that(files, names, below):
    """Any tree, any modules: a module is found once, with a source that the tree has and that is
    this module below the root; a tree without sources has no copies.
    """
    modules = imported(names)
    found = copies(modules, {}, Held(files, below), "a")
    assert len({copy.module for copy in found}) == len(found)
    for copy in found:
        path = copy.module.replace(".", "/")
        below_root = copy.held.removeprefix(f"{copy.root}/" if copy.root else "")
        assert copy.held in files and modules[copy.module] == copy.file
        assert below_root in (f"{path}.py", f"{path}/__init__.py")
    assert copies(modules, {}, Held((), below), "a") == []
