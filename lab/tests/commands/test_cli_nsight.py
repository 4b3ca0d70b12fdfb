"""python -m stepguard nsys, ncu and analyze, with tools that record how they are called."""

import json
import shlex
import sqlite3
from pathlib import Path

import pytest
from kineto import Kineto
from trace_exports import export

from stepguard_lab import nsight
from stepguard_lab.profilers import for_nsight

TESTS = Path(__file__).resolve().parents[3] / "tests"
NCU = """"ID","Kernel Name","Block Size","Grid Size","gpu__time_duration.sum",\
"sm__throughput.avg.pct_of_peak_sustained_elapsed",\
"gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
"","","","","us","%","%"
"0","flash_bwd","(128, 1, 1)","(768, 1, 1)","1450.0","41.0","45.5"
"""
FAKE = """#!/usr/bin/env python3
import json, os, sys
with open("calls.jsonl", "a") as file:
    file.write(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]) + "\\n")
here = os.path.dirname(sys.argv[0])
for option in sys.argv:
    if option.startswith("--log-file="):
        open(option.partition("=")[2], "w").write(open(here + "/ncu.csv").read())
    if option.startswith("--output=") and "export" in sys.argv:
        os.symlink(here + "/export.sqlite", option.partition("=")[2])
sys.exit(int(os.environ.get("FAKE_STATUS", "0")))
"""


