"""python -m stepguard trace: anyone's trace, on a page of 80 columns."""

import csv
import errno
import json
import os
import re
import sqlite3
from contextlib import closing
from xml.etree import ElementTree

import pytest
from kineto import COMMS, Kineto, host_steps
from trace_exports import export

from stepguard.cli.main import main
from stepguard.storage import run_document_file


def write(path, rank=0, late=0.0, sync=False, **head):
    """A trace of three marked steps in a file; its GPU begins ``late`` us later."""
    trace = Kineto(**{"deviceProperties": [{"name": "NVIDIA H200"}], **head})
    trace.head["distributedInfo"] = {"rank": rank, "world_size": 2}
    for number in range(3):
        began = 1000 * number
        trace.step(number, began, began + 999)
        trace.annotation("forward", began + 3, began + 60)
        name = f"nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_NNT_{'x' * 90}"
        trace.kernel(began + 5, began + 100 + late, began + 500 + late, name=name)
        trace.kernel(began + 6, began + 400, began + 700, name="ncclDevKernel", stream=COMMS)
        trace.copy(began + 7, began + 650, began + 800)
        if sync:
            trace.call("cudaDeviceSynchronize", began + 300, 505)
            trace.kernel(began + 820, began + 830, began + 840)
    path.write_bytes(trace.text())
    return str(path)


