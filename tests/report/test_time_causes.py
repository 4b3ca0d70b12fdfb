"""The first line of a verdict names what explains the time, before the time itself."""

import pytest
from alarms import of_metrics
from builders import CASE_ID, replace

from stepguard.core.explanation import Cause, Explanation, Kind, Side
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, PartMove, Straggler, Verdict
from stepguard.report import time_causes
from stepguard.report.time_causes import named
from stepguard.report.verdict_text import headline, page_of

GELU = "triton_poi_fused_gelu_5"
GENERIC = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
    "namespace)::TensorListMetadata<1>, at::native::(anonymous namespace)::BinaryOpScalarFunctor"
    "<float, 1, 1, 0>, std::multiplies<float>, float>(float)"
)
TIME = MetricVerdict(
    "step_ms", Status.SLOWER, Reason.BEYOND_MARGIN, 250.0, 254.0, 1.6, limit_pct=0.2
)
LINE = Site(".item()", "model/train.py", 88, "step", "loss.item()", "forward", count=2)
# They are waived: a wait or an exchange more decides before any time.
WAIVED = {"waived_until": "2026-12-31"}
SYNC = MetricVerdict(
    "host_syncs_per_step", Status.CHANGED, Reason.COUNTER_ROSE, 0, 2, sites=(LINE,), **WAIVED
)
EXCHANGES = MetricVerdict(
    "collectives_per_step", Status.CHANGED, Reason.COUNTER_ROSE, 15, 51, **WAIVED
)


MORE = "step_ms +1.6 %: "


def cause(us, kind=Kind.TIME, what=GELU, place="aten::gelu"):
    """A kernel of 6.5 ms that takes so much longer."""
    after = Side((what,), 24.0, 6500.0 + us)
    return Cause(kind, us, what, "forward", place, Side((what,), 24.0, 6500.0), after)


def verdict(causes, *metrics, time=TIME):
    """A verdict on a step 4 ms slower."""
    explanation = Explanation((), 250e3, 254e3, tuple(causes), 100.0)
    blank = Verdict(CASE_ID, time.status, time.reason, against="main (aaa)")
    return replace(of_metrics(blank, (time, *metrics)), explanation=explanation)


@pytest.mark.parametrize(("found", "first"), [
    (verdict([cause(3600.0)]), f"{MORE}6.5 -> 10.1 ms (+3.6), forward: {GELU}"),
    # Many operators have that functor.
    (verdict([cause(3600.0, Kind.TIME, GENERIC, "aten::_foreach_mul_")]),
     f"{MORE}6.5 -> 10.1 ms (+3.6), forward, aten::_foreach_mul_: BinaryOpScalarFunctor"),
    # The sync has a line; the wait that the profile sees has not.
    (verdict([cause(3600.0, Kind.IDLE, "cudaStreamSynchronize")], SYNC), "host_syncs_per_step"),
    (verdict([cause(3600.0, Kind.COPIES, "exposed copies")], SYNC), "host_syncs_per_step"),
    (verdict([cause(2600.0)], SYNC), f"{MORE}6.5 -> 9.1 ms (+2.6), forward: {GELU}"),
    (verdict([cause(3600.0, Kind.COMMUNICATION, "exposed communication")], EXCHANGES),
     "collectives_per_step 15 -> 51 (+36 calls)"),
    (verdict([cause(1600.0)], SYNC), "host_syncs_per_step 0 -> 2 (+2 syncs) model/train.py:88"),
    # Kernels that came and went are named if nothing else is, and no wait is counted.
    (verdict([cause(3600.0, Kind.MOVED, "_pack")]),
     f"{MORE}6.5 -> 10.1 ms (+3.6), forward: _pack moved to _pack"),
    (verdict([cause(3600.0, Kind.MOVED)], SYNC), "host_syncs_per_step"),
    (verdict([cause(3600.0, Kind.MOVED), cause(1600.0)]), f"{MORE}6.5 -> 8.1 ms (+1.6)"),
    # Nothing is a good part of the time, or in its direction, or work.
    (verdict([cause(900.0), cause(-3000.0), cause(3600.0, Kind.CLOCK)]), "step_ms 250.0"),
    (verdict([]), "step_ms 250.0"),
    # The GPU cannot have waited for much longer than the step got slower by.
    (verdict([cause(9600.0, Kind.IDLE, "host late"), cause(3600.0)]), f"{MORE}6.5 -> 10.1 ms"),
    (verdict([cause(9600.0, Kind.IDLE, "host late")]), "step_ms 250.0"),
    (verdict([cause(3600.0, Kind.IDLE, "sync", "model/train.py(88): step")]),
     f"{MORE}6.5 -> 10.1 ms (+3.6), forward, model/train.py(88): step: GPU idle, sync"),
])  # fmt: skip
def test_the_cause_comes_first(found, first):
    """A kernel if it is half of the time, else the sync with its line; beside the time's move."""
    line = headline(found)
    assert line.startswith(f"{CASE_ID}: SLOWER: {first}")
    assert "step_ms " in line and "+1.6 %" in line


