"""The rules of the verdict: each status and reason, their order, and nothing green by accident."""

import math
from itertools import pairwise

import pytest
from alarms import by_recordings
from builders import (
    CASE,
    COUNTS,
    FINGERPRINT,
    PROPERTY,
    SOFTWARE,
    TOKENS,
    block,
    cpu_evidence,
    entry,
    entry_of,
    epoch,
    evidence,
    evidence_having,
    launch,
    metric,
    one_recording,
    recording,
    replace,
    with_counts,
)
from hypothesis import given
from hypothesis import strategies as st

from stepguard.core.comparison import Question
from stepguard.core.evidence import Counts, Fault
from stepguard.core.metrics import METRICS, NUMBERS
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.judge_recordings import enough_launches
from stepguard.judge.rule_book import judge
from stepguard.report.verdict_text import evidence_lines

FIVE = entry((250.0, 250.1, 249.9, 250.0, 250.0))
COUNTERS = [name for name, metric in METRICS.items() if metric.kind == "counter"]
WORK = [name for name in COUNTERS if METRICS[name].exact]
COST = [name for name in COUNTERS if not METRICS[name].exact]


def decided(verdict):
    """Status and reason of a verdict."""
    return verdict.status, verdict.reason


def with_launches(*launches, **changes):
    """Evidence of exactly these launches."""
    return evidence(launches=launches, planned_launches=len(launches), **changes)


def with_block(odd, **changes):
    """Evidence with one odd block among sound ones."""
    return with_launches(launch(), launch(blocks=(block(), odd, block())), launch(), **changes)


def same_but(**params):
    """The case with other parameters."""
    return CASE | {"params": CASE["params"] | params}


# Times


def test_the_capped_mean_judges_and_the_median_is_shown():
    """One step in ten 40 % slower counts as 25 %: SLOWER, though the median is equal."""
    for odd_ms, change_pct in ((310.0, 2.4), (315.0, 2.5), (350.0, 2.5)):
        steps = (250.0,) * 9 + (odd_ms,)
        odd = block(wall_ms=(sum(steps),), events_ms=(sum(steps),), step_ms=steps)
        verdict = by_recordings(with_launches(*[launch(blocks=(odd,) * 3)] * 3), FIVE)
        assert metric(verdict, "step_ms").change_pct == pytest.approx(change_pct, abs=1e-3)
    assert metric(verdict, "step_ms").status is Status.SLOWER
    assert metric(verdict, "step_ms_median").new == pytest.approx(250.0)
    assert not metric(verdict, "step_ms_median").gated
    assert verdict.status is Status.SLOWER


# Counters


@pytest.mark.parametrize(
    "name", [name for name in WORK if name not in ("tokens_per_step", NUMBERS)]
)
@pytest.mark.parametrize("step", [-1, 1])
def test_a_work_counter_that_moves_is_changed(name, step):
    """Work that moved by one, either way, is CHANGED."""
    sound = evidence_having(name)
    moved = with_counts(sound, **{name: sound.counts.values[name] + step})
    verdict = judge(Question(moved, entry_of(sound)))
    assert decided(verdict) == (Status.CHANGED, Reason.WORK_MOVED)
    assert verdict.worst.metric == name


def test_other_libraries_stand_beside_what_changed():
    """They explain, and forbid no comparison; where nothing moved nothing is said of them."""
    sound = cpu_evidence()
    newer = replace(sound.fingerprint, libraries={"transformers": "5.23", "peft": "1.0"})
    moved = with_counts(replace(sound, fingerprint=newer), flops_per_step=1)
    older = entry_of(sound, libraries={"transformers": "5.22"})
    said = "  peft unset -> 1.0, transformers 5.22 -> 5.23 since the recording"
    assert evidence_lines(judge(Question(moved, older)))[0] == said
    assert said not in evidence_lines(judge(Question(replace(sound, fingerprint=newer), older)))
    same = entry_of(sound, libraries=newer.libraries)
    assert "since the recording" not in "".join(evidence_lines(judge(Question(moved, same))))


