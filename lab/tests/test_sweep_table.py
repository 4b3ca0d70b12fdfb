"""A sweep's table: whole in a log, and inside a terminal of 80 columns for every sweep there is."""

import tomllib
from pathlib import Path

import pytest

from stepguard.core.metrics import METRICS
from stepguard.report.table import LOG_WIDTH
from stepguard_lab.sweep_file import MEASURED, Row, SweepFile, parse
from stepguard_lab.sweep_table import table

DECLARED = sorted((Path(__file__).resolve().parents[1] / "sweeps").glob("*.toml"))
WIDE = {"B": 76.1 * 2**30, "ms": 12345.678, "tok/s": 12345678.0, "%": 99.99}  # else 12,345


def measured(path):
    """A declaration's rows, every third without memory, the others with figures as wide as are
    seen.
    """
    sweep = parse(tomllib.loads(path.read_text()))
    units = {name: METRICS[name.partition(":")[0]].unit for name in sweep.report.columns}
    figures = {name: WIDE.get(unit, 12345.0) for name, unit in units.items()}
    rows = [
        Row(values, MEASURED, "", figures) if number % 3 else Row(values, "OUT_OF_MEMORY", "", {})
        for number, (values, _) in enumerate(sweep.cases())
    ]
    return SweepFile(1, sweep, "c" * 40, [], "NVIDIA H200", rows)


@pytest.mark.parametrize("path", DECLARED, ids=lambda path: path.stem)
def test_a_table_fits_the_terminal_and_loses_nothing(path):
    """Headings get lines, and the first parameters a line above their rows; in a log it is one
    line a row, with all parameters.
    """
    content = measured(path)
    shown, whole = list(table(content, 80)), list(table(content))
    assert max(map(len, shown)) <= 80
    assert max(map(len, whole)) <= LOG_WIDTH
    told = [line.split() for line in shown]
    for row, line in zip(content.rows, whole[-len(content.rows) :], strict=True):
        values = [*map(str, row.parameters.values()), *line.split()[len(row.parameters) :]]
        assert line.split() == values
        # What is not above is at the end of some line, in the same order.
        assert any(values[-len(one) :] == one for one in told)
    assert sum(line.endswith(("measured", "out of memory")) for line in shown) == len(content.rows)
    for name in content.sweep.grid:
        assert any(name in line for line in shown)


def test_a_long_name_above_its_rows_is_whole():
    """It is a heading of several lines no more: a terminal would show the line break's escape."""
    grid = {"gradient_checkpoint_every": [1, 2], "sequence_length": [256]}
    report = {"columns": ["step_ms", "tokens_per_s", "mfu_pct", "launches_per_step"]}
    sweep = parse({"workload": "a:b", "device": "cpu", "grid": grid, "report": report})
    figures = dict.fromkeys(sweep.report.columns, 12345.678)
    rows = [Row(values, MEASURED, "", figures) for values, _ in sweep.cases()]
    shown = list(table(SweepFile(1, sweep, "c" * 40, [], "CPU", rows), 60))
    assert "gradient_checkpoint_every 2" in shown
    assert not any("\n" in line for line in shown)
