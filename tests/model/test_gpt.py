"""The network computes GPT-2, and its formulas count what it computes.

python -m pytest tests/model/test_gpt.py
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from model.config import (
    SIZES,
    GPTConfig,
    causal_flops_per_token,
    flops_per_token,
    num_matmul_params,
    num_params,
)
from model.gpt import GPT

TINY = GPTConfig(n_layer=2, n_head=4, n_embd=32, block_size=24, vocab_size=101)


def batch(config: GPTConfig, rows: int = 3, seq: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(config.vocab_size, (rows, seq + 1), generator=generator)
    return ids[:, :-1], ids[:, 1:]


def copy_from_transformers(model: GPT, reference: nn.Module) -> dict[str, str]:
    """Copy the reference's parameters; return our name for each of its names."""
    theirs = dict(reference.transformer.named_parameters())
    ours = dict(model.named_parameters())
    assert theirs.keys() == ours.keys()
    for name, parameter in theirs.items():
        with torch.no_grad():
            ours[name].copy_(as_ours(name, parameter))
    return {name: name for name in theirs}


def as_ours(name: str, tensor: Tensor) -> Tensor:
    """Transformers stores the layers' weights as (in, out), nn.Linear as (out, in)."""
    return tensor.t() if name.startswith("h.") and tensor.dim() == 2 else tensor


def reference_model(config: GPTConfig) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    reference_config = transformers.GPT2Config(
        vocab_size=config.vocab_size, n_positions=config.block_size, n_embd=config.n_embd,
        n_layer=config.n_layer, n_head=config.n_head, activation_function="gelu_new",
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)  # fmt: skip
    torch.manual_seed(3)
    reference = transformers.GPT2LMHeadModel(reference_config)
    with torch.no_grad():
        for parameter in reference.parameters():  # also the biases and norms, which start constant
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return reference


def test_equals_transformers_gpt2():
    """Logits, loss and every gradient equal those of Hugging Face's GPT2LMHeadModel in float32."""
    reference, model = reference_model(TINY), GPT(TINY)
    names = copy_from_transformers(model, reference)
    inputs, targets = batch(TINY)

    logits, loss = model(inputs), model(inputs, targets)
    loss.backward()
    expected_logits = reference(inputs).logits
    expected_loss = nn.functional.cross_entropy(expected_logits.flatten(0, 1), targets.flatten())
    expected_loss.backward()

    torch.testing.assert_close(logits, expected_logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-6, atol=1e-6)
    theirs = dict(reference.transformer.named_parameters())
    for name, parameter in model.named_parameters():
        expected = as_ours(name, theirs[names[name]].grad)
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-6, msg=name)


def test_the_compiled_loss_is_all_that_is_returned():
    """The graph with targets has one output: a second one, unused, costs a gradient of its size."""
    outputs: list[int] = []

    def count(graph, _):
        (returned,) = [node.args[0] for node in graph.graph.nodes if node.op == "output"]
        outputs.append(len(returned))
        return graph.forward

    loss = torch.compile(GPT(TINY), backend=count)(*batch(TINY))
    assert (loss.shape, outputs) == ((), [1])


def test_no_position_sees_the_future():
    """Changing the last token changes no logits but the last position's."""
    model = GPT(TINY)
    inputs, _ = batch(TINY)
    changed = inputs.clone()
    changed[:, -1] = (changed[:, -1] + 1) % TINY.vocab_size
    before, after = model(inputs), model(changed)
    torch.testing.assert_close(before[:, :-1], after[:, :-1], rtol=0, atol=1e-6)
    assert not torch.equal(before[:, -1], after[:, -1])


@pytest.mark.parametrize("size", SIZES)
def test_num_params_counts_the_model(size: str):
    """The formula for parameters equals a count over the model, for every size."""
    config = SIZES[size]
    model = GPT(config, device="meta")
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert num_params(config) == counted
    positions = model.wpe.weight.numel()
    assert num_params(config, non_embedding=True) == counted - positions


def test_known_figures_of_124m():
    """124m has the published number of parameters and FLOPs per token."""
    config = SIZES["124m"]
    assert num_params(config) == 124_475_904
    assert flops_per_token(config, 1024) == 855_383_040
    assert causal_flops_per_token(config, 1024) == 798_031_872


def counted_flops(config: GPTConfig, rows: int, seq: int) -> tuple[int, int]:
    """FLOPs of (forward, forward and backward) that PyTorch counts for the whole square."""
    model = GPT(config, attention="math")
    inputs, targets = batch(config, rows, seq)
    with FlopCounterMode(display=False) as forward:
        loss = model(inputs, targets)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    return forward.get_total_flops(), forward.get_total_flops() + backward.get_total_flops()


def test_flops_formulas_agree_with_a_count():
    """Counted FLOPs are 6 M + 12 L C T a token: the causal formula plus the half it leaves out,
    the MFU formula less its share for biases and norms; the forward pass is exactly a third."""
    rows, seq = 2, 16
    forward, both = counted_flops(TINY, rows, seq)
    per_token = both / (rows * seq)
    assert forward * 3 == both
    attention_half = 6 * TINY.n_layer * TINY.n_embd * seq
    assert per_token == causal_flops_per_token(TINY, seq) + attention_half
    uncounted = num_params(TINY, non_embedding=True) - num_matmul_params(TINY)
    assert per_token == flops_per_token(TINY, seq) - 6 * uncounted


def test_initial_parameters_follow_gpt2():
    """Weights deviate by 0.02, residual projections by 0.02 / sqrt(2 L); biases 0, norms 1."""
    config = GPTConfig(n_layer=8, n_head=4, n_embd=128, block_size=64, vocab_size=512)
    for name, parameter in GPT(config).named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif ".ln_" in f".{name}":
            assert (parameter == 1).all(), name
        else:
            expected = 0.005 if name.endswith("c_proj.weight") else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.05), name


def test_the_seed_alone_decides_the_parameters():
    """Equal seeds give bitwise equal parameters, other seeds others; the global state is kept."""
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first, second, other = GPT(TINY, seed=5), GPT(TINY, seed=5), GPT(TINY, seed=6)
    assert torch.equal(state, torch.random.get_rng_state())
    for name, parameter in first.named_parameters():
        assert torch.equal(parameter, second.get_parameter(name))
    assert not torch.equal(first.wte.weight, other.wte.weight)


@pytest.mark.parametrize(
    ("field", "value"),
    [("n_layer", 0), ("n_head", 3), ("n_embd", True), ("block_size", -1), ("vocab_size", 5.0)],
)
def test_an_impossible_shape_is_refused(field: str, value: object):
    """A field out of range is a one-line ValueError with the value found."""
    shape = {"n_layer": 2, "n_head": 4, "n_embd": 32, "block_size": 24, "vocab_size": 101}
    with pytest.raises(ValueError, match="possible: ") as caught:
        GPTConfig(**{**shape, field: value})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("formula", [flops_per_token, causal_flops_per_token])
def test_flops_need_a_sequence_that_fits(formula):
    """A sequence longer than the block size has no FLOPs."""
    with pytest.raises(ValueError, match="seq is 25; possible: an int from 1 to 24"):
        formula(TINY, 25)


def test_unknown_attention_is_refused():
    """An attention backend that does not exist is named together with those that do."""
    with pytest.raises(ValueError, match="attention is 'fast'; possible: default, flash"):
        GPT(TINY, attention="fast")
