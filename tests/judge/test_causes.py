"""The cause first: which of the metrics that moved decides, and where an operator moved."""

from collections import Counter

import pytest
from builders import COUNTS, cpu_evidence, entry, epoch, evidence, replace, with_counts
from msgspec import structs

from stepguard.core.comparison import Question
from stepguard.core.evidence import Counts
from stepguard.core.metrics import BETWEEN_STEPS, COLLECTIVES, METRICS, OPERATORS
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, cause_first
from stepguard.judge.compare_metric import compare
from stepguard.judge.moved_places import where_moved
from stepguard.judge.rule_book import judge
from stepguard.judge.summarise_evidence import stored, summarise
from stepguard.report.verdict_text import headline, page_of

COUNTERS = [n for n, m in METRICS.items() if m.kind == "counter"]


def moved(metric, old=1.0, new=2.0):
    """A counter that rose."""
    return MetricVerdict(metric, Status.CHANGED, Reason.COUNTER_ROSE, old=old, new=new)


def named(name):
    """The whole name of torch's operator; any other name has a dot already."""
    return name if "." in name or "::" in name else f"aten.{name}.default"


def counted(*sites, **parts):
    """Evidence with these operators at these places, and with ``parts`` at unknown ones."""
    calls = Counter({named(name): count for name, count in parts.items()})
    for site in sites:
        calls[site.what] += site.count
    values = COUNTS | {OPERATORS: calls.total()}
    return evidence(counts=Counts(values, {}, {OPERATORS: dict(calls)}, {OPERATORS: sites}))


def at(line, function="Block.forward", text="x = x.clone()", count=1, what="clone", phase=""):
    """An operator at a line of model/gpt.py."""
    place = ("model/gpt.py", line, function, text)
    return Site(named(what), *place, phase=phase, count=count)


def known(then):
    """A baseline whose recording counted what the evidence did."""
    return entry(epochs=[epoch(recordings=[stored(then)])])


def places(now, then, stored_then=True):
    """(line, count) of what moved between two pieces of evidence."""
    past = stored(then) if stored_then else summarise(then)
    found = compare(OPERATORS, summarise(now), [past], now.gates)
    return [(site.line, site.count) for site in found.sites]


# The order of causes

CAUSES = """host_syncs_per_step sync_candidates_per_step graph_breaks recompiles
    collectives_per_step operator_calls_per_step leaked_bytes_per_step
    compiled_operator_calls_per_step""".split()
EFFECTS = "flops_per_step", "peak_allocated_bytes", "launches_per_step"
# An .item() is an operator, an exchange is one, a list of losses detaches them: these say more.
SAY_MORE = CAUSES[0], "graph_breaks", "collectives_per_step", "leaked_bytes_per_step"
BACKWARD = at(9, phase="backward"), at(9, phase="optimizer")
SLOWER = MetricVerdict("step_ms", Status.SLOWER, Reason.BEYOND_LIMIT)


@pytest.mark.parametrize(("cause", "effect"), [
    *((moved(cause), moved(effect)) for cause in CAUSES for effect in EFFECTS),
    *((moved(cause), moved(OPERATORS)) for cause in SAY_MORE),
    # As many collectives, of other sizes: a layer was added.
    (moved(OPERATORS), moved("collectives_per_step", 3, 3)),
    # Weights that are no longer tied: one more to add up, clip and update, by no line's call.
    (moved(BETWEEN_STEPS), replace(moved(OPERATORS), sites=BACKWARD)),
    (moved(BETWEEN_STEPS), moved("compiled_operator_calls_per_step")),
    # A line of the step calls it: what is held follows from that.
    (replace(moved(OPERATORS), sites=(at(9), *BACKWARD)), moved(BETWEEN_STEPS)),
    *((SLOWER, moved(name)) for name in COUNTERS),
])  # fmt: skip
def test_a_cause_comes_before_what_follows_from_it(cause, effect):
    """In any order; a time comes before all that has a count."""
    for both in ([cause, effect], [effect, cause]):
        assert sorted(both, key=cause_first) == [cause, effect]


# Places of operators

