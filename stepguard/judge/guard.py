"""The guard: may this run count? One list of conditions on the run's document. Pure.

pytest asks at the end of its own strict run. The command ``gate`` asks elsewhere, with the code of
the base branch, since the document was written where the change's own code ran. So what the base
knows is not taken from the document: which cases exist, what each gates, what judges it, what is
waived. A case that is not shown to pass fails.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from stepguard.core.device import is_gpu
from stepguard.core.margins import BUDGET_MIN, margins_of
from stepguard.core.metrics import JUDGED_TIME, METRICS
from stepguard.core.permission import Effect, Permission
from stepguard.core.reason_sentences import TREE_CHANGED, both_pct, changed_in_pytest, margins_text
from stepguard.core.recording import Entry
from stepguard.core.run_document import (
    CaseState,
    End,
    Problem,
    ProblemCode,
    ResultDocument,
    RunDocument,
    State,
)
from stepguard.core.status import Status
from stepguard.core.text import revision, short_hash
from stepguard.judge.waiver_rules import effect_of

# Options that change what judges. Settings may have them left over from another day.
_PYTHON = "--perf-against-python"
_JUDGING = ("--perf-against", _PYTHON, "--perf-base", "--perf-baselines")
_BUDGET = "--perf-budget"
_NONE = "no variable that steers"
_DIFFERENCES = tuple(name for name, metric in METRICS.items() if metric.kind == "difference")
_MENDS = {
    State.ABSENT: "bring its test back, or remove it from {file}",
    State.DESELECTED: "to leave cases out on purpose, name files or tests",
    State.SKIPPED: "let it run, or remove it together with its recording",
    State.UNMEASURED: "run it to its end",
}


@dataclass(frozen=True)
class Base:
    """What the asker knows without the document: from the base branch, and from its command."""

    commit: str  # the full hash of the commit that should have been measured
    gpus: int  # the least number of GPUs of the machine that should have measured it
    # The baselines that should have judged, by machine and case.
    recorded: Mapping[str, Mapping[str, Entry]]
    today: date
    against: str = ""  # the full hash of the commit that a run in pairs may have used
    # The base's waivers, and those that the measured commit adds.
    permissions: Sequence[Permission] = ()
    # Whether each recorded case must have been measured. pytest knows what its command selects: it
    # expects the cases that its document calls guarded, and none of them may be recorded yet.
    whole: bool = True


Words = dict[str, str]  # of a condition's sentence, by name; also "case" and "file", of its problem


Breaks = Callable[[RunDocument, Base], Iterator[Words]]
CONDITIONS: list[tuple[ProblemCode, str, Breaks]] = []  # in their order, with their sentences


def _condition(code: ProblemCode, sentence: str) -> Callable[[Breaks], Breaks]:
    """Make a function a condition of a run: it yields the words of each sentence that fails it."""

    def add(breaks: Breaks) -> Breaks:
        CONDITIONS.append((code, sentence, breaks))
        return breaks

    return add


def guard(document: RunDocument, base: Base) -> list[Problem]:
    """Return why a run does not count; empty if it does. The document's own problems are first."""
    found, states = [*document.problems], _states(document)
    for code, sentence, breaks in CONDITIONS:
        for words in breaks(document, base):
            state = states.get(case := words.get("case", ""))
            place = (state.file, state.line) if state else (words.get("file", ""), 0)
            found.append(Problem(code, sentence.format(**words), case, *place))
    return list(dict.fromkeys(found))


def expected(document: RunDocument, base: Base) -> list[str]:
    """Return the cases that the run must have measured: those that it guards itself and, for a
    whole run, those that the base recorded on such a machine. Extended cases are left out.
    """
    recorded = _known(document, base).items() if base.whole else ()
    core = [name for name, entry in recorded if not entry.extended]
    guarded = [state.case or state.test for state in document.cases if state.guarded]
    return list(dict.fromkeys([*core, *guarded]))


