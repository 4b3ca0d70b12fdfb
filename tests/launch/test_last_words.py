"""What a rank wrote last, as a fault shows it."""

import os
import signal
import subprocess
from types import SimpleNamespace

import pytest
from short_launches import launch_spec

from stepguard.launch import diagnosis
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


@pytest.mark.parametrize("old", ["", "what it wrote before\n"])
def test_stacks_are_awaited_until_they_are_written(tmp_path, monkeypatch, old):
    """A rank that hangs writes its stacks when it is asked. After one look at them they are read,
    and STACKS_S is not waited out.
    """
    spec = launch_spec(tmp_path)
    spec.folder.mkdir()
    log = spec.folder / "stderr-0.log"
    log.write_text(old)
    looks = []
    clock = SimpleNamespace(monotonic=lambda: 0.1 * len(looks), sleep=looks.append)
    monkeypatch.setattr(diagnosis, "time", clock)
    agent = subprocess.Popen(["true"])
    scene = diagnosis.Scene(spec, "token", {0: os.getpid()}, agent, "block", 9.0)
    heeded = signal.signal(signal.SIGUSR2, lambda *_: log.write_text(f"{old}its stacks\n"))
    try:
        fault = diagnosis.no_answer(scene)
    finally:
        signal.signal(signal.SIGUSR2, heeded)
        agent.wait()
    assert fault.detail.endswith("its stacks\n") and len(looks) == 2
