"""The guard: may this run count? It is one list of conditions, for two callers (doors). Pure.

* pytest asks about its own strict run: before it measures, by what is known then, and at its end.
* The command ``gate`` asks about the document that such a run wrote. It runs the base branch's
  code.

Each door describes the run (judge/guarded_run.py), and a condition looks only at this description.
Conditions on options, tree and environment are in guard_options.py, conditions on cases are here.

The base's recordings say what is expected: which cases, with which parameters, gates and margins.
The document does not: a document with fewer cases is refused.
"""

from collections.abc import Iterator

from stepguard.core.baseline import Entry
from stepguard.core.permission import Effect
from stepguard.core.run_document import End, Problem, ProblemCode, State
from stepguard.core.shared_sentences import TREE_CHANGED, wider_margins
from stepguard.core.verdict import Verdict
from stepguard.judge import guard_options
from stepguard.judge.guard_options import EXPECTS_ALL
from stepguard.judge.guarded_run import Condition, Door, Problems, Run, RunCase
from stepguard.judge.waiver_rules import effect_of


def _no_tests(run: Run) -> Problems:
    if run.no_tests:
        yield Problem(ProblemCode.NO_CASES, run.no_tests)


def _nothing_collected(run: Run) -> Problems:
    if run.ending and run.ending.passes and not run.ending.knows_cases:
        text = "no case was collected in this process, so that nothing is guarded: run without -n "
        text += "(xdist), and let nothing end the run before its tests (pytest.exit)"
        yield Problem(ProblemCode.NO_CASES, text)


def _nothing_expected(run: Run) -> Problems:
    if not run.expected:
        text = f"the base has no recording for {run.machine or 'an unknown machine'}"
        yield Problem(ProblemCode.NO_CASES, f"{text}, so that nothing is expected")


_MENDS = {
    State.ABSENT: "bring its test back, or remove it from {file}",
    State.DESELECTED: "to leave cases out on purpose, name files or tests",
    State.SKIPPED: "let it run, or remove it together with its recording",
    State.UNMEASURED: "run it to its end",
}


def _place(run: Run, case_id: str) -> tuple[str, int]:
    state = run.states.get(case_id)
    return (state.file, state.line) if state else ("", 0)


def _missing(run: Run) -> Problems:
    measured = {case.id for case in run.cases if case.result}
    reported = {problem.case for problem in run.problems}
    for name in run.must_measure:
        state = run.states.get(name)
        # Before the end of the run a case is certainly missing only in these two states.
        gone = state and state.state in (State.DESELECTED, State.ABSENT)
        later = state and state.state is State.ABSENT and run.open
        if name in measured or name in reported or not (run.ending or gone and not later):
            continue
        why = (state.why or state.state.value) if state else "not in the document"
        mend = _MENDS.get(state.state, "") if state else ""
        mend = mend or "measure all that the base has recorded"
        mend = mend.format(file=run.file_of(name))
        text = f"guarded, but not measured: {why}; {mend}"
        yield Problem(ProblemCode.CASE_MISSING, text, name, *_place(run, name))


def _expected_to_fail(run: Run) -> Problems:
    for case in run.cases:
        if case.may_fail:
            text = "its mark xfail would let it fail without limit; remove the mark, and let a "
            text += f"known regression pass with: {case.waive}"
            yield Problem(ProblemCode.EXPECTED_TO_FAIL, text, case.id, *_place(run, case.id))


def _known(run: Run) -> Iterator[tuple[RunCase, Entry]]:
    for case in run.cases:
        if entry := run.expected.get(case.id):
            yield case, entry


def _fewer_gates(run: Run) -> Problems:
    for case, entry in _known(run):
        if missing := entry.lacking((*case.gates, *case.covered), case.device, case.ranks):
            text = f"gates less than {run.recording_of(case.id)} has, no {', '.join(missing)}; "
            text += "gate it again, or record the case without it"
            yield Problem(ProblemCode.FEWER_GATES, text, case.id)


def _wider_margins(run: Run) -> Problems:
    for case, entry in _known(run):
        if case.margins.wider(entry.margins):
            text = wider_margins(case.margins, entry.margins, run.recording_of(case.id))
            text += f": {case.record}" if case.record else ""
            yield Problem(ProblemCode.FEWER_GATES, text, case.id)


def _other_parameters(run: Run) -> Problems:
    # Against recordings pytest lets such a case be measured: it is NOT COMPARABLE, and its evidence
    # can be accepted as a new level. In pairs nothing else would notice it: both sides run the
    # tree's own case.
    if run.door is Door.PYTEST and not run.against:
        return
    for case, entry in _known(run):
        was, now = ({"nodes": 1, **parameters} for parameters in (entry.case, case.parameters))
        if moved := sorted(key for key in was | now if was.get(key) != now.get(key)):
            text = f"is another case than {run.recording_of(case.id)}, by its "
            text += f"{' and '.join(moved)}: give it another id, or record it with these first"
            yield Problem(ProblemCode.OTHER_CASE, text, case.id)


def _not_as_declared(run: Run) -> Problems:
    for case in run.cases:
        if not case.as_declared:
            text = "its test measures another case than it declares, though of the same id"
            yield Problem(ProblemCode.OTHER_CASE, text, case.id)


