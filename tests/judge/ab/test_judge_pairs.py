"""Two trees that took turns: every verdict from known log-ratios, and nothing green by accident."""

import math

import msgspec
import pytest
from alarms import of_metrics
from builders import (
    PROPERTY,
    block,
    evidence,
    launch,
    metric,
    replace,
    two_rank_evidence,
    with_counts,
)
from comparisons import with_margins
from hypothesis import given
from hypothesis import strategies as st

from stepguard import Case
from stepguard.core.comparison import Comparison, LaunchPair, from_json, judged
from stepguard.core.evidence import Counts, Fault, to_json
from stepguard.core.margins import Margins
from stepguard.core.metrics import METRICS
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.judge.judge_pairs import (
    decision,
    judge_ab,
    wants_another_pair,
)
from stepguard.judge.pair_statistics import deciding_margins, smallest_detectable_pct
from stepguard.judge.sequential_plan import level_of
from stepguard.report.metric_notes import note
from stepguard.report.next_steps import Commands, next_steps
from stepguard.report.verdict_text import block as told_block
from stepguard.report.verdict_text import headline, page_of

OLD, NEW = "0" * 40, "f" * 40
CASE = Case("124m-bf16", "model.workloads:train_step", {"size": "124m"})
GATES = judged(CASE)
COUNTERS = tuple(name for name in GATES if METRICS[name].kind == "counter")
WASTE = next(name for name in COUNTERS if METRICS[name].role == "waste")
SPREAD = (0.0002, -0.0002, 0.0001, -0.0001, 0.0, 0.0)  # of log-ratios; they add up to nothing


def turns(ratios=(0.0,) * 6, head=None, base=None, **changes):
    """A comparison whose pairs have these log-ratios; ``head`` and ``base`` change a side."""
    launches_ms = tuple(250.0 * math.exp(ratio) for ratio in ratios)
    sides = {"gates": GATES, "planned_launches": 1}
    new = evidence(launches_ms, commit=NEW, **sides)
    old = evidence((250.0,) * len(launches_ms), commit=OLD, **sides)
    return Comparison("main", replace(new, **head or {}), replace(old, **base or {}), **changes)


def shifted(pct, spread=SPREAD):
    """Log-ratios of a true change of ``pct``, with known scatter."""
    return tuple(math.log1p(pct / 100) + one for one in spread)


def decided(found):
    """Status and reason of the verdict on a comparison."""
    verdict = judge_ab(found)
    return verdict.status, verdict.reason


def fault(code, message="planted"):
    """A side's evidence after a launch that failed so before any pair."""
    return {"faults": (Fault(Reason(code), message, "detail", "first launch, prepare"),)}


UNMEASURED = {"launches": (), "counts": None}


# known log-ratios


@pytest.mark.parametrize(
    ("pct", "status", "reason"),
    [
        (2.0, Status.SLOWER, Reason.BEYOND_MARGIN),
        (-2.0, Status.FASTER, Reason.BEYOND_MARGIN),
        (0.0, Status.SAME, Reason.WITHIN_MARGINS),
        (0.15, Status.SAME, Reason.WITHIN_MARGINS),
        (-0.15, Status.SAME, Reason.WITHIN_MARGINS),
    ],
)
def test_a_known_change_has_its_verdict(pct, status, reason):
    """Six pairs that scatter by 0.015 % say what a change of so many percent is."""
    found = turns(shifted(pct))
    assert decided(found) == (status, reason)
    verdict = judge_ab(found)
    step = metric(verdict, "step_ms")
    assert step.change_pct == pytest.approx(pct, abs=0.02)
    assert step.new / step.old == pytest.approx(1 + pct / 100, rel=1e-3)
    assert verdict.against == "main (000000000000)"
    assert (verdict.p_value <= 0.001) is (status is Status.SLOWER)


def test_noise_decides_nothing():
    """Pairs that scatter by 3 % do not decide about 1 %, not even when time is up."""
    noisy = shifted(1.0, (0.03, -0.03, 0.03, -0.03, 0.03, -0.03))
    assert decided(turns(noisy)) == (Status.INCONCLUSIVE, Reason.UNDECIDED)
    assert decided(turns(noisy, out_of_time=True)) == (Status.INCONCLUSIVE, Reason.UNDECIDED)


def test_between_two_looks_only_the_end_of_time_decides():
    """Seven pairs of 2 % are SLOWER if there will be no more, and else wait for the eighth."""
    ratios = shifted(2.0, (*SPREAD, 0.0))
    assert decided(turns(ratios)) == (Status.INCONCLUSIVE, Reason.UNDECIDED)
    assert wants_another_pair(turns(ratios))
    late = turns(ratios, out_of_time=True)
    assert decided(late) == (Status.SLOWER, Reason.BEYOND_MARGIN) and not wants_another_pair(late)


