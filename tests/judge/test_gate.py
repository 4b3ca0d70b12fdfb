"""The gate: a document passes that shows every guarded case to pass; else it is told why not."""

from datetime import date

import pytest
from builders import (
    CASE,
    CASE_ID,
    COUNTS,
    entry,
    evidence,
    one_recording,
    replace,
    with_counts,
)
from msgspec import structs
from run_documents import COMMIT, measured, run_document

from stepguard.core.metrics import OPERATORS, default_gates
from stepguard.core.permission import Permission
from stepguard.core.recording import RecordedDifference
from stepguard.core.run_document import CaseState, End, Problem, ProblemCode, State
from stepguard.core.status import Status
from stepguard.judge.gate_decision import expected, gate
from stepguard.judge.guarded_run import Base

OTHER = "b" * 40
SYNCS = "host_syncs_per_step"
SOUND = measured(entry())
SLOWER = measured(entry(), launch_ms=(275.0,) * 3)
CHANGED = measured(entry(), counts=with_counts(evidence(), graph_breaks=3).counts)
FEWER_FLOPS = measured(entry(), counts=with_counts(evidence(), flops_per_step=3).counts)
WAIVER = Permission(
    case=CASE_ID,
    metric="graph_breaks",
    value=3,
    reason="waits for torch 2.14",
    expires=date(2026, 12, 1),
    who="A. Author",
)


def base(*waivers, cases=None, **changes):
    """What the base branch knows: one recorded case on one H200, and these waivers."""
    made = Base(
        commit=COMMIT,
        gpus=1,
        recorded={"NVIDIA H200": {CASE_ID: entry()} if cases is None else cases},
        today=date(2026, 11, 22),
        permissions=waivers,
    )
    return replace(made, **changes)


def codes(document, against=None):
    """The codes of what the gate says against a document."""
    return {problem.code for problem in gate(document, against or base())}


def test_a_sound_document_passes():
    """Every guarded case was measured at the commit, gates all it should, and is `same`."""
    assert gate(run_document(SOUND), base()) == []


def result(**changes):
    """The document of a run with one result that has these changes."""
    return run_document(structs.replace(SOUND, **changes))


def verdict(**changes):
    """The same, with changes to the result's verdict."""
    return result(verdict=structs.replace(SOUND.verdict, **changes))


def gated_metrics(**changes):
    """The metrics of the sound verdict, the gated ones changed."""
    return [structs.replace(one, **changes) if one.gated else one for one in SOUND.verdict.metrics]


def waived(metrics):
    """A result that says that it passes, since its moved metrics are waived."""
    moved = [
        structs.replace(one, waived_until="2026-12-01") if one.status.outcome == "failed" else one
        for one in metrics.verdict.metrics
    ]
    passing = structs.replace(metrics.verdict, metrics=moved, waived_until="2026-12-01")
    return run_document(structs.replace(metrics, verdict=passing), passed=True)


