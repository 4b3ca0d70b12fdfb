"""The identity of real steps on this GPU: what each attack changes, or why it is not known.

A step that is the same is recognised in another process' words by trees of two revisions; here the
two are two functions. Skipped without a GPU.
"""

import threading
import time

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from stepguard.judge.kernel_times import times_as_counted
from stepguard.worker.counters.profiled_steps import (
    PROFILED_STEPS,
    take_profile,
    trace_steps,
)
from stepguard.worker.counters.tally import ACTIVE_STEPS, RankStep, Tally

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SIZE = 1024


class Step:
    """Products and activations; an attack adds to it what a refactor would not."""

    def __init__(self, attack=lambda step: None):
        self.a = torch.randn(SIZE, SIZE, device="cuda")
        self.number, self.attack = 0, attack
        self.side = torch.cuda.Stream()

    def __call__(self):
        self.number += 1
        x = self.a
        for _ in range(4):
            x = torch.nn.functional.gelu(self.a @ x)
        self.attack(self)


def tally(step):
    """What the counting pass keeps of it."""
    found = Tally()
    for _ in range(3):
        step()
    trace_steps(found, RankStep(step, torch.device("cuda")))
    return found


def on_another_stream(step):
    with torch.cuda.stream(step.side):
        step.a.sum()


def in_a_thread(step):
    thread = threading.Thread(target=lambda: step.a.add(1))
    thread.start()
    thread.join()


def every_third(step):
    if step.number % 3 == 0:
        step.a.sum()


def strides_only(step):
    (step.a.t() @ step.a).sum()


def usual_strides(step):
    (step.a @ step.a).sum()


def in_a_graph(step):
    if not hasattr(step, "graph"):
        step.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(step.graph):
            step.b = step.a + 1
    step.graph.replay()


def data_dependent(step):
    step.a.neg_()
    if step.a[0, 0].item() > 0:
        step.a.sum()


def sleeping(step):
    time.sleep(0.0001)


def test_the_same_step_is_the_same():
    """In another object, of other numbers; its profile is whole and its identity known."""
    one, other = tally(Step()), tally(Step())
    assert one.identity.problem == "" and one.identity.parts
    assert list(one.identity.differs_from(other.identity)) == []
    assert (
        one.profile.steps == ACTIVE_STEPS
        and one.profile.lost_share == 0
        and one.profile.incomplete == 0
    )
    assert sum(row.calls[0] for row in one.profile.kernels if row.kind == "GEMM") == 4


def test_another_profile_has_the_counted_kernels():
    """As a pair's launch takes it, after other steps, and reads it, after more steps; one that
    launches a kernel more has not.
    """
    one, other = Step(), Step(lambda step: step.a.sum())
    counted = tally(one).profile
    one()
    times_us = times_as_counted(counted, _later(one))
    assert len(times_us) == len(counted.kernels) and min(times_us) > 0
    assert times_as_counted(counted, _later(other)) == ()


def _later(step):
    taken = take_profile(RankStep(step, torch.device("cuda")), PROFILED_STEPS)
    step()
    profile, problem = taken.kernels()
    assert problem == ""
    return profile


def half(score, *place):
    return score * 0.5


def quarter(score, *place):
    return score * 0.25


def attending(score):
    """A step whose attention the compiler makes from a template, which calls ``score``."""
    heads = torch.randn(1, 2, 256, 64, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(flex_attention)
    return lambda: compiled(heads, heads, heads, score_mod=score)


def test_what_a_template_calls_shows():
    """Another score in flex attention changes neither the kernel's name nor its grid."""
    one, again, other = (tally(attending(score)) for score in (half, half, quarter))
    assert one.identity.problem == "" and list(one.identity.differs_from(again.identity)) == []
    assert list(one.identity.differs_from(other.identity)) == ["operators"]
    rows = [
        [row for row in found.profile.kernels if row.name.startswith("triton_tem")]
        for found in (one, other)
    ]
    assert [row.key for row in rows[0]] == [row.key for row in rows[1]] != []
    assert all(row.code for row in rows[0]) and rows[0][0].code != rows[1][0].code


@pytest.mark.parametrize("attack", [on_another_stream, in_a_thread])
def test_work_of_its_own_shows(attack):
    """On another stream, or launched by another thread."""
    usual, other = tally(Step()).identity, tally(Step(attack)).identity
    assert "kernels and copies" in list(usual.differs_from(other))


def test_strides_alone_show():
    """The product of a transposed view, of equal shapes."""
    usual, other = tally(Step(usual_strides)).identity, tally(Step(strides_only)).identity
    assert "operators" in list(usual.differs_from(other))


@pytest.mark.parametrize(("attack", "problem"), [
    (every_third, "differ from step to step"),
    (data_dependent, "differ from step to step"),
    (in_a_graph, "it launches a graph"),
])  # fmt: skip
def test_what_varies_or_is_hidden_is_not_known(attack, problem):
    """So that there are pairs as ever."""
    found = tally(Step(attack)).identity
    assert problem in found.problem and not found.parts


@pytest.mark.parametrize("setting", [
    "backends.cuda.matmul.allow_tf32",
    "backends.cudnn.deterministic",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
])  # fmt: skip
def test_settings_show(setting):
    """Also those that change no kernel of this step."""
    holder, name = torch, setting
    while "." in name:
        first, _, name = name.partition(".")
        holder = getattr(holder, first)
    before, usual = getattr(holder, name), tally(Step()).identity
    try:
        setattr(holder, name, not before)
        other = tally(Step()).identity
    finally:
        setattr(holder, name, before)
    assert "settings" in list(usual.differs_from(other))


def test_generated_code_shows():
    """Two compiled activations have kernels of one shape, and of other source."""
    identities = []
    for kind in ("tanh", "none", "tanh"):
        torch.compiler.reset()

        def activate(x, kind=kind):
            return torch.nn.functional.gelu(x, approximate=kind) * 2

        compiled = torch.compile(activate)
        found = tally(Step(lambda step, compiled=compiled: compiled(step.a)))
        assert any(row.code for row in found.profile.kernels if row.name.startswith("triton_"))
        identities.append(found.identity)
    assert list(identities[0].differs_from(identities[1]))
    assert list(identities[0].differs_from(identities[2])) == []


def test_what_the_host_alone_does_is_the_pairs_to_see():
    """A sleep is in no identity: docs/judge.md says what then stands for it."""
    assert list(tally(Step()).identity.differs_from(tally(Step(sleeping)).identity)) == []
