"""power: every change can be made, and taken back; what counts as expected; what a run says."""

import json
import shutil
from argparse import Namespace

import msgspec
import pytest
from builders import entry
from comparisons import comparison_of
from run_documents import measured

from benchmarks import power
from benchmarks.changes import EITHER, FASTER, RED, SAME, SLOWER
from benchmarks.planted_causes import FAULTS, OF_TWO_GPUS
from benchmarks.power import (
    CASES,
    CHANGES,
    Plan,
    Work,
    as_expected,
    planted,
    said_of,
)
from benchmarks.shared import ROOT, git
from stepguard.core.evidence import to_json

ALL = CHANGES | FAULTS | OF_TWO_GPUS


@pytest.mark.parametrize("name", ALL)
def test_every_change_can_be_made(name, tmp_path):
    """The model is Python still, and not what it was; a second time is refused."""
    change = ALL[name]
    assert change.edits or change.base_edits
    for edits, plant in ((change.edits, change.plant), (change.base_edits, change.plant_base)):
        if edits:
            made_and_refused(edits, plant, tmp_path)


def made_and_refused(edits, plant, tree):
    ignored = shutil.ignore_patterns("*.bin", "__pycache__")  # which another process may be writing
    shutil.copytree(ROOT / "model", tree / "model", ignore=ignored)
    for path, _, _ in edits:
        (tree / path).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / path, tree / path)
    lines = plant(tree)
    for path, _, _ in edits:
        text = (tree / path).read_text()
        if path.endswith(".py"):
            compile(text, path, "exec")
        assert text != (ROOT / path).read_text()
    path, _, new = edits[-1]
    last = (tree / path).read_text().splitlines()[lines.start - 1 : lines.stop - 1]
    assert new.splitlines()[0] in last[0]
    (tree / edits[0][0]).write_text("")
    with pytest.raises(ValueError, match="0 times there, not once"):
        plant(tree)
    shutil.rmtree(tree / "model")


@pytest.mark.parametrize("name", ["2 multiply-adds in own attention", "one gelu"])
def test_a_change_is_judged_beside_its_own_base(name, tmp_path):
    """The base is a commit, the change is not. A change that undoes something leaves the step as it
    is. The rest of the clone is equal.
    """
    change, tree = CHANGES[name], tmp_path / "tree"
    lines = planted(tree, change, tmp_path / "cache")
    for edits, plant, text in (
        (change.base_edits, change.plant_base, git(tree, "show", "HEAD:model/gpt.py")),
        (change.edits, change.plant, (tree / "model/gpt.py").read_text().strip()),
    ):
        other = tmp_path / f"of {len(edits)}"
        (other / "model").mkdir(parents=True, exist_ok=True)
        (other / "model/gpt.py").write_text((ROOT / "model/gpt.py").read_text())
        made = plant(other)
        assert text == (other / "model/gpt.py").read_text().strip()
    assert lines == made
    assert git(tree, "diff", "--name-only", "HEAD") == "model/gpt.py"


def test_what_is_expected_is_no_matter_of_luck():
    """A slowdown is red by time or by a counter, what is hidden by anything; honest work is never
    red, nor undecided; between the margins either answer is right.
    """
    said = {
        "slower": {"status": "SLOWER", "time": "SLOWER"},
        "counter": {"status": "CHANGED", "time": "same"},
        "faster": {"status": "FASTER", "time": "FASTER"},
        "same": {"status": "same", "time": "same"},
        "undecided": {"status": "INCONCLUSIVE", "time": "INCONCLUSIVE"},
        "failed": {"failed": "cut off"},
    }
    honest = {"faster", "same"}
    right = {SLOWER: {"slower", "counter"}, FASTER: honest, SAME: honest}
    right |= {RED: {"slower", "counter", "undecided"}, EITHER: {"slower", "counter", "same"}}
    assert {change.expected for change in CHANGES.values()} == right.keys()
    for change in CHANGES.values():
        found = {name for name, one in said.items() if as_expected(change, one)}
        assert found == right[change.expected]


def test_what_a_run_said_is_in_its_document(tmp_path):
    """Status, time and first line of a document as the report writes it, and the pairs' times."""
    case = msgspec.to_builtins(measured(entry(), launch_ms=(300.0, 300.0, 300.0)))
    kept = tmp_path / case["evidence"]
    kept.parent.mkdir(parents=True)
    kept.write_bytes(
        to_json(comparison_of([(300.0,) * 2, (301.0,) * 2], [(250.0,) * 2, (251.0,) * 2]))
    )
    found = said_of(case, tmp_path)
    assert (found["status"], found["time"]) == ("SLOWER", "SLOWER")
    assert "step_ms 250.000 -> 300.000" in found["first_line"]
    assert [round(one["head"]["step_ms"]) for one in found["pairs"]] == [300, 301]
    assert [round(one["base"]["step_ms"]) for one in found["pairs"]] == [250, 251]


def test_a_verdict_that_is_known_is_not_measured_again(tmp_path, monkeypatch):
    """Of three changes one is in the file, and one failed; none begins without time for it."""
    verdicts = []

    def verdict(tree, base, case, limit_s, env):
        verdicts.append(tree.name)
        return {"status": "same", "time": "same", "first_line": ""}

    monkeypatch.setattr(power, "verdict", verdict)
    monkeypatch.setattr(power, "planted", lambda *_: ("HEAD", range(0)))
    out, names = tmp_path / "power.json", ["one gelu", "no clones", "gelu twice in 3 layers"]
    known = {names[0]: {"status": "FASTER", "right": True}, names[1]: {"failed": "cut off"}}
    out.write_text(json.dumps({"changes": known}))
    options = {"only": names, "cache": None, "out": out, "verdict_s": 50.0, "device": "cpu"}
    plan = Plan(CHANGES, CASES["cpu"], as_expected)
    Work(plan, Namespace(**options, gpus=1, seconds=10.0), tmp_path).on("")
    assert verdicts == []
    Work(plan, Namespace(**options, gpus=1, seconds=100.0), tmp_path).on("")
    assert verdicts == ["no-clones", "gelu-twice-in-3-layers"]
    found = json.loads(out.read_text())["changes"]
    assert [found[name]["right"] for name in names] == [True, True, False]
