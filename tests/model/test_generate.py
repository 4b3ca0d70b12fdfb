"""Generated text does not depend on how it is computed, and is what the model says.

python -m pytest tests/model/test_generate.py
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from model.config import GPTConfig
from model.generate import Sampling, generate
from model.gpt import GPT

TINY = GPTConfig(n_layer=2, n_head=3, n_embd=48, block_size=70, vocab_size=101)
MODEL = GPT(TINY, seed=2)
PROMPTS = st.lists(st.lists(st.integers(0, 100), min_size=1, max_size=40), min_size=1, max_size=3)


@torch.no_grad()
def sharpened(model: GPT) -> GPT:
    """A model that has opinions: fresh parameters make all tokens about equally likely."""
    for parameter in model.parameters():
        parameter.mul_(6)
    return model


sharpened(MODEL)


@settings(max_examples=40, deadline=None)
@given(
    prompts=PROMPTS,
    tokens=st.integers(1, 25),
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_k=st.sampled_from([None, 1, 5, 500]),
    seed=st.integers(0, 9),
)
def test_a_cache_changes_no_bit(prompts, tokens, temperature, top_k, seed):
    """Logits and ids are the same, bit for bit, with the past kept or computed anew each time."""
    sampling, seen = Sampling(temperature, top_k, seed), {}
    for cache in (True, False):
        logits: list[Tensor] = []
        rows = generate(MODEL, prompts, tokens, sampling, cache=cache, on_logits=logits.append)
        seen[cache] = rows, torch.stack(logits)
    assert seen[True][0] == seen[False][0]
    assert torch.equal(seen[True][1], seen[False][1])


@settings(max_examples=20, deadline=None)
@given(prompts=PROMPTS, tokens=st.integers(1, 25))
def test_the_logits_are_the_models(prompts, tokens):
    """At every step they are those of the plain forward pass over the whole text so far."""
    logits: list[Tensor] = []
    rows = generate(MODEL, prompts, tokens, Sampling(0.0), on_logits=logits.append)
    shortest = min(map(len, prompts))
    for row, prompt in enumerate(prompts):
        assert rows[row][: len(prompt)] == prompt and len(rows[row]) == len(prompt) + tokens
        with torch.no_grad():
            expected = MODEL(torch.tensor(rows[row])[None])[0]
        found = torch.stack(logits)[: len(rows[row]) - shortest, row]
        torch.testing.assert_close(found, expected[shortest - 1 : -1], rtol=1e-4, atol=1e-4)
        assert rows[row][len(prompt) :] == found[len(prompt) - shortest :].argmax(-1).tolist()


def test_a_batch_of_one_is_that_prompt_alone():
    """What a prompt becomes does not depend on which others are continued with it."""
    prompts = [[5, 6, 7], [1] * 30, [9]]
    together = generate(MODEL, prompts, 20, Sampling(0.0))
    assert together == [generate(MODEL, [one], 20, Sampling(0.0))[0] for one in prompts]


def test_sampling_follows_its_seed():
    """Equal seeds give equal text, other seeds another."""
    one, same, other = (
        generate(MODEL, [[1, 2]], 30, Sampling(1.0, seed=seed))[0] for seed in (1, 1, 2)
    )
    assert one == same != other


def test_choices_have_the_models_frequencies():
    """Drawn often, ids come as often as softmax says, and none but the k likeliest with top_k."""
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).repeat(40_000, 1)
    generator = torch.Generator().manual_seed(1)
    for temperature, top_k, kept in ((1.0, None, 4), (0.5, 2, 2), (2.0, 3, 3)):
        drawn = Sampling(temperature, top_k).choose(logits, generator)
        shares = torch.bincount(drawn, minlength=4) / len(drawn)
        wanted = logits[0] / temperature
        wanted[: 4 - kept] = -torch.inf
        torch.testing.assert_close(shares, wanted.softmax(-1), rtol=0, atol=0.01)


@pytest.mark.parametrize(("prompts", "tokens", "message"), [
    ([], 5, "a prompt is empty"),
    ([[1], []], 5, "a prompt is empty"),
    ([[1] * 40], 31, "40 tokens of prompt and 31 more are 71; possible: at most 70"),
    ([[101]], 5, "id 101 in a prompt; possible: 0 to 100"),
    ([[-1]], 5, "id -1 in a prompt"),
    ([[1]], 0, "tokens is 0; possible: an int of 1 or more"),
])  # fmt: skip
def test_an_impossible_request_is_refused(prompts, tokens: int, message: str):
    """It is an error of one line with the value found and the values possible."""
    with pytest.raises(ValueError, match=message):
        generate(MODEL, prompts, tokens)


@pytest.mark.parametrize("change", [{"temperature": -1.0}, {"top_k": 0}, {"seed": -1}])
def test_impossible_sampling_is_refused(change: dict[str, float]):
    """The same for how tokens are drawn."""
    with pytest.raises(ValueError, match=f"{next(iter(change))} is .*; possible: "):
        Sampling(**change)
