"""The rules of the verdict: each status and reason, their order, and nothing green by accident."""

import math

import pytest
from builders import (
    CASE,
    CASE_ID,
    COUNTS,
    DETAIL,
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

from stepguard.core.evidence import Counts, Difference, Fault
from stepguard.core.metrics import METRICS
from stepguard.core.reasons import Reason
from stepguard.core.recording import RecordedDifference
from stepguard.core.status import Status
from stepguard.judge.judge_recordings import (
    enough_launches,
    enough_pairs,
    judge,
    measurement_problem,
)
from stepguard.report.metric_notes import note
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


def test_equal_evidence_is_same():
    """The sound pair that the other tests poison passes."""
    verdict = judge(evidence(), FIVE)
    assert decided(verdict) == (Status.SAME, Reason.WITHIN_LIMIT)
    assert verdict.status.outcome == "passed"
    assert verdict.recordings == 5
    assert measurement_problem(evidence()) is None


# Times


def test_slower_and_faster_beyond_the_limit():
    """0.8 % beyond the recordings of this card is SLOWER or FASTER, 0.6 % is same."""
    slower, faster = judge(evidence((252.0,) * 3), FIVE), judge(evidence((248.0,) * 3), FIVE)
    assert decided(slower) == (Status.SLOWER, Reason.BEYOND_LIMIT)
    assert decided(faster) == (Status.FASTER, Reason.BEYOND_LIMIT)
    assert judge(evidence((251.5,) * 3), FIVE).status is Status.SAME
    assert judge(evidence((248.5,) * 3), FIVE).status is Status.SAME
    worst = slower.worst
    assert (worst.metric, worst.new) == ("step_ms", pytest.approx(252.0))
    assert worst.old == pytest.approx(250.0, rel=1e-6)
    assert worst.change_pct == pytest.approx(0.8, abs=1e-3)
    assert worst.limit_pct == 0.7


@pytest.mark.parametrize(("card", "limit_pct"), [("GPU-1234", 0.7), ("GPU-other", 2.0)])
def test_one_recording_flags_by_whose_card_it_is(card, limit_pct):
    """Beyond 0.7 % of this card's recordings it is SLOWER; on another card beyond 2 %."""
    for ratio, status in ((0.99, Status.SAME), (1.01, Status.SLOWER)):
        ms = 250.0 * (1 + ratio * limit_pct / 100)
        found = judge(evidence((ms,) * 3), one_recording(device_uuid=card))
        assert found.status is status
        own = "1 recording of this card" if card == "GPU-1234" else "1 other card"
        assert own in note(metric(found, "step_ms"))


def test_the_capped_mean_judges_and_the_median_is_shown():
    """One step in ten 40 % slower counts as 25 %: SLOWER, though the median is equal."""
    for odd_ms, change_pct in ((310.0, 2.4), (315.0, 2.5), (350.0, 2.5)):
        steps = (250.0,) * 9 + (odd_ms,)
        odd = block(wall_ms=(sum(steps),), events_ms=(sum(steps),), step_ms=steps)
        verdict = judge(with_launches(*[launch(blocks=(odd,) * 3)] * 3), FIVE)
        assert metric(verdict, "step_ms").change_pct == pytest.approx(change_pct, abs=1e-3)
    assert metric(verdict, "step_ms").status is Status.SLOWER
    assert metric(verdict, "step_ms_median").new == pytest.approx(250.0)
    assert not metric(verdict, "step_ms_median").gated
    assert verdict.status is Status.SLOWER


# Counters


@pytest.mark.parametrize("name", [name for name in WORK if name != "tokens_per_step"])
@pytest.mark.parametrize("step", [-1, 1])
def test_a_work_counter_that_moves_is_changed(name, step):
    """Work that moved by one, either way, is CHANGED."""
    sound = evidence_having(name)
    moved = with_counts(sound, **{name: sound.counts.values[name] + step})
    verdict = judge(moved, entry_of(sound))
    assert decided(verdict) == (Status.CHANGED, Reason.WORK_MOVED)
    assert verdict.worst.metric == name


def test_other_libraries_stand_beside_what_changed():
    """They explain, and forbid no comparison; where nothing moved nothing is said of them."""
    sound = cpu_evidence()
    newer = replace(sound.fingerprint, libraries={"transformers": "5.23", "peft": "1.0"})
    moved = with_counts(replace(sound, fingerprint=newer), flops_per_step=1)
    older = entry_of(sound, libraries={"transformers": "5.22"})
    said = "  peft unset -> 1.0, transformers 5.22 -> 5.23 since the recording"
    assert evidence_lines(judge(moved, older))[0] == said
    assert said not in evidence_lines(judge(replace(sound, fingerprint=newer), older))
    same = entry_of(sound, libraries=newer.libraries)
    assert "since the recording" not in "".join(evidence_lines(judge(moved, same)))


@pytest.mark.parametrize("name", COST)
def test_a_cost_counter_changes_up_and_is_faster_down(name):
    """A cost that rose by one more than its slack is CHANGED, one that fell by one FASTER; of the
    peak it is a block of the allocator.
    """
    sound, down = evidence_having(name), METRICS[name].floor or 1
    recorded, count = entry_of(sound), sound.counts.values[name]
    beyond = max(down, int(count * METRICS[name].slack_pct / 100) + 1)
    rose = judge(with_counts(sound, **{name: count + beyond}), recorded)
    fell = judge(with_counts(sound, **{name: count - down}), recorded)
    assert decided(rose) == (Status.CHANGED, Reason.COUNTER_ROSE)
    assert decided(fell) == (Status.FASTER, Reason.COUNTER_FELL)
    assert rose.worst.metric == fell.worst.metric == name


@pytest.mark.parametrize("moved", [-511, -4, 4, 511])
def test_less_than_a_block_of_memory_is_no_change(moved):
    """A scalar that lives longer raises no peak on a GPU, where a request takes 512 B at least."""
    recorded = with_counts(evidence(), peak_allocated_bytes=10_000)
    now = with_counts(evidence(), peak_allocated_bytes=10_000 + moved)
    found = judge(now, entry_of(recorded))
    assert found.status is Status.SAME
    peak = next(m for m in found.metrics if m.metric == "peak_allocated_bytes")
    assert (peak.reason, peak.new) == (Reason.WITHIN_LIMIT, 10_000 + moved)


def test_a_list_that_grows_by_a_scalar_is_found():
    """The floor is the peak's alone: four bytes left behind in a step fail."""
    now = with_counts(evidence(), peak_allocated_bytes=14, leaked_bytes_per_step=4)
    known = entry_of(with_counts(evidence(), peak_allocated_bytes=10, leaked_bytes_per_step=0))
    found = judge(now, known)
    assert decided(found) == (Status.CHANGED, Reason.COUNTER_ROSE)
    assert found.worst.metric == "leaked_bytes_per_step"


def test_small_rises_of_the_peak_do_not_add_up():
    """Compared is the epoch's lowest: the second rise of 300 B is 600 B."""
    levels = [COUNTS | {"peak_allocated_bytes": n} for n in (10_000, 10_300)]
    past = entry(epochs=[epoch(recordings=[recording(counters=one) for one in levels])])
    found = judge(with_counts(evidence(), peak_allocated_bytes=10_600), past)
    assert decided(found) == (Status.CHANGED, Reason.COUNTER_ROSE)


def test_the_peak_may_rise_by_a_little():
    """By 0.05 %, as backward passes in another order may; beyond it fails. Any fall is one."""
    known = entry_of(with_counts(evidence(), peak_allocated_bytes=10**8))
    for moved, status in ((50_000, Status.SAME), (50_001, Status.CHANGED), (-600, Status.FASTER)):
        now = with_counts(evidence(), peak_allocated_bytes=10**8 + moved)
        assert judge(now, known).status is status, moved


def test_launches_have_two_percent_of_slack():
    """1000 launches may become 1020 and not 1021."""
    assert judge(with_counts(evidence(), launches_per_step=1020), entry()).status is Status.SAME
    assert judge(with_counts(evidence(), launches_per_step=1021), entry()).status is Status.CHANGED


def test_a_counter_that_left_zero_is_changed():
    """A first graph break fails, though no percentage can be given."""
    none = one_recording(counters=COUNTS | {"graph_breaks": 0})
    verdict = judge(evidence(), none)
    assert decided(verdict) == (Status.CHANGED, Reason.COUNTER_ROSE)
    assert verdict.worst.change_pct is None


def test_counters_compare_with_the_newest_recording():
    """An epoch's newest recording is what a counter must equal."""
    older = recording(number=0, counters=COUNTS | {"graph_breaks": 0})
    newer = recording(number=1)
    both = entry(epochs=[epoch(recordings=[older, newer])])
    assert judge(evidence(), both).status is Status.SAME


def test_only_the_last_epoch_counts():
    """An accepted change of level is compared with, the level before it is not."""
    slow, fast = epoch((500.0,)), epoch((250.0,), reason="fused the loss")
    assert judge(evidence(), entry(epochs=[slow, fast])).status is Status.SAME
    assert judge(evidence(), entry(epochs=[fast, slow])).status is Status.FASTER


def test_the_note_names_what_moved():
    """A note says which parts moved: products, then what is new or lost, then by size, then how
    many more.
    """
    now = {"aten.mm.default": 25, "aten.add.Tensor": 2366, "aten.x": 5, "aten.y": 4}
    counts = Counts(COUNTS | {"operator_calls_per_step": 2400 + 1}, {}, {WORK[1]: now})
    verdict = judge(evidence(counts=counts), entry())
    assert verdict.worst.metric == "operator_calls_per_step"
    assert note(verdict.worst) == (
        "aten.mm.default 24 -> 25, aten.x 0 -> 5, aten.y 0 -> 4 and 1 more"
    )


def test_an_operator_that_vanished_is_named():
    """A part that only the recording has goes to 0."""
    counts = Counts(
        COUNTS | {"operator_calls_per_step": 2376},
        {},
        {"operator_calls_per_step": {"aten.add.Tensor": 2376}},
    )
    assert note(judge(evidence(counts=counts), entry()).worst) == "aten.mm.default 24 -> 0"


@pytest.mark.parametrize(
    ("ungated", "moved"),
    [
        ("step_ms", {"launch_ms": (500.0,) * 3}),
        ("graph_breaks", {"graph_breaks": 7}),
        ("flops_per_step", {"flops_per_step": 7}),
    ],
)
def test_an_ungated_metric_never_decides(ungated, moved):
    """What the case does not gate is compared and shown, and cannot fail or loudly pass it."""
    gates = tuple(name for name in evidence().gates if name != ungated)
    found = evidence(moved.pop("launch_ms", (250.0,) * 3), gates=gates)
    verdict = judge(with_counts(found, **moved) if moved else found, entry())
    assert verdict.status is Status.SAME
    assert metric(verdict, ungated).status in (Status.SLOWER, Status.CHANGED)
    assert not metric(verdict, ungated).gated


def test_cpu_times_are_shown_and_not_gated():
    """On a CPU counters decide and a time is neither compared nor missed."""
    found = cpu_evidence()
    verdict = judge(found, entry_of(found, times_ms={}, information={}))
    assert decided(verdict) == (Status.SAME, Reason.EQUAL)
    assert metric(verdict, "step_ms").new == pytest.approx(5.0)
    assert not metric(verdict, "step_ms").gated


@pytest.mark.parametrize(
    ("rises", "status"),
    [
        ("graph_breaks", Status.CHANGED),
        ("host_syncs_per_step", Status.CHANGED),
        ("memsets_per_step", Status.SLOWER),
    ],
)
def test_the_worst_metric_decides(rises, status):
    """A price or waste decides before a time, which decides before an amount and before what is
    FASTER. Each metric keeps its own verdict.
    """
    moved = {rises: COUNTS[rises] + 1, "unique_graphs": 1}
    verdict = judge(with_counts(evidence((260.0,) * 3), **moved), FIVE)
    assert verdict.status is status
    assert metric(verdict, "step_ms").status is Status.SLOWER
    assert metric(verdict, rises).status is Status.CHANGED
    assert metric(verdict, "unique_graphs").status is Status.FASTER
    assert judge(with_counts(evidence(), graph_breaks=2, unique_graphs=1), FIVE).status is (
        Status.CHANGED
    )


@PROPERTY
@given(
    st.sampled_from([name for name in COUNTS if not METRICS[name].tolerant]),
    st.integers(0, 10**15),
)
def test_a_gated_counter_is_same_exactly_when_equal(name, count):
    """No value but the recorded one is ``same``."""
    verdict = judge(with_counts(evidence(), **{name: count}), entry())
    assert (metric(verdict, name).status is Status.SAME) == (count == COUNTS[name])
    if count > COUNTS[name]:
        assert verdict.status.outcome == "failed"


# Nothing green by accident. In the order of precedence: a later one never hides an earlier one.

POISONS = {
    "foreign process": (
        lambda e: replace(e, faults=(Fault(Reason.FOREIGN_PROCESS, "process 7 on the GPU"),)),
        (Status.UNFIT, Reason.FOREIGN_PROCESS),
    ),
    "no launch": (
        lambda e: replace(e, launches=()),
        (Status.BROKEN, Reason.NOTHING_MEASURED),
    ),
    "no fingerprint": (
        lambda e: replace(e, fingerprint=None),
        (Status.BROKEN, Reason.NOTHING_MEASURED),
    ),
    "a launch is missing": (
        lambda e: replace(e, planned_launches=len(e.launches) + 1),
        (Status.BROKEN, Reason.NOTHING_MEASURED),
    ),
    "clocks disagree": (
        lambda e: patched_blocks(e, events_ms=(2000.0,)),
        (Status.BROKEN, Reason.CLOCKS_DISAGREE),
    ),
    "faster than physics": (
        lambda e: replace(e, floor_flops_per_step=2.6e14),
        (Status.BROKEN, Reason.CLOCKS_DISAGREE),
    ),
    "not steady": (
        lambda e: replace(
            e, launches=(*e.launches[:-1], replace(e.launches[-1], steady="still drifting"))
        ),
        (Status.INCONCLUSIVE, Reason.NOT_STEADY),
    ),
    "unstable counter": (
        lambda e: without(e, "graph_breaks", "steps differ: 1, 2"),
        (Status.INCONCLUSIVE, Reason.COUNT_UNSTABLE),
    ),
    "missing counter": (
        lambda e: without(e, "unique_graphs"),
        (Status.BROKEN, Reason.NOTHING_MEASURED),
    ),
    "other parameters": (
        lambda e: replace(e, case=same_but(batch=32)),
        (Status.NOT_COMPARABLE, Reason.OTHER_CONDITIONS),
    ),
    "other software": (
        lambda e: replace(e, fingerprint=replace(FINGERPRINT, torch="2.12.0+cu130")),
        (Status.NOT_COMPARABLE, Reason.OTHER_CONDITIONS),
    ),
    "other tokens": (
        lambda e: replace(e, tokens_per_step=TOKENS // 2),
        (Status.NOT_COMPARABLE, Reason.WORK_MOVED),
    ),
}
ORDER = [
    "foreign process",
    "no launch",
    "a launch is missing",
    "clocks disagree",
    "faster than physics",
    "not steady",
    "missing counter",
    "unstable counter",
    "other parameters",
    "other software",
    "other tokens",
]


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


@pytest.mark.parametrize("name", POISONS)
def test_each_poison_has_its_verdict(name):
    """One thing taken away from or spoilt in a sound pair is never passed, and says which."""
    poison, expected = POISONS[name]
    verdict = judge(poison(evidence()), FIVE)
    assert decided(verdict) == expected
    assert verdict.status.outcome == "error"
    assert verdict.message


@pytest.mark.parametrize(("first", "second"), list(zip(ORDER, ORDER[1:], strict=False)))
def test_the_earlier_poison_decides(first, second):
    """Of two problems the one that comes first in the documented order is the verdict."""
    poisoned = POISONS[second][0](evidence())
    poisoned = POISONS[first][0](poisoned)
    assert decided(judge(poisoned, FIVE)) == POISONS[first][1]


@pytest.mark.parametrize(
    "name", [n for n in ORDER if not n.startswith("other") and n != "no fingerprint"]
)
def test_a_measurement_problem_comes_before_the_baseline(name):
    """Without a baseline too, unsound evidence is called by its own name."""
    poison, expected = POISONS[name]
    assert decided(judge(poison(evidence()), None)) == expected


@pytest.mark.parametrize("reason", [r for r in Reason if r is not Reason.NOTHING_MEASURED])
def test_any_fault_is_an_error(reason):
    """Whatever fault a launch reports, with sound launches beside it, the outcome is an error."""
    fault = Fault(reason, "said so", "a traceback", "launch 2, block")
    verdict = judge(evidence(faults=(fault,)), FIVE)
    assert verdict.status.outcome == "error"
    assert verdict.reason is reason
    assert verdict.message == "launch 2: said so"
    assert verdict.detail == "a traceback"


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (Reason.FOREIGN_PROCESS, Status.UNFIT),
        (Reason.THROTTLED, Status.UNFIT),
        (Reason.MACHINE_UNREADABLE, Status.UNFIT),
        (Reason.TOO_FEW_GPUS, Status.UNFIT),
        (Reason.RAISED, Status.BROKEN),
        (Reason.BAD_WORKLOAD, Status.BROKEN),
        (Reason.OUT_OF_MEMORY, Status.BROKEN),
        (Reason.KILLED, Status.BROKEN),
        (Reason.NO_ANSWER, Status.BROKEN),
    ],
)
def test_machine_faults_are_unfit_and_others_broken(reason, status):
    """What the machine did is UNFIT, what the workload or a worker did is BROKEN."""
    assert judge(evidence(faults=(Fault(reason, "x"),)), None).status is status


