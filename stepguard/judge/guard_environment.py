"""The guard's condition on what launches inherit: the command's own, as it was recorded. Pure.

What code of the tree sets inside of pytest, and what the command sets for both sides of a pair,
cancels out in a comparison.
"""

from collections.abc import Iterator

from stepguard.core.run_document import Problem, ProblemCode
from stepguard.core.shared_sentences import changed_in_pytest, other_variables
from stepguard.judge.guarded_run import Run


def other_environment(run: Run) -> Iterator[Problem]:
    """Yield what has changed since pytest was started, and the cases whose base had other variables
    that steer than its newest recording.
    """
    for change in run.changed:
        yield Problem(ProblemCode.OTHER_ENVIRONMENT, changed_in_pytest(change))
    for case in run.cases:
        entry, now = run.expected.get(case.id), case.result.steering if case.result else None
        was = entry.newest.software.get("environment", "") if entry else None
        if None not in (was, now) and was != now:
            text = other_variables(was or "", now or "", run.recording_of(case.id))
            yield Problem(ProblemCode.OTHER_ENVIRONMENT, text, case.id)