SKIPPED = CaseState(state=State.SKIPPED, case=CASE_ID, why="later")
TROUBLE = Problem(code=ProblemCode.DIRTY, text="x.py differs")
FEWER = tuple(name for name in default_gates("cuda") if name != "graph_breaks")
NO_BREAK = {CASE_ID: structs.replace(entry(), gates=["flops_per_step"])}
WAYS = {
    "nothing was measured": (run_document(), None, "CASE_MISSING"),
    "the case was skipped": (run_document(cases=[SKIPPED]), None, "CASE_MISSING"),
    "another case was measured": (
        run_document(structs.replace(SOUND, case="other[a]")),
        None,
        "CASE_MISSING",
    ),
    "a case is missing": (
        run_document(SOUND),
        base(cases={CASE_ID: entry(), "forward[a]": entry()}),
        "CASE_MISSING",
    ),
    "fewer gates": (run_document(measured(entry(), gates=FEWER)), None, "FEWER_GATES"),
    "wider margins": (run_document(measured(entry(), margins_pct=(0.2, 3.0))), None, "FEWER_GATES"),
    "margins wider than recorded ones, by the device's default": (
        run_document(SOUND),
        base(cases={CASE_ID: structs.replace(entry(), margins_pct=[0.1, 0.5])}),
        "FEWER_GATES",
    ),
    "a verdict that lacks a gate": (
        verdict(metrics=[one for one in SOUND.verdict.metrics if one.metric != "step_ms"]),
        None,
        "FEWER_GATES",
    ),
    "another commit": (run_document(SOUND, commit=OTHER), None, "FOREIGN_COMMIT"),
    "no commit": (run_document(SOUND, commit=""), None, "FOREIGN_COMMIT"),
    "a result of another commit": (result(commit=OTHER), None, "TREE_CHANGED"),
    "a dirty tree": (run_document(SOUND, dirty=["model/gpt.py"]), None, "DIRTY"),
    "a result of a dirty tree": (result(dirty=["model/gpt.py"]), None, "TREE_CHANGED"),
    "a tree that changed": (result(tree_changed=True), None, "TREE_CHANGED"),
    "a run that was interrupted": (
        run_document(SOUND, end=End.INTERRUPTED, passed=False),
        None,
        "NOT_FINISHED",
    ),
    "a run that was not strict": (run_document(SOUND, strict=False), None, "NOT_STRICT"),
    "a problem of the run": (
        run_document(SOUND, problems=[TROUBLE], passed=False),
        None,
        "DIRTY",
    ),
    "pytest failed": (run_document(SOUND, passed=False), None, "NOT_PASSED"),
    "slower": (run_document(SLOWER), None, "FAILED"),
    "slower, and the run says that it passed": (
        run_document(SLOWER, passed=True),
        None,
        "FAILED",
    ),
    "slower, and its text says that it is the same": (
        run_document(structs.replace(SLOWER, text=SOUND.text), passed=True),
        None,
        "FAILED",
    ),
    "a metric that fails in a verdict that passes": (
        verdict(metrics=gated_metrics(status=SLOWER.verdict.status)),
        None,
        "FAILED",
    ),
    "recorded": (verdict(recorded=True, status=Status.FASTER), None, "RECORDS"),
    "a waiver that the base has not": (waived(CHANGED), None, "FAILED"),
    "a waiver that ended": (
        waived(CHANGED),
        base(replace(WAIVER, expires=date(2026, 11, 21))),
        "FAILED",
    ),
    "a waiver of less": (waived(CHANGED), base(replace(WAIVER, value=2)), "FAILED"),
    "no limit": (waived(CHANGED), base(replace(WAIVER, value=10**6)), "FAILED"),
    "a waiver of more work": (
        waived(FEWER_FLOPS),
        base(replace(WAIVER, metric="flops_per_step", value=10**18)),
        "FAILED",
    ),
    "a waiver of another case": (
        waived(CHANGED),
        base(replace(WAIVER, case="forward[a]")),
        "FAILED",
    ),
    "another machine": (run_document(SOUND, machine="CPU", gpus=[]), None, "FEWER_GPUS"),
    "a machine without a recording": (
        run_document(SOUND, machine="CPU", gpus=[]),
        base(gpus=0),
        "NO_CASES",
    ),
    "too few GPUs": (run_document(SOUND), base(gpus=2), "FEWER_GPUS"),
    "other parameters": (result(parameters=CASE | {"params": {"batch": 1}}), None, "OTHER_CASE"),
    "judged against itself": (
        run_document(SOUND, against="HEAD (aaaa)", base_commit=COMMIT),
        None,
        "OTHER_BASELINE",
    ),
    "judged against who knows what": (
        run_document(SOUND, against="HEAD~1 (bbbb)", base_commit="b" * 40),
        None,
        "OTHER_BASELINE",
    ),
    "judged against another one than the base": (
        run_document(SOUND, against="HEAD~1 (bbbb)", base_commit="b" * 40),
        base(against="c" * 40),
        "OTHER_BASELINE",
    ),
}


@pytest.mark.parametrize(("document", "known", "code"), WAYS.values(), ids=WAYS)
def test_what_is_not_seen_to_pass_fails(document, known, code):
    """Each with the code of what is wrong."""
    assert code in {found.value for found in codes(document, known)}


WIDE = structs.replace(entry(), margins_pct=[1.0, 3.0])


@pytest.mark.parametrize("margins_pct", [(), (0.2, 0.5), (1.0, 2.0), (1.0, 3.0)])
def test_margins_that_are_not_wider_than_the_bases_pass(margins_pct):
    """Narrower ones find more; those of a document without any are the device's."""
    document = run_document(measured(WIDE, margins_pct=margins_pct))
    assert gate(document, base(cases={CASE_ID: WIDE})) == []


@pytest.mark.parametrize("margins_pct", [(1.5, 3.0), (1.0, 3.5)])
def test_margins_that_are_wider_than_the_bases_are_told(margins_pct):
    """Either of the two, beside a commit as beside a recording; with both values."""
    known = base(cases={CASE_ID: WIDE}, against="b" * 40)
    for against in ({}, {"against": "main (bbbb)", "base_commit": "b" * 40}):
        document = run_document(measured(WIDE, margins_pct=margins_pct), **against)
        (found,) = gate(document, known)
        ignore, matter = margins_pct
        assert found.code is ProblemCode.FEWER_GATES and found.text == (
            f"has margins {ignore:g} and {matter:g} %, wider than the 1 and 3 % of the base's "
            "recording; narrow them again, or record the case with them"
        )