BAD_TIMES = [math.nan, math.inf, 0.0, -1.0]


@pytest.mark.parametrize("bad", BAD_TIMES)
@pytest.mark.parametrize("field", ["all", "wall_ms", "events_ms", "step_ms"])
def test_a_time_that_is_none_is_broken(field, bad):
    """A block with a NaN, infinite, zero or negative time is BROKEN, not a crash and not same."""
    changes = {
        name: ((bad,) if name != "step_ms" else (bad,) * 10)
        for name in (("wall_ms", "events_ms", "step_ms") if field == "all" else (field,))
    }
    for baseline in (FIVE, None):
        verdict = judge(with_block(block(**changes)), baseline)
        assert verdict.status is Status.BROKEN, verdict
        assert "launch" in verdict.message


@pytest.mark.parametrize(
    "odd",
    [
        block(wall_ms=(), events_ms=()),
        block(step_ms=()),
        block(steps=0, wall_ms=(2500.0,), events_ms=(2500.0,)),
    ],
    ids=["no ranks", "no steps measured", "no steps"],
)
def test_an_empty_block_is_broken(odd):
    """A block without ranks or steps is BROKEN."""
    assert judge(with_block(odd), FIVE).status is Status.BROKEN


def test_a_launch_without_blocks_is_broken():
    """A launch that has no block counts for nothing, and says so."""
    verdict = judge(with_launches(launch(), launch(index=2, blocks=()), launch()), FIVE)
    assert decided(verdict) == (Status.BROKEN, Reason.NOTHING_MEASURED)
    assert "launch 2" in verdict.message


