"""The guard: one list of conditions on a run's document. Each mistake of SECURITY.md is a document
here, and the row says which door is red.

pytest asks about its own run, and knows no more than the run did: the commit, the revision that
judged, the recordings, the cases that it selected. The command gate is told by the base.
"""

from dataclasses import dataclass, field
from datetime import date

import pytest
from builders import (
    CASE,
    CASE_ID,
    COUNTS,
    PROPERTY,
    entry,
    evidence,
    one_recording,
    replace,
    with_counts,
)
from hypothesis import given
from hypothesis import strategies as st
from run_documents import COMMIT, measured, run_document

from stepguard.core.metrics import OPERATORS, default_gates
from stepguard.core.permission import Permission
from stepguard.core.recording import Entry, RecordedDifference
from stepguard.core.run_document import (
    CaseState,
    End,
    Options,
    Problem,
    ProblemCode,
    RunDocument,
    State,
)
from stepguard.core.status import Status
from stepguard.judge.guard import CONDITIONS, Base, expected, guard

OTHER = "forward[a]"
ANOTHER_COMMIT = "b" * 40
SYNCS = "host_syncs_per_step"
ONE = measured(entry())
SLOWER = measured(entry(), launch_ms=(275.0,) * 3)
CHANGED = measured(entry(), counts=with_counts(evidence(), graph_breaks=3).counts)
FEWER_FLOPS = measured(entry(), counts=with_counts(evidence(), flops_per_step=3).counts)
FEWER = tuple(name for name in default_gates("cuda") if name != "graph_breaks")
BOTH, GATE = ("pytest", "gate"), ("gate",)
ALLOWS = Permission(
    case=CASE_ID, metric="graph_breaks", value=3, reason="waits for torch 2.14",
    expires=date(2026, 12, 1), who="A. Author")  # fmt: skip


def of(name, result=ONE):
    """The result, as that of another case."""
    return replace(result, case=name, verdict=replace(result.verdict, case_id=name))


def base(*waivers, **cases):
    """What the base branch knows: these recorded cases on one H200, and these waivers."""
    known = {CASE_ID: entry()} | cases
    return Base(COMMIT, 1, {"NVIDIA H200": known}, date(2026, 11, 22), permissions=waivers)


BASE = base()
TWO = base(**{OTHER: entry()})
BESIDE = replace(BASE, against=ANOTHER_COMMIT)
IN_PAIRS = {"against": "main (bbbb)", "base_commit": ANOTHER_COMMIT}


def by_pytest(document: RunDocument, known: Base) -> Base:
    """What pytest asks its own document by, where ``known`` are the recordings that judged."""
    return replace(known, commit=document.commit, against=document.base_commit, gpus=0, whole=False)


def codes(document, known=BASE):
    """The codes of what is wrong."""
    return {problem.code.value for problem in guard(document, known)}


def result(made=ONE, **changes):
    """The document of a run with one result that has these changes."""
    return run_document(replace(made, **changes))


def verdict(**changes):
    """The same, with changes to the result's verdict."""
    return result(verdict=replace(ONE.verdict, **changes))


def gated_metrics(**changes):
    """The metrics of the sound verdict, the gated ones changed."""
    return [replace(one, **changes) if one.gated else one for one in ONE.verdict.metrics]


def waived(made):
    """A result that says that it passes, since its moved metrics are waived."""
    moved = [
        replace(one, waived_until="2026-12-01") if one.status.outcome == "failed" else one
        for one in made.verdict.metrics
    ]
    passing = replace(made.verdict, metrics=moved, waived_until="2026-12-01")
    return result(made, verdict=passing)


def became(state, **fields):
    """A run of two guarded cases that measured one; what became of the other."""
    other = CaseState(state=state, case=OTHER, guarded=True, **fields)
    sound = run_document(ONE)
    return replace(sound, cases=[*sound.cases, other])


