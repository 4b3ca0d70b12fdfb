"""planted_causes: edits that fit the model, causes decided by data, and two faults for real."""

import json
import shutil
import sys

import pytest
from builders import replace
from quick_launches import shorten_launches

from stepguard.explain.causes import explain
from stepguard.explanation import Cause, Kind, Side
from stepguard.profile import KernelRow, Parts, Profile, added
from stepguard.site import Site
from stepguard.verdict import MetricVerdict, Reason, Status
from studies.common.results import ROOT
from studies.planted_causes import judge, measure
from studies.planted_causes.faults import CLOCK, FAULTS, NOTHING, slower_clock


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_can_be_planted(name, tmp_path):
    """The model is not what it was; a tree where the text is gone or there already is refused."""
    ignored = shutil.ignore_patterns("data", "__pycache__")  # which another process may be writing
    shutil.copytree(ROOT / "model", tmp_path / "model", ignore=ignored)
    (tmp_path / "model/data").mkdir()
    shutil.copy(ROOT / "model/data/loader.py", tmp_path / "model/data")
    fault = FAULTS[name]
    lines = fault.plant(tmp_path)
    assert bool(lines) == bool(fault.edits)
    if fault.edits:
        text = (tmp_path / fault.path).read_text()
        compile(text, fault.path, "exec")
        assert text != (ROOT / fault.path).read_text()
        with pytest.raises(ValueError, match="not once there"):
            replace(fault, edits=(("no such text", ""),)).plant(tmp_path)


def cause(kind, phase, before=(), after=(), calls=24.0):
    """A cause of these kernels."""
    sides = Side(before, calls, 100.0), Side(after, calls, 200.0)
    return Cause(kind, 100.0, (*after, *before, "")[0], phase, "", *sides)


FLASH, BMM, MM = "pytorch_flash::flash_fwd_kernel", "nvjet_sm90_tst_64x64", "cutlass_tf32_gemm"
ADAM, FOREACH = "multi_tensor_apply_kernel<Fused>", "multi_tensor_apply_kernel<Binary>"


@pytest.mark.parametrize(
    ("name", "first", "right"),
    [
        ("math attention", cause(Kind.REPLACED, "forward", (FLASH,), (BMM,)), True),
        ("math attention", cause(Kind.REPLACED, "forward", (BMM,), (FLASH,)), False),
        ("math attention", cause(Kind.ADDED, "forward", (), (BMM,)), False),
        ("fp32 products", cause(Kind.REPLACED, "backward", (BMM,), (MM,)), True),
        ("fp32 products", cause(Kind.TIME, "backward", (BMM,), (BMM,)), False),
        ("an unfused optimizer", cause(Kind.REPLACED, "optimizer", (ADAM,), (FOREACH,)), True),
        ("an unfused optimizer", cause(Kind.REPLACED, "clip_grad", (ADAM,), (FOREACH,)), False),
        ("an extra clone per block", cause(Kind.ADDED, "forward", (), ("triton_clone_3",)), True),
        ("an extra clone per block", cause(Kind.ADDED, "forward", (), ("triton_gelu_3",)), False),
        ("an unpadded vocabulary", cause(Kind.REPLACED, "forward", (BMM,), (MM,), 2.0), True),
        ("an unpadded vocabulary", cause(Kind.REPLACED, "forward", (BMM,), (MM,)), False),
        (CLOCK, cause(Kind.CLOCK, ""), True),
        (CLOCK, cause(Kind.TIME, "forward", (MM,), (MM,)), False),
        (NOTHING, cause(Kind.TIME, "forward", (MM,), (MM,)), False),
        (NOTHING, None, True),
        ("a sync", None, False),
    ],
)
def test_a_cause_is_right_by_its_data(name, first, right):
    """By kind, class, phase and name of its kernels; something else, or nothing, is wrong."""
    assert FAULTS[name].is_right(first, None, range(0)) is right