OLD, NEW = "y = x.clone()", "y = model(x).double()"
LOSS = {"function": "step", "text": "total += loss.detach().float()"}
RELU = {"function": "forward", "text": "return relu(x)", "what": "relu"}
START = {"function": "step", "what": "mul", "phase": "backward"}
CAST = "aten._to_copy"
# what is shown -> the places then, the places now, what is named, and what on the way back
PLACES = {
    "a new line, above one that only moved": (
        [at(105, text=OLD, count=4)], [at(105, count=4), at(106, text=OLD, count=4)], [(105, 4)],
        [(0, -4)]),
    "each new line of a function, the largest first": (
        [at(3, what="mm")], [at(3, what="mm"), at(9), at(12, text="y = y.clone()", count=3)],
        [(12, 3), (9, 1)], [(0, -3), (0, -1)]),
    # An untouched line below calls more casts for it.
    "the touched line first": (
        [at(70, "step", "y = model(x)", what="mm"), at(72, what="add", **LOSS)],
        [at(70, "step", NEW, what="mm"), at(70, "step", NEW, what="to_double"),
         at(72, what="add", **LOSS), at(72, what="to_float", count=8, **LOSS)], [(70, 1), (72, 8)],
        [(0, -1), (0, -8)]),
    "the touched line of a backward pass first": (
        [at(9, **RELU), at(20, text="loss.backward()", **START)],
        [at(9, count=2, **RELU), at(20, text="loss.backward(True)", count=2, **START)],
        [(20, 1), (9, 1)], [(0, -1), (0, -1)]),
    "one line more, beside one that was edited": (
        [at(9, text=OLD, count=4)], [at(9, count=4), at(10, text="z = x.clone()")], [(10, 1)],
        [(0, -1)]),
    "products of a longer loop before a touched line": (
        [at(9, text="mm(x)", what="mm", count=3)],
        [at(9, text="mm(x)", what="mm", count=4), at(20, "step", "loss.item()", what="item")],
        [(9, 1), (20, 1)], [(0, -1), (0, -1)]),
    "one line more often": ([at(9, count=4)], [at(9, count=8)], [(9, 4)], [(0, -4)]),
    "attention that was lost before what came for it": (
        [at(9, what="attention", count=3)], [at(9, what="bmm", count=6)], [(0, -3), (9, 6)],
        [(9, 3), (0, -6)]),
    # The helper is not accused of more than it has more.
    "code that moved to another function": (
        [at(9, count=4)], [at(20, "helper", count=4), at(30, "other")], [(20, 4), (30, 1)],
        [(0, -4), (0, -1)]),
    "as many at another place": ([at(9, count=4)], [at(20, "helper", OLD, 4)], [], []),
    "a wide cast before the casts back": (
        [at(3, what="mm")],
        [at(3, what="mm"), at(9, "loss", "x = x.double()", what=f"{CAST}[float64].default"),
         at(20, "fit", "mean.update(loss)", 2, f"{CAST}[float32].default")], [(9, 1), (20, 2)],
        [(0, -1), (0, -2)]),
    **{
        f"what torch calls in the {phase} last": (
            [at(20, "step", what="mul", phase=phase)],
            [
                at(20, "step", what="mul", phase=phase),
                at(20, "step", what="mm", phase=phase),
                at(9, text="norm(x)", what="norm"),
            ],
            [(9, 1), (20, 1)],
            [(0, -1), (0, -1)],
        )
        for phase in ("backward", "optimizer")
    },
}  # fmt: skip


@pytest.mark.parametrize("stored_then", [True, False])
@pytest.mark.parametrize("shown", PLACES)
def test_the_places_of_operators_that_moved(shown, stored_then):
    """Causes first. A former place has no line number, and a negative count."""
    *sides, forth, back = PLACES[shown]
    then, now = (counted(*sites) for sites in sides)
    assert places(now, then, stored_then) == forth
    assert places(then, now, stored_then) == back


def with_callers(found, **calls):
    """The evidence, in which norm() calls so many operators for each of these functions."""
    text = {f"{name} (model/gpt.py:{7 + n}): norm(x)": n for name, n in calls.items()}
    counts = replace(found.counts, callers={"model/gpt.py norm": text})
    return replace(found, counts=counts)


@pytest.mark.parametrize("stored_then", [True, False])
@pytest.mark.parametrize(("then", "now", "caller"), [
    ({"forward": 4}, {"forward": 4, "loss": 2}, "loss (model/gpt.py:9)"),
    ({"forward": 4, "loss": 1}, {"forward": 6, "loss": 1}, "forward (model/gpt.py:13)"),
    ({"forward": 4}, {"forward": 4}, ""),
    ({}, {"forward": 4}, ""),  # nobody knows who called it
])  # fmt: skip
def test_a_shared_function_that_does_more_names_the_caller_that_is_new(
    then, now, caller, stored_then
):
    """At a line that was there before, in those below; the first line names the caller alone.
    Whoever calls it as often as before is not named, at whatever line.
    """
    helper = {"function": "norm", "text": "return x.clone()"}
    old = with_callers(counted(at(3, count=4, **helper)), **then)
    new = with_callers(counted(at(5, count=6, **helper)), **now)
    past = stored(old) if stored_then else summarise(old)
    (site,) = compare(OPERATORS, summarise(new), [past], new.gates).sites
    assert (site.caller or "") == caller
    page = page_of(judge(Question(new, known(old))))
    moved = "+2 aten.clone in norm (model/gpt.py:5)"
    assert page.headline.endswith(f"+2 aten.clone in {caller}" if caller else moved)
    assert page.place.place == (caller.split("(")[-1].rstrip(")") or "model/gpt.py:5")
    assert (f"{moved} called from {caller}" in "\n".join(page.lines)) == bool(caller)


