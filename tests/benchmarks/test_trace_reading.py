"""The benchmark of the trace readers reads what it makes, all of it."""

import json

from benchmarks import trace_reading


def test_both_readers_find_all_that_was_made(tmp_path, capsys):
    """As many records, launches and kernels as were written, and an identity that is known."""
    path = tmp_path / "made.json"
    steps = trace_reading.write_trace(path, 0.1)
    for count in (0, steps):
        trace_reading.cost(str(path), count)
    columns, own = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    launched = steps * trace_reading.OPERATORS
    assert columns["records"] == own["launches"] == launched
    assert own["kernels"] > 40 and own["parts"] == 4