def test_one_odd_rank_is_enough():
    """The clocks of every rank must agree, not only those of the slowest."""
    odd = block(wall_ms=(2500.0, 2400.0), events_ms=(2500.0, 2300.0))
    verdict = judge(with_block(odd), FIVE)
    assert decided(verdict) == (Status.BROKEN, Reason.CLOCKS_DISAGREE)
    assert "rank 1" in verdict.message


@pytest.mark.parametrize(
    ("launches", "stalls", "broken"), [(3, 1, False), (3, 2, True), (6, 2, False), (6, 3, True)]
)
def test_clocks_that_disagree_again_and_again_are_no_stall(launches, stalls, broken):
    """One block that was measured again for it is a stall of the host; of many launches a third."""
    late = block(wall_ms=(2012.0,), events_ms=(2000.0,))
    lost = [(late,) if n < stalls else () for n in range(launches)]
    verdict = judge(with_launches(*(launch(discarded=one) for one in lost)), FIVE)
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
        verdict = judge(with_block(one), FIVE)
        assert decided(verdict) == (Status.BROKEN, Reason.CLOCKS_DISAGREE)
        assert "the host's" in verdict.message


@pytest.mark.parametrize("name", WORK + COST)
def test_every_gated_metric_must_be_there(name):
    """A gated metric that was not measured is BROKEN, and so is it where it is the only one."""
    tokens = name == "tokens_per_step"
    sound = evidence_having(name)
    poisoned = replace(sound, tokens_per_step=0) if tokens else without(sound, name)
    for gates in (poisoned.gates, (name,)):
        verdict = judge(replace(poisoned, gates=gates), entry_of(sound))
        assert decided(verdict) == (Status.BROKEN, Reason.NOTHING_MEASURED)
        assert name in verdict.message


