"""Waivers: what they cover, what they never cover, and a file that people edit."""

import json
from datetime import date, timedelta

import pytest
from alarms import by_recordings, permit
from builders import (
    CASE_ID,
    PROPERTY,
    baseline_file,
    entry,
    evidence,
    one_recording,
    replace,
    with_counts,
)
from hypothesis import given
from hypothesis import strategies as st

from stepguard.core.evidence import Fault
from stepguard.core.metrics import GATEABLE, METRICS, NUMBERS
from stepguard.core.permission import Effect, Permission
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, Verdict
from stepguard.judge.waiver_rules import MAX_DAYS, effect_of, problem_of, suggested_size
from stepguard.storage.baseline_files import add_waiver, files, load, load_waivers, save, unknown
from stepguard.storage.json_file import FileError

TODAY = date(2026, 11, 21)
UNTIL = date(2026, 12, 31)
WORDS = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=9).map(
    "a".__add__
)


def waiver(metric="step_ms", **changes):
    """A waiver of CASE_ID, of a time up to +6 %."""
    size = {"value": 3} if METRICS[metric].kind == "counter" else {"limit_pct": 6.0}
    known = {"case": CASE_ID, "metric": metric, "reason": "waits for torch", "who": "A. Author"}
    return Permission(**known | {"expires": UNTIL} | size | changes)


def judged(found, *waivers, today=TODAY):
    """The verdict of evidence against 250 ms, waivers applied."""
    return permit(by_recordings(found, entry()), found, waivers, today)


def run(pct=5.0, **counts):
    """Evidence that is so much slower, and has other counts."""
    return with_counts(evidence((250.0 * (1 + pct / 100),) * 3), **counts)


LAUNCHES, CALLS = "launches_per_step", "operator_calls_per_step"


@pytest.mark.parametrize(("found", "one", "today", "effect"), [
    (run(5.99), waiver(), TODAY, Effect.ALLOWED),
    (run(6.01), waiver(), TODAY, Effect.EXCEEDED),
    (run(), waiver(), UNTIL, Effect.ALLOWED),
    (run(), waiver(), UNTIL + timedelta(1), Effect.EXPIRED),
    (run(0), waiver(expires=TODAY - timedelta(1)), TODAY, Effect.NOT_NEEDED),
    (replace(run(), gates=("graph_breaks",)), waiver(), TODAY, Effect.NOT_GATED),
    # Up to twice what is recorded, or a little where next to nothing is.
    (run(0, **{LAUNCHES: 1500}), waiver(LAUNCHES, value=2000), TODAY, Effect.ALLOWED),
    (run(0, **{LAUNCHES: 1500}), waiver(LAUNCHES, value=2001), TODAY, Effect.TOO_WIDE),
    (run(0, graph_breaks=3), waiver("graph_breaks", value=100), TODAY, Effect.ALLOWED),
    (run(0, graph_breaks=3), waiver("graph_breaks", value=101), TODAY, Effect.TOO_WIDE),
    # Other work is another step: exactly the one that was looked at.
    (run(0, **{CALLS: 2402}), waiver(CALLS, value=2401), TODAY, Effect.EXCEEDED),
    (run(0, **{CALLS: 2399}), waiver(CALLS, value=2401), TODAY, Effect.EXCEEDED),
])  # fmt: skip
def test_what_a_waiver_covers(found, one, today, effect):
    """Up to its size and on its last day, and nothing else."""
    verdict = judged(found, one, today=today)
    assert [outcome.effect for outcome in verdict.permissions] == [effect]
    assert bool(verdict.waived_until) is (effect is Effect.ALLOWED)


def test_no_waiver_covers_numbers():
    """How many there are says nothing of them."""
    more = MetricVerdict(NUMBERS, Status.CHANGED, Reason.WORK_MOVED, 43.0, 44.0, gated=True)
    assert effect_of(waiver(NUMBERS, value=44), more, TODAY) is Effect.EXCEEDED
    assert suggested_size(more) is None


FAILING = st.builds(
    MetricVerdict,
    metric=st.sampled_from(["step_ms", "graph_breaks", "flops_per_step", "launches_per_step"]),
    status=st.sampled_from([Status.SLOWER, Status.CHANGED, Status.SAME]),
    reason=st.just(Reason.BEYOND_MARGIN), old=st.integers(0, 300), new=st.integers(0, 300),
    change_pct=st.none() | st.floats(-60, 60),
    failing_ranks=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300)), max_size=3).map(
        tuple))  # fmt: skip