def test_few_pairs_cannot_say_slower():
    """Five pairs of twice the time are not SLOWER, and never `same`."""
    for count in range(1, 6):
        found = turns(shifted(100.0)[:count], out_of_time=True)
        assert decided(found) == (Status.INCONCLUSIVE, Reason.UNDECIDED)


def test_the_margins_are_the_comparisons_own():
    """2 % slower is `same` where 5 % is to be ignored and 20 % matters; the note says which."""
    found = with_margins(turns(shifted(2.0)), 5.0, 20.0)
    assert decided(found) == (Status.SAME, Reason.WITHIN_MARGINS)
    text = note(metric(judge_ab(found), "step_ms"))
    assert "over 6 pairs" in text and "margins 5 and 20 %" in text


def test_the_note_says_how_it_was_measured():
    """One launch after the other, and how many more pairs there might have been."""
    text = note(metric(judge_ab(turns(shifted(1.0)[:2], together=False)), "step_ms"))
    assert "over 2 pairs of 24 at most, one launch after the other" in text
    late = note(metric(judge_ab(turns(shifted(1.0)[:2], out_of_time=True)), "step_ms"))
    assert "over 2 pairs of 24 at most (fewer were not enough: not all of a step" in late
    assert "over 6 pairs, pair sd" in note(metric(judge_ab(turns(shifted(2.0))), "step_ms"))


def test_the_mean_decides_and_the_median_is_shown():
    """A slow step in ten moves the mean of HEAD alone: SLOWER, though the median is equal."""
    wall = (250.0 * 9 + 500.0,)
    odd = block(step_ms=(250.0,) * 9 + (500.0,), wall_ms=wall, events_ms=wall)
    launches = tuple(launch(index=n, blocks=(odd,) * 2) for n in range(1, 7))
    found = turns(head={"launches": launches})
    assert decided(found) == (Status.SLOWER, Reason.BEYOND_MARGIN)
    median = metric(judge_ab(found), "step_ms_median")
    assert median.status is Status.SAME and not median.gated and median.change_pct == 0


# counters


def test_a_counter_that_rose_is_changed_beside_equal_times():
    """One more of it, and times inside the margins."""
    found = turns()
    risen = found.head.counts.values[WASTE] + 1
    verdict = judge_ab(replace(found, head=with_counts(found.head, **{WASTE: risen})))
    assert (verdict.status, verdict.reason) == (Status.CHANGED, Reason.COUNTER_ROSE)
    assert metric(verdict, "step_ms").status is Status.SAME
    assert metric(verdict, WASTE).change_pct > 0


def test_a_counter_that_fell_is_faster():
    """Against another revision too."""
    found = turns()
    fallen = found.head.counts.values[WASTE] - 1
    changed = replace(found, head=with_counts(found.head, **{WASTE: fallen}))
    assert decided(changed) == (Status.FASTER, Reason.COUNTER_FELL)


def test_a_case_of_counters_alone_needs_one_pair():
    """Its times are shown and decide nothing, however far apart; a counter still decides."""
    sides = {"gates": COUNTERS}
    found = turns(shifted(50.0)[:1], head=sides, base=sides)
    verdict = judge_ab(found)
    assert verdict.status is Status.SAME and verdict.p_value is None
    assert not metric(verdict, "step_ms").gated
    assert decision(found) is None and not wants_another_pair(found)
    assert wants_another_pair(turns((), head=sides, base=sides))
    risen = with_counts(found.head, **{WASTE: found.head.counts.values[WASTE] + 1})
    assert decided(replace(found, head=risen)) == (Status.CHANGED, Reason.COUNTER_ROSE)


def test_what_another_revision_is_judged_by():
    """The step time, also in place of a difference of two ways to run it; counters stay, and where
    nothing of it is gated nothing can pass.
    """
    case = Case("a", "m:f", gates=("step_ms", "sync_overhead_pct", WASTE))
    assert judged(case) == ("step_ms", WASTE)
    assert judged(Case("a", "m:f", gates=("sync_overhead_pct", WASTE))) == ("step_ms", WASTE)
    assert judged(Case("a", "m:f", gates=(WASTE,))) == (WASTE,)
    assert decided(turns(head={"gates": ()}))[0] is Status.BROKEN


OPERATORS = "operator_calls_per_step"