def left_in_settings(name, value=True):
    """A sound run with an option that its command does not have."""
    return run_document(ONE, options=Options(arguments=["perf_tests"], perf={name: value}))


@dataclass(frozen=True)
class Mistake:
    """The document that a mistake leaves, the code of what is wrong, and which doors say it."""

    document: RunDocument
    code: str
    red: tuple[str, ...] = BOTH
    base: Base = field(default_factory=lambda: BASE)
    # The recordings that judged the run, if they are not the base's.
    own: dict[str, Entry] | None = None


LOOSER = one_recording(counters=COUNTS | {"graph_breaks": 3})
MISTAKES = {
    "a case's test is deleted, renamed, or in a file that settings leave out": Mistake(
        became(State.ABSENT, why="no test of it was collected"), "CASE_MISSING", base=TWO),
    "a case is deleted with its recording": Mistake(
        run_document(ONE), "CASE_MISSING", GATE, TWO, {CASE_ID: entry()}),
    "a skip": Mistake(became(State.SKIPPED, why="later"), "CASE_MISSING", base=TWO),
    "the run ends before its turn, or only collects": Mistake(
        became(State.UNMEASURED), "CASE_MISSING", base=TWO),
    "-k, -m, --deselect": Mistake(became(State.DESELECTED), "CASE_MISSING", base=TWO),
    "a recorded case becomes extended": Mistake(
        became(State.DESELECTED, extended=True), "CASE_MISSING", base=TWO),
    "the command leaves a case out": Mistake(
        run_document(ONE, cases=[CaseState(state=State.LEFT_OUT, case=OTHER)]), "CASE_MISSING",
        GATE, TWO),
    "xdist, or an exit before the tests": Mistake(run_document(), "NO_CASES"),
    "no performance test is left": Mistake(
        run_document(cases=[CaseState(state=State.ABSENT, case=CASE_ID, guarded=True)],
                     uncollected=["test_perf.py was skipped: later"]), "NO_CASES"),
    "another case was measured": Mistake(run_document(of("other[a]")), "CASE_MISSING", GATE),
    "fewer gates": Mistake(run_document(measured(entry(), gates=FEWER)), "FEWER_GATES"),
    "wider margins": Mistake(
        run_document(measured(entry(), margins_pct=(0.2, 3.0))), "FEWER_GATES"),
    "margins wider than recorded ones, by the device's default": Mistake(
        run_document(ONE), "FEWER_GATES",
        base=base(**{CASE_ID: replace(entry(), margins_pct=[0.1, 0.5])})),
    "a verdict that lacks a gate": Mistake(
        verdict(metrics=[one for one in ONE.verdict.metrics if one.metric != "step_ms"]),
        "FEWER_GATES"),
    "slower behind a mark xfail": Mistake(run_document(SLOWER), "FAILED"),
    "slower, and a test ended the run with status 0": Mistake(
        run_document(SLOWER, passed=True), "FAILED"),
    "slower, and its text says that it is the same": Mistake(
        run_document(replace(SLOWER, text=ONE.text), passed=True), "FAILED"),
    "the exit status is swallowed": Mistake(run_document(ONE, passed=False), "NOT_PASSED"),
    "the run was interrupted": Mistake(
        run_document(ONE, end=End.INTERRUPTED, passed=False), "NOT_FINISHED"),
    "it was recorded": Mistake(verdict(recorded=True, status=Status.NO_BASELINE), "RECORDS"),
    "--perf-against=HEAD": Mistake(
        run_document(ONE, against="HEAD (aaaa)", base_commit=COMMIT), "OTHER_BASELINE"),
    "--perf-against=HEAD~1": Mistake(run_document(ONE, **IN_PAIRS), "OTHER_BASELINE", GATE),
    "--perf-against=HEAD~1, and another one is the base": Mistake(
        run_document(ONE, **IN_PAIRS), "OTHER_BASELINE", GATE, replace(BASE, against="c" * 40)),
    "--perf-against-python=PYTHON": Mistake(
        run_document(ONE, against="this tree under py", base_commit=COMMIT,
                     options=Options(arguments=["--perf-against-python=py"],
                                     perf={"--perf-against-python": "py"})), "OTHER_ENVIRONMENT"),
    "--perf-against=HEAD~1 in settings": Mistake(
        left_in_settings("--perf-against", "HEAD~1"), "OTHER_BASELINE"),
    "--perf-base=HEAD~1 in settings": Mistake(
        left_in_settings("--perf-base", "HEAD~1"), "OTHER_BASELINE"),
    "--perf-baselines=mine in settings": Mistake(
        left_in_settings("--perf-baselines", "mine"), "OTHER_BASELINE"),
    "a small --perf-budget in settings": Mistake(
        left_in_settings("--perf-budget", 0.1), "OTHER_BASELINE"),
    "other parameters, in pairs": Mistake(
        replace(result(parameters=CASE | {"params": {"batch": 1}}), **IN_PAIRS), "OTHER_CASE",
        base=BESIDE),
    "files differ from the commit": Mistake(run_document(ONE, dirty=["model.py"]), "DIRTY"),
    "a baseline is ignored, a link, or left out": Mistake(
        run_document(ONE, baselines_dirty=["baselines/cpu.json"]), "DIRTY"),
    "there is no commit": Mistake(run_document(ONE, commit=""), "DIRTY"),
    "a problem of the run itself": Mistake(
        run_document(ONE, problems=[Problem(ProblemCode.DIRTY, "x.py")], passed=False), "DIRTY"),
    "a conftest sets a variable": Mistake(
        run_document(ONE, changed=["MKL_CBWR unset -> COMPATIBLE"]), "OTHER_ENVIRONMENT"),
    "the command sets a variable for both sides": Mistake(
        replace(result(environment="CUDA_LAUNCH_BLOCKING=1"), **IN_PAIRS), "OTHER_ENVIRONMENT",
        base=BESIDE),
    "files change while a case is measured": Mistake(result(tree_changed=True), "TREE_CHANGED"),
    "files changed before": Mistake(result(dirty=["model/gpt.py"]), "TREE_CHANGED"),
    "the commit changed before": Mistake(result(commit=ANOTHER_COMMIT), "TREE_CHANGED"),
    "a baseline changes since the run began": Mistake(
        run_document(measured(LOOSER)), "OTHER_BASELINE"),
    "the change edits its baseline": Mistake(
        run_document(measured(LOOSER)), "OTHER_BASELINE", GATE, own={CASE_ID: LOOSER}),
    "no recording judged": Mistake(result(judged_by=""), "OTHER_BASELINE"),
    "another commit was measured": Mistake(
        result(commit=ANOTHER_COMMIT), "FOREIGN_COMMIT", GATE, replace(BASE, commit="c" * 40)),
    "the run was not strict": Mistake(run_document(ONE, strict=False), "NOT_STRICT"),
    "a card is hidden": Mistake(run_document(ONE), "FEWER_GPUS", GATE, replace(BASE, gpus=2)),
    "a CPU measured": Mistake(run_document(ONE, machine="CPU", gpus=[]), "FEWER_GPUS", GATE),
    "a machine without a recording": Mistake(
        run_document(ONE, machine="CPU", gpus=[]), "NO_CASES", GATE, replace(BASE, gpus=0)),
    "a metric that fails in a verdict that passes": Mistake(
        verdict(metrics=gated_metrics(status=SLOWER.verdict.status)), "FAILED"),
    "a waiver that nobody has": Mistake(waived(CHANGED), "FAILED"),
    "a broken case that says it is waived": Mistake(
        verdict(status=Status.BROKEN, waived_until="2026-12-01"), "FAILED"),
    "a waiver that ended": Mistake(
        waived(CHANGED), "FAILED", base=base(replace(ALLOWS, expires=date(2026, 11, 21)))),
    "a waiver of less": Mistake(waived(CHANGED), "FAILED", base=base(replace(ALLOWS, value=2))),
    "a waiver without limit": Mistake(
        waived(CHANGED), "FAILED", base=base(replace(ALLOWS, value=10**6))),
    "a waiver of more work": Mistake(
        waived(FEWER_FLOPS), "FAILED",
        base=base(replace(ALLOWS, metric="flops_per_step", value=10**18))),
    "a waiver of another case": Mistake(
        waived(CHANGED), "FAILED", base=base(replace(ALLOWS, case=OTHER))),
}  # fmt: skip


