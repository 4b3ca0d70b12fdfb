"""The cause first: which of the metrics that moved decides, and where an operator moved."""

import pytest
from builders import CASE_ID, COUNTS, cpu_evidence, entry, epoch, evidence, replace, with_counts
from msgspec import structs

from stepguard.core.evidence import Counts
from stepguard.core.metrics import BETWEEN_STEPS, METRICS, OPERATORS, PEAK
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, cause_first
from stepguard.judge.compare_metric import compare
from stepguard.judge.judge_recordings import judge
from stepguard.judge.summarise_evidence import stored, summarise
from stepguard.report.metric_notes import operator_move
from stepguard.report.verdict_text import evidence_lines, headline

COUNTERS = [n for n, m in METRICS.items() if m.kind == "counter"]


def moved(metric, old=1.0, new=2.0):
    """A counter that rose."""
    return MetricVerdict(metric, Status.CHANGED, Reason.COUNTER_ROSE, old=old, new=new)


@pytest.mark.parametrize("effect", ["flops_per_step", "peak_allocated_bytes", "launches_per_step"])
@pytest.mark.parametrize(
    "cause",
    [
        "host_syncs_per_step",
        "sync_candidates_per_step",
        "graph_breaks",
        "recompiles",
        "collectives_per_step",
        OPERATORS,
        "leaked_bytes_per_step",
        "compiled_operator_calls_per_step",
    ],
)
def test_a_cause_comes_before_what_follows_from_it(cause, effect):
    """Sync, break, operator, leak and collective before FLOPs, launches and bytes, in any order."""
    for both in ([moved(cause), moved(effect)], [moved(effect), moved(cause)]):
        assert [m.metric for m in sorted(both, key=cause_first)] == [cause, effect]


@pytest.mark.parametrize(
    "cause",
    ["host_syncs_per_step", "graph_breaks", "collectives_per_step", "leaked_bytes_per_step"],
)
def test_what_is_an_operator_too_is_named_as_what_it_is(cause):
    """An .item() is an operator, an exchange is one, a list of losses detaches them: the sync, the
    collective and the leak say more.
    """
    assert min(moved(OPERATORS), moved(cause), key=cause_first).metric == cause


def test_buckets_of_other_sizes_follow_from_an_operator():
    """As many collectives, of other sizes: a layer was added."""
    assert min(moved(OPERATORS), moved("collectives_per_step", 3, 3), key=cause_first) == moved(
        OPERATORS
    )


@pytest.mark.parametrize(
    ("operators", "phases"),
    [(OPERATORS, ("backward", "optimizer")), ("compiled_operator_calls_per_step", ())],
)
def test_what_a_model_holds_comes_before_who_works_on_it(operators, phases):
    """Weights that are no longer tied: one more to add up, clip and update, by no line's call."""
    calls = replace(moved(operators), sites=tuple(at(9, phase=phase) for phase in phases))
    assert min(calls, moved(BETWEEN_STEPS), key=cause_first) == moved(BETWEEN_STEPS)


def test_the_operator_that_keeps_a_tensor_is_named():
    """A line of the step calls it: what is held follows from that."""
    calls = replace(moved(OPERATORS), sites=(at(9), at(12, phase="backward")))
    assert min(calls, moved(BETWEEN_STEPS), key=cause_first) == calls


def test_more_parameters_are_called_that():
    """In the first line, with their bytes: one operator of the backward pass says nothing."""
    then, now = (
        counted(at(9, phase="backward"), clone=1),
        counted(at(9, phase="backward", count=2), clone=2),
    )
    then, now = (
        with_counts(one, **{BETWEEN_STEPS: held})
        for one, held in ((then, 20 << 20), (now, 32 << 20))
    )
    verdict = judge(now, entry(epochs=[epoch(recordings=[stored(then)])]))
    assert headline(verdict).endswith(
        f"CHANGED: {BETWEEN_STEPS} 20.000 MiB -> 32.000 MiB (+60.0 %): "
        "parameters, optimizer state or inputs"
    )
    assert BETWEEN_STEPS in headline(verdict)
    of_one = replace(verdict, metrics=tuple(replace(one, ranks=(1,)) for one in verdict.metrics))
    assert "(+60.0 %) on rank 1: parameters" in headline(of_one)


