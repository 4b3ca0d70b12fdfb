"""Headlines, the table, the documents and the progress line: their words and their width."""

import json
import re
from datetime import date
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from alarms import of_metrics
from builders import CASE_ID, COUNTS, PROPERTY, block, entry, evidence, launch, replace, with_counts
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from stepguard import Case
from stepguard.core.evidence import Disturbance, Fault
from stepguard.core.metrics import METRICS
from stepguard.core.permission import Effect, Permission, PermissionOutcome
from stepguard.core.reason_sentences import Failed, NotRecorded
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, PartMove, Verdict
from stepguard.judge.judge_recordings import judge
from stepguard.measure import case_workers as ticker
from stepguard.measure.suite import Result
from stepguard.report import document_json, table, terminal_summary, verdict_text
from stepguard.report.next_steps import Commands, commit_first, next_steps

IDS = st.from_regex(r"[a-z_]{1,60}\[[a-z0-9.-]{1,60}\]", fullmatch=True)
NUMBERS = st.none() | st.floats(0, 1e15)
COUNTERS = len(COUNTS) + 1  # that a case on a GPU gates: tokens too
WORDS = st.text(st.characters(exclude_categories=["C", "Zl", "Zp"]), max_size=100)
SITES = st.builds(
    Site,
    what=WORDS,
    file=st.from_regex(r"([a-z_/]{1,90}\.py)?", fullmatch=True),
    line=st.integers(0, 10**6),
    function=WORDS,
    text=WORDS,
    phase=WORDS,
    count=st.integers(1, 1000),
)
COUNT = st.integers(0, 2**53)


def verdicts_of(places, words):
    """Verdicts whose metrics have these fields too, and that have those."""
    metrics = st.builds(
        MetricVerdict,
        metric=st.sampled_from(list(METRICS)),
        status=st.sampled_from(Status),
        reason=st.sampled_from(Reason),
        old=NUMBERS,
        new=st.floats(0, 1e15),
        change_pct=st.none() | st.floats(-100, 1e6),
        limit_pct=st.none() | st.floats(0, 4),
        noise_pct=st.none() | st.floats(0, 4),
        **places,
        gated=st.booleans(),
    )
    return st.builds(
        Verdict,
        case_id=IDS,
        status=st.sampled_from(Status),
        reason=st.sampled_from(Reason),
        **words,
        metrics=st.lists(metrics, max_size=3).map(tuple),
        recordings=st.integers(0, 20),
        recorded=st.booleans(),
    )


PARTS = st.lists(st.builds(PartMove, st.text(max_size=30), COUNT, COUNT), max_size=5)
PLACES = {"moved": PARTS.map(tuple), "sites": st.lists(SITES, max_size=2).map(tuple)}
WHOLE = st.none() | st.builds(Failed, message=st.text(max_size=120))
VERDICTS = verdicts_of(PLACES, {"figures": WHOLE, "detail": st.text(max_size=50)})
TABLED = verdicts_of({}, {})  # a table has no places and no sentences
SLOWER = judge(evidence((270.0,) * 3), entry())
CHANGED = judge(with_counts(evidence(), operator_calls_per_step=2401), entry())
SAME = judge(evidence(), entry())
FASTER = judge(evidence((230.0,) * 3), entry())
NO_BASELINE = judge(evidence(), None)


@PROPERTY
@given(VERDICTS, st.integers(60, 160))
def test_a_headline_is_one_line_that_fits(verdict, width):
    """However long the id, the metric or the message: one line, of at most the width if any."""
    line = verdict_text.headline(verdict, width)
    assert len(line) <= width
    assert len(line.splitlines()) == 1
    whole = verdict_text.headline(verdict)
    assert len(whole.splitlines()) == 1 and whole.startswith(f"{verdict.case_id}: ")


@pytest.mark.parametrize("length", [30, 60, 200])
@pytest.mark.parametrize("message", ["", "m" * 100])
def test_a_long_id_gives_way(length, message):
    """Verdict, metric and figures, or the message's beginning, survive an id of any length."""
    case_id, figures = f"train_step[{'x' * length}]", Failed(message=message) if message else None
    verdict = Verdict(case_id, Status.SLOWER, Reason.BEYOND_LIMIT, figures, metrics=SLOWER.metrics)
    line = verdict_text.headline(verdict, 79)
    assert len(line) <= 79
    assert ": SLOWER: " in line
    assert ("mmmmmm" if message else "step_ms 250.000 -> 2") in line


