"""Every loader under documents edited at random: refused with one kind of error, or of use.

Whatever is read can be judged, accepted, written and shown without another error, so that nothing
that was not checked is believed, and no file is written that its own loader refuses.
"""

import json
from datetime import date
from pathlib import Path

import msgspec
import pytest
from alarms import confirmed, permit, to_confirm
from builders import (
    CASE_ID,
    baseline_file,
    cpu_evidence,
    entry,
    evidence,
    recording,
    replace,
    two_rank_evidence,
)
from comparisons import alike
from hypothesis import given, settings
from mutated import FUZZ, FUZZED, mutated
from run_documents import measured, run_document

from stepguard.core.case import Case
from stepguard.core.comparison import Question
from stepguard.core.evidence import Difference, Disturbance, Fault, to_json
from stepguard.core.permission import Permission
from stepguard.core.reasons import Reason
from stepguard.core.recording import BaselineFile
from stepguard.core.site import Site
from stepguard.judge import rule_book
from stepguard.judge.rule_book import judge
from stepguard.measure.suite import Result
from stepguard.report import metric_list, verdict_text
from stepguard.report.document_json import as_json, result_document
from stepguard.report.github import comment
from stepguard.report.markdown_page import page
from stepguard.report.metric_notes import described
from stepguard.report.next_steps import Commands
from stepguard.storage import baseline_files
from stepguard.storage.accept_recording import accept
from stepguard.storage.baseline_files import WAIVERS, WaiverFile, WaiverRow, load_waivers
from stepguard.storage.json_file import FileError
from stepguard.storage.kept_runs import read_comparison, read_evidence
from stepguard.storage.run_document_file import load_document

TODAY = date(2026, 11, 22)
SITE = Site(".item()", "model.py", 10, "step", "loss.item()", "forward", 2)
CASE = Case("124m-bf16", "model.workloads:train_step", {"size": "124m"})


pytestmark = pytest.mark.usefixtures("many_files")


def rich(found):
    """Evidence with a bit of everything that there may be."""
    sites = {"graph_breaks": (SITE,)}
    counts = replace(found.counts, sites=sites, information={"peak_reserved_bytes": 1.0})
    if int(found.case["world_size"]) > 1:
        counts = replace(counts, by_rank={"graph_breaks": (1, 2)})
    first, *others = found.launches
    spoilt = replace(first.blocks[0], disturbance=Disturbance(Reason.THROTTLED, "heat"), ran=9)
    pairs = ((250.0, 250.5), (250.0, 250.6))
    return replace(
        found,
        counts=counts,
        launches=(replace(first, discarded=(spoilt,)), *others),
        differences=(Difference("sync_overhead", pairs),),
    )


def plain(found):
    """A document as a file holds it."""
    return json.loads(to_json(found))


EVIDENCE = {
    "gpu": rich(evidence()), "cpu": rich(cpu_evidence()), "ranks": rich(two_rank_evidence()),
    "fault": evidence(faults=(Fault(Reason.RAISED, "no", "Traceback", "launch 1"),))}  # fmt: skip
ROWS = [
    WaiverRow(case=CASE_ID, metric="step_ms", limit_pct=6.0, reason="r", expires=TODAY, who="w"),
    WaiverRow(case=CASE_ID, metric="graph_breaks", value=2, reason="r", expires=TODAY, who="w"),
]
WAIVED = [Permission(**msgspec.structs.asdict(row)) for row in ROWS]
BASELINE = baseline_file(
    cases={CASE_ID: entry((250.0, 250.2, 249.9, 250.1, 250.0)),
           "x": entry(case=two_rank_evidence().case,
                      epochs=[{"reason": "r",
                               "recordings": [
                                   msgspec.to_builtins(
                                       recording(sites={"graph_breaks": [SITE]},
                                                 by_rank={"graph_breaks": [1, 2]},
                                                 differences_pct={
                                                     "sync_overhead_pct": {
                                                         "mean": 1.0,
                                                         "half_width": 0.1}}))]}])})  # fmt: skip


def shown(found, verdict, comparison=None):
    """Everything that a reader is shown of a verdict."""
    result = Result(CASE, found, verdict, Path("e.json"), Path("b.json"), comparison)
    as_json(result_document(result, Commands()))
    verdict_text.block(verdict_text.page_of(verdict))
    list(metric_list.figures(result))
    verdict_text.remarks(found)
    permit(verdict, found, WAIVED, TODAY)


