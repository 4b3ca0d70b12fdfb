"""What would make a host wait for a GPU, found on a CPU: programs of known waits."""

import importlib
import re
import sys
from functools import partial

import pytest
import torch
from msgspec import structs
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from training_runs import TINY

from model import workloads
from model.config import SIZES
from stepguard.core.explanation import Cause, Kind, Side
from stepguard.core.reasons import Reason
from stepguard.core.source_marks import allow_sync, allowed_by_comment, allowed_now
from stepguard.core.status import Status
from stepguard.core.step_numbers import StepNumbers
from stepguard.core.verdict import MetricVerdict
from stepguard.judge.findings import Findings, verdict_of
from stepguard.report.time_causes import site_of
from stepguard.worker.counters import sync_candidates
from stepguard.worker.counters.counting import counters_of
from stepguard.worker.counters.operators import OperatorCounter, count_operators
from stepguard.worker.counters.sync_candidates import count_candidates
from stepguard.worker.counters.tally import RankStep, Tally
from stepguard.worker.counters.tensor_devices import Placement
from stepguard.worker.rank_position import Phases

CPU = torch.device("cpu")
METRIC = "sync_candidates_per_step"


def count_eager(tally, counted):
    """Count what the second part of the counting pass counts."""
    for counter in counters_of(counted, eager=True):
        counter.count(tally, counted)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Writes a step() of the given lines into a tree of its own; (tally, sites) of counting it."""

    def count(*lines, before="", stable=True):
        head = [
            "import torch",
            "from stepguard.core.source_marks import allow_sync",
            "DEVICE, CPU = 'cpu', torch.device('cpu')",
            "x = torch.arange(6.0, device=DEVICE).reshape(2, 3)",
            "w = torch.ones(6, requires_grad=True, device=DEVICE)",
            before,
            "def step(phase):",
        ]
        text = "\n".join([*head, *[f"    {line}" for line in lines]]) + "\n"
        (tmp_path / "waiting.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        sys.modules.pop("waiting", None)
        importlib.invalidate_caches()
        phases, tally, placement = Phases(), Tally(), Placement()
        with placement.observed():  # as a factory is called
            module = importlib.import_module("waiting")
        step = partial(module.step, phases)
        try:
            count_eager(tally, RankStep(step, CPU, phases, placement=placement))
        finally:
            del sys.modules["waiting"]
        assert (METRIC in tally.lists) is not stable
        return tally, tally.sites.get(METRIC, ())

    return count


@pytest.fixture
def waits(program):
    """(count, what) of a step of one line, whose site must be that line."""

    def count(line):
        tally, sites = program(line)
        assert len(sites) <= 1
        for site in sites:
            assert (site.file, site.line, site.function) == ("waiting.py", 8, "step")
            assert (site.text, site.phase, site.allowed) == (line, "", "")
            assert site.count == tally.values[METRIC]
        return tally.values[METRIC], sites[0].what if sites else ""

    return count


@pytest.mark.parametrize(("line", "count", "what"), [
    ("x.sum().item()", 1, ".item()"),
    ("float(x.sum()) + int(x[0, 0])", 2, ".item()"),
    ("bool(x.sum() > 0)", 1, ".item()"),
    ("f'{x.mean():.2f}'", 1, ".item()"),
    ("x[: x.sum().long() * 0]", 1, ".item()"),
    ("x.cpu()", 1, "copy to the host"),
    ("x.cpu().numpy()", 1, "copy to the host"),
    ('x.to("cpu")', 1, "copy to the host"),
    ("torch.empty(2, 3).copy_(x)", 1, "copy to the host"),
    ("x.cpu().sum().item()", 1, "copy to the host"),
    ('x.to(torch.device("cpu"))', 1, "copy to the host"),
    ("x.tolist()", 1, ".tolist()"),
    ("x.numpy(force=True)", 1, ".numpy()"),
    ("repr(x)", 1, "print of a tensor"),
    ("x.nonzero()", 1, "nonzero"),
    ("torch.where(x > 2)", 1, "nonzero"),
    ("torch.argwhere(x)", 1, "nonzero"),
    ("x[x > 2]", 1, "nonzero of a mask"),
    ("x[x > 2] = x[x > 2]", 2, "nonzero of a mask"),
    ("x.index_put((x > 2,), torch.ones(1))", 1, "nonzero of a mask"),
    ("torch.masked_select(x, x > 2)", 1, "masked_select"),
    ("torch.unique(x)", 1, "unique"),
    ("torch.unique(x, dim=0)", 1, "unique"),
    ("torch.unique_consecutive(x)", 1, "unique_consecutive"),
    ("torch.repeat_interleave(x, x[0, 1:].long(), dim=0)", 1, "repeat_interleave"),
    ("torch.equal(x, x)", 1, "equal"),
    ("torch.allclose(x, x)", 1, "allclose"),
    ("torch.bincount(x[0].long())", 1, "bincount"),
])  # fmt: skip
def test_what_waits_is_found_where_it_stands(waits, line, count, what):
    """Count, what, line, function and text of a step of one line."""
    assert waits(line) == (count, what)


@pytest.mark.parametrize("line", [
    "x + 1",
    "x.to(DEVICE)",
    "x.to(CPU)",
    "x.to(x)",
    "x.to(torch.bfloat16)",
    "x.to(device=x.device, dtype=torch.half)",
    "x.to(x.device, non_blocking=x.device.type != 'cpu')",
    "x.to(x.device)  # never 'cpu' here",
    "x.to(device='cpu', non_blocking=True)",
    "torch.empty(2, 3).copy_(x, non_blocking=True)",
    "x[torch.zeros(2, dtype=torch.long)]",
    "w[torch.zeros(2, dtype=torch.long)].sum().backward()",
    "x[x > 100] = 0.0",
    "x.masked_fill(x > 2, 0.0)",
    "torch.where(x > 2, x, -x)",
    "torch.repeat_interleave(x, x[0, 1:].long(), dim=0, output_size=3)",
    "torch.repeat_interleave(x, 2, dim=0)",
    "torch.count_nonzero(x)",
    "torch.isfinite(x).all()",
    "torch.nn.utils.clip_grad_norm_([w], 1.0)",
    "(w * 2).sum().backward()",
    "str(x.shape) + str(x.dtype)",
    "x.numel() + len(x) + x.stride(0)",
])  # fmt: skip
def test_what_does_not_wait_is_none(waits, line):
    """Shapes, integer indices, filled masks, .to(device) of this run's CPU and copies that do not
    block are no waits.
    """
    assert waits(line) == (0, "")


def test_lines_and_functions_are_told_apart(program):
    """Two lines are two sites; what a helper does is the helper's, with its class."""
    helper = "class Meter:\n    def read(self):\n        return x.sum().item()\n"
    tally, sites = program("Meter().read()", "Meter().read()", "x.nonzero()", before=helper)
    assert tally.values[METRIC] == 3
    assert [(site.function, site.line, site.text, site.what, site.count) for site in sites] == [
        ("Meter.read", 8, "return x.sum().item()", ".item()", 2),
        ("step", 13, "x.nonzero()", "nonzero", 1),
    ]