def test_a_short_id_still_tells_its_case():
    """Cases of a suite differ at their ends: train_ste... could be any of them."""
    figures = NotRecorded(path="baselines/h200x1.json")
    names = ("train_step[124m-bf16-eager]", "train_step[124m-bf16-2-gpus]")
    verdicts = [Verdict(name, Status.NO_BASELINE, Reason.NOT_RECORDED, figures) for name in names]
    first, second = (verdict_text.headline(verdict, 80) for verdict in verdicts)
    assert first.startswith("train") and "ager]: NO BASELINE: no recording" in first
    assert "gpus]: NO BASELINE: no recording" in second


def moved(metric, old, new, *sites):
    """A counter of a case on a GPU that moved."""
    change_pct = 100 * (new / old - 1) if old else None
    reason = Reason.COUNTER_ROSE
    return MetricVerdict(
        metric, Status.CHANGED, reason, old, new, change_pct, sites=sites, moved=(PART,)
    )


PART = PartMove("aten.clone.default", 0, 4440)
COPYING = Site("aten.clone.default", "model/workloads.py", 181, "TrainStep.step", "", "", 4440)


@pytest.mark.parametrize(
    ("metric", "old", "new", "count", "said"),
    [
        ("copies_per_step", 4, 4444, 4440, "copies_per_step 4 -> 4,444 (+4,440 copies), +4,440"),
        ("pageable_copies_per_step", 0, 4, 4, "pageable_copies_per_step 0 -> 4 (+4 copies), +4"),
        ("copies_per_step", 4, 8, -4, "copies_per_step 4 -> 8 (+4 copies)"),
        ("peak_allocated_bytes", 512, 4096, 4, "peak_allocated_bytes 512 B -> 4,096 B"),
    ],
)
def test_what_a_device_does_more_of_has_its_operator(metric, old, new, count, said):
    """A copy has no line, and the operator that makes it has; one that fell makes no copy more."""
    clones = structs.replace(COPYING, count=count)
    operators = moved("operator_calls_per_step", 3063, 3063 + count, clones)
    found = Verdict(
        CASE_ID,
        Status.CHANGED,
        Reason.COUNTER_ROSE,
        metrics=(moved(metric, old, new), replace(operators, status=Status.SAME)),
    )
    line, named = (
        verdict_text.headline(found),
        "aten.clone in TrainStep.step (model/workloads.py:181)",
    )
    assert line.startswith(f"{CASE_ID}: CHANGED: {said}")
    assert (named in line) == said.endswith(f"+{count:,}")
    assert verdict_text.place(found) == (clones if named in line else None)


@pytest.mark.parametrize("status", Status)
def test_a_headline_says_case_and_verdict(status):
    """Case and verdict stand in front, so that a cut takes neither."""
    verdict = Verdict(CASE_ID, status, Reason.RAISED, Failed(message="m" * 200))
    assert verdict_text.headline(verdict).startswith(f"{CASE_ID}: {status.value}: mmm")


def test_a_headline_of_equal_counters_shows_none_of_them():
    """Not the first of them, 0 -> 0; a time that was judged is shown with its limit."""
    kept = tuple(m for m in SAME.metrics if METRICS[m.metric].kind == "counter")
    assert verdict_text.headline(of_metrics(SAME, kept)) == f"{CASE_ID}: same: equal"
    assert verdict_text.headline(SAME).startswith(f"{CASE_ID}: same: step_ms ")


def test_a_headline_says_what_moved():
    """The metric, from what to what, by how much and the limit, in one line."""
    whole = f"{CASE_ID}: SLOWER: step_ms 250.000 -> 270.000 (+8.0 %, limit 0.7 %)"
    assert verdict_text.headline(SLOWER) == whole
    short = Verdict("f[x]", Status.SLOWER, Reason.BEYOND_LIMIT, metrics=SLOWER.metrics)
    assert verdict_text.headline(short) == (
        "f[x]: SLOWER: step_ms 250.000 -> 270.000 (+8.0 %, limit 0.7 %)"
    )


