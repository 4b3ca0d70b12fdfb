"""The guard: may this run count? One list of conditions, which two doors ask. Pure.

* pytest asks about its own strict run: before it measures, as far as it knows by then, and at its
  end.
* The command ``gate`` asks about the document that such a run wrote, with the base branch's code.

Each door describes the run (judge/guarded_run.py), and a condition looks at nothing else.

The base's recordings say what is expected: which cases, with which parameters, gates and margins.
The document never does: one that lists fewer cases is refused.
"""

from stepguard.core.run_document import Problem
from stepguard.judge import guard_cases, guard_options
from stepguard.judge.guarded_run import Run

CONDITIONS = (*guard_options.CONDITIONS, *guard_cases.CONDITIONS)


def guard(run: Run) -> list[Problem]:
    """Return why the run does not count, as far as it is known; empty if it does."""
    asked = (condition for condition in CONDITIONS if condition.alone in (None, run.door))
    # A document may name a problem that the gate also sees itself.
    problems = (problem for condition in asked for problem in condition.problems(run))
    return list(dict.fromkeys(problems))
