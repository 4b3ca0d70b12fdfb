"""What a counter decides, no further pair is measured for: in the rules' order, before the time."""

import math
from datetime import date

import pytest
from builders import METRICS, metric, replace, two_rank_evidence, with_counts
from test_judge_pairs import GATES, shifted, turns

from stepguard.core.comparison import Question
from stepguard.core.metrics import COPIES, NUMBERS, SETTINGS, default_gates
from stepguard.core.permission import Permission
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.judge_pairs import MAY_PAY, wants_another_pair
from stepguard.judge.pair_statistics import MIN_PAIRS
from stepguard.judge.rule_book import judge

TODAY = date(2026, 11, 28)
ROLES = ("work", "waste", "price", "amount")
OF = {
    role: [
        n
        for n in default_gates("cuda", 2)
        if METRICS[n].role == role and n not in (SETTINGS, NUMBERS)
    ]
    for role in ROLES
}
PCTS = (-2.0, 0.0, 2.0)


def counted(name, *ratios, ranks=1, **changes):
    """Pairs of these log-ratios, of which HEAD counts more of one metric."""
    found = turns(ratios, **changes)
    two = two_rank_evidence()
    if ranks == 2:
        same = {"case": found.head.case | {"world_size": 2}, "counts": two.counts}
        same["gates"] = ("step_ms", *(n for n in two.gates if METRICS[n].kind == "counter"))
        found = replace(found, head=replace(found.head, **same), base=replace(found.base, **same))
    if name == "tokens_per_step":
        return replace(found, head=replace(found.head, tokens_per_step=7))
    count = found.base.counts.values[name]
    rise = max(count, 1000 if METRICS[name].unit == "B" else 1)  # beyond any floor
    head = with_counts(found.head, **{name: count + rise})
    if ranks == 2:  # rank 1 alone
        each = {name: (count, count + rise)}
        head = replace(head, counts=replace(head.counts, by_rank=each))
    return replace(found, head=head)


def allowed(found, name):
    """A waiver of the counter, as high as it is."""
    known = {"case": found.head.case_id, "metric": name, "reason": "meant", "who": "A. Author"}
    value = found.head.counts.values[name]
    return Permission(**known, value=value, expires=date(2026, 12, 31))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("ratios", [(), *(shifted(pct, (0.0,)) for pct in PCTS)])
@pytest.mark.parametrize("name", OF["work"] + OF["waste"])
def test_work_and_waste_need_no_further_pair(name, ratios, ranks):
    """Without any, and whatever the one of the counting launches looks like."""
    if not METRICS[name].exists("cuda", ranks):
        return
    found = counted(name, *ratios, ranks=ranks)
    verdict = judge(Question(pairs=found))
    assert verdict.status is Status.CHANGED and not wants_another_pair(found)
    assert verdict.whole or (verdict.worst.metric, verdict.outcome) == (name, "failed")
    shown_ms = [one.new for one in verdict.metrics if one.metric == "step_ms" and one.new]
    assert shown_ms == [pytest.approx(250.0 * math.exp(ratio)) for ratio in ratios]


@pytest.mark.parametrize("name", OF["waste"] + OF["price"])
def test_what_is_permitted_leaves_the_time_to_the_pairs(name):
    """Not if the waiver is too small, or its last day is over."""
    if not METRICS[name].exists("cuda", 1):
        return
    few, many = counted(name, 0.0), counted(name, *[0.0] * MIN_PAIRS)
    waiver = allowed(few, name)
    assert wants_another_pair(few, (waiver,), TODAY)
    assert wants_another_pair(counted(name), (waiver,), TODAY)
    assert not wants_another_pair(many, (waiver,), TODAY)
    assert judge(Question(pairs=few, permissions=(waiver,), today=TODAY)).outcome == "error"
    assert judge(Question(pairs=many, permissions=(waiver,), today=TODAY)).outcome == "passed"
    small = Permission(**_fields(waiver) | {"value": waiver.value - 1})
    assert not wants_another_pair(few, (small,), TODAY)
    assert not wants_another_pair(few, (waiver,), date(2027, 1, 1))
    other = counted("host_syncs_per_step" if name != "host_syncs_per_step" else "recompiles", 0.0)
    both = replace(few, head=with_counts(few.head, **_moved(other)))
    assert not wants_another_pair(both, (waiver,), TODAY)


