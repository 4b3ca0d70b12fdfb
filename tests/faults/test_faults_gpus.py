"""Ranks on GPUs that raise, die, hang or leave, for real, under NCCL: named, and nothing is left.

    python -m pytest tests/faults/test_faults_gpus.py --junitxml=faults.xml -o junit_family=xunit1

The file has the seconds from each fault until its test was over, as properties.
"""

import os
import re

import pytest
import torch

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 GPUs")
LIMIT_S = 40  # of a launch that will hang; NCCL's first exchange takes seconds
# By case: its parameters, the reason's code, and what the message says.
FAULTS = {
    "raise": ({"how": "raise"}, "RAISED", r"rank 1 in .*phase backward: ValueError: planted"),
    "kill": ({"how": "kill"}, "KILLED", r"rank 1 was killed by SIGKILL in .*phase backward"),
    "exit": ({"how": "exit"}, "KILLED", r"rank 1 ended by itself in .*phase backward"),
    "memory": ({"how": "oom"}, "OUT_OF_MEMORY", r"rank 1 in .*phase backward: OutOfMemoryError"),
    "hang": ({"how": "hang"}, "NO_ANSWER", r"no answer \d+ s into the launch: .*rank 1 in "),
    "leave": ({"how": "leave"}, "NO_ANSWER", r"no answer \d+ s into the launch: rank 0 in "),
}
# Steps of some 20 ms, which the GPU bounds: small ones never get steady.
SOUND = {"n": 4096, "k": 8}
OK = f'    Case("ok", "factories:linear", {SOUND}, world_size=2, launches=2),\n'


@pytest.fixture(scope="module")
def finished(gate_run):
    """One run of every fault, and a sound case at its end."""
    cases = ""
    for name, (params, code, _) in FAULTS.items():
        params = params | {"rank": 1, "at_step": 60}
        limit_s = LIMIT_S if code == "NO_ANSWER" else 100
        cases += (
            f"    Case({name!r}, 'factories:pair', {params}, world_size=2, launches=2,"
            f" time_limit_s={limit_s}),\n"
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1")
    run = gate_run(cases + OK, CUDA_VISIBLE_DEVICES=visible)
    assert run.process.wait(580) == 1, run.text
    return run


@pytest.mark.parametrize("name", FAULTS)
def test_the_fault_is_named(finished, name, record_property):
    """BROKEN within its time limit, with rank, step and phase."""
    verdict = finished.verdicts()[name]
    _, code, message = FAULTS[name]
    assert (verdict["status"], verdict["reason"]) == ("BROKEN", code), verdict["message"]
    assert re.search(message, verdict["message"]), verdict["message"]
    record_property("message", verdict["message"])
    failed = finished.failed_at(name)
    if failed is not None:
        record_property("reported_after_s", finished.aftermath()[name]["at"] - failed)


@pytest.mark.parametrize("name", FAULTS)
def test_nothing_is_left(finished, name):
    """No process, no temporary folder and no socket of the launch when its test is over."""
    record = finished.aftermath()[name]
    assert record["tokens"] and record["leftovers"] == []


def test_the_next_case_is_measured(finished):
    """After all of that a sound case gets its ranks, its GPUs and its counts."""
    assert finished.verdicts()["ok"]["reason"] == "NOT_RECORDED"
    assert finished.aftermath()["ok"]["leftovers"] == []
