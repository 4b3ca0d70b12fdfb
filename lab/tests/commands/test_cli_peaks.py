"""python -m stepguard peaks: what a card can do, for rooflines."""

import os

from stepguard_lab import measured_peaks, peaks


def test_peaks_are_kept(shell, monkeypatch, tmp_path):
    """What the worker measured, by card, where trace looks for it."""
    found = '{"device_name":"CPU","device_uuid":"","date":"2026","torch":"2.13.0",'
    found += '"copy_bytes_per_s":2e9,"flops_per_s":{"fp32":3e10}}'
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(peaks, "last_line", lambda command, failure, root: found)
    out = shell("peaks").out
    assert "CPU: copy 2 GB/s read and written; products, TFLOP/s: fp32 0.03" in out
    assert measured_peaks.newest("CPU").copy_bytes_per_s == 2e9


def test_peaks_that_cannot_be_measured_are_an_error(shell, monkeypatch, tmp_path):
    """Of the torch that a launch imports: that of PYTHONPATH comes before the installed one."""
    (tmp_path / "torch.py").write_text("raise ImportError('planted')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    done = shell("peaks")
    assert done.status == 1
    assert "the peaks cannot be measured: ImportError: planted" in done.err
