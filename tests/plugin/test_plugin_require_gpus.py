"""--perf-require-gpus and what a machine's GPUs mean for what is skipped."""

import dataclasses

import pytest

import stepguard.plugin.session
from stepguard.machine.gpu.nvml import MachineError


def test_too_few_gpus_is_a_usage_error(gate, h200):
    """With fewer GPUs than asked for: exit 4 and a pointer to the doctor, nothing measured."""
    gate.suite(gate.cpu(), gate.cuda())
    gate.record(gate.cpu())
    for have in (0, 1):
        gate.gpus = [h200] * have
        result = gate.run("--perf-require-gpus=2")
        assert result.ret == 4
        result.stderr.fnmatch_lines(
            [f"*--perf-require-gpus=2: this machine shows {have}; see: * -m stepguard doctor"]
        )
        assert gate.measured == []


def test_it_is_checked_before_deselection(gate):
    """-k and -m that leave the GPU cases out do not switch the requirement off."""
    gate.suite(gate.cpu(), gate.cuda())
    gate.record(gate.cpu())
    for arguments in (("-k", "nano"), ("-m", "smoke"), ("--deselect", "test_perf.py")):
        assert gate.run("--perf-require-gpus=1", *arguments).ret == 4, arguments


def test_enough_gpus(gate, h200):
    """With enough GPUs the requirement changes nothing."""
    gate.guarded(h200)
    assert gate.run("--perf-require-gpus=1").ret == 0


def test_fewer_gpus_than_the_machine_has_are_too_few(gate, h200):
    """One card is asked for and here, another is hidden: the cases of two would be skipped. Who
    asks for none may hide them.
    """
    gate.gpus, gate.hidden_gpus = [h200], 1
    case = gate.cuda()
    gate.suite(case, gate.cuda("pair", world_size=2))
    gate.record(case)
    measured = len(gate.measured)
    result = gate.run("--perf-require-gpus=1")
    assert (result.ret, len(gate.measured)) == (4, measured)
    result.stderr.fnmatch_lines(["*--perf-require-gpus=1: this machine shows 1 of 2, *"])
    assert gate.run().ret == 0


@pytest.mark.parametrize("value", ["many", "1.5", ""])
def test_not_a_number_is_a_usage_error(gate, value):
    """Anything but a number is exit 4."""
    gate.suite(gate.cpu())
    assert gate.run(f"--perf-require-gpus={value}").ret == 4


def test_fewer_than_none_is_a_usage_error(gate):
    """A variable that went wrong does not ask for nothing in silence."""
    gate.suite(gate.cpu())
    result = gate.run("--perf-require-gpus=-1")
    assert (result.ret, gate.measured) == (4, [])
    result.stderr.fnmatch_lines(["*--perf-require-gpus: '-1': give 0 or more"])


def test_gpu_cases_are_skipped_without_a_gpu(gate):
    """Without a GPU the GPU case is skipped with its reason, the CPU case is measured."""
    gate.suite(gate.cpu(), gate.cuda())
    gate.record(gate.cpu())
    result = gate.run("-rs", passed=1, skipped=1)
    assert result.ret == 0
    result.says("SKIPPED*linear?124m?: needs 1 GPU, this machine shows 0")
    assert result.stdout.str().count("needs 1 GPU") == 1


def test_a_skip_is_explained_where_pytest_shows_a_letter_alone(gate):
    """Without -ra in the project's settings, beside what was measured."""
    gate.suite(gate.cpu(), gate.cuda())
    gate.record(gate.cpu())
    gate.run(passed=1, skipped=1).says("1 same", "1 skipped: needs 1 GPU, this machine shows 0")


def test_a_suite_that_was_skipped_whole_is_not_green(gate):
    """Only GPU cases on a machine without one: exit 1, NOTHING WAS MEASURED, why and how often."""
    gate.suite(gate.cuda("a"), gate.cuda("b"), gate.cuda("pair", world_size=2))
    result = gate.run(skipped=3)
    assert result.ret == 1
    result.says(
        "*= performance =*",
        "NOTHING WAS MEASURED*",
        "2 skipped: needs 1 GPU, this machine shows 0",
        "1 skipped: needs 2 GPUs, this machine shows 0",
    )