def _known(document: RunDocument, base: Base) -> dict[str, Entry]:
    """Return the baselines, by case, of such a machine; for a new kind of GPU those of all GPUs."""
    gpus = max(base.gpus, len(document.gpus))
    known = dict(base.recorded.get(document.machine, {}))
    if not known and document.gpus:
        others = [entry for cases in base.recorded.values() for entry in cases.items()]
        known = {name: entry for name, entry in others if is_gpu(entry.case["device"])}
    return {
        name: entry
        for name, entry in known.items()
        if entry.case.get("nodes", 1) == 1
        and (not is_gpu(entry.case["device"]) or entry.case["world_size"] <= gpus)
    }


def _recorded(document: RunDocument, base: Base) -> Iterator[tuple[ResultDocument, Entry, Words]]:
    """Yield each result whose case is recorded, its baseline, and the words of both."""
    known, of = _known(document, base), _of_branch(document)
    for result in document.results:
        if entry := known.get(result.case):
            recording = f"its recording in {result.baseline}{of}"
            yield result, entry, {"case": result.case, "recording": recording}


def _of_branch(document: RunDocument) -> str:
    return f" of {document.base}" if document.base else ""


def _states(document: RunDocument) -> dict[str, CaseState]:
    return {state.case or state.test: state for state in document.cases}


def _passes(result: ResultDocument) -> bool:
    return result.verdict.outcome == "passed"


@_condition(
    ProblemCode.NO_CASES,
    "no performance test was collected in this process, so that nothing is guarded{why}; start "
    "pytest in the folder that has them, without -n (xdist), and let nothing end the run before "
    "its tests (pytest.exit)",
)
def _no_tests(document: RunDocument, base: Base) -> Iterator[Words]:
    collected = document.results or any(state.test for state in document.cases)
    if document.end is End.FINISHED and not collected:
        yield {"why": "".join(f"; {module}" for module in document.uncollected)}


@_condition(
    ProblemCode.NO_CASES, "the base has no recording for {machine}, so that nothing is expected"
)
def _nothing_recorded(document: RunDocument, base: Base) -> Iterator[Words]:
    if base.whole and not any(not entry.extended for entry in _known(document, base).values()):
        yield {"machine": document.machine or "an unknown machine"}


@_condition(ProblemCode.CASE_MISSING, "guarded, but not measured: {why}; {mend}")
def _missing(document: RunDocument, base: Base) -> Iterator[Words]:
    states, measured = _states(document), {result.case for result in document.results}
    for name in expected(document, base):
        if name not in measured:
            state = states.get(name)
            why = (state.why or state.state.value) if state else "not in the document"
            mend = _MENDS.get(state.state, "") if state else ""
            file = f"{document.baselines}{_of_branch(document)}"
            mend = (mend or "measure all that the base has recorded").format(file=file)
            yield {"case": name, "why": why, "mend": mend}


def _from_settings(document: RunDocument, names: Sequence[str]) -> Iterator[Words]:
    typed = {argument.partition("=")[0] for argument in document.options.arguments}
    for name, value in document.options.perf.items():
        if name in names and name not in typed:
            yield {"option": name if value is True else f"{name}={value}"}


@_condition(
    ProblemCode.OTHER_BASELINE,
    "{option} comes from settings or PYTEST_ADDOPTS, and changes what judges; say it in the "
    "command itself",
)
def _judges_by_settings(document: RunDocument, base: Base) -> Iterator[Words]:
    minutes = document.options.perf.get(_BUDGET)
    less = isinstance(minutes, (int, float)) and minutes < BUDGET_MIN
    yield from _from_settings(document, (*_JUDGING, _BUDGET) if less else _JUDGING)


@_condition(
    ProblemCode.OTHER_ENVIRONMENT,
    "{option} compares two environments, where work and amounts only explain; leave it out",
)
def _against_python(document: RunDocument, base: Base) -> Iterator[Words]:
    if python := document.options.perf.get(_PYTHON):
        yield {"option": f"{_PYTHON}={python}"}


@_condition(
    ProblemCode.OTHER_BASELINE,
    "--perf-against={against} judges the tree against itself, which is always the same; name the "
    "commit that it is merged into",
)
def _against_itself(document: RunDocument, base: Base) -> Iterator[Words]:
    if _PYTHON in document.options.perf:
        return
    if document.against and document.results and document.base_commit in ("", document.commit):
        yield {"against": document.against}


