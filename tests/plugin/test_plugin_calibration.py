"""A machine's calibration in a run: what judges by it, what is said of it, what is not trusted."""

import json
import subprocess

import pytest

from stepguard.judge.ab.calibration import CalibratedCase
from stepguard.judge.ab.decision import wants_another_pair, wants_every_pair
from stepguard.measure.pair_run import PAIR_TIMINGS
from stepguard.storage import calibrations

OTHER = "--perf-against=old"
FILE = "baselines/calibration/h200x1.json"


def a_case(gate, h200, pct=0.0, **calibrated):
    """A GPU case in a repository with the tag "old", one commit behind, calibrated if so said."""
    gate.gpus = [h200]
    case = gate.cuda()
    gate.suite(case)
    if calibrated:
        software = gate.evidence(case).software_key()
        fields = {
            "case": case.as_dict(),
            "date": "2030-01-01T00:00:00+00:00",
            "commit": "a" * 40,
            "device_uuid": h200.uuid,
            "driver": h200.driver,
            "software": software,
            "timing": PAIR_TIMINGS["cuda"].as_dict(),
            "pairs": 24,
            "sd_pct": 0.1,
            "seconds_a_pair": 30.0,
        }
        entry = CalibratedCase(**fields | calibrated)
        calibrations.put(gate.path / FILE, h200.name, case.id, entry)
    gate.commit(tag="old")
    gate.commit()
    gate.will_compare(case, pct)
    return case


def test_without_a_calibration(gate, h200):
    """The verdict says that the machine was not calibrated."""
    a_case(gate, h200, 2.0)
    result = gate.run(OTHER)
    result.says("*margins 0.2 and 0.5 % (not calibrated); smallest*")


def test_a_quiet_machine(gate, h200):
    """Its own noise is the prior, and the run says so although the case is `same`."""
    a_case(gate, h200, sd_pct=0.06)
    result = gate.run(OTHER)
    assert result.ret == 0
    line = "linear?124m? against *margins 0.2 and 0.5 % (calibrated 2030-01-01: pair sd 0.06 % *"
    result.says(line)
    (path,) = (gate.path / ".stepguard/runs").glob("*/*/comparison.json")
    assert json.loads(path.read_text())["prior"] == {"sd_pct": 0.06, "degrees": 4.0}


@pytest.mark.parametrize("pct", [0.0, 3.0, -3.0])
def test_a_noisy_machine(gate, h200, pct):
    """`same`, SLOWER and FASTER alike say that the margins are wider, and why."""
    a_case(gate, h200, pct, sd_pct=1.0)
    result = gate.run(OTHER, "--perf-json=run.json")
    result.says("*margins 0.2 and 1.29 % (widened from 0.2 and 0.5 %, which 24*")
    (found,) = json.loads((gate.path / "run.json").read_text())["results"]
    assert "margins 0.2 and 1.29 % (widened from 0.2 and 0.5 %" in json.dumps(found)


def test_a_stale_calibration_is_reported(gate, h200):
    """It has no say, though it would pass what the defaults pass; the run says what to do."""
    a_case(gate, h200, sd_pct=1.0, software={"torch": "1.0"})
    result = gate.run(OTHER)
    assert result.ret == 0
    result.says(
        "*margins 0.2 and 0.5 % (calibration of 2030-01-01 ignored, *"
        "pytest perf_tests --perf-against=HEAD --perf-select='linear[[]124m]', then "
        "* -m stepguard calibrate 'linear[[]124m]')*"
    )


def test_what_mends_a_stale_calibration_in_another_folder(gate, h200):
    """Its commands are about that folder: in the usual one nothing would read what they write."""
    a_case(gate, h200, sd_pct=1.0, software={"torch": "1.0"})
    gate.git("mv", "baselines", "else where")
    gate.run(OTHER, "--perf-baselines=else where").says(
        "*(calibration of 2030-01-01 ignored, *pytest perf_tests --perf-baselines='else where' "
        "--perf-against=HEAD --perf-select='linear[[]124m]', then "
        "* -m stepguard calibrate 'linear[[]124m]' --baselines 'else where')*"
    )


def test_head_with_itself_is_measured_to_the_end(gate, h200):
    """Nothing is decided early where both sides are one commit: its pairs are a calibration. With a
    change that is not committed HEAD is other code, and another revision always is.
    """
    a_case(gate, h200)
    assert gate.run("--perf-against=HEAD").ret == 0
    assert gate.wants_another is wants_every_pair
    assert gate.run(OTHER).ret == 0
    assert gate.wants_another is wants_another_pair
    (gate.path / "work.py").write_text("")
    gate.run("--perf-against=HEAD")
    assert gate.paired and gate.wants_another is wants_another_pair


def test_a_confirmation_judges_by_it(gate, h200):
    """What a stored baseline calls SLOWER is judged on the spot by the same rule."""
    case = a_case(gate, h200, 10.0, sd_pct=1.0)
    gate.will_measure(case, commit=gate.git("rev-parse", "HEAD~1").strip())
    gate.record(case)
    gate.will_measure(case, step_ms=11.0)
    result = gate.run(failed=1)
    result.says("*confirmed, the code is SLOWER: *margins 0.2 and 1.29 % (widened from*")


def test_a_case_without_an_entry(gate, h200):
    """The file is another case's: this one is judged as if there were none."""
    a_case(gate, h200, 2.0, sd_pct=1.0)
    path = gate.path / FILE
    path.write_text(path.read_text().replace('"linear[124m]"', '"linear[350m]"'))
    gate.run(OTHER).says("*margins 0.2 and 0.5 % (not calibrated)*")


def test_a_file_that_cannot_be_trusted(gate, h200):
    """A usage error before anything is measured, with the remedy."""
    a_case(gate, h200, sd_pct=1.0)
    (gate.path / FILE).write_text("{")
    result = gate.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{FILE}*git checkout*"])
    assert gate.measured == [] and gate.paired == []


def test_another_machines_file(gate, h200):
    """BROKEN, not quietly the defaults: somebody moved a file."""
    a_case(gate, h200, sd_pct=1.0)
    path = gate.path / FILE
    path.write_text(path.read_text().replace('"NVIDIA H200"', '"NVIDIA H100"'))
    result = gate.run(OTHER, errors=1)
    result.says("*holds figures of 'NVIDIA H100', not of 'NVIDIA H200'*")
    assert gate.paired == []


def test_a_calibration_can_be_recorded_beside(gate, h200):
    """A new calibration file does not make the tree dirty, so that --perf-update still records."""
    case = a_case(gate, h200)
    (gate.path / FILE).parent.mkdir(exist_ok=True)
    (gate.path / FILE).write_text('{"cases": {}, "machine": "NVIDIA H200", "schema": 2}\n')
    assert gate.git("status", "--porcelain", "-uall").split() == ["??", FILE]
    result = gate.run("--perf-update")
    assert result.ret == 0, subprocess.list2cmdline(result.outlines)
    assert case.id in (gate.path / "baselines/h200x1.json").read_text()
