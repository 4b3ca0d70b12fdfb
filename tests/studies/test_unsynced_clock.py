"""The unsynced clock's experiment as a user runs it, on two real ranks of a CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from studies.common.series import balanced
from studies.unsynced_clock.report import WHAT

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 900
TINY = ("size=nano", "batch=1", "seq=32", "precision=fp32", "compile=false")
QUICK = ("--device", "cpu", "--steps", "2", "--warm-up-steps", "1", "--warm-up-s", "0")


def run(folder, *arguments):
    """The finished command and what it wrote."""
    out = folder / "clock.json"
    command = [sys.executable, "-m", "studies.unsynced_clock.measure", *QUICK, "--out", str(out)]
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=LONG_S
    )
    return done, json.loads(out.read_text()) if out.exists() else {}


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Two ranks, two series."""
    folder = tmp_path_factory.mktemp("clock")
    files = ("--markdown", str(folder / "clock.md"), "--svg", str(folder / "clock.svg"))
    done, found = run(
        folder, "--ranks", "2", "--series", "2", "--profile-steps", "1", *files, *TINY
    )
    return done, found, folder


def test_every_variant_is_timed_on_every_rank(measured):
    """Two series in different orders; each block has both ranks and each step's reading."""
    done, found, _ = measured
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = found["series"]
    assert first["order"] == balanced(list(WHAT), 0) and second["order"] == balanced(list(WHAT), 1)
    for one in first, second:
        for block in one["blocks"].values():
            assert len(block["rank_ms"]) == 2 and len(block["clock_ms"]) == 2
            assert all(ms > 0 for ms in block["rank_ms"] + block["clock_ms"])
    assert set(found["summary"]) == set(WHAT) and not found["missing"]
    assert found["tokens_per_step"] == 2 * 2 * 1 * 32


def test_phases_are_those_of_the_step(measured):
    """Both micro-steps with load, forward and backward inside; the wait only where one is."""
    _, found, _ = measured
    for name, phases in found["phases"].items():
        inside = {path.removeprefix("step > ") for path in phases}
        for micro in ("micro_step_0", "micro_step_1"):
            parts = {f"{micro} > {part}" for part in ("load", "forward", "backward")}
            assert {micro} | parts <= inside
        assert {"all_reduce", "clip_grad", "optimizer"} <= inside
        assert ("wait" in inside) == (name not in ("P", "U"))


def test_tables_and_picture_are_written(measured):
    """The Markdown is what was printed; the charts are drawn."""
    done, _, folder = measured
    text = (folder / "clock.md").read_text()
    assert text in done.stdout and "not measured on a CPU" in text
    assert (folder / "clock.svg").read_text().count("<path") > 36


def test_a_group_that_dies_is_no_result(tmp_path):
    """A bad parameter ends the ranks: exit status 1, the reason last, an older result untouched."""
    (tmp_path / "clock.json").write_text('{"older": 1}')
    done, found = run(tmp_path, "--ranks", "1", "size=huge")
    assert done.returncode == 1 and found == {"older": 1}
    *_, fault, missing = done.stderr.splitlines()
    assert fault.startswith("MISSING: torchrun ended with status 1: ")
    assert "size is 'huge'" in fault and missing == "MISSING: no series was finished"


def test_a_parameter_without_a_value_is_refused(tmp_path):
    """A usage error, and nothing is started."""
    done, found = run(tmp_path, "--ranks", "1", "size")
    assert (done.returncode, found) == (2, {}) and "'size'" in done.stderr


def test_too_few_gpus_are_refused_at_once(tmp_path):
    """More GPUs than there are: one line, and nothing is started."""
    command = [sys.executable, "-m", "studies.unsynced_clock.measure", "--gpus", "4096"]
    command += ["--out", str(tmp_path / "x.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG_S)
    assert done.returncode == 1 and "4096 GPUs are wanted" in done.stderr
    assert not (tmp_path / "x.json").exists()