@pytest.mark.parametrize("pct", [0.0, -2.0, 2.0])
def test_other_operators_explain_a_decided_time(pct):
    """On a GPU the time's verdict is the case's; what moved is a notice in the report."""
    found = turns(shifted(pct))
    fewer = with_counts(found.head, **{OPERATORS: found.head.counts.values[OPERATORS] - 7})
    verdict = judge_ab(replace(found, head=fewer))
    assert verdict.status is decided(found)[0] is metric(verdict, "step_ms").status
    assert metric(verdict, OPERATORS).reason is Reason.TIME_DECIDES
    assert verdict.has_notice is (pct <= 0)
    assert OPERATORS in told_block(page_of(verdict))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("flops_per_step", {"aten.addmm": 112}, {"aten.addmm": 100, "aten.mm": 12}),
        ("copies_per_step", {"HtoD (Pageable -> Device)": 4}, {"HtoD (Pinned -> Device)": 4}),
    ],
)
def test_as_much_by_other_parts_explains_a_decided_time(name, old, new):
    """One product for six and pinned input for pageable are as many FLOPs and copies: no case fails
    by that beside a time. Against a recording it does, and its first line says by what.
    """

    def with_parts(side, of, *by_rank):
        counted = with_counts(side, **{name: sum(of.values())}).counts
        return replace(side, counts=replace(counted, detail={name: of}, by_rank={name: by_rank}))

    for pct, status in ((-2.0, Status.FASTER), (0.0, Status.SAME)):
        found = turns(shifted(pct))
        found = replace(found, head=with_parts(found.head, new), base=with_parts(found.base, old))
        verdict = judge_ab(found)
        assert (verdict.status, metric(verdict, name).reason) == (status, Reason.TIME_DECIDES)
        assert verdict.has_notice
    count = sum(new.values())  # another rank's rise is a cost, or other FLOPs
    head, base = with_parts(found.head, new, count, 1), with_parts(found.base, old, count, 0)
    assert decided(replace(found, head=head, base=base))[0] is Status.CHANGED
    cpu = {"case": found.head.case | {"device": "cpu"}}
    on_cpu = replace(found, head=replace(found.head, **cpu), base=replace(found.base, **cpu))
    first = f"CHANGED: {name}: "
    assert all(part in headline(judge_ab(on_cpu)).partition(first)[2] for part in new | old)


def test_more_generated_kernels_explain_a_decided_time():
    """A step without its graph break has one more, and is a gain; on a CPU it fails by that."""
    found = turns(shifted(0.0))
    values = {"generated_kernels": counted(found, "generated_kernels") + 1, "graph_breaks": 0}
    base = with_counts(found.base, graph_breaks=1)
    found = replace(found, head=with_counts(found.head, **values), base=base)
    verdict = judge_ab(found)
    assert (verdict.status, verdict.reason) == (Status.FASTER, Reason.COUNTER_FELL)
    assert metric(verdict, "generated_kernels").reason is Reason.TIME_DECIDES and verdict.has_notice
    head = replace(found.head, case=found.head.case | {"device": "cpu"})
    assert decided(replace(found, head=head))[0] is Status.CHANGED


@pytest.mark.parametrize("pct", [0.0, -2.0])
@pytest.mark.parametrize("share", [0.0, 0.5, 2.0])
def test_more_or_fewer_exchanged_bytes_fail_whatever_the_time(share, pct):
    """Gradients that no rank exchanges any more are no gain: the replicas diverge."""
    found, name = turns(shifted(pct)), "collective_bytes_per_step"
    case, counts = {**found.head.case, "world_size": 2}, two_rank_evidence().counts
    head, base = (
        replace(side, case=case, counts=counts, gates=(*GATES, name))
        for side in (found.head, found.base)
    )
    other = with_counts(head, **{name: int(share * counts.values[name])})
    verdict = judge_ab(replace(found, head=other, base=base))
    assert (verdict.status, verdict.reason) == (Status.CHANGED, Reason.WORK_MOVED)


def test_an_undecided_time_is_no_pass():
    """Beside other operators it decides all the same: the verdict is undecided. Waste fails."""
    found = turns(shifted(0.0)[:2])
    values = found.head.counts.values
    fewer = with_counts(found.head, **{OPERATORS: values[OPERATORS] - 7})
    assert decided(replace(found, head=fewer)) == (Status.INCONCLUSIVE, Reason.UNDECIDED)
    risen = with_counts(found.head, **{WASTE: values[WASTE] + 1})
    assert decided(replace(found, head=risen)) == (Status.CHANGED, Reason.COUNTER_ROSE)


# other work