AT = Site(".item()", "model/gpt.py", 88, "GPT.forward", "loss.item()", "forward", 2)
SYNCED = MetricVerdict(
    "host_syncs_per_step", Status.CHANGED, Reason.COUNTER_ROSE, old=1.0, new=3.0, sites=(AT,)
)


def test_a_headline_ends_with_the_place():
    """The first place that is new stands at the end; where the line is too long the difference in
    units gives way to it, then its folders; one that does not fit is left out whole.
    """
    verdict = Verdict("f[x]", Status.CHANGED, Reason.COUNTER_ROSE, metrics=(SYNCED,))
    moved = "f[x]: CHANGED: host_syncs_per_step 1 -> 3 (+2 syncs)"
    assert verdict_text.headline(verdict) == f"{moved} model/gpt.py:88"
    bare = moved.partition(" (")[0]
    for file, shown in (
        ("model/" * 3 + "gpt.py", f"{bare} {'model/' * 3}gpt.py:88"),
        ("deep/" * 20 + "gpt.py", f"{bare} gpt.py:88"),
        ("g" * 60 + ".py", bare),
    ):
        far = replace(SYNCED, sites=(structs.replace(AT, file=file),))
        assert verdict_text.headline(replace(verdict, metrics=(far,)), 79) == shown


CLONES = MetricVerdict(
    "operator_calls_per_step",
    Status.CHANGED,
    Reason.WORK_MOVED,
    old=719.0,
    new=723.0,
    moved=(PartMove("aten.clone.default", 2, 6),),
    sites=(
        Site("aten.clone.default", "model/gpt.py", 105, "Block.forward", "x = x.clone()", count=4),
    ),
)
MOVED = Verdict("train_step[nano-cpu]", Status.CHANGED, Reason.WORK_MOVED, metrics=(CLONES,))


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([("a.precision = high", 1, 0)], "settings: a.precision high -> default"),
        ([("a.precision = high", 0, 1)], "settings: a.precision default -> high"),
        (
            [("a.precision = high", 1, 0), ("a.precision = medium", 0, 1)],
            "settings: a.precision high -> medium",
        ),
    ],
)
def test_a_setting_is_named_old_and_new(parts, text):
    """Whether it was the workload that set it then, or now, or both times."""
    moves = tuple(PartMove(*part) for part in parts)
    olds, news = (float(sum(getattr(one, side) for one in moves)) for side in ("old", "new"))
    reason = Status.CHANGED, Reason.WORK_MOVED
    found = MetricVerdict("settings", *reason, old=olds, new=news, moved=moves)
    verdict = Verdict("f[x]", *reason, metrics=(found,))
    assert verdict_text.headline(verdict) == f"f[x]: CHANGED: {text}"
    assert text.removeprefix("settings: ") in "".join(verdict_text.evidence_lines(verdict))


def test_a_moved_operator_has_its_place():
    """In the headline and under the figures: how many more of which operator, where."""
    cause = "+4 aten.clone in Block.forward (model/gpt.py:105)"
    assert verdict_text.headline(MOVED) == f"train_step[nano-cpu]: CHANGED: {cause}"
    lines = verdict_text.evidence_lines(MOVED)
    assert lines[0].startswith("  operator_calls_per_step [calls]: 719 -> 723 (+4 calls)")
    assert lines[1] == f"    {cause}"


def test_a_summary_says_a_place_once():
    """Of a waived verdict, say, which has no block: below is what the headline has no room for."""
    waived = replace(MOVED, waived_until="2030-01-01")
    texts = [
        text
        for text, _ in terminal_summary.lines(
            terminal_summary.ShownRun([result(waived)], Commands())
        )
    ]
    assert sum("in Block.forward" in text for text in texts) == 1
    narrow = [
        text
        for text, _ in terminal_summary.lines(
            terminal_summary.ShownRun([result(waived)], Commands()), 60
        )
    ]
    assert "  +4 aten.clone in Block.forward (model/gpt.py:105)" in narrow


