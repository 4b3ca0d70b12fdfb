"""The results of the planted faults are of the whole list."""

import ast
import json
from pathlib import Path

import pytest

from studies.mutation import gather, run

ROOT = Path(__file__).resolve().parents[2]
STUDY = ROOT / "studies" / "mutation"
LISTED = json.loads((STUDY / "faults.json").read_text())
FAULTS = LISTED["faults"]
SOURCE = """
def first(items, limit):
    if limit < 1 or not items:
        raise ValueError(f"{limit - 1}")
    return [pair(one, limit) for one in items if one - limit > 0][0]
"""


def test_thirty_faults_of_three_folders():
    """Twelve in judge/, eight in storage/, ten in worker/, under names that differ."""
    names = [fault["id"] for fault in FAULTS]
    wanted = {"judge": 12, "storage": 8, "worker": 10}
    assert names == [f"{folder}-{i + 1}" for folder, n in wanted.items() for i in range(n)]
    for fault in FAULTS:
        folder = fault["id"].partition("-")[0]
        assert fault["after"]["file"].startswith(f"stepguard/{folder}/")
        assert fault["broken"] and fault["kind"] in gather.KINDS


@pytest.mark.parametrize("tree", ["before", "after"])
def test_the_results_are_of_the_list(tree):
    """Every fault has its result in both trees, and none survives the tests of today."""
    found = json.loads((STUDY / f"results_{tree}.json").read_text())["faults"]
    assert sorted(found) == sorted(fault["id"] for fault in FAULTS)
    assert all(one["caught"] == bool(one["by"]) for one in found.values())
    if tree == "after":
        assert all(one["caught"] for one in found.values())


def test_a_fault_is_planted_in_one_line_and_only_there(tmp_path):
    """A line that is not there, or twice, is refused."""
    (tmp_path / "a.py").write_text("x = 1\ny = 2\ny = 2\n")
    run.plant(tmp_path, {"file": "a.py", "line": "x = 1", "replacement": "x = 2"})
    assert (tmp_path / "a.py").read_text() == "x = 2\ny = 2\ny = 2\n"
    for line in ("x = 1", "y = 2"):
        with pytest.raises(SystemExit, match="one is needed"):
            run.plant(tmp_path, {"file": "a.py", "line": line, "replacement": "z"})


def test_candidates_are_single_lines_of_what_decides(tmp_path):
    """Of every kind, each another program than the source, and none in a message."""
    path = tmp_path / "stepguard" / "some.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    found = list(gather.candidates(tmp_path, "some"))
    assert {one.kind for one in found} == set(gather.KINDS)
    for one in found:
        planted = SOURCE.replace(one.line, one.replacement)
        assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(SOURCE))
    assert {one.number for one in found} == {3, 5}
    assert "    return [pair(limit, one) for one in items if one - limit > 0][0]" in {
        one.replacement for one in found
    }
