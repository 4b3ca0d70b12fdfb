"""warm_ups: which steps stand behind a warm-up, and a process's own first steps."""

import sys

from benchmarks.warm_ups import lines, main


def test_a_warm_up_leaves_out_the_first_steps():
    """Ten steps behind each; the slow first one is in the mean without a warm-up alone."""
    rows = [line.split() for line in lines([111.0, *[11.0] * 70], 10)[1:]]
    assert [row[:2] for row in rows[:2]] == [["0", "21.000"], ["1", "11.000"]]
    assert rows[0][3] == "11.000" and rows[-1] == ["60", "11.000", "0.000", "11.000", "11.000"]


def test_any_factory_is_timed(monkeypatch, capsys):
    """On a CPU."""
    how = ["--device", "cpu", "model.parts:attention", "width=16", "seq=16", "batch=1"]
    monkeypatch.setattr(sys, "argv", ["x", *how])
    main()
    assert len(capsys.readouterr().out.splitlines()) == 7