@pytest.mark.parametrize("ratio", [-0.5, 0.0, 0.5])
def test_other_flops_fail_whatever_the_time(ratio):
    """Half the FLOPs is no gain, whatever the time."""
    found = turns((ratio,) * 6)
    half = with_counts(found.head, flops_per_step=found.head.counts.values["flops_per_step"] // 2)
    verdict = judge_ab(replace(found, head=half))
    assert (verdict.status, verdict.reason) == (Status.CHANGED, Reason.WORK_MOVED)
    assert "112,000,000,000,000 in main (000000000000), now 56,000,000,000,000" in verdict.message


def test_other_flops_come_with_the_operators_that_make_them():
    """The first line names what is called more often and where, the lines below all that moved; no
    time is judged, and the command that goes on says that no waiver helps.
    """
    found = turns()
    line = Site("aten.addmm.default", "model/gpt.py", 72, "MLP.forward", "self.c_proj(x)", count=12)
    before = msgspec.structs.replace(line, count=6)
    sides = [
        replace(side, counts=replace(with_counts(side, **values).counts, detail=parts, sites=sites))
        for side, values, parts, sites in (
            (
                found.head,
                {OPERATORS: 2412, "flops_per_step": 10**14},
                {OPERATORS: {line.what: 2412}},
                {OPERATORS: (line,)},
            ),
            (
                found.base,
                {OPERATORS: 2406, "flops_per_step": 8 * 10**13},
                {OPERATORS: {line.what: 2406}},
                {OPERATORS: (before,)},
            ),
        )
    ]
    verdict = judge_ab(replace(found, head=sides[0], base=sides[1]))
    assert page_of(verdict).place.place == line.place
    steps = next_steps(verdict, "evidence.json", Commands())
    told = told_block(page_of(verdict, steps)).splitlines()
    assert "CHANGED: +6 aten.addmm in MLP.forward (model/gpt.py:72); flops_per_step 80,0" in told[0]
    assert "(+25.00 %)" in told[0]
    assert any(text.startswith(f"  {OPERATORS} [calls]: 2,406 -> 2,412") for text in told)
    assert not any("step_ms" in text for text in told)
    assert any("no waiver passes other work; after the merge" in text for text in told)


def test_other_flops_of_any_rank_fail():
    """As much on the busiest rank, and nothing on another: no gain either."""
    found = turns()
    flops = found.head.counts.values["flops_per_step"]
    idle = replace(found.head.counts, by_rank={"flops_per_step": (flops, 0)})
    verdict = judge_ab(replace(found, head=replace(found.head, counts=idle)))
    assert (verdict.status, verdict.reason) == (Status.CHANGED, Reason.WORK_MOVED)
    assert f"now {flops:,}, 0" in verdict.message


def test_other_tokens_fail():
    """Nor is a step of twice the tokens."""
    verdict = judge_ab(turns(head={"tokens_per_step": 2 * 131_072}))
    assert (verdict.status, verdict.reason) == (Status.CHANGED, Reason.WORK_MOVED)
    assert "tokens_per_step 131,072 in main (000000000000), now 262,144" in verdict.message


def test_other_work_is_known_before_the_first_pair():
    """It is said without a pair, and none is measured."""
    found = turns(())
    assert wants_another_pair(found)
    other = replace(found, head=with_counts(found.head, flops_per_step=1))
    assert decided(other) == (Status.CHANGED, Reason.WORK_MOVED)
    assert not wants_another_pair(other)


@pytest.mark.parametrize("side", ["head", "base", "both"])
def test_unknown_flops_are_no_equal_flops(side):
    """Where they could not be counted and the case does not gate them, nothing passes."""
    found = turns(head={"gates": ("step_ms",)}, base={"gates": ("step_ms",)})
    for name in ("head", "base") if side == "both" else (side,):
        lacking = getattr(found, name)
        values = {k: v for k, v in lacking.counts.values.items() if k != "flops_per_step"}
        counts = Counts(values, {"flops_per_step": "does not fit in memory"})
        found = replace(found, **{name: replace(lacking, counts=counts)})
    verdict = judge_ab(found)
    assert (verdict.status, verdict.reason) == (Status.BROKEN, Reason.NOTHING_MEASURED)
    assert "were measured: does not fit in memory" in verdict.message
    whose = "main (000000000000)" if side == "base" else "HEAD"
    assert f"flops_per_step of {whose}" in verdict.message


def test_a_loop_that_says_no_tokens_is_judged():
    """Its work is compared by its FLOPs. One that says how many it has must have them."""
    loop = CASE.as_dict() | {"step_at": "optimizer", "every": 1}
    told = loop | {"tokens_per_step": 65_536}
    gates = tuple(name for name in GATES if name != "tokens_per_step")
    untold = {"case": loop, "gates": gates, "tokens_per_step": 0}
    assert decided(turns(shifted(0.0), untold, untold))[0] is Status.SAME
    assert decided(turns(shifted(8.0), untold, untold))[0] is Status.SLOWER
    lost = untold | {"case": told}
    assert decided(turns(shifted(0.0), lost, lost)) == (Status.BROKEN, Reason.NOTHING_MEASURED)


# a side that failed


@pytest.mark.parametrize("code", ["BAD_WORKLOAD", "RAISED"])
@pytest.mark.parametrize("pairs", [0, 3])
def test_what_the_other_tree_lacks_is_not_comparable(code, pairs):
    """No factory, no parameter, a step that raises: HEAD is not to blame, and nothing passes. HEAD
    has no launch then, if it fails at once.
    """
    unmeasured = {} if pairs else UNMEASURED
    found = turns(
        shifted(0.0)[:pairs], head={"launches": ()} if not pairs else {}, base=fault(code)
    )
    found = replace(found, base=replace(found.base, **unmeasured))
    verdict = judge_ab(found)
    assert (verdict.status, verdict.reason) == (Status.NOT_COMPARABLE, Reason.BASE_LACKS)
    assert verdict.message == "main (000000000000): planted" and verdict.detail == "detail"
    assert not wants_another_pair(found)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("OUT_OF_MEMORY", Status.BROKEN),
        ("KILLED", Status.BROKEN),
        ("NO_ANSWER", Status.BROKEN),
        ("FOREIGN_PROCESS", Status.UNFIT),
        ("THROTTLED", Status.UNFIT),
    ],
)
@pytest.mark.parametrize("side", ["head", "base"])
def test_a_side_that_fails_otherwise_is_named(side, code, status):
    """BROKEN or UNFIT with its own reason, and the other revision's name if it is its own."""
    found = turns((), **{side: fault(code) | UNMEASURED})
    verdict = judge_ab(found)
    assert (verdict.status, verdict.reason) == (status, Reason(code))
    assert verdict.message.startswith("main (000000000000): ") is (side == "base")
    assert not wants_another_pair(found)