def test_a_wait_inside_torch_is_the_callers(program):
    """torch's own .item() has the line that called torch, also through a module's hooks."""
    tally, sites = program(
        "net = torch.nn.Linear(3, 3)",
        "net.register_forward_hook(lambda *a: None)",
        "net(x).sum().backward()",
        "torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)",
    )
    assert tally.values[METRIC] == 1
    assert [(site.line, site.what) for site in sites] == [(11, ".item()")]


def test_phases_are_the_steps_own(program):
    """Micro-steps and phases as the program enters them; each step begins without one."""
    _, sites = program(
        "x.nonzero()", "for index in range(2):", "    phase(f'micro_step_{index}')",
        "    phase('forward')", "    x.sum().item()", "phase('optimizer')",
        "x.tolist()")  # fmt: skip
    assert [(site.text, site.phase) for site in sites] == [
        ("x.nonzero()", ""),
        ("x.sum().item()", "forward, each micro-step"),
        ("x.tolist()", "optimizer"),
    ]


NET = """
class Router(torch.nn.Module):
    def forward(self, y):
        return y[y > 0].sum()
router = Router()
"""


def test_phases_that_nobody_names_are_seen(program):
    """A wait inside of a module is in the forward pass; one of autograd's in the backward pass, and
    is named by the forward operator that it is of; what the loop waits for by itself is in none.
    """
    _, sites = program("loss = router(w)", "loss.backward()", "loss.item()", before=NET)
    rows = [(site.text, site.function, site.phase, site.via or "") for site in sites]
    origin = "backward of aten.index, waiting.py:9 in Router.forward"
    assert rows == [
        ("return y[y > 0].sum()", "Router.forward", "forward", ""),
        ("loss.backward()", "step", "backward", origin),
        ("loss.item()", "step", "", ""),
    ]
    # The same operator at another line number is the same place.
    moved = structs.replace(sites[1], via=origin.replace(":9", ":10"))
    assert moved.key == sites[1].key


