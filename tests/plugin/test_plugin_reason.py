"""--perf-reason: why what is recorded is right, stored with each first recording."""

import json

import pytest

WHY = "--perf-reason=the loss is fused"


@pytest.fixture
def committed(gate):
    """A committed suite of two cases, the first with a baseline that it no longer equals."""
    cases = [gate.cpu("old"), gate.cpu("new")]
    gate.suite(*cases)
    gate.record(cases[0])
    gate.commit()
    gate.will_measure(cases[0], counters={"flops_per_step": 2000})
    return gate


def reasons(gate, name="cpu.json"):
    """Of each case's epochs."""
    cases = json.loads((gate.baselines / name).read_text())["cases"]
    return {case: [epoch["reason"] for epoch in cases[case]["epochs"]] for case in cases}


def test_it_is_the_reason_of_a_first_recording(committed):
    """Which says else that it is one. What moved is not recorded, reason or not."""
    committed.run("--perf-update", WHY)
    assert reasons(committed) == {
        "linear[new]": ["the loss is fused"],
        "linear[old]": ["first recording"],
    }


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("...", "'...': write a line of words"),
        ("'", "*: write a line of words"),
        ("two\nlines", "*: write a line of words"),
        ("", "'': write a line of words"),
    ],
)
def test_a_reason_that_is_none_is_a_usage_error(committed, reason, words):
    """Exit 4, and nothing is measured."""
    result = committed.run("--perf-update", f"--perf-reason={reason}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR and committed.measured == []
    result.stderr.fnmatch_lines([f"*error: argument --perf-reason: {words}"])
