"""python -m stepguard compare: figures side by side, and sentences that they bear."""

import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from builders import CASE_ID, baseline_file, entry
from kineto import steps
from run_documents import measured, run_document

from stepguard.core.fingerprint import Fingerprint
from stepguard.core.profile import KernelRow, Parts, Profile
from stepguard.report.document_json import as_json

ROOT = Path(__file__).resolve().parents[3]
CASE = "linear[nano]"


def kept(shell, name, factor=1.0, counters=None, case="nano", evidence=None, **fields):
    """A kept evidence under a name of its own, ``factor`` times as slow."""
    made = shell.made(case, counters=counters, **fields)
    (launch,) = made.launches
    (block,) = launch.blocks
    slower = replace(
        block, wall_ms=(40.0 * factor,), events_ms=(40.0 * factor,), step_ms=(10.0 * factor,) * 4
    )
    launches = [replace(launch, index=1, blocks=(slower,))]
    again = replace(block, wall_ms=(40.0 * factor * 1.01,), step_ms=(10.1 * factor,) * 4)
    launches.append(replace(launch, index=2, blocks=(replace(again, events_ms=again.wall_ms),)))
    (path,) = shell.keep(replace(made, launches=tuple(launches), **(evidence or {})))
    path = path.rename(shell.path / f"{name}.json")
    return path.name


def words(text):
    """Return what is said, wherever its lines end."""
    return " ".join(text.split())


def test_two_sides_and_what_differs(shell):
    """Times, counters and software in columns; the ratio beside the scatter of launches."""
    slow = kept(shell, "slow", 1.25, counters={"peak_allocated_bytes": 2**21})
    done = shell("compare", kept(shell, "fast"), slow)
    assert done.status == 0, done.err
    assert done.out.split()[:3] == ["environment", "fast", "slow"]
    rows = {line.split()[0]: line.split()[-2:] for line in done.out.splitlines() if line}
    assert rows["step_ms"] == ["10.050", "12.562"]
    assert (
        f"{CASE}: a step is 25.0 % longer on slow than on fast, outside the 1.0 % by which "
        "launches of one side differ"
    ) in words(done.out)
    assert f"{CASE}: not the same step or software: peak_allocated_bytes differ" in words(done.out)


def test_of_one_launch_a_side_the_scatter_is_not_known(shell):
    """So no ratio is said to be outside of it."""
    sides = [shell.made("nano", launches=shell.made("nano").launches[:1]) for _ in range(2)]
    paths = [shell.keep(side)[0].rename(shell.path / f"{n}.json") for n, side in enumerate(sides)]
    done = shell("compare", *(path.name for path in paths))
    assert "of one launch each: how much launches differ is not known" in words(done.out)


def test_a_ratio_inside_the_scatter_says_so(shell):
    """Half a percent is less than launches differ by."""
    done = shell("compare", kept(shell, "a"), kept(shell, "b", 0.995))
    assert "0.5 % shorter on b than on a, inside the 1.0 %" in words(done.out)
    assert "not the same step" not in done.out and "other " not in done.out


def test_other_parameters_are_not_compared(shell):
    """One name, another step: no ratio is told."""
    done = shell("compare", kept(shell, "a"), kept(shell, "b", 2.0, params={"k": 3}))
    assert f"{CASE}: b ran it with other parameters; its times are not compared" in words(done.out)
    assert "longer" not in done.out


def test_traces_add_kernels_and_calls(shell):
    """A class that has another share is pointed out; waiting is named as what it is."""
    plain, talks = steps(3), steps(3)
    for number in range(4):
        talks.kernel(number * 1000 + 5, number * 1000 + 30, number * 1000 + 530, "ncclDevKernel")
        talks.call("cudaDeviceSynchronize", number * 1000 + 600, 300.0)
    for name, trace in (("p", plain), ("t", talks)):
        (shell.path / f"{name}.trace").write_bytes(trace.text())
    files = [kept(shell, "a"), kept(shell, "b")]
    done = shell("compare", *files, "--trace", "p.trace", "--trace", "t.trace")
    assert done.status == 0, done.err
    assert "kernels of trace, ms a step and % of kernels" in done.out
    assert "trace: kernels of communication take 0.50 ms a step more on b than on a" in words(
        done.out
    )
    assert "b: 99." in done.out and "is waiting, which a host that is ahead" in words(done.out)
    done = shell("compare", *files, "--trace", "p.trace")
    assert done.status == 2 and "--trace: 1 traces for 2 files; one for each" in done.err


def test_recordings_with_profiles_are_compared_by_class(shell):
    """What two machines' kernels take, idle time, and which class makes the difference."""
    for name, us in (("a", 9000.0), ("b", 4500.0)):
        both = (10_000.0, 10_000.0)
        idle = tuple(10_000.0 - us for _ in both)
        rows = tuple(
            KernelRow(kind, kind, kind, "forward", (1.0, 1.0), (length,) * 2, (1,), (32,))
            for kind, length in (("GEMM", us - 100.0), ("elementwise", 100.0))
        )
        parts = Parts(both, (us, us), (0.0, 0.0), (0.0, 0.0), idle)
        profile = Profile("H100", 1, parts, rows, ())
        counts = replace(shell.made().counts, profile=profile)
        kept(shell, name, us / 9000.0, evidence={"counts": counts})
    done = shell("compare", "a.json", "b.json")
    assert done.status == 0, done.err
    rows = [line.split() for line in done.out.splitlines()]
    assert ["GEMM", "8.90", "98.9", "%", "4.40", "97.8", "%"] in rows
    assert ["GPU", "idle,", "%", "of", "a", "step", "10.0", "%", "55.0", "%"] in rows
    assert f"{CASE}: kernels of GEMM take 4.50 ms a step less on b than on a: 4.40 and" in words(
        done.out
    )
    assert "kernels of elementwise" not in done.out


