"""Headlines, the table, the documents and the progress line: their words and their width."""

import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from alarms import by_recordings
from builders import PROPERTY, block, entry, evidence, launch, replace
from hypothesis import given, settings
from hypothesis import strategies as st

from stepguard import Case
from stepguard.core.evidence import Disturbance, Fault
from stepguard.core.metrics import METRICS
from stepguard.core.reason_sentences import Failed
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, PartMove, Verdict
from stepguard.measure import case_workers as ticker
from stepguard.measure.suite import Result
from stepguard.report import document_json, table, terminal_summary, verdict_text
from stepguard.report.next_steps import Commands, commit_first, next_steps

IDS = st.from_regex(r"[a-z_]{1,60}\[[a-z0-9.-]{1,60}\]", fullmatch=True)
NUMBERS = st.none() | st.floats(0, 1e15)
WORDS = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=100)
SITES = st.builds(
    Site, what=WORDS, file=st.from_regex(r"([a-z_/]{1,90}\.py)?", fullmatch=True),
    line=st.integers(0, 10**6), function=WORDS, text=WORDS, phase=WORDS,
    count=st.integers(1, 1000))  # fmt: skip
COUNT = st.integers(0, 2**53)


def verdicts_of(places, words):
    """Verdicts whose metrics have these fields too, and that have those."""
    metrics = st.builds(
        MetricVerdict, metric=st.sampled_from(list(METRICS)), status=st.sampled_from(Status),
        reason=st.sampled_from(Reason), old=NUMBERS, new=st.floats(0, 1e15),
        change_pct=st.none() | st.floats(-100, 1e6), limit_pct=st.none() | st.floats(0, 4),
        noise_pct=st.none() | st.floats(0, 4), **places, gated=st.booleans())  # fmt: skip
    return st.builds(
        Verdict, case_id=IDS, status=st.sampled_from(Status), reason=st.sampled_from(Reason),
        **words, metrics=st.lists(metrics, max_size=3).map(tuple), recordings=st.integers(0, 20),
        recorded=st.booleans())  # fmt: skip


PARTS = st.lists(st.builds(PartMove, st.text(max_size=30), COUNT, COUNT), max_size=5)
PLACES = {"moved": PARTS.map(tuple), "sites": st.lists(SITES, max_size=2).map(tuple)}
WHOLE = st.none() | st.builds(Failed, message=st.text(max_size=120))
VERDICTS = verdicts_of(PLACES, {"figures": WHOLE, "detail": st.text(max_size=50)})
TABLED = verdicts_of({}, {})  # a table has no places and no sentences
SLOWER = by_recordings(evidence((270.0,) * 3), entry())
FASTER = by_recordings(evidence((230.0,) * 3), entry())
NO_BASELINE = by_recordings(evidence(), None)


@pytest.mark.parametrize(("width", "line"), [
    (0, "f[x]: CHANGED: syncs 1 -> 3 (+2 syncs) deep/model/gpt.py:88"),
    (50, "f[x]: CHANGED: syncs 1 -> 3 deep/model/gpt.py:88"),
    (40, "f[x]: CHANGED: syncs 1 -> 3 gpt.py:88"),
    (30, "f[x]: CHANGED: syncs 1 -> 3..."),
])  # fmt: skip
def test_a_long_headline_loses_figures_then_folders_then_its_end(width, line):
    """The case, the verdict and what moved stay."""
    whole = "f[x]: CHANGED: syncs 1 -> 3 (+2 syncs) deep/model/gpt.py:88"
    assert terminal_summary.narrowed(whole, "f[x]", width) == line


def test_a_long_id_loses_its_middle():
    """Cases of a suite differ at their ends: train_ste... could be any of them."""
    case = "train_step[124m-bf16-eager]"
    whole = f"{case}: NO BASELINE: no recording in baselines/h200x1.json"
    middle = terminal_summary.narrowed(whole, case, 70)
    assert middle == "train_st..6-eager]" + whole[len(case) :]
    short = terminal_summary.narrowed(whole, case, 40)
    assert short == "train..ager]: NO BASELINE: no recordi..."


@PROPERTY
@given(VERDICTS, st.integers(60, 160))
def test_a_page_has_a_headline_of_one_line_that_fits(verdict, width):
    """However long the id, the metric or the message. The page is valid JSON, and the block begins
    with its headline.
    """
    page = verdict_text.page_of(verdict, ["do it"])
    assert page.headline.startswith(f"{verdict.case_id}: {verdict.status.value}")
    assert len(page.headline.splitlines()) == 1
    assert len(terminal_summary.narrowed(page.headline, verdict.case_id, width)) <= width
    assert verdict_text.block(page).startswith(page.headline)
    told = as_json(document_json.judged_document(verdict))["verdict"]
    assert (told["status"], told["reason"]) == (verdict.status.value, verdict.reason)