@pytest.mark.parametrize("made", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_red(made):
    """At the gate always. pytest is told by its own command what it should have measured, and does
    not see what the base knows alone.
    """
    assert made.code in codes(made.document, made.base)
    own = {"NVIDIA H200": made.own} if made.own else made.base.recorded
    asked = by_pytest(made.document, replace(made.base, recorded=own))
    assert (made.code in codes(made.document, asked)) is ("pytest" in made.red)


def test_each_condition_has_its_mistake():
    """A condition that no mistake breaks guards nothing."""
    conditions = [breaks for _, _, breaks in CONDITIONS]
    pairs = [(breaks, made) for made in MISTAKES.values() for breaks in conditions]
    assert {one for one, made in pairs if [*one(made.document, made.base)]} == {*conditions}


def test_a_sound_run_passes():
    """Every guarded case was measured at the commit, gates all it should, and is `same`; in pairs
    with the very commit that the gate was told, too; and by pytest.
    """
    document, pairs = run_document(ONE), replace(result(environment=""), **IN_PAIRS)
    assert guard(document, BASE) == guard(document, by_pytest(document, BASE)) == []
    assert guard(pairs, BESIDE) == []
    # Nothing may be recorded yet where pairs judge, and an enlarged budget is no harm.
    assert guard(pairs, replace(by_pytest(pairs, BASE), recorded={})) == []
    assert codes(left_in_settings("--perf-budget", 60.0)) == set()


IDS = (CASE_ID, OTHER, "eval[b]")
THREE = base(**{OTHER: entry(), "eval[b]": entry()})


@PROPERTY
@given(
    st.sets(st.sampled_from(IDS), max_size=2),
    st.sets(st.sampled_from([*IDS, "new[c]"])),
    st.sampled_from(State),
)
def test_a_document_that_lists_fewer_cases_is_refused(kept, listed, became_):
    """Whatever else it says of the others, or leaves out: each that the base has recorded and that
    it has no result of is missing.
    """
    cases = [CaseState(state=became_, case=name, test="t") for name in sorted({*listed, "new[c]"})]
    document = run_document(*(of(name) for name in sorted(kept)), cases=cases)
    problems = guard(document, THREE)
    assert {one.code for one in problems} == {ProblemCode.CASE_MISSING}
    assert {one.case for one in problems} == {*IDS} - kept


def test_a_problem_says_what_mends_it():
    """Where the test is, what became of it, and the file and the branch to look at; a problem that
    the document names is named once.
    """
    document = became(State.ABSENT, why="no test of it was collected", file="test_x.py", line=3)
    document = replace(document, base="main")
    (problem,) = guard(document, TWO)
    assert problem.text == (
        "guarded, but not measured: no test of it was collected; bring its test back, or remove it "
        "from baselines of main"
    )
    assert (problem.case, problem.file, problem.line) == (OTHER, "test_x.py", 3)
    again = replace(document, problems=[problem], passed=False)
    assert guard(again, TWO) == [problem]
    left_out = run_document(ONE, baselines_dirty=["baselines/cpu.json"])
    (problem,) = guard(left_out, BASE)
    assert problem.text.endswith("commit it, or: git sparse-checkout add baselines")
    unknown = guard(run_document(ONE, machine="CPU", gpus=[]), replace(BASE, gpus=0))
    assert unknown[0].text == "the base has no recording for CPU, so that nothing is expected"
    wider = run_document(measured(entry(), margins_pct=(1.5, 3.0)), base="main")
    assert [one.text for one in guard(wider, BASE)] == [
        "has margins 1.5 and 3 %, wider than the 0.2 and 0.5 % of its recording in "
        "baselines/h200x1.json of main; narrow them again, or record the case with them"
    ]


WIDE = replace(entry(), margins_pct=[1.0, 3.0])


@pytest.mark.parametrize(("margins_pct", "wider"), [
    ((), False), ((0.2, 0.5), False), ((1.0, 2.0), False), ((1.0, 3.0), False), ((1.5, 3.0), True),
    ((1.0, 3.5), True),
])  # fmt: skip
@pytest.mark.parametrize("against", [{}, IN_PAIRS])
def test_margins_may_be_narrower_than_the_bases(margins_pct, wider, against):
    """Either of the two, beside a commit as beside a recording. Narrower ones find more; those of a
    document without any are the device's.
    """
    document = run_document(measured(WIDE, margins_pct=margins_pct), **against)
    known = replace(base(**{CASE_ID: WIDE}), against=ANOTHER_COMMIT)
    assert codes(document, known) == ({"FEWER_GATES"} if wider else set())


def test_a_difference_is_judged_by_the_step_time_beside_the_base():
    """A run in pairs measures none, though the case gates one: that is no gate less. With the
    step time it is, and beside a recording, too.
    """
    overhead = RecordedDifference(mean=2.0, half_width=0.1)
    recorded = one_recording(differences_pct={"sync_overhead_pct": overhead})
    known = replace(base(**{CASE_ID: recorded}), against=ANOTHER_COMMIT)
    assert codes(run_document(ONE, **IN_PAIRS), known) == set()
    assert "FEWER_GATES" in codes(run_document(ONE), known)
    untimed = tuple(name for name in default_gates("cuda") if name != "step_ms")
    document = run_document(measured(entry(), gates=untimed), **IN_PAIRS)
    assert codes(document, known) == {"FEWER_GATES"}


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
    document = run_document(measured(one_recording()))
    assert codes(document, base(**{CASE_ID: one_recording(**edit)})) == {"OTHER_BASELINE"}
    assert codes(document, base(**{CASE_ID: one_recording()})) == set()


def test_what_the_base_waives_passes():
    """The same size, the same day."""
    assert codes(run_document(CHANGED), base(ALLOWS)) == {"FAILED"}
    assert codes(waived(CHANGED), base(ALLOWS)) == set()


def test_what_the_base_leaves_free_is_free():
    """An extended case need not be measured, nor a case be gated more than is recorded; a new case
    has its own verdict.
    """
    extended = base(**{OTHER: replace(entry(), extended=True)})
    assert codes(run_document(ONE), extended) == set()
    fewer = replace(entry(), gates=["flops_per_step"])
    assert codes(run_document(measured(fewer, gates=FEWER)), base(**{CASE_ID: fewer})) == set()
    assert codes(run_document(ONE, of("new[a]", SLOWER))) == {"FAILED"}


def test_only_cases_for_as_many_gpus_are_expected():
    """Four ranks need four; so does a case of several nodes need them. A kind of GPU that is not
    recorded yet has to measure what the others have.
    """
    four = replace(entry(), case=CASE | {"world_size": 4})
    nodes = replace(entry(), case=CASE | {"nodes": 2})
    cpu = replace(entry(), case=CASE | {"device": "cpu"})
    cases = {"a[1]": entry(), "a[4]": four, "a[n]": nodes}
    known = replace(BASE, recorded={"NVIDIA H200": cases, "CPU": {"a[c]": cpu}})
    assert expected(run_document(), known) == ["a[1]"]
    assert expected(run_document(), replace(known, gpus=4)) == ["a[1]", "a[4]"]
    assert expected(run_document(machine="NVIDIA H100"), known) == ["a[1]"]
    assert expected(run_document(machine="CPU", gpus=[]), known) == ["a[c]"]
