"""The ``perf`` fixture in the hands of tests that do not use it as meant: never green for it."""

import pytest

CASE = 'Case("nano", "factories:linear", device="cpu", launches=1)'
PARAMETRIZED = f"@cases({CASE})\n"


@pytest.fixture
def changed(gate):
    """A gate whose one case is CHANGED against its baseline."""
    case = gate.cpu()
    gate.record(case)
    gate.will_measure(case, counters={"flops_per_step": 2})
    return gate


@pytest.fixture
def unchanged(gate):
    """A gate whose one case is `same` as its baseline."""
    gate.record(gate.cpu())
    return gate


@pytest.mark.parametrize("body", ["pass", "return", "assert case"])
def test_perf_never_called_is_an_error(unchanged, body):
    """A test that has perf and does not call it is an error that says what to write."""
    unchanged.tests(f"{PARAMETRIZED}def test_step(perf, case):\n    {body}\n")
    result = unchanged.run(errors=1)
    assert result.ret == 1
    result.says("the test asked for perf and measured nothing: call perf(case)")


@pytest.mark.parametrize("mark", ["", "@pytest.mark.xfail\n", "@pytest.mark.skip\n"])
@pytest.mark.parametrize("declared", [PARAMETRIZED, "@cases()\n"], ids=["a case", "no case"])
def test_cases_without_perf_are_refused(unchanged, mark, declared):
    """A test that says @cases and forgot perf is a usage error that names it and the remedy,
    however it is marked, and though another test of the suite measures.
    """
    measures = (
        f"@cases({CASE.replace('nano', 'other')})\ndef test_it(perf, case):\n    perf(case)\n"
    )
    forgot = f"{mark}{declared}def test_forgot(case):\n    pass\n"
    unchanged.tests(f"{measures}\n\n{forgot}")
    result = unchanged.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    named = "*test_perf.py::test_forgot?*? has @cases but not the fixture perf*call perf(case)*"
    result.stderr.fnmatch_lines([named])
    assert unchanged.measured == []


def test_perf_may_come_through_another_fixture(unchanged):
    """A test that has perf by way of a fixture of its own is measured."""
    fixture = "@pytest.fixture\ndef judged(perf, case):\n    return perf(case)\n\n\n"
    unchanged.tests(f"{fixture}{PARAMETRIZED}def test_step(judged, case):\n    pass\n")
    unchanged.run(passed=1)
    assert unchanged.measured == ["linear[nano]"]


def test_other_tests_may_be_parametrized_over_cases(gate):
    """A test about cases, which does not say @cases, is none of our business."""
    mark = f'@pytest.mark.parametrize("case", [{CASE}])\n'
    gate.tests(f"{mark}def test_it(case):\n    assert case.name\n")
    gate.run(passed=1)


def test_perf_called_twice_is_refused(unchanged):
    """The second perf(case) of a test fails it; -v does not call a failed test `same`."""
    unchanged.tests(f"{PARAMETRIZED}def test_step(perf, case):\n    perf(case)\n    perf(case)\n")
    result = unchanged.run("-v")
    assert result.ret == 1
    result.says("*perf(case) was called twice in one test: use two tests*")
    assert unchanged.measured == ["linear[nano]"]
    result.stdout.no_fnmatch_line("same *100%]")


@pytest.mark.parametrize("caught", [
    "try:\n        perf(case)\n    except BaseException:\n        pass",
    "with pytest.raises(pytest.fail.Exception):\n        perf(case)",
], ids=["except", "raises"])  # fmt: skip
def test_a_caught_failure_still_fails(changed, caught):
    """A test that swallows the verdict's exception does not pass."""
    changed.tests(f"{PARAMETRIZED}def test_step(perf, case):\n    {caught}\n")
    result = changed.run()
    assert changed.measured == ["linear[nano]"]
    assert result.ret == 1
    result.says("*linear?nano?: CHANGED: flops_per_step 1,000 -> 2*")


def test_a_case_made_in_the_test_is_gated_and_listed(changed):
    """perf(Case(...)) without parametrization is judged, fails, and stands in the table."""
    changed.tests(f"def test_step(perf):\n    perf({CASE})\n")
    result = changed.run(failed=1)
    assert result.ret == 1
    result.says("*= performance =*", "linear?nano? *CHANGED")


def test_a_case_measured_by_two_tests_is_refused(unchanged):
    """Two tests that measure one id would overwrite each other's evidence: the second fails."""
    two = f"def test_a(perf):\n    perf({CASE})\n\n\ndef test_b(perf):\n    perf({CASE})\n"
    unchanged.tests(two)
    result = unchanged.run()
    assert result.ret != 0
    assert unchanged.measured == ["linear[nano]"]


@pytest.mark.parametrize("value", ["None", "'linear[nano]'", "object"])
@pytest.mark.parametrize("caught", [False, True])
def test_perf_of_something_else_fails(unchanged, value, caught):
    """perf() of what is no case fails the test, also if it is caught, and says what it takes."""
    call = (
        f"with pytest.raises(BaseException):\n        perf({value})" if caught else f"perf({value})"
    )
    unchanged.tests(f"def test_step(perf):\n    {call}\n")
    result = unchanged.run()
    assert result.ret == 1
    assert unchanged.measured == []
    shown = "<class 'object'>" if value == "object" else value.replace("[", "?").replace("]", "?")
    result.says(f"perf takes a Case: perf(case), not {shown}")
    result.stdout.no_fnmatch_line("*AttributeError*")


def test_an_engine_that_raises_is_not_called_a_skip(unchanged, monkeypatch):
    """When measuring itself raises, the run fails, and nothing says that cases were skipped."""

    def raises(*arguments):
        raise RuntimeError("planted")

    monkeypatch.setattr("stepguard.measure.suite.measure", raises)
    unchanged.suite(unchanged.cpu())
    result = unchanged.run()
    assert result.ret == 1
    result.says("*RuntimeError: planted*")
    result.stdout.no_fnmatch_line("*every selected case was skipped*")


def test_another_perf_fixture_does_not_pass_a_case(changed):
    """A fixture that takes the name perf and measures nothing is an error of every case."""
    fixture = "@pytest.fixture\ndef perf():\n    return lambda case: None\n\n\n"
    changed.tests(f"{fixture}{PARAMETRIZED}def test_step(perf, case):\n    perf(case)\n")
    result = changed.run(errors=1)
    assert result.ret == 1


def test_other_suites_may_have_a_perf_fixture(gate):
    """A test that has its own fixture called perf, and no case, is none of our business."""
    gate.tests(
        "@pytest.fixture\ndef perf():\n    return 1\n\n\ndef test_it(perf):\n    assert perf\n"
    )
    result = gate.run("--benchmark-skip", passed=1)
    assert result.ret == 0


def test_a_case_in_place_of_the_tests_own_is_refused(changed):
    """Measuring another case than the one that the test is for leaves that one unguarded."""
    other = CASE.replace("nano", "other")
    changed.tests(f"{PARAMETRIZED}def test_step(perf, case):\n    perf({other})\n")
    result = changed.run()
    assert result.ret == 1
    result.says("*this test is for linear?nano?, but it measures linear?other?*")
    assert changed.measured == []