def test_the_committed_baselines_are_compared(capsys):
    """Of an H100 and an H200: as the documentation has it; cases of one side alone are counted."""
    from stepguard.cli import main as cli

    files = [str(ROOT / "baselines" / f"{n}.json") for n in ("h100-80gb-hbm3x1", "h200x1")]
    assert cli.main(["compare", *files]) == 0
    said = words(capsys.readouterr().out)
    assert "of h200x1 alone, beside h100-80gb-hbm3x1: attention[cudnn-bf16], " in said


def test_two_cards_of_one_file_are_compared(tmp_path, capsys):
    """Two hosts of one kind: the newest recording of each card, and only cases that both have."""
    from stepguard.cli import main as cli

    content = json.loads((ROOT / "baselines" / "h200x1.json").read_text())
    recordings = content["cases"]["train_step[124m-bf16]"]["epochs"][-1]["recordings"]
    slower = [1.1 * ms for ms in recordings[-1]["times_ms"]["step_ms"]]
    times = recordings[-1]["times_ms"] | {"step_ms": slower}
    recordings.append(recordings[-1] | {"device_uuid": "GPU-0beef", "times_ms": times})
    (tmp_path / "h200x1.json").write_text(json.dumps(content))
    path, first = tmp_path / "h200x1.json", recordings[-2]["device_uuid"][:12]
    assert cli.main(["compare", f"{path}:{first}", f"{path}:GPU-0beef"]) == 0
    said = capsys.readouterr().out
    assert f"a step is 10.0 % longer on h200x1 GPU-0beef than on h200x1 {first}" in words(said)
    assert "\nforward[" not in said  # neither a table of it nor a sentence
    assert cli.main(["compare", f"{path}:{first}", f"{path}:GPU-nowhere"]) == 1
    assert "no recording of GPU-nowhere at a newest level, but of GPU-" in capsys.readouterr().err


@pytest.mark.parametrize(("content", "message"), [
    (None, "No such file"),
    ("{", "an evidence.json"),
    ("[1]", "x.json: "),
    ('{"case_id": 3}', "x.json"),
    ('{"results": []}', "x.json"),
    ("[" * 100_000, "x.json: no JSON (maximum recursion"),
])  # fmt: skip
def test_what_is_none_of_the_three_is_refused(shell, content, message):
    """By name, in one line."""
    if content is not None:
        (shell.path / "x.json").write_text(content)
    done = shell("compare", kept(shell, "a"), "x.json")
    assert done.status == 1 and message in done.err and done.err.count("\n") == 1


def test_a_device_is_no_file_to_compare(shell):
    """It might never end."""
    (shell.path / "x.json").symlink_to("/dev/zero")
    done = shell("compare", kept(shell, "a"), "x.json")
    assert done.status == 1 and "x.json: cannot be read: it is not a regular file" in done.err


def test_files_without_a_case_in_common_are_refused(shell):
    """Nothing is compared, and two cases of each file are named; one file is bad usage."""
    files = [str(ROOT / "baselines" / f"{name}.json") for name in ("h200x1", "h200x2")]
    assert re.search(r": h200x1: [^,]+, [^,]+ and \d+ more; h200x2: ", shell("compare", *files).err)
    done = shell("compare", kept(shell, "a"), kept(shell, "b", case="other"))
    assert done.status == 1
    assert "no case is in all files: a: linear[nano]; b: linear[other]" in done.err
    assert shell("compare", "a.json").status == 2
    assert shell("compare", "a.json", "a.json").status == 2


def test_documents_of_runs_are_compared(shell):
    """What --perf-json wrote is enough: on another machine its evidence is not there."""
    for name, machine in (("a", "NVIDIA H100 80GB HBM3"), ("b", "NVIDIA H200")):
        found = run_document(measured(entry()), machine=machine)
        (shell.path / f"{name}.json").write_text(as_json(found))
    done = shell("compare", "a.json", "b.json")
    assert done.status == 0, done.err
    assert re.search("NVIDIA H100 80GB HBM3 +NVIDIA H200", done.out)
    assert "train_step[124m-bf16]: a step is 0.0 % shorter on b than on a, inside" in words(
        done.out
    )


def test_what_one_side_does_not_know_is_no_difference(shell):
    """A document has no architecture and no torch, that of a CPU no driver either."""
    document = run_document(measured(entry()), machine="NVIDIA H200", commit="b" * 40, gpus=[])
    (shell.path / "p.json").write_text(as_json(document))
    content = baseline_file(cases={CASE_ID: entry()})
    (shell.path / "h200x1.json").write_bytes(msgspec.json.encode(content))
    done = shell("compare", "p.json", "h200x1.json")
    assert done.status == 0, done.err
    assert "h200x1: other commit than p" in words(done.out)


def test_what_was_set_on_one_side_alone_is_a_difference(shell):
    """Of an evidence all software is known; a commit that it has not is none to differ from."""
    steered = Fingerprint("x86_64", "", torch="2.13.0", environment={"CUBLAS_X": "1"})
    files = [kept(shell, "a", commit=""), kept(shell, "b", evidence={"fingerprint": steered})]
    for first, other in (files, files[::-1]):
        done = shell("compare", first, other)
        assert f"{other[0]}: other environment than {first[0]}" in words(done.out), done.err