def _changed_tree(run: Run) -> Problems:
    for case in run.cases:
        if result := case.result:
            if result.tree_changed or (result.commit, tuple(result.dirty)) != run.began:
                yield Problem(ProblemCode.TREE_CHANGED, TREE_CHANGED, case.id)


def _other_recording(run: Run) -> Problems:
    for case, entry in _known(run):
        result = case.result
        # A case that does not pass fails the run by itself.
        if result is None or result.verdict.outcome != "passed" or result.judged_by is None:
            continue
        if not run.against and result.judged_by != entry.digest:
            text = "was judged by another recording than the run began with: leave the files alone"
            if run.door is Door.GATE:
                text = "was judged by another recording than the base has: measure with --perf-base"
            yield Problem(ProblemCode.OTHER_BASELINE, text, case.id)


def _hidden_failure(run: Run) -> Problems:
    failing = [case.id for case, verdict, _ in _verdicts(run) if verdict.outcome != "passed"]
    if run.ending and run.ending.passes and failing:
        text = "does not pass, though the run would: let no test end it (pytest.exit)"
        yield Problem(ProblemCode.NOT_FINISHED, text, failing[0])


def _not_finished(run: Run) -> Problems:
    assert run.ending is not None
    if run.ending.end is not End.FINISHED and not run.problems:
        text = f"the run did not finish: {run.ending.end.value}"
        yield Problem(ProblemCode.NOT_FINISHED, text)


def _not_passed(run: Run) -> Problems:
    assert run.ending is not None
    # If no case failed either, a test that measures no case failed, or a plugin did.
    failed = any(verdict.outcome != "passed" for _, verdict, _ in _verdicts(run))
    if not (run.ending.passes or run.problems or failed):
        yield Problem(ProblemCode.NOT_PASSED, "pytest failed, see its log")


def _verdicts(run: Run) -> Iterator[tuple[RunCase, Verdict, str]]:
    """Yield each case that has a verdict, with the verdict and its first line."""
    for case in run.cases:
        if case.result:
            yield case, case.result.verdict, case.result.headline


def _gate_without_verdict(run: Run) -> Problems:
    for case, verdict, _ in _verdicts(run):
        judged = {metric.metric for metric in verdict.metrics if metric.gated}
        # A case that does not pass fails by itself.
        asked = list(case.gates)
        absent = [gate for gate in asked if gate not in judged]
        if absent and verdict.status.outcome == "passed":
            text = f"its verdict says nothing of {', '.join(absent)}"
            yield Problem(ProblemCode.FEWER_GATES, text, case.id)


def _failed(run: Run) -> Problems:
    assert run.base is not None
    for case, verdict, headline in _verdicts(run):
        judged = {metric.metric: metric for metric in verdict.metrics if metric.gated}
        failing = [metric for metric in judged.values() if metric.status.outcome != "passed"]
        # The run used the same rule: a waiver that is too wide for it is too wide here.
        waived = {
            waiver.metric
            for waiver in run.base.permissions
            if waiver.case == case.id
            and effect_of(waiver, judged.get(waiver.metric), run.base.today) is Effect.ALLOWED
        }
        unwaived = [metric.metric for metric in failing if metric.metric not in waived]
        if verdict.outcome != "passed" or verdict.status.outcome != "passed" and unwaived:
            yield Problem(ProblemCode.FAILED, headline)  # which names the case
        elif unwaived:
            text = f"passes though {', '.join(unwaived)} does not, and no waiver covers it"
            yield Problem(ProblemCode.FAILED, text, case.id)


_IS_JUDGE = "pytest made the verdicts itself"
_READS_RUN = "pytest says it of any run, strict or not"

CONDITIONS = (
    *guard_options.CONDITIONS,
    # Conditions on which cases there are.
    Condition(_no_tests, Door.PYTEST, EXPECTS_ALL),
    Condition(_nothing_collected, Door.PYTEST, EXPECTS_ALL),
    Condition(_nothing_expected, Door.GATE, "a first run by pytest has nothing recorded yet"),
    Condition(_missing),
    # Conditions on how each case is guarded.
    Condition(_other_parameters),
    Condition(_fewer_gates),
    Condition(_wider_margins),
    Condition(_not_as_declared, Door.PYTEST, "the gate compares with the recording alone"),
    Condition(_expected_to_fail, Door.PYTEST, "a document has verdicts, which no mark changes"),
    # Conditions on the result.
    Condition(_changed_tree),
    Condition(_other_recording),
    Condition(_hidden_failure, Door.PYTEST, "the gate fails for every verdict that fails"),
    Condition(_gate_without_verdict, Door.GATE, _IS_JUDGE),
    Condition(_failed, Door.GATE, _IS_JUDGE),
    Condition(_not_finished, Door.GATE, _READS_RUN),
    Condition(_not_passed, Door.GATE, _READS_RUN),
)


def guard(run: Run) -> list[Problem]:
    """Return why the run does not count, by what is known so far; empty if nothing is wrong."""
    asked = (condition for condition in CONDITIONS if condition.alone in (None, run.door))
    # A document may name a problem that the gate also sees itself.
    problems = (problem for condition in asked for problem in condition.problems(run))
    return list(dict.fromkeys(problems))
