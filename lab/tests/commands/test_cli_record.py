"""python -m stepguard record-traces: files that the command trace and Perfetto read."""

import gzip
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from short_launches import be_patient

from stepguard import Case
from stepguard.cli.main import main
from stepguard.core.evidence import Fault
from stepguard.core.reasons import Reason
from stepguard.launch.diagnosis import LaunchFailed
from stepguard_lab.profilers.record_trace import counters
from stepguard_lab.record_traces import ask, plan

ROOT = Path(__file__).resolve().parents[3]


def test_two_ranks_on_a_cpu(tmp_path, capsys, monkeypatch):
    """A file a rank, with phases, flows, a counter of memory, lines and shapes; trace reads it."""
    (tmp_path / "factories.py").write_text((ROOT / "tests" / "factories.py").read_text())
    be_patient(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    command = "record-traces factories:linear k=2 backward=true device=cpu --gpus 2 --out"
    status = main([*command.split(), "my t", "--schedule", "1,1,3", "--with-stack", "--shapes"])
    out, err = capsys.readouterr()
    assert status == 0, err
    assert "rank1.json.gz: 3 steps" in out and "profiler: recorded steps" in err
    assert "python -m stepguard trace 'my t'\n" in out
    events = json.loads(gzip.decompress(Path("my t/rank1.json.gz").read_bytes()))["traceEvents"]
    names = {event["name"] for event in events}
    assert {"ProfilerStep#2", "ProfilerStep#4", "forward", "backward", "aten::mm"} <= names
    assert "ProfilerStep#1" not in names  # the profiler's warm-up
    assert {"X", "C", "s", "f"} <= {event["ph"] for event in events}
    assert any(event.get("cat") == "python_function" for event in events)
    (dims, *_) = [e["args"]["Input Dims"] for e in events if e["name"] == "aten::mm"]
    assert dims == [[32, 32], [32, 32]]
    assert main(["trace", "my t", "--rank", "1"]) == 0
    out = capsys.readouterr().out
    assert "0 of 2" in out and "aten::mm" in out and "backward" in out


@pytest.mark.parametrize("options, problem", [
    (["--with-stack"], "the following arguments are required: --out"),
    (["--out", "x", "--schedule", "1,1"], "write three numbers"),
    (["--out", "x", "--schedule", "1,1,1"], "the last step is left out"),
])  # fmt: skip
def test_options_that_cannot_be(options, problem, shell):
    """Refused before anything runs."""
    done = shell("record-traces", "factories:linear", *options)
    assert done.status == 2 and problem in done.err


@pytest.mark.parametrize("name", ["rank0.json.gz", "other.sqlite"])
def test_a_folder_that_has_traces(shell, name):
    """It may hold the other side of a comparison: refused before anything runs."""
    (shell.path / "before").mkdir()
    (shell.path / "before" / name).write_text("kept")
    done = shell("record-traces", "factories:linear", "device=cpu", "--out", "before")
    told = f"--out before: it has a trace already, {name}, which is kept. Name a new folder"
    assert (done.status, done.out, done.err) == (2, "", f"stepguard: {told}\n")
    assert (shell.path / "before" / name).read_text() == "kept"


def test_a_workload_that_fails(tmp_path, capsys):
    """Its traceback line by line, and what failed in a sentence."""
    fault = Fault(
        Reason.RAISED, "rank 0: ValueError: planted", "Traceback:\n  line 7", "trace launch"
    )

    def fail(case, progress, function, **arguments):
        raise LaunchFailed(fault)

    suite, case = SimpleNamespace(root=tmp_path, ask=fail), Case("x", "w:f", device="cpu")
    with pytest.raises(ValueError, match=r"^f\[x\], trace launch: rank 0: ValueError: planted$"):
        ask(suite, case, "module:function")
    assert "  Traceback:\n    line 7\n" in capsys.readouterr().err


def test_the_plan():
    """Steps before the profiler, its warm-up, recorded ones."""
    assert plan("5,5,4") == (5, 5, 4)


def test_a_counter_of_the_gpu_s_memory():
    """Allocations of the GPU alone, in MiB, with what the allocator has reserved."""
    at = {"ph": "i", "name": "[memory]", "pid": 7, "ts": 1.5}
    used = {"Total Allocated": 2**20, "Total Reserved": 2**21}
    events = [at | {"args": used | {"Device Type": kind}} for kind in (0, 1)]
    (gpu,) = counters([*events, {"name": "aten::mm"}], gpu=True)
    assert (gpu["ph"], gpu["ts"], gpu["args"]) == ("C", 1.5, {"allocated": 1, "reserved": 2})
    (cpu,) = counters(events, gpu=False)
    assert cpu["args"] == {"allocated": 1}