def test_skips_of_the_tests_own_are_named_too(gate):
    """A skip mark, a skip in the body and an xfail that came true: each reason with its count."""
    head = f"@cases({gate.cpu('a')!r}, {gate.cpu('b')!r})\n"
    gate.tests(
        f"{head}def test_body(perf, case):\n    pytest.skip('no data')\n\n\n"
        "@pytest.mark.skip(reason='broken')\ndef test_mark(perf):\n    pass\n\n\n"
        "@pytest.mark.xfail\ndef test_xfail(perf):\n    assert False\n\n\n"
        "@pytest.mark.skip(reason='another matter')\ndef test_unit():\n    pass\n"
    )
    result = gate.run()
    assert result.ret == 1
    result.says("NOTHING WAS MEASURED*", "2 skipped: no data")
    found = {line for line in result.outlines if " skipped: " in line}
    assert "1 skipped: broken" in found and "1 skipped: expected to fail (xfail)" in found
    assert not any("another matter" in line for line in found)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--perf-require-gpus=9",),
        ("--perf-baselines=no/such/folder",),
        ("--benchmark-skip",),
        ("test_perf.py::test_step[nope]",),
        ("test_perf.py", "test_broken.py"),
    ],
)
def test_what_stops_pytest_before_the_first_test_stands_alone(gate, arguments):
    """A usage error, or a file that cannot be collected, is not preceded by another complaint."""
    gate.suite(gate.cpu())
    (gate.path / "test_broken.py").write_text("import no_such_module\n")
    result = gate.run(*arguments)
    assert result.ret in (2, 4)
    result.stdout.no_fnmatch_line("*NOTHING WAS MEASURED*")
    result.stdout.no_fnmatch_line("*= performance =*")


def test_other_tests_do_not_make_up_for_it(gate):
    """A passing unit test beside skipped cases does not make the run green."""
    gate.suite(gate.cuda())
    (gate.path / "test_unit.py").write_text("def test_unit():\n    pass\n")
    result = gate.run(passed=1, skipped=1)
    assert result.ret == 1


def test_cpu_cases_stand_back_on_a_gpu(gate, h200):
    """With a GPU the CPU case is skipped, unless -m smoke asks for it."""
    gate.gpus = [h200]
    gate.suite(gate.cpu(), gate.cuda())
    gate.record(gate.cpu(), gate.cuda())
    gate.run(passed=1, skipped=1)
    assert gate.measured == ["linear[124m]"]
    gate.run("-m", "smoke", passed=1, deselected=1)
    assert gate.measured == ["linear[nano]"]


def test_only_cpu_cases_on_a_gpu_is_not_green(gate, h200):
    """CPU cases alone on a GPU machine are all skipped, so the run fails."""
    gate.gpus = [h200]
    gate.suite(gate.cpu())
    gate.record(gate.cpu())
    result = gate.run()
    assert result.ret == 1
    result.says("NOTHING WAS MEASURED*")


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
    """A machine whose GPUs cannot be read is not taken for one without GPUs: exit 4."""

    def silent():
        raise MachineError("NVML does not answer: planted; try: nvidia-smi")

    monkeypatch.setattr(stepguard.plugin.session, "visible_gpus", silent)
    gate.suite(gate.cpu())
    gate.record(gate.cpu())
    result = gate.run()
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*NVML does not answer: planted; try: nvidia-smi"])
    assert gate.measured == []


def test_such_a_driver_does_not_stop_other_tests(gate, monkeypatch):
    """A suite without cases runs where the GPUs cannot be read."""

    def silent():
        raise MachineError("NVML does not answer")

    monkeypatch.setattr(stepguard.plugin.session, "visible_gpus", silent)
    gate.tests("def test_unit():\n    pass\n")
    assert gate.run().ret == 0