@_condition(
    ProblemCode.OTHER_BASELINE,
    "judged against {against}, which may be of the branch itself; if it is the base, say so by "
    "gate --against COMMIT",
)
def _against_another(document: RunDocument, base: Base) -> Iterator[Words]:
    commit = document.base_commit
    if document.against and commit not in ("", document.commit, base.against):
        yield {"against": revision(document.against, commit)}


@_condition(
    ProblemCode.RECORDS,
    "it had no recording, and passes because this run made one; commit the recording, then "
    "measure again",
)
def _was_recorded(document: RunDocument, base: Base) -> Iterator[Words]:
    for result in document.results:
        # A case that is `same` passes by itself, also if it adds a recording.
        if result.verdict.recorded and result.verdict.status is not Status.SAME:
            yield {"case": result.case}


@_condition(ProblemCode.NOT_STRICT, "the run was not strict; --perf-strict")
def _not_strict(document: RunDocument, base: Base) -> Iterator[Words]:
    if not document.strict:
        yield {}


@_condition(
    ProblemCode.DIRTY,
    "the measured code has no commit; git status says why; else: git add -A && git commit",
)
def _no_commit(document: RunDocument, base: Base) -> Iterator[Words]:
    if not document.commit:
        yield {}


@_condition(ProblemCode.FOREIGN_COMMIT, "{measured} was measured, and not {wanted}")
def _foreign_commit(document: RunDocument, base: Base) -> Iterator[Words]:
    if document.commit and document.commit != base.commit:
        yield {"measured": short_hash(document.commit), "wanted": short_hash(base.commit)}


@_condition(
    ProblemCode.DIRTY, "{file} differs from the commit; commit it, or add an output to .gitignore"
)
def _dirty(document: RunDocument, base: Base) -> Iterator[Words]:
    yield from ({"file": path} for path in document.dirty)


@_condition(
    ProblemCode.DIRTY,
    "{file} differs from the commit, is a link, is ignored by git, or is left out of a sparse "
    "checkout; commit it, or: git sparse-checkout add {folder}",
)
def _baselines_dirty(document: RunDocument, base: Base) -> Iterator[Words]:
    for path in document.baselines_dirty:
        yield {"file": path, "folder": path.rpartition("/")[0] or "."}


@_condition(ProblemCode.OTHER_ENVIRONMENT, changed_in_pytest("{change}"))
def _changed(document: RunDocument, base: Base) -> Iterator[Words]:
    yield from ({"change": change} for change in document.changed)


@_condition(
    ProblemCode.OTHER_ENVIRONMENT,
    "both sides were measured with {now}, {recording} with {was}; run the command with the "
    "variables of the recording, or record with the new ones first",
)
def _other_variables(document: RunDocument, base: Base) -> Iterator[Words]:
    # Code of the tree, or the command, may set a variable for both sides of a pair. A comparison of
    # the two sides does not show that.
    for result, entry, words in _recorded(document, base):
        was = entry.newest.software.get("environment", "")
        if result.environment is not None and result.environment != was:
            yield words | {"now": result.environment or _NONE, "was": was or _NONE}


@_condition(ProblemCode.FEWER_GPUS, "{gpus} GPUs measured, {wanted} should have")
def _fewer_gpus(document: RunDocument, base: Base) -> Iterator[Words]:
    if len(document.gpus) < base.gpus:
        yield {"gpus": str(len(document.gpus)), "wanted": str(base.gpus)}


@_condition(
    ProblemCode.OTHER_CASE,
    "is another case than {recording}, by its {moved}; give it another id, or record it with "
    "these first",
)
def _other_parameters(document: RunDocument, base: Base) -> Iterator[Words]:
    # Beside a recording such a case is NOT COMPARABLE. In pairs nothing else would notice it: both
    # sides run the tree's own case.
    for result, entry, words in _recorded(document, base):
        was, now = ({"nodes": 1, **parameters} for parameters in (entry.case, result.parameters))
        moved = sorted(key for key in was | now if was.get(key) != now.get(key))
        if moved and _passes(result):
            yield words | {"moved": " and ".join(moved)}


