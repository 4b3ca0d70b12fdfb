"""Two trees that took turns: every verdict from known log-ratios, and nothing green by accident."""

import math

import msgspec
import pytest
from builders import PROPERTY, block, evidence, launch, replace, with_counts
from comparisons import with_margins
from hypothesis import given
from hypothesis import strategies as st

from stepguard import Case
from stepguard.core.comparison import Comparison, LaunchPair, Question, from_json, judged
from stepguard.core.evidence import Fault, to_json
from stepguard.core.margins import Margins
from stepguard.core.metrics import FLOPS, METRICS
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.judge_pairs import decision, wants_another_pair
from stepguard.judge.pair_statistics import deciding_margins, level_of, smallest_detectable_pct
from stepguard.judge.rule_book import judge

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
    verdict = judge(Question(pairs=found))
    return verdict.status, verdict.reason


def fault(code, message="planted"):
    """A side's evidence after a launch that failed so before any pair."""
    return {"faults": (Fault(Reason(code), message, "detail", "first launch, prepare"),)}


UNMEASURED = {"launches": (), "counts": None}


def replaced(*pcts, compiled=False):
    """Pairs out of line, of HEAD's so much longer."""
    one = turns((0.0,))
    base = one.base.launches[0]
    slow = [
        replace(base, blocks=evidence((250.0 * (1 + p / 100),)).launches[0].blocks) for p in pcts
    ]
    return tuple(LaunchPair(head, base, compiled) for head in slow)


FAST = tuple(launch(50.0, n) for n in range(1, 7))  # the floor is 100 ms
IMPOSSIBLE = Status.BROKEN, Reason.CLOCKS_DISAGREE


def in_side(found, side, **changes):
    """The pairs, with one side changed."""
    return replace(found, **{side: replace(getattr(found, side), **changes)})


def lacking(side, name, why="", **more):
    """Six pairs, in one side of which this counter is unknown; ``more`` are HEAD's other counts."""
    found = turns()
    found = replace(found, head=with_counts(found.head, **more))
    counts = getattr(found, side).counts
    values = {other: value for other, value in counts.values.items() if other != name}
    unstable = {name: why} if why else {}
    return in_side(found, side, counts=replace(counts, values=values, unstable=unstable))


def untold(**case):
    """Both sides of a loop that does not say how many tokens a step has."""
    gates = tuple(name for name in GATES if name != "tokens_per_step")
    loop = CASE.as_dict() | {"step_at": "optimizer", "every": 1} | case
    return ({"case": loop, "gates": gates, "tokens_per_step": 0},) * 2


