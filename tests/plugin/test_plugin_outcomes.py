"""Every verdict's outcome in pytest: passed, failed or error, its word, and the exit code."""

import pytest

from stepguard.core.evidence import Fault
from stepguard.core.reasons import Reason


def outcome(gate, h200, change):
    """Record a GPU case, then run it as ``change`` says."""
    case = gate.guarded(h200)
    gate.will_measure(case, **change)
    return gate.run("-v")


def faulty(code):
    """Evidence of a case that a fault ended."""
    return {
        "faults": (Fault(Reason(code), "planted", "the detail", "launch 1, block"),),
        "launches": (),
    }


def test_faster_passes_loudly(gate, h200):
    """FASTER is a passed test, with the word and the command that keeps the gain."""
    result = outcome(gate, h200, {"counters": {"generated_kernels": 6}})
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "FASTER *100%]",
            "linear?124m?: FASTER: *",
            "  keep the gain: *-m stepguard accept 'linear?124m?' --reason '...'",
        ]
    )


def test_changed_fails(gate, h200):
    """CHANGED is a failed test, exit 1; the line names old -> new."""
    result = outcome(gate, h200, {"counters": {"operator_calls_per_step": 101}})
    result.assert_outcomes(failed=1)
    assert result.ret == 1
    line = "linear?124m?: CHANGED: operator_calls_per_step 100 -> 101*"
    result.stdout.fnmatch_lines([line, "  accept: *-m stepguard accept 'linear?124m?' *"])


@pytest.mark.parametrize(("change", "word"), [
    ({"torch": "2.14.0"}, "NOT COMPARABLE"),
    (faulty("RAISED"), "BROKEN"),
    (faulty("THROTTLED"), "UNFIT"),
    ({"step_ms": 11.0}, "INCONCLUSIVE"),
], ids=lambda value: str(value)[:30] if isinstance(value, str) else "")  # fmt: skip
def test_what_could_not_decide_is_an_error(gate, h200, change, word):
    """A verdict that decides nothing is an error of its test, not a failure, and exit 1."""
    result = outcome(gate, h200, change)
    result.assert_outcomes(errors=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines([f"{word} *100%]", f"1 {word}"])


def test_quiet_options_do_not_hide_the_exit_code(gate):
    """-qq, --no-summary, --tb=no and a missing terminal reporter change no exit code."""
    case = gate.guarded()
    gate.will_measure(case, counters={"flops_per_step": 2})
    assert gate.run("-qq", "--tb=no").ret == 1
    assert gate.run("--no-summary").ret == 1
    assert gate.run("-p", "no:terminal").ret == 1