def _fields(permission):
    return {name: getattr(permission, name) for name in permission.__struct_fields__}


def _moved(found):
    base = found.base.counts.values
    return {n: count for n, count in found.head.counts.values.items() if count != base[n]}


@pytest.mark.parametrize("name", [n for n in OF["price"] if METRICS[n].exists("cuda", 1)])
def test_a_price_is_paid_by_a_faster_step_alone(name):
    """It waits for the first pair, and for the others if that one is faster by more than 0.5 %."""
    assert wants_another_pair(counted(name))
    for ratio in (MAY_PAY + 0.0001, 0.0, 0.02):
        found = counted(name, ratio)
        assert judge(Question(pairs=found)).status is Status.CHANGED
        assert not wants_another_pair(found)
    assert wants_another_pair(counted(name, MAY_PAY - 0.0001))
    for pct, status in ((-2.0, Status.FASTER), (0.0, Status.CHANGED), (2.0, Status.CHANGED)):
        verdict = judge(Question(pairs=counted(name, *shifted(pct))))
        assert verdict.status is status
        paid = metric(verdict, name).reason is Reason.TIME_DECIDES
        assert paid is (status is Status.FASTER) is verdict.has_notice
    untimed = {"gates": tuple(gate for gate in GATES if gate != "step_ms")}
    for ratios in ((), (-0.02,)):
        found = counted(name, *ratios, head=untimed, base=untimed)
        assert judge(Question(pairs=found)).status is Status.CHANGED
        assert not wants_another_pair(found)


@pytest.mark.parametrize("name", [n for n in OF["amount"] if METRICS[n].exists("cuda", 1)])
def test_an_amount_explains_the_time_and_decides_nothing(name):
    """More of it, beside any time."""
    assert wants_another_pair(counted(name, 0.0)) and wants_another_pair(counted(name))
    for pct in PCTS:
        found = counted(name, *shifted(pct))
        verdict = judge(Question(pairs=found))
        assert verdict.status is judge(Question(pairs=turns(shifted(pct)))).status
        assert metric(verdict, name).reason is Reason.TIME_DECIDES
        assert not wants_another_pair(found)


@pytest.mark.parametrize(
    ("part", "status"),
    [("HtoD (Pinned -> Device)", Status.CHANGED), ("DtoD", Status.SAME)],
)
def test_a_copy_within_the_gpu_is_an_amount(part, status):
    """One from the host is a price: the bus is slow."""
    found = turns()
    count = found.base.counts.values[COPIES]
    sides = {}
    for side, more in (("head", 1), ("base", 0)):
        one = with_counts(getattr(found, side), **{COPIES: count + more})
        detail = one.counts.detail | {COPIES: {"DtoH": count - 1, part: 1 + more}}
        sides[side] = replace(one, counts=replace(one.counts, detail=detail))
    assert judge(Question(pairs=replace(found, **sides))).status is status


@pytest.mark.parametrize("name", ["recompiles", "graph_breaks", "operator_calls_per_step"])
def test_on_a_cpu_no_time_is_waited_for(name):
    """Neither for waste nor for a price; an amount fails behind the time."""
    cpu = {"case": turns().head.case | {"device": "cpu"}, "gates": (name,)}
    found = counted(name, 0.5, head=cpu, base=cpu)
    assert judge(Question(pairs=found)).status is Status.CHANGED
    assert wants_another_pair(found) is (METRICS[name].role == "amount")
