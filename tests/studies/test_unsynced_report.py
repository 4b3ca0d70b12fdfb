"""Figures of the unsynced clock from hand-made blocks, and the tables that they become."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from kineto import Kineto

from stepguard.trace.classes import usual_classes
from stepguard.trace.profiles import analyse
from stepguard.trace.summary import summary
from studies.unsynced_clock import charts, report


def series(**true_and_clock):
    """A series: a variant's wall ms by rank, and what the clock read in each step."""
    blocks = {n: {"rank_ms": r, "clock_ms": c} for n, (r, c) in true_and_clock.items()}
    return {"order": list(blocks), "blocks": blocks}


def two_series():
    """UI takes 2 ms more than P in both, on the slowest rank; its clock reads 70 and then 80."""
    return [
        series(P=([99.0, 100.0], [100.0, 100.0]), UI=([102.0, 101.0], [60.0, 80.0])),
        series(P=([104.0, 103.0], [104.0, 104.0]), UI=([105.0, 106.0], [70.0, 90.0])),
    ]


def test_true_time_and_the_clock_stand_apart():
    """True: slowest rank, mean over series. Clock: mean over steps, and over first steps."""
    found = report.summary(two_series(), 1000)["UI"]
    assert found["true_ms"] == 104.0 and found["clock_ms"] == 75.0
    assert found["clock_first_ms"] == 65.0
    assert found["true_tokens_per_s"] == pytest.approx(1000 / 0.104)
    assert found["clock_tokens_per_s"] == pytest.approx(1000 / 0.075)
    assert found["clock_error_pct"] == pytest.approx(100 * (75 / 104 - 1))


def test_differences_are_paired_within_a_series():
    """P drifts by 4 ms; the difference to it is 2 ms in both pairs, so its interval is a point."""
    found = report.summary(two_series(), 1000)["UI"]
    assert found["against_p_ms"] == pytest.approx(2.0)
    assert found["against_p_pct"] == pytest.approx(100 * 2 / 102)
    assert found["against_p_half_width_pct"] == pytest.approx(0.0)


def test_rows_stand_in_the_order_of_the_variants():
    """Whatever order the first series ran in."""
    found = [dict(one, blocks=dict(reversed(one["blocks"].items()))) for one in two_series()]
    assert list(found[0]["blocks"]) == ["UI", "P"]
    assert list(report.summary(found, 1000)) == ["P", "UI"]


def test_one_series_has_no_interval():
    """It says so, and JSON has no infinity."""
    found = report.summary(two_series()[:1], 1000)
    assert found["UI"]["against_p_half_width_pct"] is None
    assert "+2.00 % +- ?" in report.timing_table(found)


def test_no_series_is_no_summary():
    """An empty run has no figures, rather than zeros."""
    with pytest.raises(ValueError, match="no series"):
        report.summary([], 1000)


def profiled():
    """Two steps of 1,000 us: a GEMM for 500 of them, an exchange for 250 of these; 40 us of waiting
    in 44 us of calls.
    """
    trace = Kineto()
    for number in range(3):
        at = number * 1000.0
        trace.annotation(report.MARK, at, at + 999)
        trace.kernel(at + 1, at + 10, at + 510, "nvjet_sm90_a")
        trace.kernel(at + 2, at + 200, at + 450, "ncclDevKernel_AllReduce", stream=19)
        trace.copy(at + 3, at + 510, at + 511)
        trace.call("cudaStreamSynchronize", at + 600, 10.0)
        trace.call("cudaDeviceSynchronize", at + 700, 30.0)
        trace.call("cudaEventRecord", at + 800, 1.0)
    found = analyse(trace.read(), replace(usual_classes(), steps=(f"^{report.MARK}$",)))
    return report.profile_figures(summary(found, "P", 0))


def test_shares_of_a_known_profile():
    """All calls that wait together, whatever their name; idle is what is not busy."""
    found = profiled()
    assert found["sync_share_of_api_pct"] == pytest.approx(100 * 40 / 44)
    assert found["api_share_pct"]["cudaDeviceSynchronize"] == pytest.approx(100 * 30 / 44)
    assert found["api_calls_per_step"]["cudaStreamSynchronize"] == 1.0
    assert found["kernel_share_pct"]["GEMM"] == pytest.approx(100 * 500 / 751)
    assert found["gpu_idle_pct"] == pytest.approx(100 * 499 / 1000)
    assert found["kernel_ms_per_step"] == pytest.approx(0.751)
    assert (found["steps"], found["launches_without_record"]) == (2, 0)


def test_tables_show_the_shares():
    """Rows of calls, of classes and of what is lost, a column for each variant."""
    profiles = {"P": profiled()}
    api, kernels = report.api_table(profiles), report.kernel_table(profiles)
    assert "| cudaDeviceSynchronize | 68.2 |" in api and "| **all that wait** | **90.9** |" in api
    assert "| GEMM | 66.6 |" in kernels and "| GPU idle, % of the time | 49.90 |" in kernels
    assert "| launches without a record | 0 |" in kernels


def test_a_cpu_has_no_cuda_figures():
    """Without a profile "not measured", never 0 %."""
    assert "not measured" in report.api_table({}) and "not measured" in report.kernel_table({})


def test_phases_stand_below_what_they_are_part_of():
    """Nested phases are indented; what a variant does not have is a dash."""
    phases = {
        "P": {"step": {"host_ms": 5.0, "gpu_ms": 9.0}, "step > load": {"host_ms": 1, "gpu_ms": 2}},
        "PS": {"step": {"host_ms": 9.0, "gpu_ms": None}},
    }
    lines = report.phase_table(phases).splitlines()
    assert lines[2] == "| step | 5.00 / 9.00 | 9.00 / - |"
    assert lines[3] == "| &nbsp;&nbsp;load | 1.00 / 2.00 | - |"


def test_the_charts_have_both_times():
    """Three panels; a bar each for the truth and for the clock, in ms, million tokens/s and s."""
    drawn = charts.heights(report.summary(two_series(), 1_000_000), 1_000_000)
    (true_ms, clock_ms), (true_rate, clock_rate), (true_s, clock_s) = drawn.values()
    assert true_ms == [102.0, 104.0] and clock_ms == [102.0, 75.0]
    assert true_rate[1] == pytest.approx(1 / 0.104) and clock_rate[1] == pytest.approx(1 / 0.075)
    assert true_s[1] == pytest.approx(20 * 0.104) and clock_s[1] == pytest.approx(20 * 0.075)


@pytest.mark.parametrize("summary", [{}, {"P": {"true_ms": 0.0, "clock_ms": 0.0}}])
def test_nothing_is_not_drawn(summary):
    """No variants, or zeros, are refused."""
    with pytest.raises(ValueError, match="nothing to draw"):
        charts.heights(summary, 1)


def test_the_kept_result_is_drawn(tmp_path):
    """By the command of its page, every variant by its name."""
    pytest.importorskip("matplotlib")
    (kept,) = Path(charts.__file__).parent.glob("h200x4_*.json")
    charts.draw(json.loads(kept.read_text()), tmp_path / "clock.svg")
    assert (tmp_path / "clock.svg").read_text().count("<path") > 36