@PROPERTY
@given(FAILING)
def test_a_suggested_size_covers(found):
    """Any size that is suggested lets the metric pass, and no size would where none is."""
    size, counter = suggested_size(found), METRICS[found.metric].kind == "counter"
    sizes = [size[counter]] if size else [1, 2, 10, 50, *(new for _, new in found.failing_ranks)]
    for value in sizes:
        much = {"value": int(value)} if counter else {"limit_pct": float(value)}
        passed = permit(changed(found), evidence(), [waiver(found.metric, **much)], TODAY)
        assert bool(passed.waived_until) is bool(size)


EVERYTHING = tuple(
    waiver(
        name,
        **({"value": 2**62} if METRICS[name].kind == "counter" else {"limit_pct": 100.0}),
    )
    for name in GATEABLE
)


@pytest.mark.parametrize(("found", "baseline", "status"), [
    (replace(run(), launches=()), entry(), Status.BROKEN),
    (replace(run(), faults=(Fault(Reason.THROTTLED, "hot"),)), entry(), Status.UNFIT),
    (replace(run(), case=run().case | {"params": {}}), entry(), Status.NOT_COMPARABLE),
    (run(), one_recording(software={"torch": "9"}), Status.NOT_COMPARABLE),
    (run(), None, Status.NO_BASELINE),
])  # fmt: skip
def test_what_is_never_waived(found, baseline, status):
    """Not measured, not fit, not comparable, not recorded: waivers of everything change nothing."""
    under = permit(by_recordings(found, baseline), found, EVERYTHING, TODAY)
    assert (under.status, under.outcome, under.waived_until) == (status, "error", "")


@PROPERTY
@given(
    st.sampled_from([name for name in GATEABLE if METRICS[name].exists("cuda", 1)]),
    st.integers(-40, 40),
    st.integers(-2, 2),
    st.integers(-100, 100),
)
def test_a_waiver_turns_no_other_verdict(metric, pct, breaks, days):
    """Whatever moved: a verdict passes under one waiver only if it passed before, or only the
    waived metric failed, inside its day and size.
    """
    found = run(pct, graph_breaks=max(0, 1 + breaks))
    one = waiver(metric, expires=TODAY + timedelta(days))
    before, after = by_recordings(found, entry()), judged(found, one)
    failing = {m.metric for m in before.metrics if m.gated and m.status.outcome != "passed"}
    if after.outcome == "passed":
        assert before.outcome == "passed" or failing == {metric} and days >= 0
    else:
        assert after.status.outcome == before.status.outcome


# The file


@pytest.fixture
def folder(tmp_path):
    """Baselines with one case, CASE_ID."""
    save(tmp_path / "h200x1.json", baseline_file())
    return tmp_path


def write(folder, *waivers, **changes):
    """A waivers.json by hand."""
    plain = [
        {"case": CASE_ID, "metric": "step_ms", "limit_pct": 6, "reason": "why", "who": "A"}
        | {"expires": "2026-12-31"}
        | one
        for one in waivers
    ]
    whole = {"schema": 1, "waivers": plain} | changes
    (folder / "waivers.json").write_text(json.dumps(whole))


def test_the_file_is_no_baseline(folder):
    """It lies among the baseline files and is not taken for one."""
    write(folder, {})
    assert [path.name for path in files(folder)] == ["h200x1.json"]
    assert load_waivers(folder, TODAY)[0].limit_pct == 6.0