def test_every_counter_has_its_place_in_the_order():
    """Only a time, or what has no count, comes before all of them."""
    for name in COUNTERS:
        assert cause_first(moved(name))[1] >= 0
    slower = MetricVerdict("step_ms", Status.SLOWER, Reason.BEYOND_LIMIT)
    assert min([*map(moved, COUNTERS), slower], key=cause_first) == slower


# Places of operators

STEP = "    return x.clone()"


def counted(*sites, **parts):
    """Evidence with these operators at these places."""
    detail = {f"aten.{name}.default": count for name, count in parts.items()}
    values = COUNTS | {OPERATORS: sum(detail.values())}
    return evidence(counts=Counts(values, {}, {OPERATORS: detail}, {OPERATORS: sites}))


def at(line, function="Block.forward", text="x = x.clone()", count=1, what="clone", phase=""):
    """An operator at a line of model/gpt.py."""
    place = ("model/gpt.py", line, function, text)
    return Site(f"aten.{what}.default", *place, phase=phase, count=count)


def places(now, then, stored_then=True):
    """(line, function, count) of what moved between two pieces of evidence."""
    past = stored(then) if stored_then else summarise(then)
    found = compare(OPERATORS, summarise(now), [past], now.gates)
    return [(site.line, site.function, site.count) for site in found.sites]


def with_callers(found, **calls):
    """The evidence, in which norm() calls so many operators for each of these functions."""
    text = {f"{name} (model/gpt.py:{7 + n}): norm(x)": n for name, n in calls.items()}
    counts = replace(found.counts, callers={"model/gpt.py norm": text})
    return replace(found, counts=counts)


@pytest.mark.parametrize("stored_then", [True, False])
@pytest.mark.parametrize(
    ("then", "now", "caller"),
    [
        ({"forward": 4}, {"forward": 4, "loss": 2}, "loss (model/gpt.py:9)"),
        ({"forward": 4, "loss": 1}, {"forward": 6, "loss": 1}, "forward (model/gpt.py:13)"),
        ({"forward": 4}, {"forward": 4}, ""),
        ({}, {"forward": 4}, ""),  # nobody knows who called it
    ],
)
def test_a_shared_function_that_does_more_names_the_caller_that_is_new(
    then, now, caller, stored_then
):
    """At a line that was there before, in the first line and in those below; whoever calls it as
    often as before is not named, at whatever line.
    """
    helper = {"function": "norm", "text": "return x.clone()"}
    old = with_callers(counted(at(3, count=4, **helper), clone=4), **then)
    new = with_callers(counted(at(5, count=6, **helper), clone=6), **now)
    past = stored(old) if stored_then else summarise(old)
    (site,) = compare(OPERATORS, summarise(new), [past], new.gates).sites
    assert (site.caller or "") == caller
    verdict = judge(new, entry(epochs=[epoch(recordings=[stored(old)])]))
    named = f"+2 aten.clone in norm (model/gpt.py:5) called from {caller}"
    assert (named in headline(verdict)) == bool(caller)
    assert (named in "\n".join(evidence_lines(verdict))) == bool(caller)


def test_a_new_line_of_a_shared_function_is_its_own_cause():
    """Who calls it does not matter then."""
    old = with_callers(counted(at(3, "norm", count=4), clone=4), forward=4)
    lines = at(3, "norm", count=4), at(4, "norm", "y = x.clone()", count=2)
    new = with_callers(counted(*lines, clone=6), forward=4, loss=2)
    (site,) = compare(OPERATORS, summarise(new), [stored(old)], new.gates).sites
    assert (site.line, site.caller or "") == (4, "")


@pytest.mark.parametrize("stored_then", [True, False])
def test_a_new_line_is_found_wherever_it_stands(stored_then):
    """Four clones at a line that is new, above one that only moved: its own line is named."""
    then = counted(at(105, text="y = x.clone()", count=4), clone=4)
    now = counted(at(105, count=4), at(106, text="y = x.clone()", count=4), clone=8)
    assert places(now, then, stored_then) == [(105, "Block.forward", 4)]