def test_a_summary_says_once_what_moved_to_another_line():
    """Three counters are equal and have one new place: a line, and one for each other place."""
    names = ("host_syncs_per_step", "copies_per_step", "launches_per_step")
    equal = [
        replace(SYNCED, metric=name, reason=Reason.EQUAL, status=Status.SAME) for name in names
    ]
    alone = replace(equal[0], metric="graph_breaks", sites=(structs.replace(AT, line=9),))
    found = result(replace(MOVED, metrics=(*equal, alone)))
    texts = [
        text for text, _ in terminal_summary.lines(terminal_summary.ShownRun([found], Commands()))
    ]
    moved = [text for text in texts if " equal, but now at " in text]
    where = "but now at loss.item() in GPT.forward (model/gpt.py"
    assert moved == [
        f"{found.case.id}: {', '.join(names)} are equal, {where}:88), forward",
        f"{found.case.id}: graph_breaks is equal, {where}:9), forward",
    ]


def test_what_is_allowed_is_said_in_its_unit():
    """A step may keep 4,096 bytes: no 4096 additions."""
    kept = structs.replace(AT, what="aten.add", count=4096, allowed="a log")
    waits = structs.replace(AT, count=2, allowed="it is meant")
    found = result(MOVED)
    sites = {"leaked_bytes_per_step": (kept,), "host_syncs_per_step": (waits,)}
    counts = replace(found.evidence.counts, sites=sites)
    found = replace(found, evidence=replace(found.evidence, counts=counts))
    texts = [
        text for text, _ in terminal_summary.lines(terminal_summary.ShownRun([found], Commands()))
    ]
    front, where = f"allowed in {found.case.id}: ", "loss.item() in GPT.forward (model/gpt.py:88)"
    assert f"{front}4,096 B of aten.add: {where}, forward: a log" in texts
    assert f"{front}2 x .item(): {where}, forward: it is meant" in texts


def test_an_equal_counter_at_other_lines_is_one_line():
    """However many they are: one thing replaced another, and nothing is paid for it."""
    sites = tuple(Site(".item()", "train.py", line, "run", "loss.item()") for line in range(1, 5))
    name = "sync_candidates_per_step"
    equal = MetricVerdict(name, Status.SAME, Reason.EQUAL, 4.0, 4.0, sites=sites)
    found = result(Verdict("train[cpu]", Status.SAME, Reason.EQUAL, metrics=(equal,)))
    texts = [
        text for text, _ in terminal_summary.lines(terminal_summary.ShownRun([found], Commands()))
    ]
    (line,) = (text for text in texts if "loss.item()" in text)
    moved = f"{name} is equal, but now at loss.item() in run (train.py:1)"
    assert line.endswith(f"]: {moved} and 3 more")


@pytest.mark.parametrize("width", [40, 60, 80, 120, 0])
@pytest.mark.parametrize("length", [8, 30, 200])
def test_a_line_that_is_cut_keeps_its_cause(length, width):
    """Prefix and path give way, never which operator moved, and how often."""
    line = verdict_text.headline(replace(MOVED, case_id=f"f[{'x' * length}]"), width)
    assert ": CHANGED: +4 aten.clone" in line
    assert ("gpt.py:105" in line) is (width != 40)
    if width is None:
        assert (
            line == f"f[{'x' * length}]: CHANGED: +4 aten.clone in Block.forward (model/gpt.py:105)"
        )


def test_a_lost_operator_has_its_former_place():
    """What is called less is negative, and the old revision's line has no number."""
    lost = replace(
        CLONES,
        moved=(PartMove("aten.clone.default", 2, 0),),
        sites=(Site("aten.clone.default", "model/gpt.py", 0, "Block.forward", "x", count=-2),),
    )
    line = verdict_text.headline(replace(MOVED, metrics=(lost,)))
    assert line.endswith(": CHANGED: -2 aten.clone in Block.forward (model/gpt.py)")


def test_an_operator_without_a_place_is_named_all_the_same():
    """Where the recording has no lines, or the compiler calls it."""
    bare = replace(CLONES, sites=())
    moved = "operator_calls_per_step 719 -> 723"
    assert verdict_text.headline(replace(MOVED, metrics=(bare,))).endswith(
        f": +4 aten.clone, {moved}"
    )