def test_a_hook_s_wait_in_a_backward_pass_is_at_its_own_line(program):
    """It is Python of the tree: no operator of the forward pass stands in for it."""
    lines = (
        "loss = (w * 2).sum()",
        "loss.register_hook(lambda g: (float(g), None)[1])",
        "loss.backward()",
    )
    _, sites = program(*lines)
    assert [(site.line, site.phase, site.via or "") for site in sites] == [(9, "backward", "")]


@pytest.mark.parametrize("factory", ["forward", "forward_backward", "train_step"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_workloads_do_not_wait(factory, precision, monkeypatch):
    """A clean step has no candidate: nothing is to be mended where nothing waits."""
    monkeypatch.setitem(SIZES, "tiny", TINY)
    monkeypatch.setattr(sync_candidates, "CANDIDATE_STEPS", 3)  # every step does the same
    made = dict(size="tiny", batch=1, seq=16, precision=precision, compile=False, device="cpu")
    phases, tally, placement = Phases(), Tally(), Placement()
    with placement.observed():
        workload = getattr(workloads, factory)(**made)
    workload.on_phase = phases
    count_candidates(tally, RankStep(workload.step, CPU, phases, placement=placement))
    assert tally.values[METRIC] == 0
    assert METRIC not in tally.sites
    workload.close()


# Allowed


def test_an_allowed_wait_is_listed_and_not_counted(program):
    """By allow_sync and by the comment: two sites with their reasons, beside one that counts."""
    tally, sites = program(
        "x.sum().item()",
        "with allow_sync('  logged every 100 steps '):",
        "    x.sum().item()",
        "x.sum().item()  # stepguard: allow sync: early stopping",
    )
    assert tally.values[METRIC] == 1
    assert [(site.line, site.allowed) for site in sites] == [
        (8, ""),
        (10, "logged every 100 steps"),
        (11, "early stopping"),
    ]


@pytest.mark.parametrize(("comment", "reason"), [
    ("# stepguard: allow sync: logged", "logged"),
    ("# stepguard: allow sync - logged", "logged"),
    ("#stepguard:allow sync, every 100 steps", "every 100 steps"),
    ("# noqa  # stepguard: allow sync: logged ", "logged"),
    ("# stepguard: allow sync", ""),
    ("# stepguard: allow sync:  ", ""),
    ("# stepguard: allow syncs: logged", ""),
    ("# stepguard: allow sync-free code only", ""),
    ("# allow sync: logged", ""),
    ("stepguard: allow sync: logged", ""),
    ("", ""),
])  # fmt: skip
def test_what_the_comment_says(comment, reason):
    """The marker as documented, anywhere in the line's comment; nothing that looks like it."""
    assert allowed_by_comment(f"print(loss.item())  {comment}") == reason


@pytest.mark.parametrize("reason", ["", " ", "\n\t"])
def test_allow_sync_needs_a_reason(reason):
    """An empty reason raises at the with, and leaves nothing allowed."""
    with pytest.raises(ValueError, match="reason"), allow_sync(reason):
        raise AssertionError("the block must not run")
    assert allowed_now() == ""


def test_allow_sync_ends_with_its_block():
    """The innermost reason holds; after an exception none does."""
    with pytest.raises(KeyError), allow_sync("outer"):
        with allow_sync("inner"):
            assert allowed_now() == "inner"
        assert allowed_now() == "outer"
        raise KeyError
    assert allowed_now() == ""


def test_a_copy_to_the_host_over_several_lines(program):
    """As a formatter wraps it: the call is read whole, and stands at its own line."""
    tally, sites = program("x.to(", "    device='cpu',", "    dtype=torch.float64,", ")")
    assert (tally.values[METRIC], [site.line for site in sites]) == (1, [8])


def test_a_wait_in_one_step_of_ten_counts(program):
    """Whoever logs every tenth step is told of, with the line, at whatever step counting begins."""
    lines = ("clock.append(0)", "if len(clock) % 10 == 0:", "    x.sum().item()")
    tally, sites = program(*lines, before="clock = []", stable=False)
    assert tally.values[METRIC] == 1 and len(tally.lists[METRIC]) == 10
    assert [(site.what, site.text) for site in sites] == [(".item()", "x.sum().item()")]


LAYER = torch.nn.Linear(4, 4, bias=False)  # a product of 64 FLOPs


def _loss(y):
    return LAYER(y).square().sum()


def _slope(y):
    (found,) = torch.autograd.grad(_loss(y), y, create_graph=True)
    return found.square().sum()


def _from_a_hook(y):
    loss = _loss(y * 1)

    def also(_):
        with torch.enable_grad():
            torch.autograd.grad(_loss(y), y)

    loss.register_hook(also)
    loss.backward(inputs=[y])


def _checkpointed(reentrant, y):
    checkpoint(LAYER, y, use_reentrant=reentrant).sum().backward()


@pytest.mark.parametrize(
    ("passes", "products"),
    [
        (lambda y: torch.autograd.grad(_loss(y), y), 2),
        (lambda y: torch.autograd.grad(_loss(y), [*LAYER.parameters()]), 2),
        (lambda y: _slope(y).backward(inputs=[y]), 4),
        (lambda y: torch.autograd.backward([_loss(y), _loss(y)], inputs=[y]), 4),
        (lambda y: torch.func.grad(_loss)(y), 2),
        (lambda y: torch.func.vmap(torch.func.grad(_loss))(y), 2),
        (_from_a_hook, 4),
        (partial(_checkpointed, True), 4),  # the forward pass once more
        (partial(_checkpointed, False), 3),  # it ends where nothing more is needed
    ],
    ids="input parameters penalty losses func per_sample hook reentrant checkpoint".split(),
)
def test_the_flops_of_a_backward_pass_are_counted_however_it_is_called(passes, products):
    """With respect to a leaf, with a graph of its own, from a hook, by torch.func."""
    tally, y = Tally(), torch.ones(2, 4, requires_grad=True)
    count_operators(tally, RankStep(lambda: passes(y), CPU))
    assert tally.values["flops_per_step"] == products * 64


def test_a_label_is_no_operator():
    """It is no work of the step. An optimizer labels its own zero_grad, a module does not."""
    x = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([x], lr=0.1)
    with OperatorCounter() as plain:
        (x * 2).sum()
    with OperatorCounter() as labelled, torch.profiler.record_function("loss"):
        (x * 2).sum()
        optimizer.zero_grad()
    assert labelled.calls == plain.calls and plain.calls.total() == 2


def test_an_operator_of_a_backward_pass_names_the_one_that_it_is_of(program):
    """Its own line starts the whole pass. A refactor that moves the forward line moves no place."""
    net = "def scaled(y):\n    return torch.nn.functional.gelu(y) * 3"
    tally, _ = program("scaled(w).sum().backward()", before=net)
    sites = tally.sites["operator_calls_per_step"]
    (found,) = (site for site in sites if site.what == "aten.gelu_backward.default")
    assert (found.place, found.phase) == ("waiting.py:9", "backward")
    assert found.via == "backward of aten.gelu, waiting.py:7 in scaled"
    (forward,) = (site for site in sites if site.what == "aten.gelu.default")
    assert (forward.place, forward.phase, forward.via or "") == ("waiting.py:7", "", "")


HELPER = """
def norm(y):
    return y.square().sum()
def first(y):
    return norm(y)
def second(y):
    return norm(y) + norm(y)
"""


def test_callers_of_a_function_are_counted(program):
    """How many operators it calls for each caller; 0 if it only passes calls on."""
    tally, _ = program("first(x)", "second(x)", before=HELPER)
    assert tally.callers["waiting.py norm"] == {
        "first (waiting.py:10): return norm(y)": 2,
        "second (waiting.py:12): return norm(y) + norm(y)": 4,
    }
    assert tally.callers["waiting.py second"] == {"step (waiting.py:16): second(x)": 1}
    assert tally.callers["waiting.py first"] == {"step (waiting.py:15): first(x)": 0}


def test_a_cast_has_its_type():
    """One to another type is another operator; a copy of the same type has none, on any line."""
    x = torch.ones(2)
    with OperatorCounter() as counter:
        x.bfloat16(), x.to(torch.bfloat16), x.half().float(), x.to(torch.float32, copy=True)
    assert counter.calls == {
        "aten._to_copy[bfloat16].default": 2,
        "aten._to_copy[float16].default": 1,
        "aten._to_copy[float32].default": 1,
        "aten._to_copy.default": 1,
    }


@pytest.mark.parametrize(("single", "precision", "kind"), [
    (True, "highest", torch.float32),
    (True, "a GPU's TF32", torch.float32),
    (False, "medium", torch.float32),
    (False, "highest", torch.bfloat16),
])  # fmt: skip
def test_numbers_are_of_single_precision_if_nothing_rounds_on_this_device(single, precision, kind):
    """What a script sets for a GPU that it does not use rounds nothing."""
    x, tally = torch.ones(2, 2, dtype=kind), Tally(numbers=StepNumbers())
    try:
        if precision == "a GPU's TF32":
            torch.backends.cuda.matmul.allow_tf32 = True
        else:
            torch.set_float32_matmul_precision(precision)
        count_operators(tally, RankStep(lambda: x @ x, CPU))
    finally:
        torch.set_float32_matmul_precision("highest")
    assert tally.numbers.single == single


def _attended(causal):
    x = torch.ones(1, 1, 4, 8, requires_grad=True)
    functional.scaled_dot_product_attention(x, x, x, is_causal=causal).sum().backward()


def _activated(form):
    functional.gelu(torch.ones(2, requires_grad=True), approximate=form).sum().backward()


ATTENTION = "aten._scaled_dot_product_flash_attention_for_cpu"


@pytest.mark.parametrize(("does", "names"), [
    (partial(_activated, "tanh"), {"aten.gelu[tanh].default", "aten.gelu_backward[tanh].default"}),
    (partial(_activated, "none"), {"aten.gelu.default", "aten.gelu_backward.default"}),
    (partial(_attended, True),
     {f"{ATTENTION}[causal].default", f"{ATTENTION}_backward[causal].default"}),
    (partial(_attended, False), {f"{ATTENTION}.default", f"{ATTENTION}_backward.default"}),
    (lambda: torch.ones(2).div(2, rounding_mode="floor"), {"aten.div[floor].Tensor_mode"}),
    (lambda: torch.ones(2).div(2), {"aten.div.Tensor"}),
])  # fmt: skip
def test_the_form_of_an_operator_is_in_its_name(does, names):
    """As many calls, and another step: a GELU, an attention, a rounding of another form. Not where
    it is left out, and never a number.
    """
    with OperatorCounter() as counter:
        does()
    assert names <= set(counter.calls)
    others = set(counter.calls) - names
    assert not any("[" in name or "gelu" in name or "attention" in name for name in others)
    with OperatorCounter(by_form=False) as plain:
        does()
    assert set(plain.calls) == {re.sub(r"\[\w+\]", "", name) for name in counter.calls}


# A compiled backward pass is one call to autograd, whichever way the compiler runs its operators.
COMPILED = partial(torch.compile, backend="aot_eager")


@pytest.mark.parametrize("how", [lambda step: step, COMPILED], ids=["eager", "compiled"])
def test_the_backward_operator_of_a_profile_has_the_forward_line(how):
    """Eager and compiled, where only names tell which line of the forward pass a kernel is of."""
    step = how(partial(_attended, True))
    step()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step()
    (ran,) = {e.name for e in profiled.events() if e.name.endswith("attention_for_cpu_backward")}
    with torch.compiler.set_stance("force_eager"), OperatorCounter() as counter:
        step()
    sites = counter.sites()
    (forward,) = (s for s in sites if s.what == f"{ATTENTION}[causal].default")
    assert "scaled_dot_product_attention" in forward.text
    metric = MetricVerdict(
        "operator_calls_per_step", Status.CHANGED, Reason.WORK_MOVED, 0, 1, sites=sites
    )
    side = Side((ran,), 1.0, 1.0)
    found = verdict_of(Findings("step", (metric,)))
    assert site_of(Cause(Kind.TIME, 1.0, "a kernel", "", ran, side, side), found) == forward