def test_each_new_line_of_a_function_is_a_place():
    """One clone more at a line, three at another: the largest place first, and its count alone."""
    lines = at(9, count=1), at(12, text="y = y.clone()", count=3)
    then, now = counted(at(3, what="mm"), mm=1), counted(at(3, what="mm"), *lines, mm=1, clone=4)
    assert places(now, then) == [(12, "Block.forward", 3), (9, "Block.forward", 1)]
    found = compare(OPERATORS, summarise(now), [stored(then)], now.gates)
    assert operator_move(found) == "+3 aten.clone"


@pytest.mark.parametrize("stored_then", [True, False])
def test_a_line_that_the_change_touched_goes_first(stored_then):
    """`model(x)` became `model(x).double()`: the loss's line below it, which nobody touched, calls
    more casts for it, and the touched line is the cause. On the way back it is, too.
    """
    loss = {"function": "step", "text": "total += loss.detach().float()"}
    old = counted(
        at(70, "step", "y = model(x)", what="mm"), at(72, what="add", **loss), mm=1, add=1
    )
    new = counted(
        at(70, "step", "y = model(x).double()", what="mm"),
        at(70, "step", "y = model(x).double()", what="to_double"),
        at(72, what="add", **loss),
        at(72, what="to_float", count=8, **loss),
        mm=1,
        add=1,
        to_double=1,
        to_float=8,
    )
    assert places(new, old, stored_then) == [(70, "step", 1), (72, "step", 8)]
    assert places(old, new, stored_then) == [(0, "step", -1), (0, "step", -8)]
    verdict = judge(new, entry(epochs=[epoch(recordings=[stored(old)])]))
    assert "CHANGED: +1 aten.to_double in step (model/gpt.py:70)" in headline(verdict)


def test_a_touched_line_of_a_backward_pass_goes_before_an_untouched_one():
    """`loss.backward(retain_graph=True)`: what an unchanged line calls more often follows."""
    relu = {"function": "forward", "text": "return relu(x)", "what": "relu"}
    start = {"function": "step", "what": "mul", "phase": "backward"}
    then = counted(at(9, **relu), at(20, text="loss.backward()", **start), relu=1, mul=1)
    line = "loss.backward(retain_graph=True)"
    now = counted(at(9, count=2, **relu), at(20, text=line, count=2, **start), relu=2, mul=2)
    assert [line for line, _, _ in places(now, then)] == [20, 9]


def test_a_touched_line_goes_first_of_any_counter():
    """Two waits at a line that is new, before five more of one that only runs more often."""
    metric = "host_syncs_per_step"
    often = Site(".item()", "train.py", 8, "step", "log(loss.item())", count=1)
    new = Site(".item()", "train.py", 5, "step", "if loss.item() > 1:", count=2)
    runs = [
        with_counts(evidence(counts=Counts(COUNTS, {}, {}, {metric: sites})), **{metric: count})
        for count, sites in ((1, (often,)), (8, (structs.replace(often, count=6), new)))
    ]
    verdict = judge(runs[1], entry(epochs=[epoch(recordings=[stored(runs[0])])]))
    assert [(site.line, site.count) for site in verdict.worst.sites] == [(5, 2), (8, 5)]
    assert headline(verdict).endswith(f"{metric} 1 -> 8 (+7 syncs), 2 at train.py:5")


def test_one_line_more_often_is_that_line():
    """A line that is reached twice as often."""
    then, now = counted(at(9, count=4), clone=4), counted(at(9, count=8), clone=8)
    assert places(now, then) == [(9, "Block.forward", 4)]


@pytest.mark.parametrize("stored_then", [True, False])
def test_a_lost_operator_is_at_its_former_place(stored_then):
    """Without the other side's line number, and negative; what came for attention comes after."""
    then = counted(at(9, what="attention", count=3), attention=3, clone=0)
    now = counted(at(9, what="bmm", count=6), bmm=6)
    lost = (0, "Block.forward", -3)
    assert places(now, then, stored_then) == [lost, (9, "Block.forward", 6)]


