"""A sentence if a step whose time is not gated got several times slower since the machine's last
run.

A CPU's times are not gated against recordings, since a shared machine should stop no merge. But a
step that takes three times as long is worth a sentence: all counters may be equal.
"""

from statistics import median

from stepguard.core.evidence import Evidence
from stepguard.core.metrics import JUDGED_TIME, PYTHON_LINES, format_value
from stepguard.judge.moved_places import risen_python
from stepguard.judge.rules.several_times import SEVERAL_TIMES


def several_times_slower(now: Evidence, then: Evidence | None) -> str:
    """Return that a step takes SEVERAL_TIMES as long as ``then``, and which Python lines it runs
    more. Empty if it does not, if pairs or recordings judge its time, or if another machine
    measured.
    """
    if then is None or JUDGED_TIME in now.gates or _machine(now) != _machine(then):
        return ""
    old_ms, new_ms = _step_ms(then), _step_ms(now)
    if not old_ms or not new_ms or new_ms < SEVERAL_TIMES * old_ms:
        return ""
    times = f"{format_value(JUDGED_TIME, old_ms)} -> {format_value(JUDGED_TIME, new_ms)} ms"
    ratio = f"{new_ms / old_ms:.1f} times as long as in this machine's last run ({times})"
    pairs = "--perf-against=REV measures both in pairs"
    return f"a step takes {ratio}, and no time is gated{_python(now, then)}; {pairs}"


def _machine(evidence: Evidence) -> tuple[object, ...]:
    known = evidence.fingerprint
    return (known.device_name, known.device_uuid, known.cpu_threads) if known else ()


def _step_ms(evidence: Evidence) -> float:
    """Return the median step of all launches; 0 if a launch has no times."""
    launches = evidence.launches
    if not launches or not all(launch.has_times() for launch in launches):
        return 0.0
    return median(launch.step_ms_median for launch in launches)


def _python(now: Evidence, then: Evidence) -> str:
    """Return how many more lines of Python it runs, and the function with most of them."""
    new, old = (evidence.counted.information.get(PYTHON_LINES) for evidence in (now, then))
    if new is None or old is None or new <= old:
        return ""
    risen = risen_python(now.counted, then.counted)
    where = f", most of the new ones in {risen[0].function} ({risen[0].place})" if risen else ""
    return f"; it runs {new:,.0f} lines of Python, {old:,.0f} then{where}"