def test_a_comment_is_not_part_of_the_sentence():
    """A place shows the source without its comment."""
    place = structs.replace(AT, text="loss.item()  # only for the log")
    assert place.location().startswith("loss.item() in ")


def test_a_place_without_a_file_is_not_in_the_headline():
    """What torch names no line for has nothing to end with; the block says what it is."""
    nowhere = replace(SYNCED, sites=(Site("nonzero in IndexBackward0"),))
    verdict = Verdict("f[x]", Status.CHANGED, Reason.COUNTER_ROSE, metrics=(nowhere,))
    assert verdict_text.headline(verdict) == "f[x]: CHANGED: host_syncs_per_step 1 -> 3 (+2 syncs)"
    assert "    nonzero in IndexBackward0\n" in verdict_text.block(verdict, "x", Commands())


def test_a_block_says_where_and_how_often():
    """Of a place: how often, what happens, the source, the function, file and line, the phase."""
    verdict = Verdict("f[x]", Status.CHANGED, Reason.COUNTER_ROSE, metrics=(SYNCED,))
    line = "    2 x .item(): loss.item() in GPT.forward (model/gpt.py:88), forward\n"
    assert line in verdict_text.block(verdict, "x", Commands())


def test_an_edited_line_says_how_often_it_was_before():
    """Three waits at a line whose text is new, of which two were there: not three more."""
    three = structs.replace(AT, what=".item()", count=3)
    synced = replace(SYNCED, old=2, new=3, sites=(three,))
    verdict = Verdict("f[x]", Status.CHANGED, Reason.COUNTER_ROSE, metrics=(synced,))
    assert "    3 x .item() (2 before): loss.item() in" in verdict_text.block(
        verdict, "x", Commands()
    )
    whole = replace(synced, old=0)
    verdict = replace(verdict, metrics=(whole,))
    assert "    3 x .item(): loss.item() in" in verdict_text.block(verdict, "x", Commands())


def test_a_leak_says_how_many_bytes_of_which_line():
    """Bytes are no calls: each line has its size, and the headline the first place."""
    sites = tuple(structs.replace(AT, what="aten.div", line=n, count=n << 10) for n in (88, 9))
    leak = replace(SYNCED, metric="leaked_bytes_per_step", old=0.0, new=97 << 10, sites=sites)
    text = verdict_text.block(
        Verdict("f[x]", Status.CHANGED, Reason.COUNTER_ROSE, metrics=(leak,)), "x", Commands()
    )
    assert text.startswith("f[x]: CHANGED: leaked_bytes_per_step 0 B -> 99,328 B")
    assert text.splitlines()[0].endswith(", 90,112 B at model/gpt.py:88")
    assert (
        "\n    90,112 B of aten.div: loss.item() in GPT.forward (model/gpt.py:88), forward\n"
        in text
    )


def test_a_move_that_rounding_hides_is_shown():
    """Two counts that print alike are told apart by their difference."""
    moved = MetricVerdict(
        "peak_allocated_bytes",
        Status.CHANGED,
        Reason.COUNTER_ROSE,
        old=45_000_000_000,
        new=45_000_000_512,
    )
    assert "+512 B" in verdict_text.change(moved)


@PROPERTY
@given(VERDICTS)
def test_a_block_never_raises(verdict):
    """Whatever the verdict, its explanation can be written, headline first."""
    assert verdict_text.block(verdict, "x", Commands()).startswith(verdict_text.headline(verdict))


def test_a_block_names_metric_operator_and_command():
    """A failure says what moved, on how many recordings it rests, and how to accept it."""
    text = verdict_text.block(CHANGED, ".stepguard/runs/1/evidence.json", Commands())
    assert "operator_calls_per_step" in text and "a counter" not in text.splitlines()[0]
    assert "compared with 1 recording" in text
    assert f"python -m stepguard accept '{CASE_ID}' --reason '...'" in text
    assert "look closer: .stepguard/runs/1/evidence.json" in text


def test_a_traceback_stands_in_the_block():
    """The detail of a fault is shown whole, each line marked."""
    verdict = Verdict("c", Status.BROKEN, Reason.RAISED, Failed(message="ValueError: x"), "a\nb\n")
    assert "  | a\n  | b\n" in verdict_text.block(verdict, "x", Commands())