@pytest.mark.parametrize(("verdict", "commands"), [
    (FASTER, ["accept 'train_step[124m-bf16]' --baselines 'my dir' --reason '...'"]),
    (SLOWER, ["accept 'train_step[124m-bf16]' --baselines 'my dir' --reason '...'"]),
    (NO_BASELINE, ["accept 'train_step[124m-bf16]' --baselines 'my dir'"]),
    (
        replace(SLOWER, against="main (abc)"),
        [
            "waive 'train_step[124m-bf16]' --baselines 'my dir' --reason '...' --days N",
            "pytest perf_tests --perf-baselines='my dir', then python -m stepguard accept "
            "'train_step[124m-bf16]' --baselines 'my dir' --reason '...'; then remove the "
            "waiver",
        ],
    ),
])  # fmt: skip
def test_commands_carry_the_folder(verdict, commands):
    """Of a run with --perf-baselines: following its hints must not write the usual folder."""
    steps = next_steps(verdict, "e.json", Commands(baselines="my dir"))
    assert all(step.endswith(command) for step, command in zip(steps, commands, strict=False))
    whole = document_json.result_document(result(verdict), Commands(baselines="my dir"))
    assert any("--baselines 'my dir'" in step for step in whole.text.steps)


# The table


@PROPERTY
@given(st.lists(TABLED, max_size=5))
def test_rows_stand_worst_first_and_align(verdicts):
    """Rows are ordered by verdict, worst first, then by case. Every line starts its columns where
    the header does.
    """
    rows = table.rows(verdicts)
    keys = [(status.rank, cells[0]) for cells, status in rows]
    assert keys == sorted(keys) and len(rows) == len(verdicts)
    assert all(len(cells) == len(table.COLUMNS) for cells, _ in rows)
    header, *lines = [text for text, _ in table.lines(rows)]
    assert header.startswith("case") and "verdict" in header
    for line, (cells, _) in zip(lines, rows, strict=True):
        assert line[header.index("verdict") :] == cells[-1]


# Documents


def result(verdict, found=None):
    """A result with that verdict."""
    case = Case("124m-bf16", "model.workloads:train_step", {"batch": 64})
    return Result(case, found or evidence(), verdict, Path("e.json"), Path("b.json"))


def as_json(made):
    """The document as whoever reads it has it, after it was read as what it is."""
    text = document_json.as_json(made)
    assert msgspec.json.decode(text, type=type(made))
    return json.loads(text)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@given(verdicts=st.lists(TABLED, min_size=1, max_size=3))
@settings(PROPERTY, max_examples=30)
def test_the_table_fits_the_terminal_or_stacks(width, verdicts):
    """No line is wider but by a name that is; whatever a cell says is there in either form."""
    rows = table.rows(verdicts)
    shown = [line for line, _ in table.lines(rows, width)]
    names = max(len(f"{row[0]}: {row[-1]}") for row, _ in rows)
    cells = max(len(cell) + 20 for row, _ in rows for cell in row[1:-1])
    assert max(map(len, shown)) <= max(width, names, cells)
    text = "\n".join(shown)
    assert all(cell in text for row, _ in rows for cell in row)
    wide = [line for line, _ in table.lines(rows)]
    assert (max(map(len, wide)) <= width) == (shown == wide)


# Tracebacks

ENGINE = """\
  File "/opt/x/stepguard/worker/main.py", line 210, in main
    Session(note).serve()
  File "/opt/x/stepguard/worker/main.py", line 96, in do_first_step
    self.workload.step()
    ^^^^^^^^^^^^^^^^^^^^
"""
IMPORT = """\
  File "/usr/lib/python3.11/importlib/__init__.py", line 126, in import_module
    return _bootstrap._gcd_import(name[level:], package, level)
  File "<frozen importlib._bootstrap>", line 1204, in _gcd_import
"""
USER = """\
  File "/home/u/stepguard/model/gpt.py", line 7, in step
    self.step()
  [Previous line repeated 9 more times]
  File "/opt/site-packages/torch/nn/modules/linear.py", line 134, in forward
    return F.linear(input, self.weight, self.bias)
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
"""
HEAD = "Traceback (most recent call last):\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"


@pytest.mark.parametrize(("text", "shown"), [
    (HEAD + ENGINE + USER + "ValueError: x\n", HEAD + USER + "ValueError: x\n"),
    (HEAD + ENGINE + IMPORT + USER + "E: x\n", HEAD + USER + "E: x\n"),
    (HEAD + USER + "A: a\n" + CAUSE + HEAD + ENGINE + USER + "B: b\nmore\n",
     HEAD + USER + "A: a\n" + CAUSE + HEAD + USER + "B: b\nmore\n"),
    (HEAD + ENGINE + "BadWorkload: x\n", ""),
    ("no traceback\n    at all\n", "no traceback\n    at all\n"),
    ("", ""),
], ids=["raised", "imported", "chained", "engine", "other", "empty"])  # fmt: skip
def test_the_users_frames(text, shown):
    """The engine's frames and the import machinery's go with their source; all else stays."""
    assert verdict_text.users_frames(text).split("\n") == shown.rstrip("\n").split("\n")