def test_code_that_moved_to_another_function_is_no_place():
    """Extracted into a helper, and one more clone elsewhere: the helper is not accused of more than
    it has more.
    """
    then = counted(at(9, count=4), clone=4)
    now = counted(at(20, "helper", count=4), at(30, "other", count=1), clone=5)
    assert places(now, then) == [(20, "helper", 4), (30, "other", 1)]


def test_an_equal_count_has_no_places():
    """Renamed, moved, extracted: as many of the same operators are `same`, and nothing is said."""
    then = counted(at(9, count=4), clone=4)
    now = counted(at(20, "helper", "z = z.clone()", count=4), clone=4)
    assert places(now, then) == []
    assert judge(now, entry(epochs=[epoch(recordings=[stored(then)])])).status is Status.SAME


def test_of_a_recording_without_places_only_what_is_new_has_one():
    """An older recording does not say where it called what it has, too."""
    then = replace(counted(clone=4), counts=replace(counted(clone=4).counts, sites={}))
    now = counted(at(9, count=5), at(7, what="bmm"), clone=5, bmm=1)
    assert places(now, then) == [(7, "Block.forward", 1)]


def test_what_explains_stands_first():
    """Attention that was lost, what is put in its place, then views and backward passes."""
    parts = dict(view=9, attention=3, attention_backward=3, add=2)
    then = counted(*(at(1, what=n, count=c) for n, c in parts.items()), **parts)
    after = dict(view=29, bmm=6, bmm_backward=9, add=3)
    now = counted(*(at(1, what=n, count=c) for n, c in after.items()), **after)
    found = compare(OPERATORS, summarise(now), [stored(then)], now.gates)
    names = [part.name.split(".")[1] for part in found.moved]
    assert names[:2] == ["attention", "bmm"] and names[-1] == "view"
    assert [site.what for site in found.sites] == [part.name for part in found.moved]


def test_the_places_of_a_baseline_are_lines_of_source():
    """Operators by the line that calls them, without its number: an edit above changes nothing."""
    recording = stored(counted(at(9), at(10, what="bmm", count=2), clone=1, bmm=2))
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


def test_a_case_with_a_known_cause_is_named_by_it():
    """One LayerNorm more: more FLOPs and bytes, too, and the verdict is the operator's."""
    now = with_counts(
        evidence(),
        **{OPERATORS: 2401, "flops_per_step": 10**9, "peak_allocated_bytes": 10**9},
    )
    found = judge(now, entry())
    assert (found.case_id, found.worst.metric) == (CASE_ID, OPERATORS)


def test_a_replaced_operator_is_named_with_what_it_replaces():
    """As many of another, in the same function: the new one, and its line."""
    then = counted(at(9, what="gelu", count=4), gelu=4)
    now = counted(at(9, what="silu", count=4), silu=4)
    verdict = judge(now, entry(epochs=[epoch(recordings=[stored(then)])]))
    assert ": CHANGED: +4 aten.silu for aten.gelu in Block.forward (model/gpt.py:9)" in headline(
        verdict
    )


def test_an_overload_is_named_where_only_it_differs():
    """ "+1 aten.pow for aten.pow" would tell nobody what changed."""
    old, new = "aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor"
    then, now = (
        evidence(
            counts=Counts(
                COUNTS | {OPERATORS: 1},
                {},
                {OPERATORS: {name: 1}},
                {OPERATORS: (structs.replace(at(9), what=name),)},
            )
        )
        for name in (old, new)
    )
    verdict = judge(now, entry(epochs=[epoch(recordings=[stored(then)])]))
    assert f": CHANGED: +1 {new} for {old} in Block.forward" in headline(verdict)


@pytest.mark.parametrize("phase", ["backward", "optimizer"])
def test_what_torch_calls_for_a_line_comes_last(phase):
    """A norm more has an operator in the backward pass, too, where it is counted as a product."""
    start = {"function": "step", "text": "loss.backward()"}
    then = counted(structs.replace(at(20, what="mul", **start), phase=phase), mul=1)
    now = counted(
        structs.replace(at(20, what="mul", **start), phase=phase),
        structs.replace(at(20, what="mm", **start), phase=phase),
        at(9, what="norm"),
        mul=1,
        mm=1,
        norm=1,
    )
    for new, old, lines in ((now, then, [9, 20]), (then, now, [0, 0])):
        found = compare(OPERATORS, summarise(new), [stored(old)], now.gates)
        assert [site.line for site in found.sites] == lines
        assert [site.phase for site in found.sites] == ["", phase]


