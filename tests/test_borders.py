"""Who may import whom, read from the sources; and that collecting the suite imports no torch."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PURE = (
    "case",
    "evidence",
    "fingerprint",
    "metrics",
    "statistics",
    "looks",
    "power",
    "pairs",
    "noise",
    "calibration",
    "terms",
    "comparison",
    "versus",
    "confirm",
    "recording",
    "verdict",
    "site",
    "compare",
    "judge",
    "explain",
    "stack",
    "allow",
    "baseline_model",
    "hardware",
    "trace.calls",
    "trace.gpu_time",
    "trace.kernels",
    "trace.steps",
)
IMPURE = {
    "ctypes",
    "glob",
    "io",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "pynvml",
    "pytest",
    "random",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "sys",
    "tempfile",
    "threading",
    "time",
    "torch",
}


def modules(package):
    """Every module of a package, by its path."""
    paths = sorted((ROOT / package).rglob("*.py"))
    assert paths, f"no {package} in {ROOT}"
    return paths


def imports(path):
    """The full names that a file imports, at any depth, function bodies included."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            yield f"{node.module}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def roots(path):
    """The top-level packages that a file imports."""
    return {name.partition(".")[0] for name in imports(path)}


def test_the_walk_sees_imports_of_every_kind(tmp_path):
    """Plain, from, aliased, nested in functions: none is overlooked."""
    source = "import a.b as c\nfrom d import e\ndef f():\n    if g:\n        import h.i\n"
    (tmp_path / "x.py").write_text(source)
    assert roots(tmp_path / "x.py") == {"a", "d", "h"}


@pytest.mark.parametrize("path", modules("model"), ids=lambda path: path.name)
def test_the_model_does_not_know_its_guard(path):
    """model/ never imports stepguard."""
    assert "stepguard" not in roots(path)


@pytest.mark.parametrize(
    "path", modules("stepguard"), ids=lambda path: str(path.relative_to(ROOT / "stepguard"))
)
def test_stepguards_borders(path):
    """stepguard never imports model; torch and pytest stay where they belong."""
    inner = path.relative_to(ROOT / "stepguard")
    found = roots(path)
    assert not found & {"model", "perf_tests", "tests"}
    if "torch" in found:
        assert inner.parts[0] == "worker" or inner.name == "cuda_stamp.py"
    if found & {"pytest", "_pytest", "pluggy"}:
        assert str(inner) in ("plugin.py", "options.py", "pytest_run.py", "benchmark_bridge.py")
    assert "pytest_benchmark" not in found  # reached through its fixture alone


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_do_nothing_but_compute(name):
    """No I/O, no clock, no torch, no pytest; of stepguard only each other."""
    path = ROOT / "stepguard" / f"{name.replace('.', '/')}.py"
    assert not roots(path) & IMPURE
    ours = {part for part in imports(path) if part.startswith("stepguard.")}
    known = {f"stepguard.{pure}" for pure in PURE}
    assert all(part in known or part.rpartition(".")[0] in known for part in ours)
    calls = [
        node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    ]
    named = {call.id for call in calls if isinstance(call, ast.Name)}
    assert not named & {"open", "print", "input", "exec", "eval", "__import__"}


def test_every_package_is_installed():
    """A package that setuptools is not told of works from a clone and is missing elsewhere."""
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    there = {path.parent.relative_to(ROOT) for path in modules("stepguard")}
    assert set(told) == {".".join(folder.parts) for folder in there}


def test_workers_do_not_reach_into_the_host():
    """A rank never imports what runs in the calling process, nor reports."""
    for path in modules("stepguard/worker"):
        for name in imports(path):
            assert not name.startswith(("stepguard.host", "stepguard.report", "stepguard.plugin"))


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
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("WATCHED")]
    _, collected, loaded = line.split(maxsplit=2)
    assert int(collected) > 0
    assert loaded == "[]"