FRONT = "triton_red_fused__log_softmax__log_softmax_backward_data_"


@pytest.mark.parametrize(("old", "new", "said"), [
    (
        [f"{FRONT}nll_loss_prepare_softmax_online_18", "a", "b"],
        [f"{FRONT}mul_prepare_softmax_online_18", "a", "b", "c"],
        "triton_red_f...a_mul_pr..._online_18 and 3 more for "
        "triton_red_f...a_nll_lo..._online_18 and 2 more",
    ),
    (["fmha<64>"], ["fmha<128>"], "another form of fmha for fmha"),
])  # fmt: skip
def test_kernels_whose_short_names_are_alike_are_told_apart(old, new, said):
    """By where they differ."""
    found = cause(3600.0, Kind.REPLACED)
    sides = (Side(tuple(names), 24.0, us) for names, us in ((old, 6500.0), (new, 10100.0)))
    found = replace(found, **dict(zip(("before", "after"), sides, strict=True)))
    assert named(found) == said
    assert len(headline(verdict([found]))) <= 160


def test_a_gain_has_a_cause_too():
    """A step that is FASTER is so by what takes less time, or by a wait that is gone."""
    gain = replace(TIME, status=Status.FASTER, new=246.0, change_pct=-1.6)
    line = headline(verdict([cause(-3600.0)], time=gain))
    assert f"FASTER: step_ms -1.6 %: 6.5 -> 2.9 ms (-3.6), forward: {GELU}" in line
    gone = replace(SYNC, status=Status.FASTER, old=2, new=0, sites=(), waived_until="")
    found = verdict([cause(3600.0)], gone, time=gain)
    assert "FASTER: host_syncs_per_step 2 -> 0 (-2 syncs); step_ms" in headline(found)
    paid = replace(EXCHANGES, status=Status.SAME, reason=Reason.TIME_DECIDES, waived_until="")
    assert "FASTER: step_ms" in headline(verdict([], paid, time=gain))


@pytest.mark.parametrize("count", [25, -25])
def test_operators_that_came_are_named_where_nothing_explains_more(count):
    """A copy in an eager norm, whose kernels each take a part of the time. Operators that went
    explain no slower step; a cause of a quarter comes first.
    """
    where = Site("aten.clone.default", "model/gpt.py", 130, "norm", "x.clone()", count=count)
    moved = PartMove("aten.clone.default", 0, count)
    operators = MetricVerdict(
        "operator_calls_per_step", Status.CHANGED, Reason.WORK_MOVED, 500, 500 + count,
        moved=(moved,), sites=(where,),
    )  # fmt: skip
    found = headline(verdict([], operators))
    named = f"{CASE_ID}: SLOWER: +25 aten.clone in norm (model/gpt.py:130); step_ms 2"
    assert found.startswith(named) is (count > 0), found
    assert page_of(verdict([], operators)).place == (where if count > 0 else None)
    assert GELU in headline(verdict([cause(3600.0)], operators))