def test_a_run_beside_the_base_itself_passes():
    """It was measured in pairs with the very commit that the gate was told."""
    document = run_document(SOUND, against="main (bbbb)", base_commit="b" * 40)
    assert gate(document, base(against="b" * 40)) == []


def test_a_difference_is_judged_by_the_step_time_beside_the_base():
    """A run in pairs measures none, though the case gates one: that is no gate less. With the
    step time it is, and beside a recording, too.
    """
    overhead = RecordedDifference(mean=2.0, half_width=0.1)
    known = base(cases={CASE_ID: one_recording(differences_pct={"sync_overhead_pct": overhead})})
    paired = {"against": "main (bbbb)", "base_commit": "b" * 40}
    document = run_document(SOUND, **paired)
    assert gate(document, replace(known, against="b" * 40)) == []
    assert ProblemCode.FEWER_GATES in codes(run_document(SOUND), known)
    untimed = tuple(name for name in default_gates("cuda") if name != "step_ms")
    document = run_document(measured(entry(), gates=untimed), **paired)
    assert codes(document, replace(known, against="b" * 40)) == {ProblemCode.FEWER_GATES}


EDITS = {
    "a time": {"times_ms": one_recording().epochs[-1].recordings[-1].times_ms | {"step_ms": [251]}},
    "a count": {"counters": COUNTS | {"graph_breaks": 0}},
    "the parts of a count": {"detail": {OPERATORS: {"aten.gelu.default": 12}}},
    "what a rank counted": {"by_rank": {SYNCS: [3, 2]}},
    "the tokens": {"tokens_per_step": 65_536},
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_what_the_base_has_not_recorded_judges_nothing(edit):
    """The change edited its own baseline, and every metric is `same`."""
    known = base(cases={CASE_ID: one_recording(**edit)})
    (problem,) = gate(run_document(measured(one_recording())), known)
    assert problem.code is ProblemCode.OTHER_BASELINE and "--perf-base" in problem.text
    assert (
        gate(run_document(measured(one_recording())), base(cases={CASE_ID: one_recording()})) == []
    )


def test_what_passes_was_judged_by_a_recording():
    """A document that does not say by which was judged by none."""
    assert codes(result(judged_by="")) == {ProblemCode.OTHER_BASELINE}


def test_what_the_base_waives_passes():
    """The same size, the same day; and against another revision, too."""
    assert codes(run_document(CHANGED), base(WAIVER)) == {ProblemCode.FAILED}
    assert gate(waived(CHANGED), base(WAIVER)) == []


def test_what_the_base_leaves_free_is_free():
    """An extended case need not be measured, nor be gated more than is recorded."""
    extended = {CASE_ID: entry(), "forward[a]": structs.replace(entry(), extended=True)}
    assert gate(run_document(SOUND), base(cases=extended)) == []
    assert gate(run_document(measured(NO_BREAK[CASE_ID], gates=FEWER)), base(cases=NO_BREAK)) == []


def test_a_case_that_is_new_has_to_pass_as_well():
    """The base does not know it; its own verdict decides."""
    new = structs.replace(
        SLOWER, case="new[a]", verdict=structs.replace(SLOWER.verdict, case_id="new[a]")
    )
    assert codes(run_document(SOUND, new)) == {ProblemCode.FAILED}


def test_only_cases_for_as_many_gpus_are_expected():
    """Four ranks need four; so does a case of several nodes need them."""
    four = structs.replace(entry(), case=CASE | {"world_size": 4})
    nodes = structs.replace(entry(), case=CASE | {"nodes": 2})
    cpu = structs.replace(entry(), case=CASE | {"device": "cpu"})
    cases = {"a[1]": entry(), "a[4]": four, "a[n]": nodes}
    known = base(recorded={"NVIDIA H200": cases, "CPU": {"a[c]": cpu}})
    assert set(expected(run_document(), known)) == {"a[1]"}
    assert set(expected(run_document(), replace(known, gpus=4))) == {"a[1]", "a[4]"}
    # A kind of GPU that is not recorded yet has to measure what the others have.
    assert set(expected(run_document(machine="NVIDIA H100"), known)) == {"a[1]"}
    assert set(expected(run_document(machine="CPU", gpus=[]), known)) == {"a[c]"}