def test_heads_own_fault_goes_first():
    """HEAD raises: BROKEN, even if the other tree lacks the factory too."""
    found = turns((), head=fault("RAISED") | UNMEASURED, base=fault("BAD_WORKLOAD") | UNMEASURED)
    assert decided(found) == (Status.BROKEN, Reason.RAISED)


@pytest.mark.parametrize("side", ["head", "base"])
def test_unstable_counters_do_not_pass(side):
    """Two steps, two counts: INCONCLUSIVE, and no further pair helps."""
    found = turns()
    counts = getattr(found, side).counts
    values = {name: value for name, value in counts.values.items() if name != WASTE}
    where = {WASTE: (Site(".item()", "train.py", 9, "step", "loss.item()", count=2),)}
    unstable = replace(counts, values=values, unstable={WASTE: "5, then 6"}, sites=where)
    found = replace(found, **{side: replace(getattr(found, side), counts=unstable)})
    assert decided(found) == (Status.INCONCLUSIVE, Reason.COUNT_UNSTABLE)
    assert not wants_another_pair(found)
    text = f"{WASTE}: 5, then 6: +2 .item(): loss.item() in step (train.py:9)"
    assert text in judge_ab(found).message


@pytest.mark.parametrize("side", ["head", "base"])
@pytest.mark.parametrize(("more", "status"), [(1, Status.CHANGED), (0, Status.INCONCLUSIVE)])
def test_a_counter_that_moved_is_reported_though_another_is_unknown(side, more, status):
    """As against a stored baseline: what is known to have moved, and nothing that passes."""
    other = next(n for n in COUNTERS if METRICS[n].role == "waste" and n != WASTE)
    found = turns()
    found = replace(found, head=with_counts(found.head, **{WASTE: counted(found, WASTE) + more}))
    counts = getattr(found, side).counts
    values = {name: value for name, value in counts.values.items() if name != other}
    moved = replace(
        getattr(found, side), counts=replace(counts, values=values, unstable={other: "5, then 6"})
    )
    verdict = judge_ab(replace(found, **{side: moved}))
    assert verdict.status is status and verdict.outcome != "passed"
    if more:
        assert {one.metric: one.status for one in verdict.metrics} == {
            WASTE: Status.CHANGED,
            other: Status.INCONCLUSIVE,
        }
        (moved,) = (one for one in verdict.metrics if one.metric == WASTE)
        metrics = (replace(moved, waived_until="2026-12-31"), *verdict.metrics[1:])
        assert verdict.gated("error") and of_metrics(verdict, metrics).outcome == "error"


def counted(found, name):
    """What the other tree's step counts."""
    return found.base.counts.values[name]


@pytest.mark.parametrize("side", ["head", "base"])
@pytest.mark.parametrize("ms", [math.nan, math.inf, 0.0, -1.0])
def test_no_time_is_broken(side, ms):
    """NaN, infinity, zero and negative times; nothing is raised and no pair is added."""
    found = turns(shifted(0.0))
    odd = replace(found.head.launches[0], blocks=(block(wall_ms=(ms,), events_ms=(ms,)),))
    launches = (*getattr(found, side).launches[:5], replace(odd, index=6))
    found = replace(found, **{side: replace(getattr(found, side), launches=launches)})
    assert decided(found) == (Status.BROKEN, Reason.NOTHING_MEASURED)
    assert decision(found) is None and not wants_another_pair(found)