@pytest.mark.parametrize("name", COST)
def test_a_cost_counter_changes_up_and_is_faster_down(name):
    """A cost that rose by one more than its slack is CHANGED, one that fell by one FASTER; of the
    peak it is a block of the allocator.
    """
    sound, down = evidence_having(name), METRICS[name].floor or 1
    recorded, count = entry_of(sound), sound.counts.values[name]
    beyond = max(down, int(count * METRICS[name].slack_pct / 100) + 1)
    rose = judge(Question(with_counts(sound, **{name: count + beyond}), recorded))
    fell = judge(Question(with_counts(sound, **{name: count - down}), recorded))
    assert decided(rose) == (Status.CHANGED, Reason.COUNTER_ROSE)
    assert decided(fell) == (Status.FASTER, Reason.COUNTER_FELL)
    assert rose.worst.metric == fell.worst.metric == name


def epochs_of(*counters, more=()):
    """A baseline of one epoch whose recordings counted so."""
    recordings = [recording(number=n, counters=COUNTS | one) for n, one in enumerate(counters)]
    return entry(epochs=[epoch(recordings=[*recordings, *more])])


PEAK, LEAK = "peak_allocated_bytes", "leaked_bytes_per_step"


@pytest.mark.parametrize(("name", "recorded", "now", "status"), [
    ("launches_per_step", (1000,), 1020, Status.SAME),  # 2 % are no news
    ("launches_per_step", (1000,), 1021, Status.CHANGED),
    (PEAK, (10_000,), 10_511, Status.SAME),  # less than a block of the allocator
    (PEAK, (10_000,), 9_489, Status.SAME),
    (PEAK, (10_000,), 10_512, Status.CHANGED),
    (PEAK, (10_000,), 9_488, Status.FASTER),
    (PEAK, (10**8,), 10**8 + 50_000, Status.SAME),  # 0.05 %: another order of backward passes
    (PEAK, (10**8,), 10**8 + 50_001, Status.CHANGED),
    (PEAK, (10_000, 10_300), 10_600, Status.CHANGED),  # small rises do not add up
    (LEAK, (0,), 4, Status.CHANGED),  # the floor is the peak's alone
    ("graph_breaks", (0, 1), 1, Status.SAME),  # others are compared with the newest recording
])  # fmt: skip
def test_what_a_count_may_move_by(name, recorded, now, status):
    """Each side of every limit."""
    past = epochs_of(*({name: count} for count in recorded))
    assert judge(Question(with_counts(evidence(), **{name: now}), past)).status is status


@pytest.mark.parametrize(("ungated", "moved"), [
    ("step_ms", {"launch_ms": (500.0,) * 3}),
    ("graph_breaks", {"graph_breaks": 7}),
    ("flops_per_step", {"flops_per_step": 7}),
])  # fmt: skip
def test_an_ungated_metric_never_decides(ungated, moved):
    """What the case does not gate is compared and shown, and cannot fail or loudly pass it."""
    gates = tuple(name for name in evidence().gates if name != ungated)
    found = evidence(moved.pop("launch_ms", (250.0,) * 3), gates=gates)
    verdict = judge(Question(with_counts(found, **moved) if moved else found, entry()))
    assert verdict.status is Status.SAME
    assert metric(verdict, ungated).status in (Status.SLOWER, Status.CHANGED)
    assert not metric(verdict, ungated).gated


@pytest.mark.parametrize(("rises", "status"), [
    ("graph_breaks", Status.CHANGED),
    ("host_syncs_per_step", Status.CHANGED),
    ("memsets_per_step", Status.SLOWER),
])  # fmt: skip
def test_the_worst_metric_decides(rises, status):
    """A price or waste decides before a time, which decides before an amount and before what is
    FASTER. Each metric keeps its own verdict.
    """
    moved = {rises: COUNTS[rises] + 1, "unique_graphs": 1}
    verdict = by_recordings(with_counts(evidence((260.0,) * 3), **moved), FIVE)
    assert verdict.status is status
    assert metric(verdict, "step_ms").status is Status.SLOWER
    assert metric(verdict, rises).status is Status.CHANGED
    assert metric(verdict, "unique_graphs").status is Status.FASTER
    both = with_counts(evidence(), graph_breaks=2, unique_graphs=1)
    assert judge(Question(both, FIVE)).status is Status.CHANGED