def test_a_peak_names_what_another_line_calls_now():
    """A cast that left the loss's line, which is still there, for the line before it; not the
    product, whose line was only edited.
    """
    old = [
        at(8, text="y = head(x)", what="mm"),
        at(9, text="loss = f(y)", what="nll"),
        at(9, text="loss = f(y)", what="cast"),
    ]
    new = [
        at(8, text="y = head(x).float()", what="mm"),
        at(8, text="y = head(x).float()", what="cast"),
        at(9, text="loss = f(y)", what="nll"),
    ]
    then, now = (counted(*sites, mm=1, nll=1, cast=1) for sites in (old, new))
    higher = {PEAK: now.counts.values[PEAK] * 2}
    now = replace(now, counts=replace(now.counts, values=now.counts.values | higher))
    verdict = judge(now, entry(epochs=[epoch(recordings=[stored(then)])]))
    (site,) = verdict.worst.sites
    assert (site.line, site.what, site.count) == (8, "aten.cast", 1)
    assert headline(verdict).endswith(" model/gpt.py:8")
    text = "\n".join(evidence_lines(verdict))
    assert "now calls aten.cast: y = head(x).float() in Block.forward (model/gpt.py" in text


def test_a_rise_from_a_recording_without_places_names_what_is_surely_new():
    """Six waits were recorded, nobody knows where: of eight now the line that was not there."""
    metric = "host_syncs_per_step"
    old = counted(at(8, text="log(x.item())"), clone=1)
    waits = Site(".item()", "model/gpt.py", 8, "Block.forward", "log(x.item())", count=6)
    new = structs.replace(waits, line=9, text="if x.item() > 1:", count=2)
    now = counted(at(8, text="log(x.item())"), at(9, text=new.text), clone=2)
    then = with_counts(old, **{metric: 6})
    now = with_counts(now, **{metric: 8})
    now = replace(now, counts=replace(now.counts, sites=now.counts.sites | {metric: (waits, new)}))
    found = compare(metric, summarise(now), [stored(then)], now.gates)
    assert found.sites == (new,)


@pytest.mark.parametrize(("edited", "shown"), [(1, True), (3, True), (4, False)])
def test_a_peak_names_the_lines_that_were_edited(edited, shown):
    """`backward(retain_graph=True)` calls nothing more, and a relu whose call moved from one line
    to another, both untouched, comes after it. Of many edited lines none is named.
    """

    def sites(front, *relu):
        lines = [f"{front}{n}.backward()" for n in range(edited)]
        calls = [
            at(9 + n, "step", line, what="mul", phase="backward") for n, line in enumerate(lines)
        ]
        return [*calls, *(at(40 + n, text=f"relu(x{n})", count=c, what="relu") for n, c in relu)]

    parts = {"mul": edited, "relu": 3}
    then, now = (
        counted(*found, **parts)
        for found in (sites("x", (0, 2), (1, 1)), sites("y", (0, 1), (1, 2)))
    )
    higher = {PEAK: now.counts.values[PEAK] * 2}
    now = replace(now, counts=replace(now.counts, values=now.counts.values | higher))
    verdict = judge(now, entry(epochs=[epoch(recordings=[stored(then)])]))
    lines = [site.line for site in verdict.worst.sites]
    assert lines == [*(range(9, 9 + edited) if shown else ()), 41]
    text = "\n".join(evidence_lines(verdict))
    assert ("    edited line: y0.backward() in step (model/gpt.py:9)\n" in text) == shown
    assert "    now calls aten.relu: relu(x1) in Block.forward (model/gpt.py:41)" in text