def accepted(folder, found):
    """Accept it into a new file and beside a recording; whatever is written can be read."""
    for before in (None, entry(case=found.case)):
        path = baseline_files.path_of(folder, found)
        path.unlink(missing_ok=True)
        try:
            if before is not None:
                cases = {found.case_id: before}
                machine = baseline_files.machine_of(found)
                baseline_files.save(path, BaselineFile(schema=1, machine=machine, cases=cases))
            accept(path, found, "a reason")
        except FileError:
            pass
        baseline_files.load(path)


REFUSED = object()


def read_or_refused(load, path):
    """What a loader makes of a file; REFUSED where it says so, by the file's name."""
    try:
        return load(path)
    except FileError as error:
        assert str(path) in str(error)
        return REFUSED


@pytest.mark.parametrize("kind", EVIDENCE)
def test_fuzzed_evidence(tmp_path, kind):
    """Refused, or judged by every baseline, shown, and accepted into a file that can be read."""

    @settings(FUZZ, max_examples=FUZZED // len(EVIDENCE))
    @given(mutated(plain(EVIDENCE[kind])))
    def fuzz(text):
        path = tmp_path / "evidence.json"
        path.write_text(text)
        if (found := read_or_refused(read_evidence, path)) is REFUSED:
            return
        for past in (None, BASELINE.cases[CASE_ID], entry(case=found.case)):
            verdict = judge(Question(found, past))
            shown(found, verdict)
            to_confirm(verdict)
        accepted(tmp_path, found)

    fuzz()


def test_fuzzed_comparisons(tmp_path):
    """Refused, or judged and shown."""
    sound = json.loads(to_json(alike((0.1, -0.1, 0.2, -0.2, 0.1, 0.0))))

    @FUZZ
    @given(mutated(sound))
    def fuzz(text):
        path = tmp_path / "comparison.json"
        path.write_text(text)
        if (found := read_or_refused(read_comparison, path)) is REFUSED:
            return
        shown(found.head, rule_book.judge(Question(pairs=found)), found)
        screened = judge(Question(evidence((262.5,) * 3), BASELINE.cases[CASE_ID]))
        confirmed(screened, found, "its commit")

    fuzz()


def test_fuzzed_baselines(tmp_path):
    """Refused, or compared with, shown, and added to; what is saved is the same again."""
    mine = tmp_path / "mine"

    @FUZZ
    @given(mutated(msgspec.to_builtins(BASELINE)))
    def fuzz(text):
        path = tmp_path / "h200x1.json"
        path.write_text(text)
        if (content := read_or_refused(baseline_files.load, path)) is REFUSED:
            return
        baseline_files.save(mine, content)
        assert baseline_files.load(mine) == content
        for one in content.cases.values():
            for now in (evidence(), EVIDENCE["ranks"]):
                shown(now, judge(Question(now, one)))
        for now in (evidence(date="2030-01-01"), evidence(date="2030-01-01", case_id="x")):
            try:
                accept(path, now, "a reason")
            except FileError:
                continue
            baseline_files.load(path)

    fuzz()


def test_fuzzed_waivers(tmp_path):
    """Refused, or applied and described."""
    moved = judge(Question(evidence((262.5,) * 3), BASELINE.cases[CASE_ID]))

    @FUZZ
    @given(mutated(msgspec.to_builtins(WaiverFile(schema=1, waivers=ROWS))))
    def fuzz(text):
        (tmp_path / WAIVERS).write_text(text)
        try:
            waivers = load_waivers(tmp_path, TODAY)
        except FileError as error:
            assert WAIVERS in str(error)
            return
        for waiver in waivers:
            described(waiver)
        verdict = permit(moved, evidence(), waivers, TODAY)
        verdict_text.block(verdict_text.page_of(verdict))

    fuzz()


def test_fuzzed_run_documents(tmp_path):
    """Refused, or a page and a comment that steer nobody."""
    one = measured(entry((230.0,)))
    sound = msgspec.to_builtins(run_document(one, base="main", base_changes=["a -> b"]))

    @FUZZ
    @given(mutated(sound))
    def fuzz(text):
        path = tmp_path / "perf.json"
        path.write_text(text)
        if (found := read_or_refused(load_document, path)) is REFUSED:
            return
        for shown in (page(found), comment(found, "7")):
            assert "\x1b" not in shown and "\n::" not in shown and "\u202e" not in shown

    fuzz()
