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