def test_a_cast_to_a_wide_type_comes_before_the_casts_back():
    """Logits in fp64: one cast there, two back in other lines, all of them new."""
    wide, back = "aten._to_copy[float64].default", "aten._to_copy[float32].default"
    sites = (
        structs.replace(at(9, "loss", "x = x.double()"), what=wide),
        structs.replace(at(20, "fit", "mean.update(loss)", count=2), what=back),
    )
    counts = Counts(
        COUNTS | {OPERATORS: 3}, {}, {OPERATORS: {wide: 1, back: 2}}, {OPERATORS: sites}
    )
    assert places(evidence(counts=counts), counted(at(3, what="mm"), mm=0)) == [
        (9, "loss", 1),
        (20, "fit", 2),
    ]


VIA = "numpy/_core/memmap.py:360 in memmap.__getitem__"


@pytest.mark.parametrize("stored_then", [True, False])
def test_a_librarys_line_that_a_baseline_does_not_keep_is_no_move(stored_then):
    """A line reads a number through numpy and adds, as ever, and another line of its function reads
    one more: the peak names neither, and the operators name the new line. What a library's line
    calls more often has that line.
    """
    line = {"function": "get_batch", "text": "x = data[i] + 1"}
    library = structs.replace(at(5, **line, what="item"), via=VIA)
    add = at(5, **line, what="add")
    then = counted(library, add, item=1, add=1)
    other = at(6, "get_batch", "y = x.item()", what="item")
    now = counted(library, add, other, item=2, add=1)
    assert places(now, then, stored_then) == [(6, "get_batch", 1)]
    past = stored(then) if stored_then else summarise(then)
    higher = {PEAK: then.counts.values[PEAK] * 2}
    higher = replace(then, counts=replace(then.counts, values=then.counts.values | higher))
    assert compare(PEAK, summarise(higher), [past], now.gates).sites == ()
    more = counted(structs.replace(library, count=2), add, item=2, add=1)
    (site,) = compare(OPERATORS, summarise(more), [past], now.gates).sites
    assert (site.line, site.count, site.via) == (5, 1, VIA)


def test_collectives_have_the_lines_of_their_operators():
    """Where they are called now, and of fewer where they were: its line is the other side's."""
    metric, name = "collectives_per_step", "c10d.allreduce_.default"
    place = structs.replace(at(9, text="all_reduce(loss)", count=2), what=name)
    runs = []
    for number, sites, parts in ((1, (), {}), (3, (place,), {name: 2})):
        counts = Counts(
            COUNTS | {metric: number},
            {},
            {OPERATORS: {"aten.mm.default": 1} | parts},
            {OPERATORS: (at(3, what="mm"), *sites)},
        )
        runs.append(summarise(evidence(counts=counts)))
    for line, (then, now) in ((9, runs), (0, reversed(runs))):
        (site,) = compare(metric, now, [then], [metric]).sites
        assert (site.what, site.count, site.line) == ("c10d.allreduce_", 2, line)


# Calls that compute nothing


def judged_calls(then, now):
    """The verdict on the operators of a step that had some parts and has others."""
    known = entry(epochs=[epoch(recordings=[stored(counted(**then))])])
    return judge(counted(**now), known)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (dict(mm=500, view=12), dict(mm=500, unflatten=12)),
        (dict(mm=500, split=4), dict(mm=500, chunk=4)),
        (dict(mm=500, split=1), dict(mm=500, slice=3)),
        (dict(mm=500), dict(mm=500, expand=10)),
        (dict(mm=500), dict(mm=500, detach=1)),  # a loss for the log: what it keeps is counted
    ],
)
def test_views_in_place_of_others_are_the_same(then, now):
    """They compute nothing, and a reader would dispute a red; nor is anything said of them."""
    found = judged_calls(then, now)
    assert found.status is Status.SAME
    assert not any(metric.moved or metric.sites for metric in found.metrics)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (dict(mm=500), dict(mm=500, expand=11)),  # more than 2 %: work for the host
        (dict(mm=500, view=1), dict(mm=500, clone=1)),
        (dict(mm=500), dict(mm=501, view=1)),
        (dict(mm=500, view=1), dict(mm=500, slice_backward=1)),
        (dict(mm=500, sum=3), dict(mm=500, mean=3)),
        (dict(mm=500), dict(mm=500, empty=1)),
    ],
)
def test_whatever_computes_or_allocates_is_other_work(then, now):
    """However few, and though as many calls as before."""
    assert judged_calls(then, now).status is Status.CHANGED