USUAL, PASS = "<module> (train.py:12): loss = model(x)", "<module> (train.py:13): loss.backward()"
AGAIN = "<module> (train.py:14): again = model(x).detach()"


@pytest.mark.parametrize("stored_then", [True, False])
@pytest.mark.parametrize(("above", "as_often", "caller"), [
    ({USUAL: 2, AGAIN: 1}, "", "<module> (train.py:14)"),
    ({USUAL: 2, PASS: 3, AGAIN: 1}, "", "<module> (train.py:14)"),  # a checkpoint; what it repeats
    ({USUAL: 2}, "", "Net.forward (model/gpt.py:9)"),
    ({USUAL: 3}, "", "<module> (train.py:12)"),
    ({USUAL: 3}, "Net.forward", "Net.forward (model/gpt.py:9)"),
    ({USUAL: 2}, "norm", ""),
])  # fmt: skip
def test_the_nearest_new_line_that_calls_through_others_is_named(
    above, as_often, caller, stored_then
):
    """A second forward pass is of the line that begins it, which goes before its own views. A
    longer loop is of the line in it: a line beside the loop does as much as before.
    """
    view, norm, net = "aten.detach.default", "model/gpt.py norm", "model/gpt.py Net.forward"
    backward = Site("aten.mm.default", "train.py", 13, "<module>", "loss.backward()", "backward")
    still = backward, at(30, as_often or "other", "return x.mean()", what="aten.mean.default")
    old, usual = counted(at(3, "norm", count=4), *still), {net: {USUAL: 2}}
    inside, more = ({norm: {"Net.forward (model/gpt.py:9): norm(x)": n}} for n in (4, 6))
    old = replace(old, counts=replace(old.counts, callers=usual | inside))
    again = Site(view, "train.py", 14, "<module>", "again", count=1)
    new = counted(at(3, "norm", count=6), *still, again)
    new = replace(new, counts=replace(new.counts, callers=usual | more | {net: above}))
    past = stored(old) if stored_then else summarise(old)
    sites = compare(OPERATORS, summarise(new), [past], new.gates).sites
    (site,) = (site for site in sites if site.function == "norm")
    assert (site.caller or "") == caller
    assert (sites[0] == site) is (AGAIN in above)


def test_a_new_line_of_a_shared_function_is_its_own_cause():
    """Who calls it does not matter then."""
    line = at(3, "norm", count=4)
    old = with_callers(counted(line), forward=4)
    new = with_callers(counted(line, at(4, "norm", OLD, 2)), forward=4, loss=2)
    (site,) = compare(OPERATORS, summarise(new), [stored(old)], new.gates).sites
    assert (site.line, site.caller or "") == (4, "")


def test_a_helper_that_exchanges_names_the_caller_that_is_new():
    """As one that calls any other operator."""
    line = at(3, "norm", "all_reduce(x)", 4, "c10d.allreduce_.default")
    old = with_callers(counted(line), forward=4)
    new = with_callers(counted(structs.replace(line, count=6)), forward=4, loss=2)
    (site,) = where_moved(COLLECTIVES, summarise(new), summarise(old), (), 2)
    assert (site.what, site.caller) == ("c10d.allreduce_", "loss (model/gpt.py:9)")


def test_a_touched_line_goes_first_of_any_counter():
    """Two waits at a line that is new, before five more of one that only runs more often."""
    metric = "host_syncs_per_step"
    often = Site(".item()", "train.py", 8, "step", "log(loss.item())", count=1)
    new = Site(".item()", "train.py", 5, "step", "if loss.item() > 1:", count=2)
    runs = [
        with_counts(evidence(counts=Counts(COUNTS, {}, {}, {metric: sites})), **{metric: count})
        for count, sites in ((1, (often,)), (8, (structs.replace(often, count=6), new)))
    ]
    verdict = judge(Question(runs[1], known(runs[0])))
    assert [(site.line, site.count) for site in verdict.worst.sites] == [(5, 2), (8, 5)]
    assert headline(verdict).endswith(f"{metric} 1 -> 8 (+7 syncs), 2 at train.py:5")


def test_of_a_recording_without_places_only_what_is_new_has_one():
    """An older recording does not say where it called what it has, too."""
    then = replace(counted(clone=4), counts=replace(counted(clone=4).counts, sites={}))
    assert places(counted(at(9, count=5), at(7, what="bmm")), then) == [(7, 1)]


