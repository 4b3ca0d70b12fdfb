"""mutation: what is drawn, planted, and caught."""

import ast
import json
import os
import subprocess
import sys

import pytest

from benchmarks import mutation
from benchmarks.shared import git
from benchmarks.single_line_faults import KINDS, candidates, draw

SOURCE = """
def first(items, limit):
    if limit < 1 or not items:
        raise ValueError(f"{limit - 1}")
    return [pair(one, limit) for one in items if one - limit > 0][0]


def smaller(a, b):
    return a < b
"""
STRONG = """
from some import smaller


def test_smaller():
    print("FAILED another.py::test_in_a_pytest_that_it_ran")
    assert smaller(1, 2) and not smaller(2, 2)
"""


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A repository with a module and its test, in the place of this one."""
    root = tmp_path / "root"
    (root / "package").mkdir(parents=True)
    (root / "package" / "some.py").write_text(SOURCE)
    (root / "test_some.py").write_text(STRONG)
    (root / "pytest.ini").write_text("[pytest]\npythonpath = package\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    git(root, "add", ".")
    name = ["-c", "user.name=x", "-c", "user.email=x"]
    subprocess.run(["git", *name, "commit", "-qm", "x"], cwd=root, check=True)
    for module in ("benchmarks.mutation", "benchmarks.shared"):
        monkeypatch.setattr(f"{module}.ROOT", root)
    # Its pytests load no plugins of this environment.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return root


def test_candidates_are_single_lines_of_what_decides(tree):
    """Of every kind, each another program than the source, and none in a message."""
    found = list(candidates(tree, "package/some.py"))
    assert {one.kind for one in found} == set(KINDS)
    for one in found:
        made = SOURCE.replace(one.line, one.replacement)
        assert ast.dump(ast.parse(made)) != ast.dump(ast.parse(SOURCE))
    assert {one.number for one in found} == {3, 5, 9}
    swapped = "    return [pair(limit, one) for one in items if one - limit > 0][0]"
    assert swapped in {one.replacement for one in found}


def test_the_seed_decides_the_order(tree):
    """The same twice, another one for another seed, and no function twice."""
    orders = [draw(tree, "package", seed) for seed in (15, 15, *range(20))]
    assert orders[0] == orders[1] and any(one != orders[0] for one in orders)
    assert all(sorted(one.function for one in each) == ["first", "smaller"] for each in orders)


def test_a_fault_is_caught_or_survives(tree, tmp_path, monkeypatch, capsys):
    """The tested function's fault is caught, the other one survives: status 1; a second run with
    the same file has nothing to do, and another seed is refused.
    """
    out = tmp_path / "out.json"
    given = ["mutation", "package", "--tests", "test_some.py", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", given)
    assert mutation.main() == 1
    found = {one["function"]: one["by"] for one in json.loads(out.read_text())["faults"]}
    assert found == {"smaller": "test_some.py::test_smaller", "first": ""}
    assert "1 of 2 caught" in capsys.readouterr().out
    before = out.read_bytes()
    assert mutation.main() == 1 and out.read_bytes() == before
    monkeypatch.setattr(sys, "argv", [*given, "--seed", "1"])
    with pytest.raises(SystemExit):
        mutation.main()
    assert "has another seed: 15" in capsys.readouterr().err


def test_a_fault_does_not_run_as_the_last_one(tree, monkeypatch):
    """Of two faults of one size and one second, each runs as itself: bytecode would not differ."""
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    path, second = tree / "package" / "some.py", 1_700_000_000
    for source, failing in (
        (SOURCE.replace("a < b", "a > b"), "test_some.py::test_smaller"),
        (SOURCE, ""),
    ):
        path.write_text(source)
        os.utime(path, (second, second))
        assert mutation.failing_test(tree, ["test_some.py"]) == failing