def test_an_operator_whose_line_is_unknown_gets_no_other_ones_line():
    """It comes first among those that moved; the first with a line went away."""
    unknown = Site("aten.mul.Tensor", count=25)
    gone = Site("aten.add.Tensor", "model/gpt.py", 60, "norm", "x + y", count=-12)
    operators = MetricVerdict(
        "operator_calls_per_step", Status.CHANGED, Reason.WORK_MOVED, 500, 513,
        moved=(PartMove("aten.mul.Tensor", 0, 25), PartMove("aten.add.Tensor", 12, 0)),
        sites=(unknown, gone),
    )  # fmt: skip
    assert headline(verdict([], operators)).startswith(f"{CASE_ID}: SLOWER: step_ms 250.0")
    alone = headline(of_metrics(verdict([]), (operators,)))
    assert alone == f"{CASE_ID}: CHANGED: -12 aten.add in norm (model/gpt.py:60)"


@pytest.mark.parametrize("name", ["peak_allocated_bytes", "allocated_bytes_between_steps"])
def test_memory_without_a_line_has_the_kernel_of_the_slower_step(name):
    """That is what changed. Its own line is better, and a gain explains no rise."""
    memory = MetricVerdict(name, Status.CHANGED, Reason.COUNTER_ROSE, 2**31, 2**32, 100.0)
    found = verdict([cause(3600.0)], memory)
    said = f"{name} +100.0 %: 6.5 -> 10.1 ms (+3.6), forward: {GELU}"
    assert headline(found) == f"{CASE_ID}: CHANGED: {said}"
    gain = replace(TIME, status=Status.FASTER, new=246.0, change_pct=-1.6)
    placed = replace(memory, sites=(LINE,))
    for other in (verdict([cause(-3600.0)], memory, time=gain), verdict([cause(3600.0)], placed)):
        assert headline(other).startswith(f"{CASE_ID}: CHANGED: {name} 2.000 GiB")


def test_a_setting_that_changed_comes_first():
    """Whatever kernels it makes others, and though it is waived."""
    threads = PartMove("get_num_threads = 16", 0, 1)
    settings = MetricVerdict(
        "settings", Status.CHANGED, Reason.WORK_MOVED, 0, 1, moved=(threads,), **WAIVED
    )
    found = verdict([cause(3600.0)], settings, SYNC)
    assert headline(found).startswith(
        f"{CASE_ID}: SLOWER: settings: get_num_threads default -> 16; step_ms 250.0"
    )
    equal = replace(settings, status=Status.SAME, reason=Reason.EQUAL, moved=())
    assert headline(verdict([cause(3600.0)], equal)).endswith(f", forward: {GELU}")


def test_a_kernel_has_the_line_of_its_operator():
    """If that is called more or less often than before; the compiler names kernels by operators."""
    sites = [
        Site(what, "model/gpt.py", n, "forward", "F.gelu(x)", count=1)
        for n, what in enumerate(("aten.mul.Tensor", "aten.gelu.default"), start=72)
    ]
    operators = MetricVerdict(
        "operator_calls_per_step", Status.SAME, Reason.TIME_DECIDES, 9, 11, sites=tuple(sites)
    )
    found = verdict([cause(3600.0)], operators)
    assert f"{MORE}6.5 -> 10.1 ms (+3.6), forward model/gpt.py:73: {GELU}" in headline(found)
    assert page_of(found).place == sites[1]
    found = verdict([cause(3600.0)], replace(operators, ranks=(1,)))
    assert f"(+3.6), forward, on rank 1 model/gpt.py:73: {GELU}" in headline(found)


def attention(kind, line, function="forward", count=32, direction=""):
    """A call of fused attention, as it is counted."""
    what = f"aten._scaled_dot_product_{kind}_attention{direction}.default"
    phase = "backward" if direction else ""
    return Site(what, "model/gpt.py", line, function, "sdpa(q, k, v)", phase, count)


# Its line is that of loss.backward().
BACKWARD = attention("efficient", 210, "step", direction="_backward")


def placed(where, *sites, us=3600.0):
    """The line of a library's kernel whose operator is ``where``."""
    moved = MetricVerdict(
        "operator_calls_per_step", Status.SAME, Reason.TIME_DECIDES, 9, 11, sites=sites
    )
    return time_causes.site_of(
        cause(us, Kind.REPLACED, "fmha_cutlassB_bf16", where), verdict([], moved)
    )


