"""The guard: one list of conditions, asked by two doors; what is expected comes from the base."""

from dataclasses import replace
from datetime import date

import pytest
from builders import CASE, CASE_ID, PROPERTY, entry
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from run_documents import COMMIT, measured, run_document

from stepguard.core.margins import Margins
from stepguard.core.metrics import default_gates
from stepguard.core.run_document import CaseState, Problem, ProblemCode, State
from stepguard.core.status import Status
from stepguard.judge.gate_decision import expected, gate, run_of
from stepguard.judge.guard import CONDITIONS, guard
from stepguard.judge.guarded_run import Base, CaseResult, Door, Ending, Run, RunCase, Tree

IDS = (CASE_ID, "forward[a]", "eval[b]")
BASE = Base(
    commit=COMMIT,
    gpus=1,
    recorded={"NVIDIA H200": {name: entry() for name in IDS}},
    today=date(2026, 11, 22),
)
SOUND = {
    name: structs.replace(
        one := measured(entry()), case=name, verdict=structs.replace(one.verdict, case_id=name)
    )
    for name in IDS
}


def states(*names):
    """What a document says became of these cases."""
    return [CaseState(state=State.MEASURED, case=name) for name in names]


def test_a_document_of_every_case_of_the_base_passes():
    """The three that it has recorded."""
    assert gate(run_document(*SOUND.values()), BASE) == []


@PROPERTY
@given(
    st.sets(st.sampled_from(IDS), max_size=2),
    st.sets(st.sampled_from([*IDS, "new[c]"])),
    st.sampled_from(State),
    st.booleans(),
)
def test_a_document_that_lists_fewer_cases_is_refused(kept, listed, became, guarded):
    """Whatever else it says of the others, or leaves out: each that the base has recorded and that
    it has no result of is missing.
    """
    cases = [CaseState(state=became, case=name, guarded=guarded) for name in listed]
    document = run_document(*(SOUND[name] for name in sorted(kept)), cases=cases)
    assert set(expected(document, BASE)) == set(IDS)
    problems = gate(document, BASE)
    assert {one.code for one in problems} == {ProblemCode.CASE_MISSING}
    assert {one.case for one in problems} == {*IDS} - kept


def test_gates_and_margins_of_the_document_are_no_measure():
    """The document agrees with itself. The base's recording says what to gate, and how closely."""
    fewer = tuple(name for name in default_gates("cuda") if name != "graph_breaks")
    known = replace(BASE, recorded={"NVIDIA H200": {CASE_ID: entry()}})
    for changes in ({"gates": fewer}, {"margins_pct": (0.2, 3.0)}):
        (problem,) = gate(run_document(measured(entry(), **changes)), known)
        assert (problem.code, problem.case) == (ProblemCode.FEWER_GATES, CASE_ID)


def test_what_one_door_alone_asks_says_why():
    """A condition without a reason is asked by both; and nothing is there twice."""
    assert all(bool(one.why) is (one.alone is not None) for one in CONDITIONS)
    assert len({one.problems for one in CONDITIONS}) == len(CONDITIONS)
    shared = [one for one in CONDITIONS if one.alone is None]
    assert len(shared) >= 9


RESULT = CaseResult(
    commit=COMMIT,
    dirty=(),
    tree_changed=False,
    verdict=SOUND[CASE_ID].verdict,
    judged_by=entry().digest,
)
MEASURED = RunCase(
    id=CASE_ID,
    parameters=CASE,
    device="cuda",
    ranks=1,
    gates=default_gates("cuda"),
    margins=Margins(),
    result=RESULT,
)
RUN = Run(
    door=Door.PYTEST,
    expected={CASE_ID: entry()},
    must_measure=[CASE_ID],
    tree=Tree(COMMIT),
    began=(COMMIT, ()),
    cases=[MEASURED],
    ending=Ending(passes=True, gpus=1),
)


def of_result(**changes):
    """The run, its only result changed."""
    return {"cases": [replace(MEASURED, result=replace(RESULT, **changes))]}