def test_the_places_of_a_baseline_are_lines_of_source():
    """Operators by the line that calls them, without its number: an edit above changes nothing."""
    recording = stored(counted(at(9), at(10, what="bmm", count=2)))
    assert recording.operators == {
        "model/gpt.py Block.forward: x = x.clone()": {
            "aten.clone.default": 1,
            "aten.bmm.default": 2,
        }
    }
    assert OPERATORS not in recording.sites
    assert {(s.what, s.file, s.function, s.text, s.count) for s in recording.operator_sites()} == {
        ("aten.clone.default", "model/gpt.py", "Block.forward", "x = x.clone()", 1),
        ("aten.bmm.default", "model/gpt.py", "Block.forward", "x = x.clone()", 2),
    }


VIA = "numpy/_core/memmap.py:360 in memmap.__getitem__"


@pytest.mark.parametrize("stored_then", [True, False])
def test_a_librarys_line_that_a_baseline_does_not_keep_is_no_move(stored_then):
    """A line reads a number through numpy and adds, as ever, and another line of its function reads
    one more: the operators name the new line. What a library's line calls more often has that line.
    """
    line = {"function": "get_batch", "text": "x = data[i] + 1"}
    library = structs.replace(at(5, **line, what="item"), via=VIA)
    add = at(5, **line, what="add")
    then = counted(library, add)
    other = at(6, "get_batch", "y = x.item()", what="item")
    now = counted(library, add, other)
    assert places(now, then, stored_then) == [(6, 1)]
    past = stored(then) if stored_then else summarise(then)
    more = counted(structs.replace(library, count=2), add)
    (site,) = compare(OPERATORS, summarise(more), [past], now.gates).sites
    assert (site.line, site.count, site.via) == (5, 1, VIA)


# Calls that compute nothing

TYPED = f"{CAST}[bfloat16].default"
CASTS = f"{CAST}.default"
SAME, OTHER = Status.SAME, Status.CHANGED


@pytest.mark.parametrize(("then", "now", "status"), [
    # Views compute nothing, and a reader would dispute a red.
    ({"view": 12}, {"unflatten": 12}, SAME),
    ({"split": 4}, {"chunk": 4}, SAME),
    ({"split": 1}, {"slice": 3}, SAME),
    ({}, {"expand": 10}, SAME),
    ({}, {"detach": 1}, SAME),  # a loss for the log: what it keeps is counted
    ({}, {"expand": 11}, OTHER),  # more than 2 %: work for the host
    # Whatever computes or allocates is other work, however few.
    ({"view": 1}, {"clone": 1}, OTHER),
    ({}, {"bmm": 1, "view": 1}, OTHER),
    ({"view": 1}, {"slice_backward": 1}, OTHER),
    ({"sum": 3}, {"mean": 3}, OTHER),
    ({}, {"empty": 1}, OTHER),
    # Overloads that compute as much; the name is all that tells a square from powers.
    ({"aten.arange.start": 2}, {"aten.arange.default": 2}, SAME),
    ({"aten.sum.default": 2}, {"aten.sum.dim_IntList": 2}, SAME),
    ({"aten.mul_.Tensor": 2}, {"aten.mul_.Scalar": 2}, SAME),
    ({"aten.pow.Tensor_Scalar": 2}, {"aten.pow.Tensor_Tensor": 2}, OTHER),
    ({"aten.div.Tensor": 2}, {"aten.div.Tensor_mode": 2}, OTHER),
    ({"aten.max.default": 2}, {"aten.max.dim": 2}, OTHER),
    # Kernels that move all tokens of a mixture of experts are called permute.
    ({}, {"moe.permute.default": 2}, OTHER),
    ({"view": 2}, {"moe::expand": 2}, OTHER),
    ({"moe.mix.default": 2}, {"moe.mix.slow": 2}, OTHER),
    # A recording that is older than the types of casts has one sum of them.
    ({CASTS: 30}, {CASTS: 6, TYPED: 24}, SAME),
    ({CASTS: 30}, {CASTS: 6, TYPED: 25}, OTHER),
    ({CASTS: 6, TYPED: 24}, {CASTS: 6, f"{CAST}[float16].default": 24}, OTHER),
])  # fmt: skip
def test_which_operators_are_other_work(then, now, status):
    """In a step of 500 products. Of what is the same nothing is said."""
    then, now = (counted(mm=500, **parts) for parts in (then, now))
    found = judge(Question(now, known(then)))
    assert found.status is status
    assert status is OTHER or not any(metric.moved or metric.sites for metric in found.metrics)


def test_a_copy_that_becomes_a_cast_is_other_work():
    """On a CPU a step that copies and casts nothing is taken for no older recording."""
    sound = with_counts(cpu_evidence(), **{OPERATORS: 30})
    then, now = (
        summarise(replace(sound, counts=replace(sound.counts, detail={OPERATORS: {name: 30}})))
        for name in (CASTS, TYPED)
    )
    assert compare(OPERATORS, now, [then], [OPERATORS]).status is Status.CHANGED
