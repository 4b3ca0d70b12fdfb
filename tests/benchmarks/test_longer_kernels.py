"""Longer kernels: they compute what the step computes, and are what their tables say."""

import importlib.util
import re
import sys

import pytest
import torch

from benchmarks.changes import SLOWER
from benchmarks.longer_kernels import (
    AS_IT_IS,
    BASES,
    LONGER,
    LONGER_ATTENTION,
    LONGER_GELU,
    LONGER_IN_PART,
    LONGER_PRODUCT,
)
from benchmarks.shared import GPT as PATH
from benchmarks.shared import ROOT
from model.config import GPTConfig
from model.gpt import GPT
from stepguard.worker.counters.operators import OperatorCounter

CONFIG = GPTConfig(vocab_size=64, block_size=16, n_layer=3, n_head=2, n_embd=32)
TOKENS = torch.arange(4 * 17).remainder(61).view(4, 17)


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """A function that returns the class of the model with the edits of a base or a head."""
    return lambda plant: class_of(plant, tmp_path / plant.__name__, monkeypatch)


def class_of(plant, folder, monkeypatch):
    folder.mkdir()
    (folder / PATH).parent.mkdir()
    (folder / PATH).write_text((ROOT / PATH).read_text())
    plant(folder)
    spec = importlib.util.spec_from_file_location("planted_gpt", folder / PATH)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # Dynamo looks there
    spec.loader.exec_module(module)
    return module.GPT


def loss_and_gradients(model):
    loss = model(TOKENS[:, :-1], TOKENS[:, 1:])
    loss.backward()
    return loss.detach(), [each.grad for each in model.parameters()]


@pytest.mark.parametrize(
    ("name", "backend"), [([*LONGER_GELU][-1], "eager"), ([*LONGER_IN_PART][-1], "aot_eager")]
)
def test_more_work_changes_no_number(name, backend, planted):
    """The loss and its gradients are those of the step as it is, on both sides. Only a compiled
    step has the own product, whose gradients are traced, too.
    """
    wanted = loss_and_gradients(GPT(CONFIG))
    for plant in (LONGER[name].plant, LONGER[name].plant_base):
        model = torch.compile(planted(plant)(CONFIG), backend=backend, fullgraph=True)
        found = loss_and_gradients(model)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", [[*LONGER_ATTENTION][0], [*LONGER_IN_PART][0]])
def test_the_own_attention_is_attention(name, planted):
    """The base of a longer attention computes the loss of the step as it is."""
    own = planted(LONGER[name].plant_base)(CONFIG)
    own = torch.compile(own, backend="eager", fullgraph=True)
    with torch.no_grad():
        losses = [model(TOKENS[:, :-1], TOKENS[:, 1:]) for model in (own, GPT(CONFIG))]
    torch.testing.assert_close(*losses, rtol=1e-5, atol=1e-7)


def own_kernels(graph):
    """Return for each own attention and product how many multiply-adds it does on a score or an
    element, and of how many sequences or rows it is.
    """
    found = []
    for node in graph.graph.nodes:
        if node.op == "call_function" and "flex_attention" in str(node.target):
            score = graph.get_submodule(node.args[3].target).graph
            more, of = sum("mul" in str(each.target) for each in score.nodes), node.args[0]
        elif "planted.addmm" in str(node.target):
            more, of = node.args[3], node.args[1]
        else:
            continue
        found.append((more, of.meta["example_value"].shape[0]))
    return found


@pytest.mark.parametrize(
    ("place", "wanted"), [(0, [(1, 2), (0, 2)]), (1, [(25, 64), (25, 64), (0, 64)])]
)
def test_some_layers_keep_the_kernel_of_the_base(place, wanted, planted):
    """As many as the name says get longer. In the base the same layers have the own kernel. An
    attention is of part of the batch, a product of all rows.
    """
    name, found = [*LONGER_IN_PART][place], []

    def keep(graph, _):
        found.append(own_kernels(graph))
        return graph.forward

    for plant in (LONGER[name].plant, LONGER[name].plant_base):
        with torch.no_grad():
            torch.compile(planted(plant)(CONFIG), backend=keep, fullgraph=True)(TOKENS[:, :-1])
    assert found == [wanted, [(0, size) for _, size in wanted]]
    longer, layers = re.search(r", (\d) of (\d) layers$", name).groups()
    assert (int(longer), int(layers)) == (sum(more > 0 for more, _ in wanted), len(wanted))


@pytest.mark.parametrize("name", [[*LONGER_ATTENTION][-1], [*LONGER_PRODUCT][-1], *LONGER_IN_PART])
def test_a_step_without_the_compiler_is_as_it_was(name, planted):
    """So its operators are those of the step as it is, with their FLOPs."""
    calls = []
    for made in (planted(LONGER[name].plant), GPT):
        with OperatorCounter() as counter:
            loss_and_gradients(made(CONFIG))
        calls.append(counter.calls)
    assert calls[0] == calls[1]


def test_sizes_of_each_kernel():
    """Each has a base of its kind, and a name that says how much more work there is."""
    assert len(BASES) == 5
    kinds = (LONGER_GELU, LONGER_ATTENTION, LONGER_PRODUCT, LONGER_IN_PART)
    assert [len(each) for each in kinds] == [3, 2, 3, 2]
    for name, change in LONGER.items():
        count = re.match(r"\d+ ", name)[0]
        assert change.expected == SLOWER
        assert any(re.search(rf"\b{count.strip()}\b", new) for _, _, new in change.edits)
        (base,) = [base for base, edits in BASES.items() if edits == change.base_edits]
        assert (base == AS_IT_IS) is ("gelu" in name)