def test_a_traceback_comes_before_waivers_that_do_not_apply():
    """The cause first: that a waiver covers no crash follows from it."""
    waiver = Permission(
        case="c", metric="step_ms", limit_pct=5.0, reason="r", expires=date(2030, 1, 1), who="A"
    )
    outcome = PermissionOutcome(waiver, Effect.NOT_APPLIED)
    whole = Failed(message="x"), "a\n"
    verdict = Verdict("c", Status.BROKEN, Reason.RAISED, *whole, permissions=(outcome,))
    cause, applied = verdict_text.evidence_lines(verdict)
    assert cause == "  | a"
    assert applied.startswith("  waiver not applied, the case is BROKEN: ")


@pytest.mark.parametrize(
    ("verdict", "command"),
    [
        (SAME, None),
        (FASTER, "keep the gain: python -m stepguard accept"),
        (SLOWER, "accept: python -m stepguard accept"),
        (NO_BASELINE, "accept: python -m stepguard accept"),
        (Verdict("c", Status.UNFIT, Reason.THROTTLED, Failed(message="hot")), "stepguard doctor"),
        (
            Verdict("c", Status.INCONCLUSIVE, Reason.NOT_STEADY, Failed(message="x")),
            "stepguard doctor",
        ),
    ],
)
def test_every_verdict_has_its_next_step(verdict, command):
    """What needs a person comes with a command; what does not is left alone."""
    steps = next_steps(verdict, "evidence.json", Commands())
    assert (steps == []) if command is None else (command in steps[0])


@pytest.mark.parametrize(
    ("verdict", "commands"),
    [
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
    ],
)
def test_commands_carry_the_folder(verdict, commands):
    """Of a run with --perf-baselines: following its hints must not write the usual folder."""
    steps = next_steps(verdict, "e.json", Commands(baselines="my dir"))
    assert all(step.endswith(command) for step, command in zip(steps, commands, strict=False))
    assert "--baselines 'my dir'" in verdict_text.block(
        verdict, "e.json", Commands(baselines="my dir")
    )
    whole = document_json.result_document(result(verdict), Commands(baselines="my dir"))
    assert any("--baselines 'my dir'" in step for step in whole.text.steps)
    assert "baselines" not in verdict_text.block(verdict, "e.json", Commands())


def test_what_can_be_waived_is_said_second():
    """One command, however much moved; a summary shows the first step alone, which is to accept."""
    accept, *waive, closer = next_steps(CHANGED, "x", Commands())
    assert accept.startswith("accept: ") and closer == "look closer: x"
    assert waive == [
        "or for some days: python -m stepguard waive 'train_step[124m-bf16]' "
        "--reason '...' --days N"
    ]
    beyond = judge(evidence((1000.0,) * 3), entry())
    assert len(next_steps(beyond, "x", Commands())) == 2


def test_a_first_recording_needs_no_reason():
    """Only a new level asks for one."""
    assert "--reason" not in next_steps(NO_BASELINE, "x", Commands())[0]
    assert "--reason" in next_steps(SLOWER, "x", Commands())[0]


# The table


def names(verdicts):
    """The first cell of each row."""
    return [row.cells[0] for row in table.rows(verdicts)]


@PROPERTY
@given(st.lists(TABLED, max_size=5))
def test_rows_stand_worst_first_and_align(verdicts):
    """Rows are ordered by verdict, worst first, then by case. Every line starts its columns where
    the header does.
    """
    rows = table.rows(verdicts)
    keys = [(row.status.rank, row.cells[0]) for row in rows]
    assert keys == sorted(keys) and len(rows) == len(verdicts)
    assert all(len(row.cells) == len(table.COLUMNS) for row in rows)
    header, *lines = [text for text, _ in table.lines(rows)]
    assert header.startswith("case") and "verdict" in header
    for line, row in zip(lines, rows, strict=True):
        assert line[header.index("verdict") :] == row.cells[-1]


