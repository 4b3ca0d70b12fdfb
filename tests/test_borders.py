"""One order of folders: an import goes downwards or stays inside its folder. Read from the sources.

pytest tests/test_borders.py
"""

import ast
import importlib
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ENGINE = ROOT / "stepguard"
PUBLIC = ""  # what `import stepguard` brings; it names values of core/ and has none of its own
# From the top down. Ranks read their own traces, so trace/ is below worker/.
ORDER = (
    "cli", "plugin", "report", "measure", "launch", "storage", "judge", "explain", "worker",
    "trace", "machine", PUBLIC, "core",
)  # fmt: skip
PURE = ("explain", "judge", "trace", "core")
IMPURE = {
    "ctypes", "fcntl", "filelock", "glob", "io", "logging", "mmap", "multiprocessing", "os",
    "pathlib", "pynvml", "random", "select", "shutil", "signal", "socket", "subprocess", "sys",
    "tempfile", "threading", "time",
}  # fmt: skip
PYTEST = {"pytest", "_pytest", "pluggy", "pytest_benchmark"}


def paths(package):
    """Return the path of every module of a package."""
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, f"no {package} in {ROOT}"
    return found


@cache
def parts(path):
    """Return what a file has: its imports, function bodies included, as (module, name or None), and
    the names that it calls.
    """
    imports, called = [], set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            imports += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            imports += [(str(node.module), alias.name) for alias in node.names]
        elif isinstance(node, ast.Call):
            called.add(getattr(node.func, "id", ""))
    return imports, called


def statements(path):
    """Return the imports of a file, as (module, name or None)."""
    return parts(path)[0]


def packages(path):
    """Return the top-level packages that a file imports."""
    return {module.partition(".")[0] for module, _ in statements(path)}


def dotted(path):
    """Return a module's name, of its path."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {dotted(path): path for path in paths("stepguard")}


def imported(path):
    """Return the modules of stepguard that a file imports."""
    found = {
        part if (part := f"{module}.{name}") in MODULES else module
        for module, name in statements(path)
    }
    return found & MODULES.keys()


def folder(module):
    """Return the folder below stepguard/ that a module is in; `python -m` belongs to cli/."""
    inner = MODULES[module].relative_to(ENGINE).parts
    return "cli" if inner == ("__main__.py",) else inner[0] if len(inner) > 1 else PUBLIC


def importing(modules, packages_of_others):
    """Return which of these modules or paths import any of these packages, and which."""
    files = {one: MODULES.get(one, one) for one in modules}
    # To parse what names none of them would take ten times as long as to read it.
    named = re.compile("|".join(packages_of_others))
    files = {one: path for one, path in files.items() if named.search(path.read_text())}
    found = {one: packages(path) & packages_of_others for one, path in files.items()}
    return {str(one): wrong for one, wrong in found.items() if wrong}


def test_the_walk_sees_imports_of_every_kind(tmp_path):
    """Plain, from, aliased, nested in functions: none is overlooked."""
    source = "import a.b as c\nfrom d import e\ndef f():\n    if g:\n        import h.i\n"
    (tmp_path / "x.py").write_text(source)
    assert packages(tmp_path / "x.py") == {"a", "d", "h"}


def test_every_folder_has_its_place():
    """A new folder is put into the order, and a removed one is taken out."""
    assert {folder(module) for module in MODULES} == set(ORDER)


def test_imports_go_downwards():
    """A module imports from its own folder or from one below it."""
    place = {module: ORDER.index(folder(module)) for module in MODULES}
    imports = [(module, name) for module, path in MODULES.items() for name in imported(path)]
    assert not [(module, name) for module, name in imports if place[name] < place[module]]


def test_no_two_modules_share_a_name():
    """A module is known by its name alone."""
    names = Counter(path.name for path in MODULES.values())
    usual = ("__init__.py", "__main__.py")
    assert not [name for name, count in names.items() if count > 1 and name not in usual]


def test_the_gate_does_not_know_the_lab():
    """No module of it imports a package that adds commands, nor names one of its modules."""
    named = [one for one, path in MODULES.items() if "stepguard_lab" in path.read_text()]
    assert not named


def test_no_circles():
    """Modules that import each other, however far round, are one module."""
    graph = {module: imported(path) - {module} for module, path in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_torch_and_pytest_stay_where_they_belong():
    """worker/ alone imports torch, plugin/ alone pytest; pytest-benchmark comes by its fixture."""
    assert not importing([one for one in MODULES if folder(one) != "worker"], {"torch"})
    assert not importing([one for one in MODULES if folder(one) != "plugin"], PYTEST)
    assert not importing(MODULES, {"pytest_benchmark"})


def test_pure_modules_do_nothing_but_compute():
    """No files, no clock, no processes, no output."""
    pure = [module for module in MODULES if folder(module) in PURE]
    assert not importing(pure, IMPURE)
    for module in pure:
        _, called = parts(MODULES[module])
        assert not called & {"open", "print", "input", "exec", "eval", "__import__"}, module


def test_the_model_does_not_know_its_guard():
    """model/ never imports stepguard."""
    assert not importing(paths("model"), {"stepguard"})


def test_the_engine_does_not_know_what_it_measures():
    """stepguard never imports the model, its suite, tests or benchmarks."""
    assert not importing(MODULES, {"model", "perf_tests", "tests", "benchmarks"})


WATCH = """
import sys

def pytest_sessionfinish(session):
    loaded = sorted(set(sys.modules) & {"torch", "model", "triton"})
    print(f"WATCHED {session.testscollected} {loaded}")
"""


def test_collecting_the_suite_imports_no_torch(tmp_path):
    """``pytest perf_tests --co`` collects cases and imports neither torch nor the model."""
    (tmp_path / "watch_imports.py").write_text(WATCH)
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "perf_tests", "--co", "-q", "-s"]
    command += ["-p", "watch_imports", "-p", "no:cacheprovider"]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("WATCHED")]
    _, collected, loaded = line.split(maxsplit=2)
    assert int(collected) > 0
    assert loaded == "[]"


def test_one_run_collects_all_tests():
    """`pytest` without a folder: of two files with one name it would refuse the second."""
    files = [path.name for top in ("tests", "perf_tests") for path in paths(top)]
    tests = [name for name in files if name.startswith("test_")]
    assert sorted(set(tests)) == sorted(tests)


def test_any_folders_are_collected_together():
    """A folder's conftest is none to import: all have that name, and another's may be loaded."""
    assert not importing(paths("tests"), {"conftest"})


def test_scripts_import_what_is_there():
    """Few tests run them; a name that stepguard no longer has would stay unseen."""
    for path in paths("scripts"):
        for module, name in statements(path):
            if module.startswith("stepguard") and name:
                there = importlib.import_module(module)
                assert hasattr(there, name) or f"{module}.{name}" in MODULES, f"{path}: {name}"