@pytest.mark.parametrize(("change", "words"), [
    ({"metric": "step"}, "'step' is no metric that can be gated (did you mean step_ms?)"),
    ({"metric": "mfu_pct"}, "'mfu_pct' is no metric that can be gated; there are: step_ms,"),
    ({"metric": "*"}, "no metric that can be gated"),
    ({"limit_pct": None}, "step_ms needs a limit_pct and no value: no waiver is unlimited"),
    ({"value": 3}, "needs a limit_pct and no value"),
    ({"metric": "graph_breaks"}, "needs a value and no limit_pct"),
    ({"limit_pct": 0}, "$.waivers[1].limit_pct"),
    ({"limit_pct": 101}, "$.waivers[1].limit_pct"),
    ({"limit_pct": "6"}, "$.waivers[1].limit_pct"),
    ({"reason": "..."}, "reason is '...'"),
    ({"reason": "two\nlines"}, "reason is"),
    ({"reason": ""}, "$.waivers[1].reason"),
    ({"who": " "}, "who is ' '"),
    ({"expires": "2027-02-20"}, "91 days ahead; at most 90"),
    ({"expires": "9999-12-31"}, "days ahead"),
    ({"expires": "31.12.2026"}, "$.waivers[1].expires"),
    ({"expires": None}, "$.waivers[1].expires"),
    ({"until": "2026-12-31"}, "until"),
    ({"metric": "sync_overhead_pct"}, "another one of the same metric; keep one"),
])  # fmt: skip
def test_a_waiver_that_is_wrong(folder, change, words):
    """The second of two: refused with file, place and what is wrong."""
    write(folder, {"metric": "sync_overhead_pct"}, change)
    with pytest.raises(FileError) as refused:
        load_waivers(folder, TODAY)
    message = str(refused.value)
    assert str(folder / "waivers.json") in message and words in message
    assert "waiver 2 (" in message or "$.waivers[1]" in message or "unknown field" in message


def test_a_case_that_nobody_knows(folder):
    """Neither a baseline nor, as the caller says, a case or a run: named once, however often."""
    waivers = [waiver(case=case) for case in (CASE_ID, "f[new]", "f[typo]", "f[typo]")]
    assert unknown(folder, waivers, {"f[new]"}) == ["f[typo]"]
    assert unknown(folder / "none", [waiver()], ()) == [CASE_ID]
    with pytest.raises(ValueError, match="no baseline and no run that is kept here has this case"):
        add_waiver(folder, waivers[1], TODAY)
    with pytest.raises(ValueError, match=r"\(did you mean f\[news\]\?\)$"):
        add_waiver(folder, waivers[1], TODAY, {"f[news]"})
    add_waiver(folder, waivers[1], TODAY, {"f[new]"})
    assert [one.case for one in load_waivers(folder, TODAY)] == ["f[new]"]


@pytest.mark.parametrize("text", [
    "",
    "null",
    "{",
    "[]",
    '{"schema": 2, "waivers": []}',
    '{"schema": 1}',
    "<<<<<<< HEAD\n",
    '{"schema": 1, "schema": 1, "waivers": []}',
    '{"schema": 1, "waivers": {}, "x": NaN}',
])  # fmt: skip
def test_a_file_that_is_none(folder, text):
    """Refused whole; a gate that skipped it would be red, but for no reason anybody sees."""
    (folder / "waivers.json").write_text(text)
    with pytest.raises(FileError, match="waivers.json"):
        load_waivers(folder, TODAY)


@PROPERTY
@given(
    st.dictionaries(
        st.sampled_from(GATEABLE),
        st.tuples(st.integers(1, 2**62), st.integers(-1000, MAX_DAYS), WORDS, WORDS),
        max_size=3,
    )
)
def test_what_is_added_is_read_back(folder, drawn):
    """Sorted by metric, whatever the order, and in place of what stood there."""
    (folder / "waivers.json").unlink(missing_ok=True)
    wanted = []
    for name, (size, days, reason, who) in drawn.items():
        much = {"value": size} if METRICS[name].kind == "counter" else {"limit_pct": 1 + size % 49}
        changes = {"expires": TODAY + timedelta(days), "reason": reason, "who": who}
        # A case that no baseline has: of one that is recorded, what lets nothing pass is refused.
        wanted.append(waiver(name, **changes | much | {"case": "kept[run]"}))
        for one in (waiver(name, case="kept[run]"), wanted[-1]):
            add_waiver(folder, one, TODAY, known={"kept[run]"})
    assert load_waivers(folder, TODAY) == tuple(sorted(wanted, key=lambda one: one.metric))


@pytest.mark.parametrize("limit", [float("nan"), float("inf"), -1.0, 0.0])
def test_no_bad_waiver_is_written(folder, limit):
    """The file stays as it was."""
    add_waiver(folder, waiver("sync_overhead_pct", case="kept[run]"), TODAY, known={"kept[run]"})
    before = (folder / "waivers.json").read_bytes()
    with pytest.raises(ValueError, match="not waived"):
        add_waiver(folder, waiver(limit_pct=limit), TODAY)
    assert (folder / "waivers.json").read_bytes() == before
    assert problem_of(waiver(), TODAY) == "" and load(folder / "h200x1.json") is not None


def changed(found):
    """A case of which only this moved."""
    return Verdict(waiver().case, found.status, found.reason, metrics=(found,))