def test_no_pair_is_broken():
    """No launch and no fault: nobody knows why, and it does not pass; a pair would help."""
    assert decided(turns(())) == (Status.BROKEN, Reason.NOTHING_MEASURED)
    assert wants_another_pair(turns(()))


@pytest.mark.parametrize("side", ["head", "base"])
def test_launches_without_a_partner_are_broken(side):
    """One launch more on a side than on the other: they are not pairs."""
    found = turns()
    fewer = replace(getattr(found, side), launches=getattr(found, side).launches[:5])
    verdict = judge_ab(replace(found, **{side: fewer}))
    assert (verdict.status, verdict.reason) == (Status.BROKEN, Reason.NOTHING_MEASURED)


@pytest.mark.parametrize("side", ["head", "base"])
def test_faster_than_physics_is_broken(side):
    """On either side; the floor of this evidence is 100 ms."""
    found = turns()
    launches = tuple(launch(50.0, n) for n in range(1, 7))
    found = replace(found, **{side: replace(getattr(found, side), launches=launches)})
    assert decided(found) == (Status.BROKEN, Reason.CLOCKS_DISAGREE)


def test_a_metric_that_the_other_tree_lacks_does_not_pass():
    """A gated counter that the base did not count is no equal one."""
    found = turns()
    counts = Counts({n: v for n, v in found.base.counts.values.items() if n != WASTE})
    status, reason = decided(replace(found, base=replace(found.base, counts=counts)))
    assert status.outcome == "error" and reason is Reason.NOTHING_MEASURED


DAMAGE = {
    "no launches": {"launches": ()},
    "a launch less": lambda e: {"launches": e.launches[:-1]},
    "no counts": {"counts": None},
    "no fingerprint": {"fingerprint": None},
    "no gates": {"gates": ()},
    "no tokens": {"tokens_per_step": 0},
    "other tokens": {"tokens_per_step": 7},
    "a fault": lambda e: {"faults": (Fault(Reason.KILLED, "planted", "", "pair 1, block"),)},
    "a lack": lambda e: {"faults": (Fault(Reason.BAD_WORKLOAD, "planted", "", "prepare"),)},
    "no blocks": lambda e: {"launches": (replace(e.launches[0], blocks=()), *e.launches[1:])},
    "NaN": lambda e: {"launches": (*e.launches[:-1], launch(math.nan, len(e.launches)))},
    "no steps": lambda e: {
        "launches": (*e.launches[:-1], launch(250.0, 6, blocks=(block(250.0, 0),)))
    },
    "clocks": lambda e: {
        "launches": (*e.launches[:-1], launch(blocks=(block(events_ms=(2000.0,)),)))
    },
    "other FLOPs": lambda e: {
        "counts": replace(e.counts, values=e.counts.values | {"flops_per_step": 1})
    },
    "unstable": lambda e: {
        "counts": replace(
            e.counts,
            values={k: v for k, v in e.counts.values.items() if k != WASTE},
            unstable={WASTE: "5, then 6"},
        )
    },
}


@PROPERTY
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(DAMAGE)), st.sampled_from(["head", "base"])),
        min_size=1,
        max_size=4,
        unique_by=lambda drawn: drawn[0],  # the same on both sides may be no damage
    ),
    st.lists(st.floats(-0.7, 0.7), min_size=1, max_size=24),
    st.booleans(),
)
def test_no_damaged_comparison_passes(damages, ratios, out_of_time):
    """Whatever is missing or wrong, on either side, however fast HEAD is: no pass, and never a
    further pair on top of one.
    """
    found = turns(tuple(ratios), out_of_time=out_of_time)
    for name, side in damages:
        now = getattr(found, side)
        if now.launches and now.counts:
            change = DAMAGE[name](now) if callable(DAMAGE[name]) else DAMAGE[name]
            found = replace(found, **{side: replace(now, **change)})
    verdict = judge_ab(found)
    assert verdict.outcome != "passed", verdict
    assert verdict.against and verdict.message
    assert not (found.pairs and wants_another_pair(found))