ALONE = {"gates": COUNTERS}
WIDE = shifted(0.9, tuple(18 * one for one in SPREAD))
SLOWER, SAME = (Status.SLOWER, Reason.BEYOND_MARGIN), (Status.SAME, Reason.WITHIN_MARGINS)
UNDECIDED = Status.INCONCLUSIVE, Reason.UNDECIDED
EMPTY = Status.BROKEN, Reason.NOTHING_MEASURED
UNSTABLE = Status.INCONCLUSIVE, Reason.COUNT_UNSTABLE
ROSE = Status.CHANGED, Reason.COUNTER_ROSE
WORK = Status.CHANGED, Reason.WORK_MOVED
# what is asked -> the pairs, the verdict, whether another pair is wanted
QUESTIONS = {
    "six pairs decide": (turns(shifted(2.0)), SLOWER, False),
    "between two looks it waits": (turns(shifted(2.0, (*SPREAD, 0.0))), UNDECIDED, True),
    "time is up between two looks": (
        turns(shifted(2.0, (*SPREAD, 0.0)), out_of_time=True), SLOWER, False),
    "five pairs never say SLOWER": (turns(shifted(100.0)[:5], out_of_time=True), UNDECIDED, False),
    "margins of the case": (with_margins(turns(shifted(2.0)), 5.0, 20.0), SAME, False),
    "alone": (turns(WIDE), SLOWER, False),
    "among forty cases": (turns(WIDE, alpha=level_of(40)), UNDECIDED, True),
    "noise that 24 pairs see through": (turns((0.01, -0.01) * 3), UNDECIDED, True),
    "noise that they do not": (turns((0.03, -0.03) * 3), UNDECIDED, False),
    "counters alone, no pair": (turns((), ALONE, ALONE), EMPTY, True),
    "counters alone, one pair": (
        turns(shifted(50.0)[:1], ALONE, ALONE), (Status.SAME, Reason.EQUAL), False),
    "no pair": (turns(()), EMPTY, True),
    "no pair, other work": (
        turns((), {"counts": with_counts(turns().head, flops_per_step=1).counts}), WORK, False),
    "a loop without tokens": (turns(SPREAD, *untold()), SAME, False),
    "a loop that lost its tokens": (
        turns(SPREAD, *untold(tokens_per_step=65_536)), EMPTY, False),
    "the base fails in a pair": (
        turns(SPREAD[:3], base=fault("RAISED")), (Status.NOT_COMPARABLE, Reason.BASE_LACKS), False),
    "HEAD's fault goes first": (
        turns((), fault("RAISED") | UNMEASURED, fault("BAD_WORKLOAD") | UNMEASURED),
        (Status.BROKEN, Reason.RAISED), False),
    "HEAD's fault goes before other work": (
        in_side(turns(base={"tokens_per_step": 7}), "head", **fault("KILLED")),
        (Status.BROKEN, Reason.KILLED), False),
    "a count that the base lacks": (lacking("base", WASTE), EMPTY, False),
    "HEAD counts twice": (lacking("head", WASTE, "5, then 6"), UNSTABLE, False),
    "the base counts twice": (lacking("base", WASTE, "5, then 6"), UNSTABLE, False),
    "a cost rose beside it": (lacking("base", WASTE, "5, then 6", recompiles=11), ROSE, False),
    "FLOPs that HEAD does not gate": (
        in_side(lacking("head", FLOPS, "no"), "head", gates=("step_ms",)), EMPTY, False),
    "HEAD faster than physics": (in_side(turns(), "head", launches=FAST), IMPOSSIBLE, False),
    "the base faster than physics": (in_side(turns(), "base", launches=FAST), IMPOSSIBLE, False),
    "HEAD disturbed": (turns((0.0,) * 6, again=replaced(10.0, 10.0, 10.0)), UNDECIDED, True),
    "HEAD disturbed, time is up": (
        turns((0.0,) * 6, again=replaced(10.0, 10.0), out_of_time=True), UNDECIDED, False),
    "both sides disturbed": (turns((0.0,) * 8, again=replaced(10.0, -10.0)), SAME, False),
    "the base disturbed": (turns((0.0,) * 8, again=replaced(-10.0, -10.0)), SAME, False),
    "little disturbed": (turns((0.0,) * 8, again=replaced(4.0)), SAME, False),
    "a compiler": (turns((0.0,) * 8, again=replaced(900.0, compiled=True)), SAME, False),
    "SLOWER, and the base disturbed": (turns(shifted(2.0), again=replaced(-30.0)), SLOWER, False),
    "FASTER, and HEAD disturbed": (
        turns(shifted(-2.0), again=replaced(30.0, 30.0)), UNDECIDED, True),
}  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS)
def test_what_pairs_say_and_whether_another_is_wanted(question):
    """Of which no page shows the second."""
    found, said, wanted = QUESTIONS[question]
    assert (decided(found), wants_another_pair(found)) == (said, wanted)