@pytest.mark.parametrize(
    ("then", "now", "status"),
    [
        ("aten.arange.start", "aten.arange.default", Status.SAME),  # arange(0, t) and arange(t)
        ("aten.sum.default", "aten.sum.dim_IntList", Status.SAME),
        ("aten.mul_.Tensor", "aten.mul_.Scalar", Status.SAME),
        ("aten.pow.Tensor_Scalar", "aten.pow.Tensor_Tensor", Status.CHANGED),
        ("aten.div.Tensor", "aten.div.Tensor_mode", Status.CHANGED),
        ("aten.max.default", "aten.max.dim", Status.CHANGED),
    ],
)
def test_an_overload_that_computes_as_much_is_the_same_operator(then, now, status):
    """Others are other work: the name is all that tells a square from a tensor's powers."""
    then, now = (
        evidence(counts=Counts(COUNTS | {OPERATORS: 11}, {}, {OPERATORS: one}))
        for one in ({name: 2, "aten.mm.default": 9} for name in (then, now))
    )
    known = entry(epochs=[epoch(recordings=[stored(then)])])
    assert judge(now, known).status is status


@pytest.mark.parametrize(
    "parts",
    [
        ({}, {"moe.permute.default": 2}),
        ({"aten.view.default": 2}, {"moe::expand": 2}),
        ({"moe.mix.default": 2}, {"moe.mix.slow": 2}),
    ],
)
def test_an_operator_of_another_library_is_no_view(parts):
    """Kernels that move all tokens of a mixture of experts are called permute."""
    sides = [one | {"aten.mm.default": 500} for one in parts]
    then, now = (
        evidence(counts=Counts(COUNTS | {OPERATORS: sum(one.values())}, {}, {OPERATORS: one}))
        for one in sides
    )
    known = entry(epochs=[epoch(recordings=[stored(then)])])
    assert judge(now, known).status is Status.CHANGED


CAST, TYPED = "aten._to_copy.default", "aten._to_copy[bfloat16].default"


@pytest.mark.parametrize(
    ("old", "new", "status"),
    [
        ({CAST: 30}, {CAST: 6, TYPED: 24}, Status.SAME),
        ({CAST: 30}, {CAST: 6, TYPED: 25}, Status.CHANGED),
        ({CAST: 6, TYPED: 24}, {CAST: 6, "aten._to_copy[float16].default": 24}, Status.CHANGED),
    ],
)
def test_casts_are_compared_as_they_were_recorded(old, new, status):
    """A recording that is older than the types of casts has one sum of them."""
    sides = [
        with_counts(
            replace(evidence(), counts=Counts(COUNTS, detail={OPERATORS: parts})),
            **{OPERATORS: sum(parts.values())},
        )
        for parts in (old, new)
    ]
    then, now = (summarise(side) for side in sides)
    assert compare(OPERATORS, now, [then], [OPERATORS]).status is status


def test_a_copy_that_becomes_a_cast_is_other_work():
    """On a CPU a step that copies and casts nothing is taken for no older recording."""
    sound = with_counts(cpu_evidence(), **{OPERATORS: 30})
    then, now = (
        summarise(replace(sound, counts=replace(sound.counts, detail={OPERATORS: {name: 30}})))
        for name in (CAST, TYPED)
    )
    assert compare(OPERATORS, now, [then], [OPERATORS]).status is Status.CHANGED


def test_a_cast_beside_none_has_its_type_and_place():
    """A step that made no cast is no older recording."""
    then = counted(at(1, what="mm"), mm=1)
    name = "aten._to_copy[float64].default"
    parts = {OPERATORS: {"aten.mm.default": 1, name: 1}}
    sites = {OPERATORS: (at(1, what="mm"), structs.replace(at(9), what=name))}
    now = evidence(counts=Counts(COUNTS | {OPERATORS: 2}, {}, parts, sites))
    found = compare(OPERATORS, summarise(now), [stored(then)], now.gates)
    assert [(site.what, site.line) for site in found.sites] == [(name, 9)]