def test_no_counting_pass_is_broken():
    """Without any counts the gated counters are missing."""
    assert judge(evidence(counts=None), FIVE).reason is Reason.NOTHING_MEASURED


def test_no_gates_is_broken():
    """Evidence that gates nothing is not same."""
    assert judge(evidence(gates=()), FIVE).status is Status.BROKEN


def test_unsteady_launches_do_not_stop_counters():
    """Where no time is gated a warm-up that never settled does not matter."""
    found = with_launches(launch(steady="drifts"), gates=("flops_per_step",))
    assert judge(found, entry()).status is Status.SAME


def test_no_baseline():
    """What was measured is shown all the same."""
    verdict = judge(evidence(), None)
    assert decided(verdict) == (Status.NO_BASELINE, Reason.NOT_RECORDED)
    assert verdict.status.outcome == "error"
    assert metric(verdict, "step_ms").new == pytest.approx(250.0)


def test_a_metric_that_was_not_recorded_is_no_baseline():
    """A gated metric that the recording lacks is NO BASELINE, a time as well as a counter."""
    no_breaks = {name: count for name, count in COUNTS.items() if name != "graph_breaks"}
    for lacking in (
        one_recording(counters=no_breaks),
        one_recording(times_ms={}),
        one_recording(times_ms={"step_ms": []}),
    ):
        assert decided(judge(evidence(), lacking)) == (
            Status.NO_BASELINE,
            Reason.NOT_RECORDED,
        )