def test_what_another_revision_is_judged_by():
    """The step time, also in place of a difference of two ways to run it; and counters."""
    case = Case("a", "m:f", gates=("step_ms", "sync_overhead_pct", WASTE))
    assert judged(case) == ("step_ms", WASTE)
    assert judged(Case("a", "m:f", gates=("sync_overhead_pct", WASTE))) == ("step_ms", WASTE)
    assert judged(Case("a", "m:f", gates=(WASTE,))) == (WASTE,)


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
        "launches": (*e.launches[:-1], launch(250.0, 6, blocks=(block(250.0, 0),)))},
    "clocks": lambda e: {
        "launches": (*e.launches[:-1], launch(blocks=(block(events_ms=(2000.0,)),)))},
    "other FLOPs": lambda e: {
        "counts": replace(e.counts, values=e.counts.values | {"flops_per_step": 1})},
    "unstable": lambda e: {
        "counts": replace(
            e.counts, values={k: v for k, v in e.counts.values.items() if k != WASTE},
            unstable={WASTE: "5, then 6"})},
}  # fmt: skip


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
    verdict = judge(Question(pairs=found))
    assert verdict.outcome != "passed", verdict
    assert verdict.against and verdict.message
    assert not (found.pairs and wants_another_pair(found))


@PROPERTY
@given(st.lists(st.floats(-0.7, 0.7), min_size=1, max_size=24), st.booleans())
def test_a_pass_rests_on_bounds_inside_the_margins(ratios, out_of_time):
    """Sound pairs of any kind: what passes has its whole interval where the verdict says."""
    found = turns(tuple(ratios), out_of_time=out_of_time)
    verdict, said = judge(Question(pairs=found)), decision(found)
    if verdict.status is Status.SAME:
        assert -0.5 < said.low_pct and said.high_pct < 0.5 and said.pairs >= 4
    elif verdict.status is Status.FASTER:
        assert said.high_pct < -0.2 / 1.002 + 1e-9 and said.pairs >= 6
    else:
        assert verdict.status in (Status.SLOWER, Status.INCONCLUSIVE)
    assert wants_another_pair(found) is (verdict.status is Status.INCONCLUSIVE and not said.final)


@pytest.mark.parametrize("alpha", [0.0, -1.0, 0.01])
def test_a_level_that_is_none_is_refused_in_json(alpha):
    """A file that somebody edited must not make the judge say more than it promises."""
    with pytest.raises(ValueError, match="its level is"):
        from_json(to_json(turns(alpha=alpha)), "comparison.json")


@pytest.mark.parametrize("sd_pct", [0.3, 0.5, 1.0, 4.0])
def test_the_margins_that_are_named_decide(sd_pct):
    """At this noise 24 pairs find the matter margin in 95 of 100 runs, 0.1 % less not."""
    found = deciding_margins(sd_pct)
    assert found.ignore_pct == 0.2 and found.matter_pct >= 0.5
    assert smallest_detectable_pct(24, sd_pct, found) <= found.matter_pct
    if found != Margins():
        narrower = Margins(0.2, found.matter_pct - 0.1)
        assert smallest_detectable_pct(24, sd_pct, narrower) > narrower.matter_pct


# JSON


# What a comparison held that an earlier version kept, and none holds now.
REMOVED = {"margins": {"ignore_pct": 0.2, "matter_pct": 4.0},
           "prior": {"sd_pct": 0.3, "degrees": 4.0}, "why": "calibrated", "wall_s": 12.5,
           "case_margins": {"ignore_pct": 0.2, "matter_pct": 0.5}, "timing": {"block_s": 2.0},
           "earlier": 2, "check": None, "spent": [4], "decided": True, "not_pooled": "another card",
           "unproven": False, "digest": "0" * 64}  # fmt: skip


def test_a_comparison_of_an_earlier_version_is_read():
    """What is no longer known of it is left out; its pairs and margins judge as they did."""
    found = with_margins(turns(shifted(2.0)), 1.0, 1.29)
    kept = msgspec.json.decode(to_json(found)) | REMOVED
    assert from_json(msgspec.json.encode(kept), "comparison.json") == found


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