@pytest.mark.parametrize(
    ("file", "line", "right"),
    [("model/workloads.py", 210, True), ("model/workloads.py", 9, False), ("a.py", 210, False)],
)
def test_a_sync_is_right_by_its_line(file, line, right):
    """The planted one, in the planted file."""
    metric = MetricVerdict("host_syncs_per_step", Status.CHANGED, Reason.COUNTER_ROSE, 0, 2)
    site = Site(".item()", file, line)
    assert FAULTS["a sync"].is_right(metric, site, range(209, 211)) is right
    assert not FAULTS["a sync"].is_right(metric, None, range(209, 211))


def test_a_slower_clock_is_made_of_a_profile():
    """Kernels that follow the pace take a quarter longer, one that does not stays; it is closed."""
    pace = (0.98, 1.0, 1.02, 1.0)
    rows = [
        KernelRow(f"{kind}_{i}", kind, kind, "forward", (12.0,) * 4, tuple(500 * x for x in pace))
        for kind in ("GEMM", "attention")
        for i in range(5)
    ]
    rows.append(KernelRow("copy", "copy", "Triton", "forward", (12.0,) * 4, (500.0,) * 4))
    compute = added([row.us for row in rows])
    base = Profile("", 1, Parts(compute, compute, *[(0.0,) * 4] * 3), tuple(rows), ())
    slow = slower_clock(base)
    assert slow.kernels[-1].us == pytest.approx(rows[-1].us, rel=0.01)
    assert slow.kernels[0].us == pytest.approx([1.25 * us for us in rows[0].us], rel=0.01)
    assert slow.parts.step_us == pytest.approx(added([row.us for row in slow.kernels]))
    assert explain(base, slow).causes[0].kind == Kind.CLOCK


def test_two_faults_on_a_cpu(monkeypatch, capsys, tmp_path):
    """A sync and a clone, each named by its line; a second run keeps what the first one found."""
    shorten_launches(monkeypatch)
    out = tmp_path / "causes"
    out.mkdir()
    failed = json.dumps({"a graph break": {"failed": "not begun"}})
    (out / "index.json").write_text(failed)
    given = ["causes", "--device", "cpu", "--batch", "1", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", [*given, "--only", "a sync", "an extra clone per block"])
    assert measure.main() == 1  # since one of the first run was wrong
    said = capsys.readouterr().out
    assert "sync_candidates_per_step 0 -> 2" in said and "+6 aten.clone" in said
    assert "| a graph break | not begun | NO |" in said and "right in 2 of 3" in said
    assert {path.name for path in out.iterdir()} == {
        "a-sync.json.gz", "an-extra-clone-per-block.json.gz", "base-of-1.json.gz", "index.json",
    }  # fmt: skip


def test_the_case_of_a_gpu_is_a_case(monkeypatch):
    """The step of the suite, with fewer sequences, is accepted for one GPU and for two."""
    for gpus in (1, 2):
        monkeypatch.setattr(sys, "argv", ["causes", "--gpus", str(gpus)])
        assert measure.case_of(measure.arguments()).world_size == gpus


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("--only", "small buckets"), "possible: nothing"),
        (("--device", "cpu", "--only", "a graph break"), "possible: nothing"),
        (("--only", CLOCK), "not there; possible: nothing"),
        (("--out", "nowhere/causes"), "there is no folder"),
    ],
)
def test_what_cannot_be_done_is_a_usage_error(monkeypatch, capsys, given, problem):
    """Status 2, before minutes are spent on it."""
    monkeypatch.setattr(sys, "argv", ["causes", *given])
    with pytest.raises(SystemExit) as ended:
        measure.arguments()
    assert ended.value.code == 2 and problem in capsys.readouterr().err


def test_what_was_measured_on_gpus_is_named_right():
    """All twelve faults are in the evidence that is kept, and of one step that has none nothing is
    said; as many are right as the study's page says.
    """
    found = {one.name: one.right for one in judge.judged_all(judge.Folder(judge.KEPT))}
    assert found == dict.fromkeys(FAULTS, True)