def test_columns_nobody_fills_are_left_out():
    """A table of verdicts without figures has its case and its verdict, no empty columns."""
    broken = Verdict("b", Status.BROKEN, Reason.RAISED, Failed(message="x"))
    lines = [text for text, _ in table.lines(table.rows([broken]))]
    assert [re.split(r"\s{2,}", line) for line in lines] == [["case", "verdict"], ["b", "BROKEN"]]
    both = [text for text, _ in table.lines(table.rows([broken, SAME]))]
    assert "step [ms]" in both[0] and "baseline [ms]" in both[0]
    assert "250.000" in both[2]
    assert both[1].split() == ["b", *"-" * (len(re.split(r"\s{2,}", both[0])) - 2), "BROKEN"]


def test_a_row_has_its_figures():
    """Time, baseline, change, limit, throughput, MFU, memory, counters and verdict."""
    (row,) = table.rows([SLOWER])
    assert row.cells == (
        CASE_ID,
        "270.000",
        "250.000",
        "+8.00",
        "0.70",
        "485,452",
        "37.04",
        "42,915.3",
        f"{COUNTERS} equal",
        "SLOWER",
    )


def test_counters_are_summed_up():
    """So many equal, so many moved, or just counted where there is nothing to compare with."""
    counters = table.COLUMNS.index("counters")
    assert table.rows([CHANGED])[0].cells[counters] == f"1 of {COUNTERS} moved"
    assert table.rows([NO_BASELINE])[0].cells[counters] == f"{COUNTERS} counted"


def test_times_that_are_not_gated_are_not_compared():
    """A time that does not decide is shown without baseline, change and limit."""
    found = evidence((270.0,) * 3, gates=("flops_per_step",))
    row = table.rows([judge(found, entry())])[0].cells
    assert row[1] == "270.000"
    assert row[2:5] == ("", "", "")


def test_counts_of_verdicts():
    """How many of each, worst first; nothing for no verdicts."""
    assert table.counts([SAME, SLOWER, SAME]) == "1 SLOWER, 2 same"
    assert table.counts([]) == ""


# Documents


def result(verdict, found=None):
    """A result with that verdict."""
    case = Case("124m-bf16", "model.workloads:train_step", {"batch": 64})
    return Result(case, found or evidence(), verdict, Path("e.json"), Path("b.json"))


def no_constant(name):
    """json.loads calls it for NaN and the infinities, which are not JSON."""
    raise AssertionError(f"{name} is not JSON")


def as_json(made):
    """The document as whoever reads it has it, after it was read as what it is."""
    text = document_json.as_json(made)
    assert msgspec.json.decode(text, type=type(made))
    return json.loads(text, parse_constant=no_constant)


@PROPERTY
@given(VERDICTS)
def test_a_verdict_as_json(verdict):
    """Valid JSON, with the verdict in words."""
    told = as_json(document_json.judged_document(verdict))["verdict"]
    assert (told["status"], told["reason"]) == (verdict.status.value, verdict.reason)


def test_a_result_as_json():
    """What was measured, metrics, launches, and where evidence and baseline are."""
    found = result(SLOWER, evidence((270.0,) * 3))
    document = as_json(document_json.result_document(found, Commands()))
    assert document["parameters"] == evidence().case
    assert document["metrics"]["step_ms"] == pytest.approx(270.0)
    assert document["launches"] == [{"step_ms": 270.0, "step_ms_median": 270.0}] * 3
    assert (document["evidence"], document["baseline"]) == ("e.json", "b.json")
    step = document["verdict"]["metrics"][0]
    assert (step["metric"], step["status"], step["change_pct"]) == (
        "step_ms",
        "SLOWER",
        pytest.approx(8.0),
    )


