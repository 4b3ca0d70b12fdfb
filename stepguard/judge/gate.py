"""The gate: from the document of a run and what the base branch has recorded, pass or fail. Pure.

The document was written where the code of the change ran, so nothing is taken for granted that the
base can check: which cases there are, what each has to gate, what it was compared with, what may be
waived. What is not seen to pass fails.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from stepguard.ab_margins import margins_of
from stepguard.baseline_file import Entry
from stepguard.device import is_gpu
from stepguard.document import End, Problem, ProblemCode, ResultDocument, RunDocument
from stepguard.expectation import Expectation
from stepguard.judge.waivers import effect_of
from stepguard.metrics import JUDGED_TIME, METRICS
from stepguard.sentences import wider_margins
from stepguard.text import revision, short_hash
from stepguard.verdict import Reason, Status
from stepguard.waiver import Waiver, WaiverEffect


@dataclass(frozen=True)
class Base:
    """Describe what the gate knows without the document."""

    commit: str  # that should have been measured, in full
    gpus: int  # of the machine that should have measured it, at the least
    recorded: Mapping[str, Mapping[str, Entry]]  # by machine and case, as the base branch has them
    waivers: Sequence[Waiver]
    today: date
    against: str = ""  # the commit, in full, that a run may have been measured in pairs with
    expectations: Sequence[Expectation] = ()  # of the commits from there to ``commit``


def expected(found: RunDocument, base: Base) -> dict[str, Entry]:
    """Return the cases that the run has to have measured: those that the base recorded on such a
    machine, for as many GPUs as it has; on a new kind of GPU those of the others.
    """
    gpus = max(base.gpus, len(found.gpus))
    known = dict(base.recorded.get(found.machine, {}))
    if not known and found.gpus:
        others = base.recorded.values()
        known = {
            name: one
            for cases in others
            for name, one in cases.items()
            if is_gpu(one.case["device"])
        }
    return {
        name: entry
        for name, entry in known.items()
        if not entry.extended
        and entry.case.get("nodes", 1) == 1
        and (not is_gpu(entry.case["device"]) or entry.case["world_size"] <= gpus)
    }


def gate(found: RunDocument, base: Base) -> list[Problem]:
    """Return why the run is no pass; nothing if it is one."""
    wanted = expected(found, base)
    problems = [*_of_run(found, base)]
    if not wanted:
        text = f"the base has no recording for {found.machine or 'an unknown machine'}"
        problems.append(Problem(ProblemCode.NO_CASES, f"{text}, so that nothing is expected"))
    for name, entry in wanted.items():
        problems += _of_case(name, entry, found)
    for result in found.results:
        problems += _of_result(result, found, base)
    return problems


def _of_run(found: RunDocument, base: Base) -> Iterator[Problem]:
    yield from found.problems
    if found.commit != base.commit:
        measured = short_hash(found.commit) or "no commit"
        text = f"{measured} was measured, and not {short_hash(base.commit)}"
        yield Problem(ProblemCode.FOREIGN_COMMIT, text)
    if len(found.gpus) < base.gpus:
        text = f"{len(found.gpus)} GPUs measured, {base.gpus} should have"
        yield Problem(ProblemCode.FEWER_GPUS, text)
    if found.dirty:
        text = f"files differ from the commit: {', '.join(found.dirty[:3])}"
        yield Problem(ProblemCode.DIRTY, text)
    if found.end is not End.FINISHED and not found.problems:
        yield Problem(ProblemCode.NOT_FINISHED, f"the run did not finish: {found.end.value}")
    if found.against and found.base_commit in ("", found.commit):
        text = f"judged against {found.against}, which is itself, so always the same"
        yield Problem(ProblemCode.OTHER_BASELINE, text)
    elif found.against and found.base_commit != base.against:
        text = f"judged against {revision(found.against, found.base_commit)}, which may be of the "
        text += "branch itself: if it is the base, say so by gate --against COMMIT"
        yield Problem(ProblemCode.OTHER_BASELINE, text)
    if not found.strict:
        yield Problem(ProblemCode.NOT_STRICT, "the run was not strict: --perf-strict")
    # Last: what else failed was a test that measures no case, or a plugin.
    failed = any(result.verdict.outcome != "passed" for result in found.results)
    if not (found.passed or found.problems or failed):
        yield Problem(ProblemCode.NOT_PASSED, "pytest failed, see its log")


def _of_case(name: str, entry: Entry, found: RunDocument) -> Iterator[Problem]:
    """Yield what is wrong with a case that the base expects."""
    result = found.result_of(name)
    if result is None:
        state = next((one for one in found.cases if one.case == name), None)
        why = f"{state.state.value}, {state.why}" if state and state.why else "not in the document"
        if all(one.case != name for one in found.problems):
            yield Problem(ProblemCode.CASE_MISSING, f"guarded, but not measured: {why}", name)
        return
    if result.parameters != entry.case:
        text = "measured with other parameters than the base has recorded"
        yield Problem(ProblemCode.OTHER_CASE, text, name)
        return
    device, ranks = str(entry.case["device"]), int(entry.case["world_size"])
    gates = result.gates
    if found.against and JUDGED_TIME in gates:  # which judges for differences, see judged()
        gates += tuple(name for name, one in METRICS.items() if one.kind == "difference")
    if missing := entry.lacking(gates, device, ranks):
        text = f"gates less than the base's recording has, no {', '.join(missing)}"
        yield Problem(ProblemCode.FEWER_GATES, text, name)
    own = margins_of(result.margins_pct, device)
    if own.wider(entry.margins):
        text = wider_margins(own, entry.margins, "the base's recording")
        yield Problem(ProblemCode.FEWER_GATES, text, name)
    # What fails, with nothing to compare with for one, says so itself.
    passes = result.verdict.outcome == "passed"
    if passes and not found.against and result.judged_by != entry.digest:
        text = "was judged by another recording than the base has: measure with --perf-base"
        yield Problem(ProblemCode.OTHER_BASELINE, text, name)


def _of_result(result: ResultDocument, found: RunDocument, base: Base) -> Iterator[Problem]:
    """Yield why a case that was measured is no pass."""
    verdict, name = result.verdict, result.case
    if result.commit != found.commit or result.dirty or result.tree_changed:
        text = "was not measured of the run's own commit, in a clean tree"
        yield Problem(ProblemCode.TREE_CHANGED, text, name)
    if verdict.recorded and verdict.status is not Status.SAME:  # by --perf-append what passes joins
        yield Problem(ProblemCode.RECORDS, "its verdict is that it was recorded", name)
    judged = {metric.metric: metric for metric in verdict.metrics if metric.gated}
    # A case that was judged as a whole, and failed, says it in its headline.
    absent = [gate for gate in result.gates if gate not in judged]
    if absent and verdict.status.outcome == "passed":
        text = f"its verdict says nothing of {', '.join(absent)}"
        yield Problem(ProblemCode.FEWER_GATES, text, name)
    declared = {one.metric for one in base.expectations if one.case == name and found.against}
    for metric in judged.values():
        if metric.reason == Reason.EXPECTED and metric.metric not in declared:
            text = f"{metric.metric} passes as declared, and no commit of the range declares it"
            yield Problem(ProblemCode.FAILED, text, name)
    failing = [metric for metric in judged.values() if metric.status.outcome != "passed"]
    # The run's own rule: what is wider than a run takes passes no document, either.
    waived = {
        one.metric
        for one in base.waivers
        if one.case == name
        and effect_of(one, judged.get(one.metric), base.today) is WaiverEffect.WAIVED
    }
    unwaived = [one for one in failing if one.metric not in waived]
    if verdict.outcome != "passed" or verdict.status.outcome != "passed" and unwaived:
        yield Problem(ProblemCode.FAILED, result.text.headline)  # which names the case
    elif unwaived:
        names = ", ".join(one.metric for one in unwaived)
        text = f"passes though {names} does not, and the base has no such waiver"
        yield Problem(ProblemCode.FAILED, text, name)
