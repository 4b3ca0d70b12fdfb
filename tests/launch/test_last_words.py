"""What a rank wrote last, as a fault shows it."""

from stepguard.launch.diagnosis import STDERR_TAIL_LINES, _tail

PROFILER = (
    "USDT:2026-11-25 17:16:04 9399:9399 SyncActivityProfilerHandler.cpp:52] profiler_start",
    "STAGE:2026-11-25 17:16:04 9399:9399 ActivityProfilerController.cpp:312] Completed Stage",
    "[W1125 17:16:03.586739449 CPUAllocator.cpp:245] Memory block of unknown size was allocated "
    "before the profiling started, profiler results will not include the deallocation event",
)


def test_what_the_profiler_prints_of_itself_is_no_last_word(tmp_path):
    """Of many such lines the rank's own stay, also where a hundred of those come behind them."""
    log, own = tmp_path / "stderr-0.log", ["loading data", "Killed: USDT is a word, too"]
    log.write_text("\n".join([own[0], *PROFILER * STDERR_TAIL_LINES, own[1]]) + "\n")
    assert _tail(log).splitlines() == own
