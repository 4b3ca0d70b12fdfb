"""--perf-require-gpus and what a machine's GPUs mean for what is skipped."""

import dataclasses

import pytest

import stepguard.plugin.session
from stepguard.machine.gpu import MachineError

SHOWS = "*--perf-require-gpus={}: this machine shows {}; see: * -m stepguard doctor"


@pytest.mark.parametrize(("shown", "hidden", "arguments", "says"), [
    (0, 0, ("--perf-require-gpus=2",), SHOWS.format(2, 0)),
    (1, 0, ("--perf-require-gpus=2",), SHOWS.format(2, 1)),
    # -k and -m that leave the GPU cases out do not switch the requirement off.
    (0, 0, ("--perf-require-gpus=1", "-k", "nano"), SHOWS.format(1, 0)),
    (0, 0, ("--perf-require-gpus=1", "-m", "smoke"), SHOWS.format(1, 0)),
    # One card is asked for and here, another is hidden: the cases of two would be skipped.
    (1, 1, ("--perf-require-gpus=1",), SHOWS.format(1, "1 of 2, look at CUDA_VISIBLE_DEVICES")),
    (0, 0, ("--perf-require-gpus=many",), "*'many': give 0 or more"),
    (0, 0, ("--perf-require-gpus=1.5",), "*'1.5': give 0 or more"),
    (0, 0, ("--perf-require-gpus=",), "*'': give 0 or more"),
    (0, 0, ("--perf-require-gpus=-1",), "*'-1': give 0 or more"),
])  # fmt: skip
def test_too_few_gpus_are_a_usage_error(gate, h200, shown, hidden, arguments, says):
    """Exit 4, and nothing is measured. Who asks for none may hide them."""
    gate.gpus, gate.hidden_gpus = [h200] * shown, hidden
    gate.suite(gate.cpu(), gate.cuda(), gate.cuda("pair", world_size=2))
    gate.record(gate.cuda() if shown else gate.cpu())
    result = gate.run(*arguments)
    assert (result.ret, gate.measured) == (4, [])
    result.stderr.fnmatch_lines([says])
    assert gate.run().ret == 0


def test_gpu_cases_are_skipped_without_a_gpu(gate):
    """With the reason, which a run without -ra says, too; the CPU case is measured."""
    gate.suite(gate.cpu(), gate.cuda())
    gate.record(gate.cpu())
    result = gate.run("-rs", passed=1, skipped=1)
    assert result.ret == 0
    result.says("SKIPPED*linear?124m?: needs 1 GPU, this machine shows 0")
    assert result.stdout.str().count("needs 1 GPU") == 1
    gate.run(passed=1, skipped=1).says("1 same", "1 skipped: needs 1 GPU, this machine shows 0")


BODIES = (
    "@cases({case!r})\ndef test_body(perf, case):\n    pytest.skip('no data')\n\n\n"
    "@pytest.mark.skip(reason='broken')\ndef test_mark(perf):\n    pass\n\n\n"
    "@pytest.mark.xfail\ndef test_xfail(perf):\n    assert False\n\n\n"
    "@pytest.mark.skip(reason='another matter')\ndef test_unit():\n    pass\n"
)


def test_a_suite_that_was_skipped_whole_is_not_green(gate, h200):
    """Exit 1, also beside a unit test that passes, with each reason and how often: this machine, a
    mark, the test's own body, an xfail that came true.
    """
    gate.suite(gate.cuda("a"), gate.cuda("b"), gate.cuda("pair", world_size=2))
    (gate.path / "test_unit.py").write_text("def test_unit():\n    pass\n")
    result = gate.run(passed=1, skipped=3)
    assert result.ret == 1
    result.says(
        "*= performance =*",
        "NOTHING WAS MEASURED*",
        "2 skipped: needs 1 GPU, this machine shows 0",
        "1 skipped: needs 2 GPUs, this machine shows 0",
    )
    gate.tests(BODIES.format(case=gate.cpu()))
    result = gate.run()
    assert result.ret == 1
    found = {line for line in result.outlines if " skipped: " in line}
    reasons = ("no data", "broken", "expected to fail (xfail)")
    assert found == {f"1 skipped: {reason}" for reason in reasons}
    gate.gpus = [h200]
    gate.suite(gate.cpu())
    result = gate.run()
    assert result.ret == 1
    result.says("NOTHING WAS MEASURED*")


def test_cpu_cases_stand_back_on_a_gpu(gate, h200):
    """With a GPU the CPU case is skipped, unless -m smoke asks for it."""
    gate.gpus = [h200]
    gate.suite(gate.cpu(), gate.cuda())
    gate.record(gate.cpu(), gate.cuda())
    gate.run(passed=1, skipped=1)
    assert gate.measured == ["linear[124m]"]
    gate.run("-m", "smoke", passed=1, deselected=1)
    assert gate.measured == ["linear[nano]"]


def test_a_case_for_two_gpus_needs_two(gate, h200):
    """world_size=2 is skipped on one GPU and runs on two."""
    case = gate.cuda("pair", world_size=2)
    gate.suite(case)
    gate.record(case)
    gate.gpus = [h200]
    assert gate.run().ret == 1
    assert gate.measured == []
    gate.gpus = [h200, dataclasses.replace(h200, uuid="GPU-33333333")]
    assert gate.run().ret == 0


def test_a_driver_that_does_not_answer_is_a_usage_error(gate, monkeypatch):
    """A machine whose GPUs cannot be read is not taken for one without GPUs: exit 4. A suite
    without cases runs there.
    """

    def silent():
        raise MachineError("NVML does not answer: planted; try: nvidia-smi")

    monkeypatch.setattr(stepguard.plugin.session, "visible_gpus", silent)
    gate.suite(gate.cpu())
    gate.record(gate.cpu())
    result = gate.run()
    assert (result.ret, gate.measured) == (4, [])
    result.stderr.fnmatch_lines(["*NVML does not answer: planted; try: nvidia-smi"])
    gate.tests("def test_unit():\n    pass\n")
    assert gate.run().ret == 0