@pytest.mark.parametrize("name", [name for name, row in METRICS.items() if row.new])
def test_a_counter_newer_than_every_recording_is_counted_and_not_compared(name):
    """The other metrics decide; and as soon as one recording has it, it is compared: the newest may
    not lose it.
    """
    without = {other: count for other, count in COUNTS.items() if other != name}
    verdict = judge(evidence(), one_recording(counters=without))
    assert verdict.status is Status.SAME
    found = metric(verdict, name)
    assert (found.status, found.reason, found.old) == (
        Status.SAME,
        Reason.NOT_RECORDED,
        None,
    )
    both = [recording(number=0, counters=COUNTS), recording(number=1, counters=without)]
    lost = judge(evidence(), entry(epochs=[epoch(recordings=both)]))
    assert decided(lost) == (Status.NO_BASELINE, Reason.NOT_RECORDED)


@pytest.mark.parametrize(
    ("recorded", "now", "said"),
    [
        (CASE, same_but(batch=32), "batch 64 -> 32"),
        (CASE, CASE | {"world_size": 4}, "world_size 1 -> 4"),
        (CASE, CASE | {"workload": "model.workloads:forward"}, "workload"),
        (CASE, same_but(fused=True), "fused unset -> True"),
        (same_but(fused=True), CASE, "fused True -> unset"),
        (CASE, same_but(window=None), "window unset -> None"),
        (same_but(world_size=2), same_but(world_size=2) | {"world_size": 2}, "world_size"),
    ],
)
def test_any_other_parameter_is_not_comparable(recorded, now, said):
    """A case that differs in anything its figures depend on is not compared, and says in what."""
    verdict = judge(evidence(case=now), entry(case=recorded))
    assert decided(verdict) == (Status.NOT_COMPARABLE, Reason.OTHER_CONDITIONS)
    assert said in verdict.message


