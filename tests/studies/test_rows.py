"""Rows of sweeps in one process: every row is kept, whatever became of it."""

import inspect
import json
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch

from stepguard.cli.common import UsageError
from stepguard.sweep import parse
from studies.rows import measure

SWEEPS = sorted((Path(__file__).parents[2] / "sweeps").glob("*.toml"))
GRID = """
workload = "model.parts:attention"
device = "cpu"
[parameters]
batch = 1
width = 8
[grid]
passes = ["forward", "forward_backward"]
seq = [4, 8, 16]
"""


class Part:
    """A workload that raises what it is given."""

    tokens_per_step = 4

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def step(self) -> None:
        """Raise it."""
        if self.error:
            raise self.error


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_declared_sweep_fits_its_factory(path: Path):
    """A row whose parameter has no place would fail on the day it is measured."""
    sweep = parse(tomllib.loads(path.read_text()))
    module, _, name = sweep.workload.partition(":")
    factory = getattr(import_module(module), name)
    for values, _ in sweep.cases():
        inspect.signature(factory).bind(**sweep.parameters, **values, device=sweep.device)


def test_every_declared_sweep_is_documented():
    """The table of docs/training.md has all of them."""
    page = (SWEEPS[0].parents[1] / "docs" / "training.md").read_text()
    assert [path.name for path in SWEEPS if f"`{path.name}`" not in page] == []


@pytest.fixture
def grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small sweep whose rows of 8 raise and whose rows of 16 run out of memory."""
    errors = {8: RuntimeError("no\nluck"), 16: torch.OutOfMemoryError("CUDA out of memory. Tried")}
    monkeypatch.setattr("model.parts.attention", lambda seq, **_: Part(errors.get(seq)))
    (tmp_path / "grid.toml").write_text(GRID)
    return tmp_path / "grid.toml"


def test_rows_that_fail_are_kept(grid: Path, capsys):
    """With a status and a message; the others have figures."""
    out = grid.with_name("rows.json")
    assert measure.main(["--out", str(out), f"{grid}:passes=forward", str(grid)]) == 0
    found = json.loads(out.read_text())
    rows = found["sweeps"]["grid"]["rows"]
    assert [row["status"] for row in rows] == ["measured", "RAISED", "OUT_OF_MEMORY"]
    assert rows[1]["message"] == "RuntimeError: no" and rows[0]["values"]["step_ms"] >= 0
    assert len(found["sweeps"]["grid+"]["rows"]) == 6 and len(found["commands"]) == 1
    capsys.readouterr()
    assert measure.main(["--show", str(out), str(out)]) == 0
    said = capsys.readouterr().out
    assert said.count("out of memory") == 2 and "are not there" not in said


def test_time_ends_a_sweep_and_keeps_its_rows(grid: Path, capsys):
    """What was not reached is counted."""
    out = grid.with_name("rows.json")
    assert measure.main(["--out", str(out), "--limit-s", "0.01", str(grid)]) == 0
    assert len(json.loads(out.read_text())["sweeps"]["grid"]["rows"]) == 1
    measure.main(["--show", str(out)])
    assert "5 rows of this grid are not there" in capsys.readouterr().out


@pytest.mark.parametrize("wish", ["passes=sideways", "deep=1", "seq=5"])
def test_only_what_is_in_the_grid_can_be_asked_for(grid: Path, wish: str):
    """A mistyped value would measure nothing, or something else."""
    with pytest.raises(UsageError, match="is not in its grid"):
        measure.narrowed(f"{grid}:{wish}")