@PROPERTY
@given(
    st.sampled_from([name for name in COUNTS if not METRICS[name].tolerant and name != NUMBERS]),
    st.integers(0, 10**15),
)
def test_a_gated_counter_is_same_exactly_when_equal(name, count):
    """No value but the recorded one is ``same``."""
    verdict = judge(Question(with_counts(evidence(), **{name: count}), entry()))
    assert (metric(verdict, name).status is Status.SAME) == (count == COUNTS[name])
    if count > COUNTS[name]:
        assert verdict.status.outcome == "failed"


# Nothing green by accident. In the order of precedence: a later one never hides an earlier one.

EMPTY = Status.BROKEN, Reason.NOTHING_MEASURED
CLOCKS = Status.BROKEN, Reason.CLOCKS_DISAGREE
CONDITIONS = Status.NOT_COMPARABLE, Reason.OTHER_CONDITIONS
DRIFTS = launch(steady="still drifting")
POISONS = {
    "foreign process": (
        lambda e: replace(e, faults=(Fault(Reason.FOREIGN_PROCESS, "process 7 on the GPU"),)),
        (Status.UNFIT, Reason.FOREIGN_PROCESS)),
    "no launch": (lambda e: replace(e, launches=()), EMPTY),
    "no fingerprint": (lambda e: replace(e, fingerprint=None), EMPTY),
    "a launch is missing": (lambda e: replace(e, planned_launches=len(e.launches) + 1), EMPTY),
    "clocks disagree": (lambda e: patched_blocks(e, events_ms=(2000.0,)), CLOCKS),
    "faster than physics": (lambda e: replace(e, floor_flops_per_step=2.6e14), CLOCKS),
    "not steady": (lambda e: replace(e, launches=(*e.launches[:-1], DRIFTS)),
                   (Status.INCONCLUSIVE, Reason.NOT_STEADY)),
    "missing counter": (lambda e: without(e, "unique_graphs"), EMPTY),
    "unstable counter": (
        lambda e: without(e, "graph_breaks", "steps differ: 1, 2"),
        (Status.INCONCLUSIVE, Reason.COUNT_UNSTABLE)),
    "other parameters": (lambda e: replace(e, case=same_but(batch=32)), CONDITIONS),
    "other software": (
        lambda e: replace(e, fingerprint=replace(FINGERPRINT, torch="2.12.0+cu130")), CONDITIONS),
    "other tokens": (
        lambda e: replace(e, tokens_per_step=TOKENS // 2),
        (Status.NOT_COMPARABLE, Reason.WORK_MOVED)),
}  # fmt: skip
ORDER = list(POISONS)


def patched_blocks(found, **changes):
    """Every block of every launch changed."""
    launches = tuple(
        replace(one, blocks=tuple(replace(b, **changes) for b in one.blocks))
        for one in found.launches
    )
    return replace(found, launches=launches)


def without(found, name, unstable=""):
    """A counter taken away, with or without an explanation."""
    values = {key: count for key, count in found.counts.values.items() if key != name}
    reasons = found.counts.unstable | ({name: unstable} if unstable else {})
    return replace(found, counts=replace(found.counts, values=values, unstable=reasons))


@pytest.mark.parametrize(("first", "second"), [*pairwise(ORDER), (ORDER[-1],) * 2])
def test_the_earlier_poison_decides(first, second):
    """Of two problems the one that comes first in the documented order is the verdict."""
    poisoned = POISONS[first][0](POISONS[second][0](evidence()))
    verdict = judge(Question(poisoned, FIVE))
    assert decided(verdict) == POISONS[first][1]
    assert verdict.status.outcome == "error" and verdict.message


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
@pytest.mark.parametrize("field", ["all", "wall_ms", "events_ms", "step_ms"])
def test_a_time_that_is_none_is_broken(field, bad):
    """A block with a NaN, infinite, zero or negative time is BROKEN, not a crash and not same."""
    changes = {
        name: ((bad,) if name != "step_ms" else (bad,) * 10)
        for name in (("wall_ms", "events_ms", "step_ms") if field == "all" else (field,))
    }
    for baseline in (FIVE, None):
        verdict = judge(Question(with_block(block(**changes)), baseline))
        assert verdict.status is Status.BROKEN, verdict
        assert "launch" in verdict.message


@pytest.mark.parametrize(
    ("launches", "stalls", "broken"), [(3, 1, False), (3, 2, True), (6, 2, False), (6, 3, True)]
)
def test_clocks_that_disagree_again_and_again_are_no_stall(launches, stalls, broken):
    """One block that was measured again for it is a stall of the host; of many launches a third."""
    late = block(wall_ms=(2012.0,), events_ms=(2000.0,))
    lost = [(late,) if n < stalls else () for n in range(launches)]
    verdict = judge(Question(with_launches(*(launch(discarded=one) for one in lost)), FIVE))
    assert (verdict.reason is Reason.CLOCKS_DISAGREE) is broken
    if broken:
        told = "rank 0: wall clock 2012.000 ms, events 2000.000 ms"
        assert verdict.message == f"{stalls} blocks in {launches} launches, {told}"


@pytest.mark.parametrize(
    ("wall", "events", "agree"),
    [(2500.0, 2487.6, True), (2500.0, 2487.4, False), (10.0, 9.1, True), (10.0, 8.9, False)],
)
def test_clocks_agree_within_half_a_percent_or_a_millisecond(wall, events, agree):
    """Wall clock and events may differ by 0.5 % or 1 ms, whichever is more."""
    assert (not block(wall_ms=(wall,), events_ms=(events,)).clock_gap()) is agree


@pytest.mark.parametrize(
    ("ms", "outside", "agree"),
    [(2500.0, 2999.0, True), (2500.0, 3001.0, False), (40e3, 42e3, True), (40e3, 42.2e3, False)]
    + [(2500.0, math.nan, False), (2500.0, None, True)],
)
def test_the_hosts_clock_agrees_within_five_percent_or_half_a_second(ms, outside, agree):
    """Either side of the limit; evidence of before has no such time."""
    one = block(wall_ms=(ms,), events_ms=(ms,), outside_ms=outside)
    assert (not one.clock_gap()) is agree
    if not agree:
        verdict = judge(Question(with_block(one), FIVE))
        assert decided(verdict) == CLOCKS
        assert "the host's" in verdict.message


@pytest.mark.parametrize("name", WORK + COST)
def test_every_gated_metric_must_be_there(name):
    """A gated metric that was not measured is BROKEN, and so is it where it is the only one."""
    tokens = name == "tokens_per_step"
    sound = evidence_having(name)
    poisoned = replace(sound, tokens_per_step=0) if tokens else without(sound, name)
    for gates in (poisoned.gates, (name,)):
        verdict = judge(Question(replace(poisoned, gates=gates), entry_of(sound)))
        assert decided(verdict) == EMPTY
        assert name in verdict.message


@pytest.mark.parametrize("name", [name for name, row in METRICS.items() if row.new])
def test_a_counter_newer_than_every_recording_is_counted_and_not_compared(name):
    """The other metrics decide; and as soon as one recording has it, it is compared: the newest may
    not lose it.
    """
    without = {other: count for other, count in COUNTS.items() if other != name}
    verdict = judge(Question(evidence(), one_recording(counters=without)))
    assert verdict.status is Status.SAME
    found = metric(verdict, name)
    assert (found.status, found.reason, found.old) == (Status.SAME, Reason.NOT_RECORDED, None)
    both = [recording(number=0, counters=COUNTS), recording(number=1, counters=without)]
    lost = judge(Question(evidence(), entry(epochs=[epoch(recordings=both)])))
    assert decided(lost) == (Status.NO_BASELINE, Reason.NOT_RECORDED)


OTHER = recording(500.0, 1, software=SOFTWARE | {"torch": "2.10.0"})
TWO_CLOCKS = block(wall_ms=(2500.0, 2400.0), events_ms=(2500.0, 2300.0))
DRIFTING = with_launches(DRIFTS, gates=("flops_per_step",))
WITHIN = Status.SAME, Reason.WITHIN_LIMIT
LACKS = Status.NO_BASELINE, Reason.NOT_RECORDED


@pytest.mark.parametrize(("found", "past", "said", "words"), [
    *((evidence(case=now), entry(case=then), CONDITIONS, words) for then, now, words in (
          (CASE, CASE | {"world_size": 4}, "world_size 1 -> 4"),
          (CASE, CASE | {"workload": "model.workloads:forward"}, "workload"),
          (CASE, same_but(fused=True), "fused unset -> True"),
          (same_but(fused=True), CASE, "fused True -> unset"),
          (CASE, same_but(window=None), "window unset -> None"),
          (same_but(world_size=2), same_but(world_size=2) | {"world_size": 2}, "world_size"))),
    *(
        (evidence(), one_recording(software=SOFTWARE | {part: "9.9"}), CONDITIONS, part)
        for part in SOFTWARE
    ),
    (evidence(), one_recording(times_ms={}), LACKS, ""),
    (evidence(), one_recording(times_ms={"step_ms": []}), LACKS, ""),
    (with_block(TWO_CLOCKS), FIVE, CLOCKS, "rank 1"),
    (evidence(gates=()), FIVE, EMPTY, "gated"),
    # What is compared all the same.
    (evidence(), epochs_of({}, more=[OTHER]), WITHIN, ""),
    (evidence(fingerprint=replace(FINGERPRINT, torch="2.11.0")), FIVE, WITHIN, ""),
    (DRIFTING, entry(), (Status.SAME, Reason.EQUAL), ""),
])  # fmt: skip
def test_what_can_be_compared(found, past, said, words):
    """Whatever else the figures depend on is not compared, and the message says in what it differs.
    Recordings of other software are left out; a local build of torch is that torch; and a warm-up
    that never settled does not matter to counters.
    """
    verdict = judge(Question(found, past))
    assert decided(verdict) == said
    assert words in verdict.message


# One more launch?


def one(ms, **fields):
    """Evidence of a single launch, of three that are planned."""
    return evidence((ms,), planned_launches=1, **fields)


def test_one_launch_is_enough_far_inside_the_limit():
    """Up to half of the way to an alarm, on whatever card. Beyond that, either side, the planned
    launches are measured.
    """
    for card, limit_pct in (("GPU-1234", 0.7), ("GPU-other", 2.0)):
        known = one_recording(device_uuid=card)
        for change_pct in (0.0, 0.49 * limit_pct, -0.49 * limit_pct):
            assert enough_launches(one(250.0 * (1 + change_pct / 100)), known)
        for change_pct in (0.51 * limit_pct, 1.1 * limit_pct, -0.51 * limit_pct):
            assert not enough_launches(one(250.0 * (1 + change_pct / 100)), known)


@pytest.mark.parametrize(("moved", "past"), [
    ({"counts": Counts(COUNTS | {"host_syncs_per_step": 7}, {}, {})}, {}),
    ({"counts": Counts(COUNTS | {"launches_per_step": 1}, {}, {})}, {}),
    ({"faults": (Fault(Reason.RAISED, "x"),)}, {}),
    ({}, {"software": {"torch": "1.0"}}),
    ({}, {"times_ms": {}}),
])  # fmt: skip
def test_one_launch_is_not_enough_for_a_case_that_is_not_same(moved, past):
    """A counter rose, or fell; it is not sound; nothing can be compared. If its time is not gated,
    another launch would change nothing.
    """
    found = one(250.0, **moved)
    assert not enough_launches(found, one_recording(**past))
    assert enough_launches(replace(found, gates=("flops_per_step",)), one_recording(**past))


def test_one_launch_is_not_enough_behind_a_clock_gap():
    """Events that miss work make a gap in each launch. One is a host that stalled; two are not
    believed.
    """
    gap = block(events_ms=(2375.0,))
    first, second = (launch(index=number, discarded=(gap,)) for number in (1, 2))
    assert judge(Question(one(250.0, launches=(first,)), one_recording())).status is Status.SAME
    assert judge(Question(with_launches(first, second), one_recording())).status is Status.BROKEN
    assert not enough_launches(one(250.0, launches=(first,)), one_recording())