@pytest.fixture
def tools(shell, monkeypatch, tmp_path):
    """The command line in a folder with a workload, and fake tools on the PATH; their calls."""
    (tmp_path / "bin").mkdir()
    for name in ("nsys", "ncu"):
        (tmp_path / "bin" / name).write_text(FAKE)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "bin" / "ncu.csv").write_text(NCU)
    (tmp_path / "w.py").write_text("def f(batch=1, *, device):\n    pass\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(nsight, "visible_gpus", lambda: [])

    def call(*arguments, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        done = shell(*arguments)
        calls = tmp_path / "calls.jsonl"
        done.calls = [json.loads(line) for line in calls.read_text().splitlines()] if (
            calls.exists()
        ) else []  # fmt: skip
        return done

    return call


def test_ncu(tools):
    """The kernels asked for, between the marks, with the clocks left alone; a table and advice."""
    done = tools("ncu", "w:f", "batch=4", "--kernel", "flash", "--phase", "backward")
    assert done.status == 0, done.err
    (call,) = done.calls
    assert call[0] == "ncu"
    for option in ("--clock-control=none", "--profile-from-start=off", "--csv", "--page=raw",
                   "--kernel-name=regex:flash", "--nvtx-include", "backward/"):  # fmt: skip
        assert option in call
    run = json.loads(call[-1])
    assert call[-2] == for_nsight.__name__
    case = {"workload": "w:f", "params": {"batch": 4}, "device": "cuda", "world_size": 1}
    assert run == {"case": case} | {
        "warmup": 5,
        "steps": 1,
        "one_thread": True,
    }
    assert "flash_bwd" in done.out and "bound by latency" in done.out.replace("\n   ", " ")


def test_nsys_records_exports_and_tabulates(tools, tmp_path):
    """Three commands; what the export holds is the page of a trace."""
    with sqlite3.connect(tmp_path / "bin" / "export.sqlite") as file:
        export().backup(file)
    done = tools("nsys", "w:f", "--gpus", "2", "--steps", "3")
    assert done.status == 0, done.err
    assert [call[1] for call in done.calls] == ["profile", "export", "stats"]
    record = done.calls[0]
    for option in ("--capture-range=cudaProfilerApi", "--trace=cuda,nvtx,cublas,cudnn",
                   "--nproc-per-node=2"):  # fmt: skip
        assert option in record
    assert json.loads(record[-1])["steps"] == 3
    assert not any("--pytorch" in option for option in record)
    assert "NVIDIA H100" in done.out and "Worth a measurement" in done.out


def test_torchrun_starts_one_rank_that_needs_it(tools):
    """A script that makes a process group, also on one GPU."""
    Path("train.py").write_text("")
    done = tools("nsys", "--torchrun", "--print", "--", "train.py")
    assert "--nproc-per-node=1" in done.out


def test_nsys_has_operators_where_that_is_asked_for(tools):
    """As ranges with shapes, which nsys makes itself."""
    done = tools("nsys", "w:f", "--shapes", "--print")
    assert "--pytorch=autograd-shapes-nvtx" in done.out.splitlines()[1]


def test_no_kernel_of_that_name(tools, tmp_path):
    """What ncu wrote instead of a table is no table of nsys."""
    (tmp_path / "bin" / "ncu.csv").write_text("==WARNING== No kernels were profiled.\n")
    done = tools("ncu", "w:f", "--kernel", "x", "--phase", "y")
    assert done.status == 1
    assert "no kernel of the name asked for, or none of them in the range asked for" in done.err


def test_the_command_alone(tools):
    """Nothing runs, and nothing has to be installed; what is shown can be pasted."""
    done = tools("ncu", "w:f", "--kernel", "a b", "--print", PATH="/nowhere")
    assert done.status == 0 and not done.calls
    path, command = done.out.splitlines()
    assert path.startswith("export PYTHONPATH=")
    assert "--kernel-name=regex:a b" in shlex.split(command)


@pytest.mark.parametrize("arguments, environment, status, problem", [
    (["nsys", "w:f"], {"PATH": "/nowhere"}, 2, "nsys is not installed; it comes with Nsight"),
    (["ncu", "w:f", "--kernel", "x"], {"PATH": "/nowhere"}, 2, "ncu is not installed"),
    (["nsys", "w:f", "device=cpu"], {}, 2, "nsys looks at a GPU"),
    (["nsys", "w:f", "--steps", "0"], {}, 2, "at least 1"),
    (["ncu", "w:f", "--kernel", "x"], {"FAKE_STATUS": "9"}, 1, "ERR_NVGPUCTRPERM"),
    (["nsys", "w:f"], {"FAKE_STATUS": "3"}, 1, "nsys ended with status 3"),
])  # fmt: skip
def test_what_cannot_be(tools, arguments, environment, status, problem):
    """One sentence that says what to do."""
    done = tools(*arguments, **environment)
    assert done.status == status and problem in done.err


def test_a_folder_of_all_kinds_is_one_report(shell, tmp_path):
    """Traces, and tables; what follows from each."""
    trace = Kineto(deviceProperties=[{"name": "NVIDIA H200"}])
    for number in range(3):
        began = 1000.0 * number
        trace.step(number, began, began + 999)
        trace.kernel(began + 500, began + 510, began + 900)
    (tmp_path / "rank0.json").write_bytes(trace.text())
    (tmp_path / "k.csv").write_text(NCU)
    done = shell("analyze", str(tmp_path))
    assert done.status == 0, done.err
    assert "rank0.json: " in done.out and "flash_bwd" in done.out
    assert "launch-bound" in done.out and "\n2. " in done.out
    (tmp_path / "empty").mkdir()
    done = shell("analyze", str(tmp_path / "empty"))
    assert done.status == 1 and "no trace" in done.err


def test_our_worker_refuses_what_is_no_workload(monkeypatch):
    """In a sentence, as everywhere; a sound one runs its steps."""
    monkeypatch.syspath_prepend(str(TESTS))
    case = {"workload": "factories:linear", "params": {"n": 4}, "device": "cpu", "world_size": 1}
    run = {"case": case, "warmup": 2, "steps": 1}
    monkeypatch.setattr("sys.argv", ["alone", json.dumps(run)])
    assert for_nsight.main() == ""
    monkeypatch.setattr(
        "sys.argv", ["alone", json.dumps(run | {"case": case | {"params": {"m": 4}}})]
    )
    assert "unexpected keyword" in for_nsight.main()
