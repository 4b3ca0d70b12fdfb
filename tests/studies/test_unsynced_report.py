"""Figures of the unsynced clock from hand-made blocks, and the tables that they become."""

from collections import Counter

import pytest

from studies.unsynced_clock import report
from studies.unsynced_clock.gpu_time import GpuTime


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


def gpu_time():
    """30 us of waiting in 40 us of calls, two steps; the GPU busy for 90 of 100 us."""
    return GpuTime(
        api_us=Counter({"cudaStreamSynchronize": 10, "cudaDeviceSynchronize": 20, "cuX": 10}),
        api_calls=Counter({"cudaStreamSynchronize": 4, "cudaDeviceSynchronize": 2, "cuX": 20}),
        class_us=Counter({"GEMM": 75, "NCCL": 25}),
        window_us=100.0,
        busy_us=90.0,
        launches=10,
        lost_records=1,
    )


def test_shares_of_a_known_profile():
    """All calls that wait together, whatever their name; idle is what is not busy."""
    found = report.profile_figures(gpu_time(), 2)
    assert found["sync_share_of_api_pct"] == 75.0
    assert found["api_share_pct"]["cudaDeviceSynchronize"] == 50.0
    assert found["api_calls_per_step"]["cudaStreamSynchronize"] == 2.0
    assert found["kernel_share_pct"] == {"GEMM": 75.0, "NCCL": 25.0}
    assert found["gpu_idle_pct"] == pytest.approx(10.0)
    assert found["kernel_ms_per_step"] == pytest.approx(0.05)


def test_tables_show_the_shares():
    """Rows of calls, of classes and of what is lost, a column for each variant."""
    profiles = {"P": report.profile_figures(gpu_time(), 2)}
    api, kernels = report.api_table(profiles), report.kernel_table(profiles)
    assert "| cudaDeviceSynchronize | 50.0 |" in api and "| **all that wait** | **75.0** |" in api
    assert "| GEMM | 75.0 |" in kernels and "| GPU idle, % of the time | 10.00 |" in kernels
    assert "| launches without a record | 1 |" in kernels


def test_a_cpu_has_no_cuda_figures():
    """A profile without calls says "not measured", never 0 %."""
    profiles = {"P": report.profile_figures(GpuTime(), 2)}
    assert "not measured" in report.api_table(profiles)
    assert "not measured" in report.kernel_table(profiles)


def test_phases_stand_below_what_they_are_part_of():
    """Nested phases are indented; what a variant does not have is a dash."""
    phases = {
        "P": {"step": {"host_ms": 5.0, "gpu_ms": 9.0}, "step > load": {"host_ms": 1, "gpu_ms": 2}},
        "PS": {"step": {"host_ms": 9.0, "gpu_ms": None}},
    }
    lines = report.phase_table(phases).splitlines()
    assert lines[2] == "| step | 5.00 / 9.00 | 9.00 / - |"
    assert lines[3] == "| &nbsp;&nbsp;load | 1.00 / 2.00 | - |"


def test_the_picture_has_both_times():
    """A bar for the truth and one for the clock, with their figures."""
    drawn = report.picture(report.summary(two_series(), 1000), "title")
    assert "104.0 ms" in drawn and "75.0 ms" in drawn
