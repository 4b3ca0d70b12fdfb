"""python -m stepguard sweep: a grid, row by row; nothing measured twice, no failure left out."""

import csv
import json
import re
import tomllib
from dataclasses import replace

import pytest

import stepguard.measure.suite
from stepguard.core.evidence import Fault
from stepguard.core.reasons import Reason
from stepguard_lab.sweep_file import parse

DECLARED = """
workload = "factories:linear"
device = "cpu"
[parameters]
k = 2
[grid]
n = [16, 32, 64]
kind = ["a", "b"]
[report]
columns = ["step_ms", "peak_allocated_bytes:backward"]
"""
CHARTED = f'{DECLARED}plot = {{ x = "n", y = ["step_ms"] }}\n'


class Measured:
    """Stands in for the launches: counts them, and fails or is interrupted where it is told."""

    def __init__(self, made):
        self.made, self.calls, self.interrupt_at, self.faults = made, [], None, {}

    def __call__(self, case, bench, asked, progress):
        if len(self.calls) == self.interrupt_at:
            self.interrupt_at = None
            raise KeyboardInterrupt
        self.calls.append(dict(case.params))
        evidence = self.made(commit=bench.revision.commit, dirty=bench.revision.dirty)
        evidence = replace(evidence, case_id=case.id, case=case.as_dict())
        counts = replace(evidence.counts, detail={"peak_allocated_bytes": {"backward": 3 * 2**20}})
        fault = self.faults.get(case.params["n"])
        found = replace(evidence, counts=counts, faults=(fault,) if fault else ())
        return replace(asked, now=found)


@pytest.fixture
def measured(shell, monkeypatch):
    """The declaration in a committed tree, and the stand-in."""
    (shell.path / "grid.toml").write_text(DECLARED)
    shell.commit()
    found = Measured(shell.made)
    monkeypatch.setattr(stepguard.measure.suite, "measure", found)
    return found


@pytest.fixture
def charted(shell, measured):
    """The same with a chart, which takes as long to draw as all else."""
    pytest.importorskip("matplotlib")
    (shell.path / "grid.toml").write_text(CHARTED)
    shell.commit()
    return measured


def rows(shell):
    """The file of rows."""
    return json.loads((shell.path / ".stepguard/sweeps/grid/rows.json").read_text())["rows"]