@pytest.mark.parametrize("launches", [(), (launch(blocks=()),)], ids=["none", "without a block"])
def test_a_result_without_times_as_json(launches):
    """A run that broke at once still is a document."""
    broken = evidence(launches=launches, counts=None)
    document = as_json(
        document_json.result_document(result(judge(broken, None), broken), Commands())
    )
    assert document["launches"] == []


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@given(verdicts=st.lists(TABLED, min_size=1, max_size=3))
@settings(PROPERTY, max_examples=30)
def test_the_table_fits_the_terminal_or_stacks(width, verdicts):
    """No line is wider but by a name that is; whatever a cell says is there in either form."""
    rows = table.rows(verdicts)
    shown = [line for line, _ in table.lines(rows, width)]
    names = max(len(f"{row.cells[0]}: {row.cells[-1]}") for row in rows)
    cells = max(len(cell) + 20 for row in rows for cell in row.cells[1:-1])
    assert max(map(len, shown)) <= max(width, names, cells)
    text = "\n".join(shown)
    assert all(cell in text for row in rows for cell in row.cells)
    wide = [line for line, _ in table.lines(rows)]
    assert (max(map(len, wide)) <= width) == (shown == wide)


def test_a_log_has_two_lines_of_headings_before_it_is_too_wide():
    """A GPU's row with all its figures fits 120 columns, and the wider one keeps every cell."""
    cells = ("train_step[124m-bf16-4-ranks]", "260.100", "252.520", "+3.00", "0.50", "503,929")
    cells += ("41.2", "34,332.3", "3 of 22 moved")
    usual = table.Row((*cells, "INCONCLUSIVE"), Status.INCONCLUSIVE)
    first, second, row = table.lines([usual])
    assert first[0].split()[:3] == ["step", "baseline", "change"] and second[0].startswith("case")
    assert (first[1], second[1], row[1]) == (None, None, Status.INCONCLUSIVE)
    assert max(len(line) for line, _ in (first, second, row)) <= table.LOG_WIDTH
    waived = table.Row((*cells, "SLOWER (waived until 2027-01-22)"), Status.SLOWER)
    assert all(cell in list(table.lines([waived]))[-1][0] for cell in waived.cells)


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (HEAD + ENGINE + USER + "ValueError: x\n", HEAD + USER + "ValueError: x\n"),
        (HEAD + ENGINE + IMPORT + USER + "E: x\n", HEAD + USER + "E: x\n"),
        (
            HEAD + USER + "A: a\n" + CAUSE + HEAD + ENGINE + USER + "B: b\nmore\n",
            HEAD + USER + "A: a\n" + CAUSE + HEAD + USER + "B: b\nmore\n",
        ),
        (HEAD + ENGINE + "BadWorkload: x\n", ""),
        ("no traceback\n    at all\n", "no traceback\n    at all\n"),
        ("", ""),
    ],
    ids=["raised", "imported", "chained", "engine", "other", "empty"],
)
def test_the_users_frames(text, shown):
    """The engine's frames and the import machinery's go with their source; all else stays."""
    assert verdict_text.users_frames(text).split("\n") == shown.rstrip("\n").split("\n")


@pytest.mark.parametrize(
    ("reason", "detail", "lines"),
    [
        (Reason.RAISED, HEAD + ENGINE + USER + "E: x", HEAD + USER + "E: x"),
        (Reason.RAISED, HEAD + ENGINE + "E: x", HEAD + ENGINE + "E: x"),
        (Reason.OUT_OF_MEMORY, HEAD + ENGINE + USER + "E: x", HEAD + USER + "E: x"),
        (Reason.BAD_WORKLOAD, HEAD + ENGINE + "E: x", ""),
        (Reason.NO_ANSWER, HEAD + ENGINE + "E: x", HEAD + ENGINE + "E: x"),
    ],
)
def test_what_is_shown_of_a_traceback(reason, detail, lines):
    """The engine's frames are shown only where they are all there is to a crash, or a hang."""
    verdict = Verdict("c", Status.BROKEN, reason, Failed(message="m"), detail)
    assert verdict_text.evidence_lines(verdict) == [f"  | {line}" for line in lines.splitlines()]
    assert document_json.text_of(verdict).detail == detail


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


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, ""),
        ({"tree_changed": True}, "commit, measure again, then "),
        ({"dirty": ("out.html",)}, "commit out.html, measure again, then "),
        (
            {"dirty": ("last.pt",), "tree_changed": True},
            "commit last.pt, or add it to .gitignore, measure again, then ",
        ),
        ({"dirty": tuple("abcd")}, "commit a, b and 2 more, measure again, then "),
        ({"faults": (Fault(Reason.UNDECIDED, "ended by SIGTERM"),)}, "measure again, then "),
    ],
)
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