@pytest.mark.parametrize("part", SOFTWARE)
def test_any_other_software_is_not_comparable(part):
    """Each part of the software decides, and the message gives both versions."""
    other = one_recording(software=SOFTWARE | {part: "9.9"})
    verdict = judge(evidence(), other)
    assert decided(verdict) == (Status.NOT_COMPARABLE, Reason.OTHER_CONDITIONS)
    assert verdict.message == f"{part} 9.9 -> {SOFTWARE[part]}"


def test_recordings_of_other_software_are_left_out():
    """Of an epoch only the recordings under this software are compared with."""
    other = recording(500.0, 1, software=SOFTWARE | {"torch": "2.10.0"})
    mixed = entry(epochs=[epoch(recordings=[recording(), other])])
    verdict = judge(evidence(), mixed)
    assert (verdict.status, verdict.recordings) == (Status.SAME, 1)


def test_a_local_torch_build_is_the_same_torch():
    """2.11.0+cu130 and 2.11.0 are one version; the CUDA it was built for has a field of its own."""
    plain = evidence(fingerprint=replace(FINGERPRINT, torch="2.11.0"))
    assert judge(plain, entry()).status is Status.SAME


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


@pytest.mark.parametrize(
    ("moved", "past"),
    [
        ({"counts": Counts(COUNTS | {"host_syncs_per_step": 7}, {}, {})}, {}),
        ({"counts": Counts(COUNTS | {"launches_per_step": 1}, {}, {})}, {}),
        ({"faults": (Fault(Reason.RAISED, "x"),)}, {}),
        ({}, {"software": {"torch": "1.0"}}),
        ({}, {"times_ms": {}}),
    ],
)
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
    assert judge(one(250.0, launches=(first,)), one_recording()).status is Status.SAME
    assert judge(with_launches(first, second), one_recording()).status is Status.BROKEN
    assert not enough_launches(one(250.0, launches=(first,)), one_recording())


