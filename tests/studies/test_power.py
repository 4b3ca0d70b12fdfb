"""studies/power: every change can be made, and taken back; what counts as expected."""

import shutil

import pytest

from stepguard.git.revision import git
from stepguard.git.trailers import parse
from stepguard.permission import KEY
from studies.common.results import ROOT
from studies.power.change import RED, SAME
from studies.power.changes import CHANGES, FASTER, SLOWER, wanted
from studies.power.measure import CASES, as_expected, planted, wants_size


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_can_be_made(name, tmp_path):
    """The model is Python still, and not what it was; a second time is refused."""
    ignored = shutil.ignore_patterns("*.bin", "__pycache__")  # which another process may be writing
    shutil.copytree(ROOT / "model", tmp_path / "model", ignore=ignored)
    change = CHANGES[name]
    change.plant(tmp_path)
    for path, _, _ in change.edits:
        text = (tmp_path / path).read_text()
        compile(text, path, "exec")
        assert text != (ROOT / path).read_text()


def test_what_an_honest_change_costs_is_declared_where_the_gate_reads_it(tmp_path):
    """One graph for two keeps more memory: the change is a commit on its base, and says so."""
    tree, case = tmp_path / "tree", CASES["cuda"]
    base = planted(tree, CHANGES["no graph break"], case, tmp_path / "cache")
    said = git(tree, "log", f"--format=%(trailers:key={KEY},valueonly=true)", f"{base}..HEAD")
    declared = parse(said.strip(), "", "")
    assert (declared.case, declared.metric) == (case, "peak_allocated_bytes")
    assert "-        torch._dynamo.graph_break()" in git(tree, "diff", base)
    assert not git(tree, "diff", "HEAD")


def test_what_is_expected_is_no_matter_of_luck():
    """A slowdown is red by time or by a counter, what is hidden by anything; honest work is never
    red, nor undecided.
    """
    said = {
        "slower": {"status": "SLOWER", "step_ms": {"status": "SLOWER"}},
        "counter": {"status": "CHANGED", "step_ms": {"status": "same"}},
        "faster": {"status": "FASTER", "step_ms": {"status": "FASTER"}},
        "same": {"status": "same", "step_ms": {"status": "same"}},
        "undecided": {"status": "INCONCLUSIVE", "step_ms": {"status": "INCONCLUSIVE"}},
        "failed": {"failed": "cut off"},
    }
    honest = {"faster", "same"}
    right = {SLOWER: {"slower", "counter"}, FASTER: honest, SAME: honest}
    right[RED] = {"slower", "counter", "undecided"}
    for change in CHANGES.values():
        assert {name for name, one in said.items() if as_expected(change, one)} == right[
            change.expected
        ]
    sized = [said["same"] | {"size": {"ratio_minus_1_pct": pct}} for pct in (0.3, 0.6)]
    small, large = (as_expected(CHANGES["gelu twice in 1 layer"], one) for one in sized)
    assert small and not large  # between the margins either answer is right


def test_a_size_is_measured_where_it_says_more_than_the_verdict():
    """Of each slowdown, and of what was hidden and is green; once, and not without a verdict."""
    red, green = {"status": "SLOWER", "right": True}, {"status": "same", "right": False}
    assert wants_size("gelu twice in 1 layer", red)
    assert wants_size("a sleep in each step", green)
    assert not wants_size("a sleep in each step", red)
    assert not wants_size("one gelu", {"status": "FASTER", "right": True})
    assert not wants_size("gelu twice in 1 layer", {"failed": "cut off"})
    assert not wants_size("gelu twice in 1 layer", red | {"size": {}})


def test_a_name_that_there_is_not_is_refused():
    """As is a change of a GPU's kernels on a CPU."""
    assert len(wanted([], "cuda")) == len(CHANGES)
    with pytest.raises(ValueError, match="no such change"):
        wanted(["gelu"], "cuda")
    with pytest.raises(ValueError, match="no such change"):
        wanted(["flash attention by name"], "cpu")