@pytest.mark.parametrize(("reason", "detail", "lines"), [
    (Reason.RAISED, HEAD + ENGINE + USER + "E: x", HEAD + USER + "E: x"),
    (Reason.RAISED, HEAD + ENGINE + "E: x", HEAD + ENGINE + "E: x"),
    (Reason.OUT_OF_MEMORY, HEAD + ENGINE + USER + "E: x", HEAD + USER + "E: x"),
    (Reason.BAD_WORKLOAD, HEAD + ENGINE + "E: x", ""),
    (Reason.BASE_LACKS, HEAD + ENGINE + "E: x", ""),
    (Reason.NO_ANSWER, HEAD + ENGINE + "E: x", HEAD + ENGINE + "E: x"),
])  # fmt: skip
def test_what_is_shown_of_a_traceback(reason, detail, lines):
    """The engine's frames are shown only where they are all there is to a crash, or a hang."""
    verdict = Verdict("c", Status.BROKEN, reason, Failed(message="m"), detail)
    assert verdict_text.evidence_lines(verdict) == [f"  | {line}" for line in lines.splitlines()]
    assert verdict_text.page_of(verdict).detail == detail


def test_a_stage_is_reported_again_while_it_lasts(monkeypatch):
    """Ticks may come as often as they like: the stage is told at once, then twice a second."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(ticker, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    told = []
    progress = ticker.Ticker(lambda text: told.append((clock.now_s, text)))
    progress.tick()
    assert told == [], "there is no stage yet"
    progress("compile")
    for _ in range(50):
        clock.now_s += 0.0625
        progress.tick()
    assert told == [(0.5 * i, "compile") for i in range(7)]


@pytest.mark.parametrize(("how", "said"), [
    ({}, ""),
    ({"tree_changed": True}, "commit, measure again, then "),
    ({"dirty": ("out.html",)}, "commit out.html, measure again, then "),
    ({"dirty": ("last.pt",), "tree_changed": True},
     "commit last.pt, or add it to .gitignore, measure again, then "),
    ({"dirty": tuple("abcd")}, "commit a, b and 2 more, measure again, then "),
    ({"faults": (Fault(Reason.UNDECIDED, "ended by SIGTERM"),)}, "measure again, then "),
])  # fmt: skip
def test_evidence_that_is_not_recorded_says_what_comes_first(how, said):
    """The accept command would be refused: the line names what to commit before it. Who committed
    the code may have forgotten a file. A run that was ended is not recorded either.
    """
    first = commit_first(replace(evidence((250.0,) * 3), **how))
    (step, *_) = next_steps(SLOWER, "e.json", Commands(), first)
    assert step.startswith(f"accept: {said}python -m stepguard accept ")


@pytest.mark.parametrize("how", [{"dirty": ("model/gpt.py",)}, {"tree_changed": True}])
def test_a_document_offers_no_command_that_would_be_refused(how):
    """Nor for a tree that was edited while it was measured."""
    found = result(SLOWER, replace(evidence((270.0,) * 3), **how))
    step, *_ = document_json.result_document(found, Commands()).text.steps
    assert step.startswith("accept: commit")


def test_remarks_name_what_was_measured_again():
    """Disturbed blocks, with the last reason, and a tree that was edited; else nothing."""
    assert verdict_text.remarks(evidence((250.0,) * 3)) == []
    hot = block(disturbance=Disturbance(Reason.THROTTLED, "hw thermal slowdown"))
    launches = (launch(discarded=(hot,)), launch(), launch(discarded=(hot,)))
    told = verdict_text.remarks(evidence(launches=launches, tree_changed=True))
    assert told == [
        "blocks that were disturbed and measured again: 2 (hw thermal slowdown)",
        "files changed while it was measured: its launches may be of different code",
    ]
    written = replace(evidence((250.0,) * 3), tree_changed=True, dirty=("out/args.txt",))
    (told,) = verdict_text.remarks(written)
    assert told.endswith("different code (out/args.txt)")


def test_bytes_that_look_alike_are_given_whole():
    """A move under the last digit shown would read 57.674 MiB -> 57.674 MiB."""
    moved = MetricVerdict(
        "peak_allocated_bytes", Status.CHANGED, Reason.COUNTER_ROSE, 60475904.0, 60476048.0
    )
    assert verdict_text.change(moved) == "peak_allocated_bytes 60,475,904 -> 60,476,048 B (+144 B)"
    larger = replace(moved, new=61000000.0)
    assert verdict_text.change(larger).startswith("peak_allocated_bytes 57.674 MiB -> 58.174 MiB")