PAIRS = ((100.0, 100.3), (100.0, 100.5), (100.0, 100.5), (100.0, 100.3))


def test_pairs_are_enough_close_to_the_recorded_difference():
    """By two standard errors, and if their interval is no wider than the limit. Nothing is enough
    where no difference is recorded, or none can be compared.
    """
    known = {"mean": 0.4, "half_width": 0.2}
    recorded = one_recording(differences_pct={"sync_overhead_pct": RecordedDifference(**known)})
    found = Difference("sync_overhead", PAIRS)
    assert enough_pairs(evidence(), found, recorded)
    wide = tuple((100.0, 100.4 + more) for more in (0.5, -0.5, 0.5, -0.5))
    moved = tuple((plain, other + 0.35) for plain, other in PAIRS)
    for pairs in (PAIRS[:1], wide, moved, ((0.0, 1.0), *PAIRS)):
        assert not enough_pairs(evidence(), replace(found, pairs_ms=pairs), recorded)
    assert not enough_pairs(evidence(), found, one_recording())
    other = evidence(case=same_but(batch=1))
    assert not enough_pairs(other, found, recorded)


def test_pairs_are_enough_close_to_the_mean_of_the_recordings():
    """A newest one that is far off asks for no more pairs. Alone it does."""
    found = Difference("sync_overhead", PAIRS)
    recordings = [
        recording(differences_pct={"sync_overhead_pct": RecordedDifference(mean=m, half_width=0.2)})
        for m in (0.44, 0.48, 0.91)
    ]
    assert enough_pairs(evidence(), found, entry(epochs=[epoch(recordings=recordings)]))
    assert not enough_pairs(evidence(), found, entry(epochs=[epoch(recordings=recordings[2:])]))


def test_the_verdict_carries_the_case():
    """Whatever the way to it, a verdict names its case."""
    pairs = [(evidence(), FIVE), (evidence(), None), (evidence(launches=()), None)]
    assert {judge(found, base).case_id for found, base in pairs} == {CASE_ID}
    assert DETAIL == evidence().counts.detail  # the builders share it: nobody may have changed it


def test_the_first_graph_break_is_named():
    """A count that was 0 had no parts: those it has now are what rose."""
    counts = Counts(COUNTS | {"graph_breaks": 1}, {}, {"graph_breaks": {"builtin print": 1}})
    verdict = judge(evidence(counts=counts), one_recording(counters=COUNTS | {"graph_breaks": 0}))
    (found,) = [m for m in verdict.metrics if m.metric == "graph_breaks"]
    assert (found.status, note(found)) == (Status.CHANGED, "builtin print 0 -> 1")