@_condition(
    ProblemCode.FEWER_GATES,
    "gates less than {recording} has, no {gates}; gate it again, or record the case without it",
)
def _fewer_gates(document: RunDocument, base: Base) -> Iterator[Words]:
    for result, entry, words in _recorded(document, base):
        # Pairs do not measure differences. The step time stands for them (``judged()``).
        stands = document.against and JUDGED_TIME in result.gates
        gates = (*result.gates, *(_DIFFERENCES if stands else ()))
        if missing := entry.lacking(gates, entry.case["device"], entry.case["world_size"]):
            yield words | {"gates": ", ".join(missing)}


@_condition(
    ProblemCode.FEWER_GATES,
    "has {own}, wider than the {recorded} of {recording}; narrow them again, or record the case "
    "with them",
)
def _wider_margins(document: RunDocument, base: Base) -> Iterator[Words]:
    for result, entry, words in _recorded(document, base):
        own, was = margins_of(result.margins_pct, entry.case["device"]), entry.margins
        if own.ignore_pct > was.ignore_pct or own.matter_pct > was.matter_pct:
            yield words | {"own": margins_text(own), "recorded": both_pct(was)}


@_condition(ProblemCode.FEWER_GATES, "its verdict says nothing of {gates}")
def _no_verdict(document: RunDocument, base: Base) -> Iterator[Words]:
    for result in document.results:
        judged = {metric.metric for metric in result.verdict.metrics if metric.gated}
        absent = [gate for gate in result.gates if gate not in judged]
        # A case that does not pass fails by itself.
        if absent and result.verdict.status.outcome == "passed":
            yield {"case": result.case, "gates": ", ".join(absent)}


@_condition(ProblemCode.TREE_CHANGED, f"{TREE_CHANGED}; leave it alone")
def _changed_tree(document: RunDocument, base: Base) -> Iterator[Words]:
    for result in document.results:
        began = (result.commit, result.dirty) == (document.commit, document.dirty)
        if result.tree_changed or not began:
            yield {"case": result.case}


@_condition(
    ProblemCode.OTHER_BASELINE,
    "was judged by another recording than the base has, or than the run began with; measure with "
    "--perf-base, and leave the files alone",
)
def _other_recording(document: RunDocument, base: Base) -> Iterator[Words]:
    for result, entry, words in _recorded(document, base):
        # A case that does not pass fails the run by itself.
        if _passes(result) and not document.against and result.judged_by != entry.digest:
            yield words


@_condition(ProblemCode.FAILED, "{headline}")
def _failed(document: RunDocument, base: Base) -> Iterator[Words]:
    for result in document.results:
        verdict = result.verdict
        explained = any(one.gated and one.status is verdict.status for one in verdict.metrics)
        excused = _passes(result) and explained and not _unwaived(result, base)
        if verdict.status.outcome != "passed" and not excused:
            yield {"headline": result.text.headline}  # which names the case


@_condition(ProblemCode.FAILED, "passes though {metrics} does not, and no waiver covers it")
def _passes_unwaived(document: RunDocument, base: Base) -> Iterator[Words]:
    for result in document.results:
        if result.verdict.status.outcome == "passed" and (unwaived := _unwaived(result, base)):
            yield {"case": result.case, "metrics": ", ".join(unwaived)}


def _unwaived(result: ResultDocument, base: Base) -> list[str]:
    """Return the gated metrics that do not pass, and that no waiver of the base covers."""
    judged = {metric.metric: metric for metric in result.verdict.metrics if metric.gated}
    waived = {
        waiver.metric
        for waiver in base.permissions
        if waiver.case == result.case
        and effect_of(waiver, judged.get(waiver.metric), base.today) is Effect.ALLOWED
    }
    failing = [name for name, metric in judged.items() if metric.status.outcome != "passed"]
    return [name for name in failing if name not in waived]


@_condition(ProblemCode.NOT_FINISHED, "the run did not finish: {end}")
def _not_finished(document: RunDocument, base: Base) -> Iterator[Words]:
    if document.end is not End.FINISHED and not document.problems:
        yield {"end": document.end.value}


@_condition(ProblemCode.NOT_PASSED, "pytest failed, see its log")
def _not_passed(document: RunDocument, base: Base) -> Iterator[Words]:
    # If no case failed either, a test that measures no case failed, or a plugin did.
    if not document.passed and not document.problems and all(map(_passes, document.results)):
        yield {}