WAYS = {
    "the case was not measured": ({"cases": []}, "CASE_MISSING"),
    "its result is of another commit": (of_result(commit="b" * 40), "TREE_CHANGED"),
    "its result is of a dirty tree": (of_result(dirty=("model.py",)), "TREE_CHANGED"),
    "the tree changed": (of_result(tree_changed=True), "TREE_CHANGED"),
    "another recording judged": (of_result(judged_by="0" * 64), "OTHER_BASELINE"),
    "it was recorded": (
        of_result(verdict=structs.replace(RESULT.verdict, recorded=True, status=Status.FASTER)),
        "RECORDS",
    ),
    "it gates less": ({"cases": [replace(MEASURED, gates=("step_ms",))]}, "FEWER_GATES"),
    "its margins are wider": (
        {"cases": [replace(MEASURED, margins=Margins(0.2, 3.0))]},
        "FEWER_GATES",
    ),
    "another case, in pairs": (
        {
            "cases": [replace(MEASURED, parameters=CASE | {"params": {"batch": 1}})],
            "against": "main",
            "against_commit": "b" * 40,
        },
        "OTHER_CASE",
    ),
    "judged against itself": ({"against": "main", "against_commit": COMMIT}, "OTHER_BASELINE"),
    "no commit": ({"tree": Tree("", "there is no git")}, "DIRTY"),
    "a dirty tree": ({"tree": Tree(COMMIT, dirty=["model.py"])}, "DIRTY"),
}


@pytest.mark.parametrize("door", Door)
@pytest.mark.parametrize(("changes", "code"), WAYS.values(), ids=WAYS)
def test_both_doors_say_the_same(door, changes, code):
    """Of the same facts, the same code, once; and a sound run is sound to both."""
    base = replace(BASE, against="b" * 40)
    sound = replace(RUN, door=door, base=base if door is Door.GATE else None)
    assert guard(sound) == []
    (problem,) = guard(replace(sound, **changes))
    assert problem.code.value == code


def test_a_base_that_expects_no_case_guards_nothing():
    """A base without a recording for this machine is a problem, and the text names the machine."""
    base = replace(BASE, against="b" * 40)
    run = replace(RUN, door=Door.GATE, base=base, expected={}, must_measure=[], machine="NVIDIA X")
    (problem,) = guard(run)
    assert problem.code is ProblemCode.NO_CASES
    assert problem.text.startswith("the base has no recording for NVIDIA X")


def test_before_the_end_only_what_is_certain_is_missing():
    """A case that waits for its turn, or that another test may still measure, is not; at the end
    it is.
    """
    waiting = CaseState(state=State.UNMEASURED, case=CASE_ID, why="the run ended before its turn")
    absent = CaseState(state=State.ABSENT, case=CASE_ID, why="no test of it was collected")
    begun = replace(RUN, cases=[], ending=None)
    assert guard(replace(begun, states={CASE_ID: waiting})) == []
    assert guard(replace(begun, states={CASE_ID: absent}, open=True)) == []
    assert guard(replace(begun, states={CASE_ID: absent})) != []
    ended = replace(begun, ending=RUN.ending, open=True)
    for state in (waiting, absent):
        (problem,) = guard(replace(ended, states={CASE_ID: state}))
        assert problem.code is ProblemCode.CASE_MISSING and state.why in problem.text


def test_a_case_with_a_problem_is_not_missing_as_well():
    """It was refused, so that it was not measured: one line."""
    refused = Problem(ProblemCode.FEWER_GATES, "gates less", CASE_ID)
    assert guard(replace(RUN, cases=[], problems=[refused])) == []


def test_a_problem_that_the_document_names_is_named_once():
    """The gate sees the dirty tree itself."""
    results = [structs.replace(one, dirty=["model.py"]) for one in SOUND.values()]
    document = run_document(*results, dirty=["model.py"])
    (problem,) = gate(document, BASE)
    again = structs.replace(document, problems=[problem], passed=False)
    assert gate(again, BASE) == [problem]
    assert run_of(document, BASE).tree.dirty == ["model.py"]