def run(capsys, *arguments):
    """Exit status, output and errors of the command."""
    status = main(["trace", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert all(len(line) <= 80 for line in out.splitlines()), out
    return status, out, err


def test_one_rank(tmp_path, capsys):
    """The parts sum up to the step; the wait is named; nothing is wider than 80 columns."""
    status, out, _ = run(capsys, write(tmp_path / "a.json", sync=True))
    assert status == 0
    assert "a.json: rank 0 of 2, NVIDIA H200, 2 of 3 steps" in out
    rows = re.findall(r"^(compute|exposed \w+|idle|step) +([\d.]+)", out, re.MULTILINE)
    figures = {name: float(value) for name, value in rows}
    assert figures.pop("step") == pytest.approx(sum(figures.values())) == 1.0
    assert figures["compute"] == 0.41
    assert re.search(r"sync +0\.030 +3\.00 +1 +cudaDeviceSynchronize", out)


def test_several_ranks(tmp_path, capsys):
    """A row for each rank, whatever the order of files; the details are of the one asked for."""
    files = [write(tmp_path / f"{rank}.json", rank, late=10.0 * rank) for rank in (1, 0)]
    status, out, _ = run(capsys, *files)
    assert status == 0 and re.search(r"\nrank 0 +1\.000 .*\nrank 1 +1\.000 ", out)
    assert "Below: rank 0" in out
    assert "Below: rank 1" in run(capsys, *files, "--rank", 1)[1]
    status, _, err = run(capsys, *files, "--rank", 2)
    assert (status, err) == (2, "stepguard: --rank 2: the files have 0, 1\n")


def test_the_width_is_that_of_the_terminal(tmp_path, capsys, monkeypatch):
    """As COLUMNS says: kernels' names in full, or cut; a phase keeps its end."""
    trace, name = Kineto(), f"nvjet_{'x' * 70}"
    for number in range(3):
        trace.step(number, 1000 * number, 1000 * number + 999)
        for depth in range(5):
            trace.annotation(f"block_{depth}", 1000 * number + depth, 1000 * number + 90 - depth)
        trace.kernel(1000 * number + 8, 1000 * number + 100, 1000 * number + 500, name=name)
    (tmp_path / "a.json").write_bytes(trace.text())
    pages = {}
    for width in (66, 80, 130):
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["trace", str(tmp_path / "a.json")]) == 0
        pages[width] = capsys.readouterr().out
        assert max(map(len, pages[width].splitlines())) <= width
    path = "/".join(f"block_{depth}" for depth in range(5))
    assert name in pages[130] and path in pages[130]
    assert name not in pages[80] and f"{path} " not in pages[66] and "ock_3/block_4 " in pages[66]


def test_processes_of_one_file_are_named_once(tmp_path, capsys):
    """An export of nsys with two processes: a line for both, a row for each."""
    path = tmp_path / "r.sqlite"
    with closing(sqlite3.connect(path)) as file:
        export(second=True).backup(file)
    _, out, _ = run(capsys, path)
    assert "\nr.sqlite: ranks 0, 1, NVIDIA H100, 2 of 3 steps\n" in f"\n{out}"
    assert out.count("rank 0") == 2 and out.count("r.sqlite") == out.count("rank 1") == 1


def test_no_figure_is_less_than_nothing(tmp_path, capsys):
    """Nor is a gap that is not in every step 0 gaps beside its time."""
    trace = Kineto()
    for number in range(4):
        began = 1000 * number
        trace.step(number, began, began + 999)
        trace.kernel(began + 5, began + 100, began + 1100 - 30 * (number == 1))
        trace.kernel(began + 7, began + 100.1, began + 900.3, name="ncclDevKernel", stream=COMMS)
    (tmp_path / "a.json").write_bytes(trace.text())
    _, out, _ = run(capsys, tmp_path / "a.json")
    assert "-0.0" not in out
    assert re.search(r"\n(host late|between kernels) +0\.010 +1\.\d\d +0\.33\b", out)


def test_one_kernel_is_one_row_where_that_is_asked_for(tmp_path, capsys):
    """Whatever its launch shapes and phases: calls and times of a step are summed."""
    trace, table = Kineto(), tmp_path / "k.csv"
    for number in range(3):
        began = 1000 * number
        trace.step(number, began, began + 999)
        trace.annotation("forward", began + 3, began + 20)
        trace.kernel(began + 5, began + 100, began + 500, grid=[1, 1, 1])
        trace.kernel(began + 6, began + 500, began + 550, grid=[2, 1, 1])
        trace.kernel(began + 30, began + 600, began + 650)
        trace.kernel(began + 31, began + 700, began + 710, name="other")
    (tmp_path / "a.json").write_bytes(trace.text())
    _, out, _ = run(capsys, tmp_path / "a.json", "--by-name", "--csv", table)
    assert re.search(r"\ntop 2 kernels.*\ngemm +0\.500 +0\.000 +3 +166\.7\nother ", out)
    rows = {row["kernel"]: row for row in csv.DictReader(table.open())}
    assert len(rows) == 2 and float(rows["gemm"]["us_per_step"]) == 500
    _, out, _ = run(capsys, tmp_path / "a.json")
    assert "top 4 kernels" in out


@pytest.mark.parametrize(
    ("forward", "backward"), [("fmha", "fmha"), ("flash_fwd_kernel", "flash_bwd_dq_kernel")]
)
def test_attention_is_forward_and_backward(forward, backward, tmp_path, capsys):
    """By phase, or by name; and as a whole where only one of them is there."""
    trace = Kineto()
    for number in range(3):
        began = 1000 * number
        trace.step(number, began, began + 999)
        trace.kernel(began + 5, began + 100, began + 300, name=forward)
        if forward == backward:
            trace.annotation("backward", began + 8, began + 20)
        trace.kernel(began + 9, began + 300, began + 900, name=backward)
    (tmp_path / "a.json").write_bytes(trace.text())
    _, out, _ = run(capsys, tmp_path / "a.json")
    rows = [r"attention +0\.800 +100\.0 +2", r"  forward +0\.200 +25\.0 +1"]
    assert re.search("\n".join([*rows, r"  backward +0\.600 +75\.0 +1"]), out)
    one = trace.text().replace(backward.encode(), b"elementwise_kernel")
    (tmp_path / "a.json").write_bytes(one.replace(forward.encode(), b"fmha_fwd"))
    assert "  forward" not in run(capsys, tmp_path / "a.json")[1]


def test_everything_as_json_and_kernels_as_csv(tmp_path, capsys):
    """The same figures for programs; a row of the table has calls, time and scatter."""
    file = write(tmp_path / "a.json")
    to = [tmp_path / "out.json", tmp_path / "out.csv"]
    assert run(capsys, file, "--json", to[0], "--csv", to[1])[0] == 0
    (rank,) = json.loads(to[0].read_text())["ranks"]
    assert main(["trace", str(file), "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["ranks"] == [rank]
    assert rank["profile"]["parts"]["step_us"] == [1000, 1000]
    rows = {row["kernel"]: row for row in csv.DictReader(to[1].open())}
    assert rows["ncclDevKernel"]["class"] == "communication"
    assert float(rows["ncclDevKernel"]["us_per_step"]) == 300
    assert float(rows["ncclDevKernel"]["us_sd_per_step"]) == 0
    work = [rows["ncclDevKernel"][f"{name}_per_launch"] for name in ("flops", "bytes")]
    assert work == ["", ""], "it is not known without shapes"


def test_rules_and_marks_of_the_user(tmp_path, capsys):
    """Classes from a file; another annotation that marks steps."""
    file, rules = write(tmp_path / "a.json"), tmp_path / "rules.toml"
    rules.write_text("[[kernel]]\nclass = 'my own'\npattern = 'nvjet'")
    out = run(capsys, file, "--classes", rules, "--step", "^forward$")[1]
    assert "my own" in out and "2 of 3 steps" in out


def test_a_step_that_no_file_has(tmp_path, capsys):
    """Refused, on a GPU, a CPU and either side, with what could mark steps: the whole file is not
    what was asked for.
    """
    gpu, cpu, other = write(tmp_path / "a.json"), tmp_path / "b.json", tmp_path / "c.json"
    cpu.write_bytes(host_steps(3).text())
    other.write_bytes((tmp_path / "a.json").read_bytes().replace(b"forward", b"eval"))
    for path, has in ((gpu, "ProfilerStep#N, forward"), (cpu, "ProfilerStep#N")):
        status, out, err = run(capsys, path, "--step", "foo")
        told = f"--step 'foo': no annotation of {path} matches; it has {has}"
        assert (status, out, err) == (2, "", f"stepguard: {told}\n")
    for files in ([gpu, "--against", other], [other, "--against", gpu]):
        status, _, err = run(capsys, *files, "--step", "eval")
        assert status == 2 and f"no annotation of {gpu} matches" in err


@pytest.mark.parametrize(
    "text, words",
    [(b"", "no list"), (b'{"traceEvents": [{"ph"', "cut off"), (None, "No such file")],
)
def test_a_file_that_cannot_be_read(tmp_path, capsys, text, words):
    """One sentence, which names the file."""
    path = tmp_path / "bad.json"
    if text is not None:
        path.write_bytes(text)
    status, out, err = run(capsys, path)
    assert (status, out) == (1, "")
    assert err.startswith(f"stepguard: {path}: ") and words in err and err.count("\n") == 1


def test_a_pipe_cannot_be_read_twice(capsys):
    """As of `trace <(...)`: what it was given, and what it needs."""
    reader, writer = os.pipe()
    os.write(writer, b'{"traceEvents": []}')
    os.close(writer)
    status, _, err = run(capsys, f"/dev/fd/{reader}")
    os.close(reader)
    assert (status, err) == (1, f"stepguard: /dev/fd/{reader}: give a file, not a pipe\n")


def test_files_of_runs_of_other_sizes(tmp_path, capsys):
    """A rank of two and a run of one are no ranks of one run, though their numbers differ."""
    one = write(tmp_path / "a.json", rank=1)
    (tmp_path / "b.json").write_bytes(host_steps(3).text())
    for files in ([one, tmp_path / "b.json"], [tmp_path]):
        status, out, err = run(capsys, *files)
        assert (status, out) == (1, "")
        told = f"{tmp_path}/b.json: its run has 1 rank, and that of {one} 2; two runs: name"
        assert err.startswith(f"stepguard: {told}")


@pytest.mark.parametrize("option", [["--step", "("], ["--classes", "nowhere.toml"]])
def test_a_wrong_option_is_a_usage_error(tmp_path, capsys, option):
    """Exit status 2 and the option."""
    status, _, err = run(capsys, write(tmp_path / "a.json"), *option)
    assert status == 2 and option[0] in err


def test_a_difference_is_explained(tmp_path, capsys):
    """The planted sync comes first, the sum closes, and the counts are said."""
    files = [write(tmp_path / "new.json", sync=True), "--against", write(tmp_path / "old.json")]
    status, out, _ = run(capsys, *files, "--json", tmp_path / "out.json")
    assert status == 0
    first = next(line for line in out.splitlines() if " ms  " in line)
    assert first.startswith("  +0.030 ms  GPU idle, sync: cudaDeviceSynchronize, 0 -> 1 gaps")
    assert "cudaDeviceSynchronize 0 -> 1" in out
    found = json.loads((tmp_path / "out.json").read_text())["explanation"]
    total = sum(cause["us"] for cause in found["causes"]) + found["scatter_us"]
    assert total == pytest.approx(found["after_us"] - found["before_us"], abs=1e-6)


def test_files_without_marks_may_have_recorded_more(tmp_path, capsys):
    """A whole file counts as one step: the page says so before it explains the difference."""
    marked = write(tmp_path / "marked.json")
    for name, count in (("short", 3), ("long", 6)):
        trace = Kineto()
        for at in range(count):
            trace.kernel(100 * at, 100 * at + 20, 100 * at + 70)
        (tmp_path / name).write_bytes(trace.text())
    _, out, _ = run(capsys, tmp_path / "long", "--against", tmp_path / "short")
    assert out.startswith("Nothing marks steps in FILE and --against: a whole file counts as one")
    assert "All differences, the largest first:" in out and "within what the steps" not in out
    _, out, _ = run(capsys, marked, "--against", marked)
    assert "Nothing marks steps" not in out and "All differences" not in out


def test_what_cannot_be_compared_is_an_error(tmp_path, capsys):
    """Exit status 1 with the reason; other ranks are a mistake in the command."""
    other = write(tmp_path / "b.json", deviceProperties=[{"name": "NVIDIA H100"}])
    status, out, _ = run(capsys, write(tmp_path / "a.json"), "--against", other)
    assert status == 1 and "different GPUs: NVIDIA H100 and NVIDIA H200" in out
    one = write(tmp_path / "c.json", rank=1)
    status, _, err = run(capsys, write(tmp_path / "a.json"), "--against", one)
    assert status == 2 and "ranks 0 against 1" in err


@pytest.mark.parametrize("rows", ["0", "-1", "x"])
@pytest.mark.parametrize("command", ["trace", "analyze", "memory", "nsys"])
def test_tables_have_a_row_at_least(capsys, command, rows):
    """A table without one would read as if nothing had been found."""
    with pytest.raises(SystemExit, match="^2$"):
        main([command, "a.json", f"--top={rows}"])
    assert f"--top: '{rows}': give a number of rows, at least 1" in capsys.readouterr().err


def test_the_picture_of_a_step(tmp_path, capsys):
    """Well-formed; bars are where their times are, on one axis; every lane has its title."""
    picture = tmp_path / "step.svg"
    assert run(capsys, write(tmp_path / "a<b.json", sync=True), "--svg", picture)[0] == 0
    root = ElementTree.fromstring(picture.read_text())
    texts = [node.text for node in root.iterfind(".//{*}text")]
    assert texts[0].startswith("a<b.json: step 1 of 2, 1.00 ms")
    lanes = {"CPU: phases", "CPU: waits", "GPU: phases", "GPU: compute", "GPU: idle"}
    assert lanes <= set(texts)
    bars = {}
    for node in root.iterfind(".//{*}rect"):
        for title in node.iterfind("{*}title"):
            bars[title.text] = float(node.get("x")), float(node.get("width"))
    x, width = bars["cudaDeviceSynchronize: 0.505 ms, from 0.300 ms"]
    per_us = width / 505
    (idle,) = [at for text, at in bars.items() if text.startswith("sync: cudaDeviceSynchronize")]
    assert idle == pytest.approx((x + 500 * per_us, 30 * per_us), abs=0.2)


@pytest.mark.parametrize("gpu", [False, True])
def test_folded_stacks(tmp_path, capsys, gpu):
    """Of a CPU each frame's own time, of a GPU that of the kernels by the stack that launched them;
    a file without frames has none, and nothing is written.
    """
    made = Kineto()
    for began in (0.0, 1000.0):
        made.step(int(began), began, began + 999)
        made.event("python_function", "train.py(8): step", began + 1, 900)
        made.event("python_function", "model.py(7): a;b", began + 10, 600)
        made.event("cpu_op", "aten::linear", began + 20, 400)
        if gpu:
            made.kernel(began + 30, began + 200, began + 500, name="gemm")
            made.kernel(began + 950, began + 960, began + 970, name="late")
    path, out = tmp_path / "a.json", tmp_path / "a.folded"
    path.write_bytes(made.text())
    assert run(capsys, path, "--stacks", out)[0] == 0
    step, inner = "train.py(8): step", "train.py(8): step;model.py(7): a,b"
    on_cpu = [f"{step} 600", f"{inner} 400", f"{inner};aten::linear 800"]
    on_gpu = ["late 20", f"{inner};aten::linear;gemm 600"]
    assert out.read_text().splitlines() == (on_gpu if gpu else on_cpu)
    out.unlink()
    status, _, err = run(capsys, write(tmp_path / "bare.json"), "--stacks", out)
    assert status == 2 and "no frames of Python (with_stack=True)" in err and not out.exists()


@pytest.mark.parametrize("option", ["--csv", "--json", "--svg"])
def test_a_file_that_cannot_be_written(tmp_path, capsys, option):
    """Refused by its option and name before a trace is read; a folder that is missing is made."""
    trace, under = write(tmp_path / "a.json", sync=True), tmp_path / "a.json" / "b"
    status, out, err = run(capsys, trace, option, under)
    assert (status, out) == (2, "") and err.startswith(f"stepguard: {option} {under}: ")
    there = tmp_path / "new" / "b"
    assert run(capsys, trace, option, there)[0] == 0 and there.stat().st_size


@pytest.mark.parametrize("option", ["--csv", "--json", "--svg"])
def test_a_file_that_is_read_is_not_written(tmp_path, capsys, option):
    """Neither a trace, by whatever path, nor one on the other side, in a folder, nor the rules."""
    (tmp_path / "old").mkdir()
    new, old = write(tmp_path / "new.json"), write(tmp_path / "old" / "rank0.json")
    (tmp_path / "rules.toml").write_text("")
    given = [new, "--against", tmp_path / "old", "--classes", tmp_path / "rules.toml"]
    for path in (f"{tmp_path}/old/../new.json", old, tmp_path / "rules.toml"):
        before = (tmp_path / path).read_bytes()
        status, out, err = run(capsys, *given, option, path)
        assert (status, out) == (2, "")
        assert err == f"stepguard: {option} {path}: is a file that is read: name another one\n"
        assert (tmp_path / path).read_bytes() == before


@pytest.mark.parametrize(
    "option, name, other",
    [("--csv", "k.csv", "a,b\n1,2\n"), ("--svg", "p.svg", "<svg/>"), ("--json", "o.json", "{}")],
)
def test_what_was_written_is_replaced_and_nothing_else(tmp_path, capsys, option, name, other):
    """A second run replaces the file of the first; one of the user's stays, whatever its name."""
    trace, path = write(tmp_path / "a.json"), tmp_path / name
    for _ in range(2):
        assert run(capsys, trace, option, path)[0] == 0
    path.write_text(other)
    status, _, err = run(capsys, trace, option, path)
    assert (status, path.read_text()) == (2, other)
    assert err.startswith(f"stepguard: {option} {path}: is no earlier document, ")
    named = path.rename(tmp_path / "notes.xml")
    status, _, err = run(capsys, trace, option, named)
    assert status == 2 and f"name one that ends in {path.suffix}" in err


def test_a_table_or_picture_that_cannot_be_written(tmp_path, capsys, monkeypatch):
    """A disk that is full at the end is a sentence with the option."""
    monkeypatch.setattr(run_document_file, "replace_file", full)
    trace = write(tmp_path / "a.json")
    for option, name in (("--csv", "k.csv"), ("--svg", "p.svg")):
        status, _, err = run(capsys, trace, option, tmp_path / name)
        told = f"{option} {tmp_path / name}: No space left on device; name another file"
        assert (status, err) == (1, f"stepguard: {told}\n")


def full(path, data):
    """No file can be written."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_folder_is_the_traces_in_it(tmp_path, capsys):
    """All ranks of a folder; one without a trace is refused."""
    for rank in (0, 1):
        write(tmp_path / f"rank{rank}.json", rank)
    (tmp_path / "notes.txt").write_text("no trace")
    status, out, _ = run(capsys, tmp_path)
    assert status == 0 and re.search(r"\nrank 0 +1\.000 .*\nrank 1 +1\.000 ", out)
    (tmp_path / "empty").mkdir()
    status, _, err = run(capsys, tmp_path / "empty")
    assert status == 1 and "no trace in it" in err
