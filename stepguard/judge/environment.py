"""The guard's condition on the environment: launches must inherit what the command had, as
recorded. Pure.

What a test file sets inside pytest, or the command sets for both sides of a pair, cancels out in a
comparison, so no comparison shows it.
"""

from collections.abc import Iterator

from stepguard.core.run_document import Problem, ProblemCode
from stepguard.core.sentences import changed_in_pytest, other_variables
from stepguard.judge.guarded_run import Run


def other_environment(run: Run) -> Iterator[Problem]:
    """Yield what has changed since pytest was started. Then yield the cases whose variables that
    steer differ from those of the newest recording.
    """
    for change in run.changed:
        yield Problem(ProblemCode.OTHER_ENVIRONMENT, changed_in_pytest(change))
    for case in run.cases:
        entry, now = run.expected.get(case.id), case.result.steering if case.result else None
        was = entry.newest.software.get("environment", "") if entry else None
        if None not in (was, now) and was != now:
            text = other_variables(was or "", now or "", run.recording_of(case.id))
            yield Problem(ProblemCode.OTHER_ENVIRONMENT, text, case.id)
