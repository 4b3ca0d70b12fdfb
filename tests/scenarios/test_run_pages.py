"""What a whole run says stays what was reviewed: on a terminal, as Markdown, and on GitHub.

Texts are written anew by ``--write-golden`` and reviewed as a diff.
"""

from pathlib import Path

from alarms import by_recordings
from builders import entry, evidence, replace
from git_repositories import repository
from inputs import ROSE, SYNC, SYNCS, TRACEBACK, at, calling, counting
from msgspec.structs import replace as changed
from run_documents import run_document

from stepguard import Case
from stepguard.core.reason_sentences import Failed
from stepguard.core.reasons import Reason
from stepguard.core.run_document import CaseState, Problem, ProblemCode, State
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, Verdict
from stepguard.measure.suite import Result
from stepguard.report import github, markdown_page, terminal_summary
from stepguard.report.document_json import as_json, result_document
from stepguard.report.next_steps import Commands
from stepguard.report.terminal_summary import scaling_lines

GOLDEN = Path(__file__).parent / "golden_run"
CLONE = Site("aten.clone.default", "model/gpt.py", 105, "Block.forward", "x = x.clone()", count=4)
CALLED = {"aten.mm.default": 2400}
ALLOWED = replace(SYNC, line=9, text="print(loss)", allowed="a log")
KEPT = replace(SYNC, what="aten.add", count=4096, allowed="a cache")
WHY = Failed(message="ValueError: planted")


def result(name, verdict, found=None, **fields):
    """A case of that name, which came to that verdict."""
    case = Case(name, "model.workloads:train_step", {"batch": 64}, **fields)
    verdict = replace(verdict, case_id=case.id)
    paths = Path(f".stepguard/runs/1/{name}/evidence.json"), Path("baselines/h200x1.json")
    return Result(case, found or evidence(), verdict, *paths)


def judged(name, found, past=None):
    """The case of that name, as its evidence is judged."""
    return result(name, by_recordings(found, past or entry()), found)


def elsewhere(name, **changes):
    """A counter that is as large as before, at another line."""
    return MetricVerdict(name, Status.SAME, Reason.EQUAL, 1.0, 1.0, sites=(SYNC,), **changes)


def a_run():
    """Cases of all kinds: each of what a run says of one is in it."""
    allowed = {SYNCS: (ALLOWED,), "leaked_bytes_per_step": (KEPT,)}
    waived = by_recordings(counting(evidence(), **ROSE), entry())
    equal = (elsewhere(SYNCS), elsewhere("copies_per_step"))
    calls = calling(CALLED | {"aten.clone.default": 4}, (CLONE,))
    broken = Verdict("", Status.BROKEN, Reason.RAISED, WHY, TRACEBACK)
    return [judged("same", counting(evidence(), sites=allowed)), judged("slower", at(8)),
            judged("sync", counting(evidence(), **ROSE)), judged("work", calls, entry()),
            judged("faster", at(-8)), judged("new", evidence()),
            judged("information", at(8, gates=(SYNCS,))), result("first", broken),
            result("second", broken), result("waived", replace(waived, waived_until="2026-12-31")),
            result("moved", Verdict("", Status.SAME, Reason.EQUAL, metrics=equal)),
            result("two-gpus", by_recordings(evidence(), entry()), world_size=2)]  # fmt: skip


def document_of(results):
    """The document of the run, with something in each of its lists."""
    cases = [
        CaseState(
            state=State.MEASURED, case=one.case.id, file="perf_tests/test_step.py", line=30 + at
        )
        for at, one in enumerate(results)
    ]
    cases += [
        CaseState(state=state, case=f"case[{state.value}{n}]", why=f"by -{'km'[n % 2]}")
        for state in State
        if state is not State.MEASURED
        for n in range(3)
    ]
    made = run_document(*(result_document(one, Commands()) for one in results))
    options = changed(made.options, arguments=[f"test_a.py::test[{n}]" for n in range(15)])
    return changed(made, cases=cases, options=options, problems=PROBLEMS, notices=notices(results),
                   base="main",
                   base_changes=[
                       "h200x1.json: step[new]: none -> recorded, step_ms 250.000"])  # fmt: skip


PROBLEMS = [
    Problem(code=ProblemCode.CASE_MISSING, text="it was skipped", case="a[x]", file="a.py", line=2),
    Problem(code=ProblemCode.DIRTY, text="a.py differs from the commit"),
    Problem(code=ProblemCode.FEWER_GATES, text="step_ms is not gated", case="train_step[same]"),
]


def notices(results):
    """What the run says beside its cases: on a waiver, and on two GPUs."""
    return ["train_step[waived]: waived: host_syncs_per_step up to 11", *scaling_lines(results)]


def printed(run, width):
    """The summary on a terminal of so many columns."""
    return "\n".join(text for text, _ in terminal_summary.lines(run, width)) + "\n"


def shown():
    """All that the run shows, by the name of its golden file."""
    results = a_run()
    document = document_of(results)
    run = terminal_summary.ShownRun(
        results, Commands(), ["first of all"], notices(results), True, {"no GPU": 2}, PROBLEMS
    )
    checks = list(github.check_run(document, "b" * 40))
    summaries = [body["output"].pop("summary") for body in checks]
    assert summaries == [markdown_page.page(document, markdown_page.COMMENT_BYTES, True)]
    return {
        "summary.txt": printed(run, 0),
        "summary-80-without-blocks.txt": printed(replace(run, blocks=False), 80),
        "page.md": markdown_page.page(document),
        "comment.md": github.comment(document, "4711"),
        "annotations.txt": "\n".join(github.annotations(document, PROBLEMS, Path("/"))) + "\n",
        "check-run.json": as_json(checks) + "\n",
    }


def test_what_a_run_shows(write):
    """Every line of it."""
    found = shown()
    for name, text in found.items():
        if write:
            (GOLDEN / name).write_text(text)
        assert text == (GOLDEN / name).read_text(), name
    assert {path.name for path in GOLDEN.iterdir()} == set(found)


def test_annotations_begin_at_the_repository(tmp_path):
    """Where GitHub looks for the file, also if the project is a folder of the repository."""
    project = repository(tmp_path) / "project"
    project.mkdir()
    lines = github.annotations(document_of(a_run()), (), project)
    assert any(line.startswith("::error file=project/model/gpt.py,line=105,") for line in lines)