@PROPERTY
@given(st.lists(st.floats(-0.7, 0.7), min_size=1, max_size=24), st.booleans())
def test_a_pass_rests_on_bounds_inside_the_margins(ratios, out_of_time):
    """Sound pairs of any kind: what passes has its whole interval where the verdict says."""
    found = turns(tuple(ratios), out_of_time=out_of_time)
    verdict, said = judge_ab(found), decision(found)
    if verdict.status is Status.SAME:
        assert -0.5 < said.low_pct and said.high_pct < 0.5 and said.pairs >= 4
    elif verdict.status is Status.FASTER:
        assert said.high_pct < -0.2 / 1.002 + 1e-9 and said.pairs >= 6
    else:
        assert verdict.status in (Status.SLOWER, Status.INCONCLUSIVE)
    assert wants_another_pair(found) is (verdict.status is Status.INCONCLUSIVE and not said.final)


# over the cases of a run


def test_a_case_among_many_needs_more():
    """Its level is a share of the run's, known before it is measured, and the report names it."""
    ratios = shifted(0.9, tuple(18 * one for one in SPREAD))
    alone, among = turns(ratios), turns(ratios, alpha=level_of(40))
    assert judge_ab(alone).status is Status.SLOWER and not wants_another_pair(alone)
    assert judge_ab(among).reason is Reason.UNDECIDED and wants_another_pair(among)
    text = note(metric(judge_ab(among), "step_ms"))
    assert "margins 0.2 and 0.5 %, level 0.025 % among the cases of its run" in text
    assert "level" not in note(metric(judge_ab(alone), "step_ms"))
    assert from_json(to_json(among), "x") == among


@pytest.mark.parametrize("alpha", [0.0, -1.0, 0.01])
def test_a_level_that_is_none_is_refused_in_json(alpha):
    """A file that somebody edited must not make the judge say more than it promises."""
    with pytest.raises(ValueError, match="its level is"):
        from_json(to_json(turns(alpha=alpha)), "comparison.json")


# in words


def test_what_to_do_is_no_acceptance():
    """Another revision is no baseline: nothing offers to accept what could not be compared."""
    lacks = turns((), base=fault("BAD_WORKLOAD") | UNMEASURED, head={"launches": ()})
    steps = next_steps(judge_ab(lacks), "e.json", Commands())
    assert steps[0].startswith("choose a revision that can") and steps[-1] == "look closer: e.json"
    assert not any("accept" in step for step in steps)
    slower = next_steps(judge_ab(turns(shifted(2.0))), "e.json", Commands())
    assert slower[0].startswith("if it is meant, in this change: python -m stepguard waive")
    noisy = judge_ab(turns(shifted(1.0)[:4], out_of_time=True))
    assert next_steps(noisy, "e.json", Commands())[0].startswith(
        "give it more time: --perf-budget=MIN"
    )
    foreign = judge_ab(turns((), head=fault("FOREIGN_PROCESS") | UNMEASURED))
    assert next_steps(foreign, "e.json", Commands())[0].endswith("-m stepguard doctor")
    assert next_steps(judge_ab(turns()), "e.json", Commands()) == []


def test_an_undecided_verdict_says_what_would_decide_it():
    """More pairs; after the last one margins that fit the noise, or another draw if these do."""

    def said(found):
        verdict = judge_ab(found)
        assert verdict.reason is Reason.UNDECIDED
        return next_steps(verdict, "e.json", Commands())[0]

    noisy = (0.012, -0.004)
    early = said(turns(noisy * 10, out_of_time=True))
    assert early == "give it more time: --perf-budget=MIN"
    assert said(turns(noisy * 12)) == (
        "no further pair decides, 24 pairs of this noise find 1.04 %: "
        "set margins_pct=(0.2, 1.2) in the case"
    )
    disturbed = turns((0.0,) * 24, again=replaced(10.0, 10.0))
    assert said(disturbed).startswith("measure again: 24 pairs of this noise find 0.3")


@pytest.mark.parametrize("sd_pct", [0.3, 0.5, 1.0, 4.0])
def test_the_margins_that_are_named_decide(sd_pct):
    """At this noise 24 pairs find the matter margin in 95 of 100 runs, 0.1 % less not."""
    found = deciding_margins(sd_pct)
    assert found.ignore_pct == 0.2 and found.matter_pct >= 0.5
    assert smallest_detectable_pct(24, sd_pct, found) <= found.matter_pct
    if found != Margins():
        narrower = Margins(0.2, found.matter_pct - 0.1)
        assert smallest_detectable_pct(24, sd_pct, narrower) > narrower.matter_pct


def test_the_report_names_the_other_revision():
    """Interval, pairs, margins and the revision stand under a failure."""
    text = told_block(page_of(judge_ab(turns(shifted(2.0)))))
    assert "over 6 pairs" in text and "margins 0.2 and 0.5 %" in text
    assert "compared with main (000000000000), measured in pairs with it" in text
    assert "SLOWER, beyond the margin, both revisions measured in pairs" in text


# Pairs that others replaced