def test_every_combination_is_a_row(shell, measured):
    """In the order of the grid, the last one fastest; table, CSV and JSON have all of them."""
    done = shell("sweep", "grid.toml")
    assert done.status == 0, done.err
    wanted = [{"n": n, "kind": kind} for n in (16, 32, 64) for kind in "ab"]
    assert measured.calls == [{"k": 2} | row for row in wanted]
    assert [row["parameters"] for row in rows(shell)] == wanted
    header, *table = [line.split() for line in done.out.splitlines()[:7]]
    assert header == ["n", "kind", "step_ms", "[ms]", "peak_allocated_bytes:backward", "status"]
    assert table[0] == ["16", "a", "10.000", "3,145,728", "B", "measured"]
    with (shell.path / ".stepguard/sweeps/grid/rows.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [(row["n"], row["kind"]) for row in read] == [(str(r["n"]), r["kind"]) for r in wanted]
    assert {(round(float(row["step_ms"]), 9), row["status"]) for row in read} == {(10, "measured")}


def test_rows_are_not_accepted(shell, measured):
    """No test has them: as recordings they would be guarded cases that nothing measures."""
    assert shell("sweep", "grid.toml").status == 0
    done = shell("accept")
    assert done.status == 1 and not (shell.path / "baselines").exists()
    assert "linear[sweep-1-n_16-kind_a]: not recorded, it is no case of the suite" in done.err


def test_an_interrupted_sweep_goes_on(shell, measured):
    """What was measured is kept and not measured again."""
    measured.interrupt_at = 4
    assert shell("sweep", "grid.toml").status == 130
    assert len(rows(shell)) == 4
    done = shell("sweep", "grid.toml")
    assert done.status == 0 and "4 of 6 rows are in" in done.out
    assert ["n", "kind"] in [line.split()[:2] for line in done.out.splitlines()]  # as declared
    assert len(measured.calls) == len({str(call) for call in measured.calls}) == 6
    assert shell("sweep", "grid.toml").status == 0 and len(measured.calls) == 6
    assert shell("sweep", "grid.toml", "--anew").status == 0 and len(measured.calls) == 12


def test_a_row_without_memory_is_kept(shell, measured):
    """It is a result: the row says so, the next ones run, and the status is 0."""
    measured.faults = {32: Fault(Reason.OUT_OF_MEMORY, "tried to allocate 9 GiB", "", "launch 1")}
    done = shell("sweep", "grid.toml")
    assert done.status == 0
    assert [row["status"] for row in rows(shell)] == ["measured"] * 2 + ["OUT_OF_MEMORY"] * 2 + [
        "measured"
    ] * 2
    assert sum(line.endswith("out of memory") for line in done.out.splitlines()) == 2


def test_a_failure_is_kept_and_fails_the_sweep(shell, measured):
    """The row has its reason, the others their figures, and the exit status is 1."""
    measured.faults = {16: Fault(Reason.RAISED, "ValueError: planted", "", "launch 1")}
    done = shell("sweep", "grid.toml")
    assert done.status == 1
    assert [row["status"] for row in rows(shell)] == ["RAISED"] * 2 + ["measured"] * 4
    assert "n 16, kind a: " in done.out and "ValueError: planted" in done.out


def test_rows_of_something_else_are_not_mixed_in(shell, measured):
    """Another declaration, commit or state of the tree: an error with both ways out."""
    assert shell("sweep", "grid.toml").status == 0
    (shell.path / "grid.toml").write_text(DECLARED.replace("k = 2", "k = 3"))
    done = shell("sweep", "grid.toml")
    assert done.status == 1
    assert "its rows are of another sweep; keep them by another --out, or drop them" in done.err
    (shell.path / "grid.toml").write_text(DECLARED)
    (shell.path / "more.py").write_text("")
    assert "another dirty [], not ['more.py']" in shell("sweep", "grid.toml").err
    shell.commit()
    assert "its rows are of another commit" in shell("sweep", "grid.toml").err
    assert len(measured.calls) == 6 and len(rows(shell)) == 6


@pytest.mark.parametrize(("old", "new", "message"), [
    ("[grid]", "[gird]", "unknown field `gird`; possible: workload, grid, parameters, "),
    ("plot = {", "plt = {", "`plt` - at `$.report`; possible: columns, plot"),
    ("n = [16, 32, 64]", "n = []", "a value for each"),
    ("n = [16, 32, 64]", "n = [16, 16]", "grid.n: a value is there twice"),
    ("n = [16, 32, 64]", "k = [16]", "k: it is in grid and in parameters"),
    ("n = [16, 32, 64]", "n = [[1]]", "grid"),
    ('"step_ms", "peak', '"step_s", "peak', "'step_s' is no metric"),
    ('x = "n"', 'x = "m"', "report.plot.x 'm': one of n, kind"),
    ("factories:linear", "linear", "write 'package.module:function'"),
    ('device = "cpu"', 'device = "tpu"', "Case.device 'tpu'"),
    ("k = 2", "k = ", "line"),
])  # fmt: skip
def test_a_malformed_declaration_is_refused(shell, measured, old, new, message):
    """By file and field, as bad usage, before anything is measured."""
    assert old in CHARTED
    (shell.path / "grid.toml").write_text(CHARTED.replace(old, new))
    done = shell("sweep", "grid.toml")
    assert done.status == 2 and "grid.toml: " in done.err and message in done.err, done.err
    assert not measured.calls


def test_a_folder_that_cannot_be_written(shell, measured):
    """Refused by its name before a row is measured, and lost."""
    done = shell("sweep", "grid.toml", "--anew", "--out", "grid.toml/rows")
    assert done.status == 2 and done.err.startswith("stepguard: --out grid.toml/rows/rows.json: ")
    assert not measured.calls


def test_a_chart_is_drawn(shell, charted):
    """A line for each combination of the other parameters, and a cross for what has no figure."""
    charted.faults = {64: Fault(Reason.OUT_OF_MEMORY, "tried", "", "launch 1")}
    assert "rows.json, rows.csv, rows.svg" in shell("sweep", "grid.toml").out
    drawn = (shell.path / ".stepguard/sweeps/grid/rows.svg").read_text()
    assert "<!-- kind a -->" in drawn and "<!-- kind b -->" in drawn
    assert "; x: no value -->" in drawn


def test_each_row_is_a_case_of_its_own():
    """Also where values differ only in characters that a name does not have, or in their type."""
    values = ["a/b", "a_b", 1, "1"]
    sweep = parse({**tomllib.loads(CHARTED), "grid": {"n": [16, 32], "kind": values}})
    assert len({case.id for _, case in sweep.cases()}) == 8


def test_without_matplotlib_the_figures_are_there(shell, measured, monkeypatch):
    """The chart can be drawn later, by the same command."""
    (shell.path / "grid.toml").write_text(CHARTED)
    shell.commit()
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    done = shell("sweep", "grid.toml")
    assert done.status == 0 and "no chart: pip install matplotlib" in done.out
    assert len(rows(shell)) == 6


@pytest.mark.parametrize(("changed", "told"), [
    (('device = "cpu"', 'device = "cuda"'), "grid.toml: needs 1 GPU, this machine shows 0"),
    (('device = "cpu"', 'device = "cuda"\nworld_size = 4'), "grid.toml: needs 4 GPUs, this"),
    (("factories:linear", "factories:lniear"), "grid.toml: .*factories.py has no lniear"),
])  # fmt: skip
def test_what_would_fail_in_every_row_is_one_line(shell, measured, changed, told):
    """Before any row, and no rows are written: a grid of hundreds said it hundreds of times. Nor is
    there a run: the one before it is the last one, whose evidence `accept` takes.
    """
    (shell.path / "grid.toml").write_text(DECLARED.replace(*changed))
    done = shell("sweep", "grid.toml")
    assert done.status == 2 and re.search(told, done.err) and done.err.count("\n") == 1
    assert measured.calls == [] and not (shell.path / ".stepguard").exists()