# Operators of kernels are those of a profile of an H100, 2026-11-23 (96e72680:studies/power).
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_librarys_kernel_has_the_line_of_the_forward_operator(direction):
    """Inside the operator that is counted, and in either pass; other operators moved beside it."""
    new, old = attention("efficient", 61), attention("cudnn", 59, count=-32)
    assert placed(f"aten::_efficient_attention_{direction}", old, new, BACKWARD) == new
    assert placed(f"aten::_flash_attention_{direction}", old, new, BACKWARD) is None
    assert placed(f"aten::_cudnn_attention_{direction}", old, new, BACKWARD) is None
    assert placed(f"aten::_cudnn_attention_{direction}", old, new, us=-900.0) == old


def test_a_backward_kernel_of_two_functions_has_no_line():
    """Either may be it; and the line that starts the backward pass is none. Of two lines in one
    function it is the first.
    """
    two = attention("efficient", 61), attention("efficient", 95, "Cross.forward")
    assert placed("aten::_efficient_attention_backward", *two, BACKWARD) is None
    outer = "aten::_scaled_dot_product_efficient_attention_backward"
    assert placed(outer, *two, BACKWARD) is None
    assert placed(outer, two[0], BACKWARD) == two[0]
    assert placed(outer, two[0], attention("efficient", 64), BACKWARD) == two[0]


def test_a_backward_operator_is_no_other_one_whose_name_ends_alike():
    """An ELU is no GELU; a loss has its direction in the forward operator's name, too."""
    gelu = Site("aten.gelu.default", "model/gpt.py", 73, "forward", "F.gelu(x)")
    loss = Site("aten.nll_loss_forward.default", "model/gpt.py", 90, "loss", "F.nll_loss(x, y)")
    assert placed("aten::elu_backward", gelu) is None
    assert placed("aten::gelu_backward", gelu, loss) == gelu
    assert placed("aten::nll_loss_backward", gelu, loss) == loss


@pytest.mark.parametrize(("where", "operator", "of_it"), [
    ("aten::addmm", "aten.add.Tensor", False),
    ("aten::mm", "aten.t.default", False),
    ("aten::_log_softmax", "aten._softmax.default", False),
    ("aten::_foreach_mul_", "aten.mul.Tensor", False),
    ("triton_tem_fused_addmm_5", "aten.add.Tensor", False),
    ("triton_tem_fused_addmm_5", "aten.addmm.default", True),
    ("triton_poi_fused__to_copy_add_3", "aten.add.Tensor", True),
    ("triton_poi_fused__to_copy_add_3", "aten._to_copy[bfloat16].default", True),
    ("triton_poi_fused_gelu_gelu_backward_view_6", "aten.gelu[tanh].default", True),
    # The backward pass of a product with a bias, and of an embedding.
    ("aten::mm", "aten.addmm.default", True),
    ("aten::embedding_dense_backward", "aten.embedding.default", True),
    ("mine::norm_backward", "mine.norm.default", True),
    ("model/gpt.py(73): forward", "aten.gelu.default", False),
])  # fmt: skip
def test_an_operator_is_its_kernels_by_its_whole_name(where, operator, of_it):
    """Whatever its overload and its form: no name is part of another one."""
    site = Site(operator, "model/gpt.py", 73, "forward", "x")
    assert placed(where, site) == (site if of_it else None)


def test_a_kernel_of_the_straggler_has_its_rank():
    """Where the source says no line: the one rank that got slower against itself."""
    found = replace(verdict([cause(3600.0)]), straggler=Straggler(1, 250.0, 257.0, 0.1))
    assert f"(+3.6), forward, on rank 1: {GELU}" in headline(found)


def test_the_annotation_is_at_the_cause():
    """GitHub marks the sync's line, though the time decided."""
    assert page_of(verdict([], SYNC)).place == LINE
    assert page_of(verdict([cause(3600.0)], SYNC)).place is None


def test_no_row_is_of_nothing():
    """A cause that rounds to +0.00 ms, and what is left of the step."""
    found = verdict([cause(3600.0), cause(1.5), cause(-1.0)])
    shown = "\n".join(time_causes.lines(found))
    assert "+3.60 ms: " in shown and "0.00 ms" not in shown