def replaced(*pcts, compiled=False):
    """Pairs out of line, of HEAD's so much longer."""
    one = turns((0.0,))
    base = one.base.launches[0]
    slow = [
        replace(base, blocks=evidence((250.0 * (1 + p / 100),)).launches[0].blocks) for p in pcts
    ]
    return tuple(LaunchPair(head, base, compiled) for head in slow)


@pytest.mark.parametrize("pairs", [4, 6, 8])
def test_what_disturbs_head_alone_is_no_pass(pairs):
    """A thread that stalls HEAD now and then: each time the pair is replaced, and the quiet ones
    alone would pass. Where it is slower with them all, there are more pairs, and no verdict.
    """
    quiet = turns((0.0,) * pairs)
    assert decided(quiet) == (Status.SAME, Reason.WITHIN_MARGINS)
    found = replace(quiet, again=replaced(10.0, 10.0, 10.0))
    assert decided(found) == (Status.INCONCLUSIVE, Reason.UNDECIDED)
    assert wants_another_pair(found)
    last = replace(found, out_of_time=True)
    assert decided(last) == (Status.INCONCLUSIVE, Reason.UNDECIDED)
    assert not wants_another_pair(last)
    text = told_block(page_of(judge_ab(last)))
    assert "(3 more were disturbed and do not count; with them +" in text


def test_disturbances_of_both_sides_or_of_a_compiler_are_no_obstacle():
    """Nor are those of the base, or one that makes less than the matter margin of all pairs; and
    SLOWER stays what the other pairs say.
    """
    quiet = turns((0.0,) * 8)
    for again in (
        replaced(10.0, -10.0),
        replaced(-10.0, -10.0),
        replaced(4.0),
        replaced(900.0, compiled=True),
    ):
        found = replace(quiet, again=again)
        assert decided(found) == (Status.SAME, Reason.WITHIN_MARGINS)
    slower = replace(turns(shifted(2.0)), again=replaced(-30.0))
    assert judge_ab(slower).status is Status.SLOWER
    faster = replace(turns(shifted(-2.0)), again=replaced(30.0, 30.0))
    assert judge_ab(faster).status is Status.INCONCLUSIVE


# JSON


def test_a_comparison_survives_json():
    """Sides, margins and how it was measured."""
    found = turns(
        shifted(2.0),
        together=False,
        out_of_time=True,
        base=fault("KILLED"),
    )
    assert from_json(to_json(found), "x") == found


# What a comparison held that an earlier version kept, and none holds now.
REMOVED = {
    "margins": {"ignore_pct": 0.2, "matter_pct": 4.0},
    "prior": {"sd_pct": 0.3, "degrees": 4.0},
    "why": "calibrated",
    "wall_s": 12.5,
    "case_margins": {"ignore_pct": 0.2, "matter_pct": 0.5},
    "timing": {"block_s": 2.0},
    "earlier": 2,
    "check": None,
    "spent": [4],
    "decided": True,
    "not_pooled": "another card",
    "unproven": False,
    "digest": "0" * 64,
}


def test_a_comparison_of_an_earlier_version_is_read():
    """What is no longer known of it is left out; its pairs and margins judge as they did."""
    found = with_margins(turns(shifted(2.0)), 1.0, 1.29)
    kept = msgspec.json.decode(to_json(found)) | REMOVED
    assert from_json(msgspec.json.encode(kept), "comparison.json") == found


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff",
        b'{"against": 1}',
        msgspec.json.encode({"against": "main", "head": {}, "base": {}}),
    ],
)
def test_what_is_no_comparison_is_refused(data):
    """With the file's name, as ValueError."""
    with pytest.raises(ValueError, match="comparison.json: no comparison that stepguard wrote: "):
        from_json(data, "comparison.json")


def test_margins_of_nonsense_are_refused_in_json():
    """A file that somebody edited must not turn the judge's margins round."""
    document = msgspec.json.decode(to_json(turns()))
    document["head"]["margins_pct"] = [5.0, 1.0]
    with pytest.raises(
        ValueError, match="c.json: no comparison that stepguard wrote: head: .*ignore < matter"
    ):
        from_json(msgspec.json.encode(document), "c.json")


def test_another_schema_is_refused():
    """Also where everything else would fit."""
    with pytest.raises(
        ValueError, match="c.json: comparison schema 3, this version of stepguard reads 2"
    ):
        from_json(to_json(replace(turns(), schema=3)), "c.json")


@PROPERTY
@given(st.data())
def test_a_cut_comparison_is_refused(data):
    """Any proper beginning of a file is no comparison, and raises nothing but ValueError."""
    whole = to_json(turns(shifted(0.0)[:1]))
    with pytest.raises(ValueError, match="c.json: no comparison"):
        from_json(whole[: data.draw(st.integers(0, len(whole) - 2))], "c.json")
