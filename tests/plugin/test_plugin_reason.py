"""--perf-reason: why what is recorded is right, stored with every level that is new."""

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


def test_it_is_the_reason_of_what_is_new(committed):
    """Of an epoch that is opened, and of a first recording; nothing more is asked for."""
    result = committed.run("--perf-update", WHY)
    assert result.ret == 0
    assert reasons(committed) == {
        "linear[new]": ["the loss is fused"],
        "linear[old]": ["first recording", "the loss is fused"],
    }
    result.says("linear?old?: a new level begins (the loss is fused) in *cpu.json")
    result.stdout.no_fnmatch_line("*to say why*")


def test_only_new_cases_get_it(committed):
    """--perf-update-new records one of the two."""
    committed.run("--perf-update-new", WHY)
    assert reasons(committed) == {
        "linear[new]": ["the loss is fused"],
        "linear[old]": ["first recording"],
    }


def test_without_it_the_notice_says_how(committed):
    """A new level is recorded as before, and a first recording says what it is."""
    result = committed.run("--perf-update")
    assert result.ret == 0
    assert reasons(committed) == {
        "linear[new]": ["first recording"],
        "linear[old]": ["first recording", "accepted with --perf-update"],
    }
    result.says(
        "linear?old?: a new level begins (accepted with --perf-update) in *; to say why it is "
        "right, restore git's version with: mv baselines/cpu.json baselines/cpu.json.old && "
        "git checkout -- baselines/cpu.json, then add --perf-reason='...'",
        "linear?new?: first recording in *cpu.json",
    )


def test_the_command_that_it_names_gives_the_level_its_reason(committed):
    """Measured again, the level is equal to what the file holds, and the reason would be lost."""
    committed.run("--perf-update")
    committed.run("--perf-update", WHY)
    assert "the loss is fused" not in reasons(committed)["linear[old]"]
    committed.git("checkout", "-q", "baselines/cpu.json")
    committed.run("--perf-update", WHY)
    assert reasons(committed)["linear[old]"][-1] == "the loss is fused"


def test_times_that_wait_get_it_too(gate, h200):
    """They are recorded when the run is over."""
    gate.gpus = [h200]
    gate.suite(gate.cuda())
    gate.commit()
    assert gate.run("--perf-update", WHY).ret == 0
    assert reasons(gate, "h200x1.json") == {"linear[124m]": ["the loss is fused"]}


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
