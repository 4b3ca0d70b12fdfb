"""Generate text: prompts in, one token after the other out, keys and values of the past kept.

Kernels for matrix products differ with the number of rows, and so do their last bits. Here every
call has one shape: tokens go through the network in chunks of 16, a token always in the same row
of the same chunk, beside a cache of one length. So keeping the past or computing it anew for every
token gives the same logits, bit for bit, and a compiler or a CUDA graph sees one shape. A chunk of
16 rows costs a GPU what one row does, since both wait for the weights to be read.

    python -m model.generate runs/a --prompt "def step(self):" --tokens 100 --top-k 50
    python -m model.generate gpt2/model.safetensors --prompt "Hello" --prompt "Once upon a time"
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from model.checkpoint import CheckpointError
from model.config import GPTConfig
from model.gpt import GPT, CausalSelfAttention
from model.settings import check_int, check_number, possible_devices
from model.weights import load_model

CHUNK = 16  # rows from which on a product's last bits no longer depend on how many there are
Layer = tuple[Tensor, Tensor]  # keys and values, (batch, heads, length, head width) each


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token.
        top_k: only so many of the likeliest are drawn from; None: from all.
        seed: of the draws.

    Raises:
        ValueError: a value is impossible.
    """

    temperature: float = 1.0
    top_k: int | None = None
    seed: int = 1337

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, zero=True)
        check_int("seed", self.seed, least=0)
        if self.top_k is not None:
            check_int("top_k", self.top_k)

    def choose(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Return the next ids, (batch,), of the logits, (batch, vocab)."""
        if self.temperature == 0:
            return logits.argmax(dim=-1)
        logits = logits / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < least, -math.inf)
        shares = F.softmax(logits, dim=-1)
        return torch.multinomial(shares, 1, generator=generator).squeeze(-1)


def empty_cache(model: GPT, batch: int, length: int) -> list[Layer]:
    """Return room for the keys and values of ``length`` tokens, zeros, one pair a layer."""
    weight, config = model.wte.weight, model.config
    shape = (batch, config.n_head, length, config.n_embd // config.n_head)
    return [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in model.h]


def chunk_logits(model: GPT, ids: Tensor, positions: Tensor, cache: list[Layer]) -> Tensor:
    """Run a chunk of tokens through the model; their keys and values go into ``cache``.

    Args:
        model: in whatever precision its parameters have.
        ids: (batch, rows) int64.
        positions: (rows,) int64, where the tokens stand; none behind the end of the cache.
        cache: all tokens before the chunk must be in it. What stands behind is not read.

    Returns:
        (batch, rows, vocab_size).
    """
    x = model.wte(ids) + model.wpe(positions.clamp(max=model.config.block_size - 1))
    hidden = torch.arange(cache[0][0].shape[2], device=ids.device) > positions[:, None]
    for block, layer in zip(model.h, cache, strict=True):
        x = x + _attend(block.attn, block.ln_1(x), positions, layer, hidden)
        x = x + block.mlp(block.ln_2(x))
    return F.linear(model.ln_f(x), model.wte.weight)


def _attend(
    attention: CausalSelfAttention, x: Tensor, positions: Tensor, layer: Layer, hidden: Tensor
) -> Tensor:
    batch, rows, width = x.shape
    query, key, value = (
        part.view(batch, rows, attention.n_head, -1).transpose(1, 2)
        for part in attention.c_attn(x).split(width, dim=2)
    )
    keys, values = layer
    keys.index_copy_(2, positions, key)
    values.index_copy_(2, positions, value)
    scores = query @ keys.transpose(2, 3) / math.sqrt(query.shape[-1])
    # A hidden value gets a weight of exactly 0, which leaves a sum as it is.
    mixed = F.softmax(scores.masked_fill(hidden, -math.inf), dim=-1) @ values
    return attention.c_proj(mixed.transpose(1, 2).reshape(batch, rows, width))


@torch.no_grad()
def generate(
    model: GPT,
    prompts: Sequence[Sequence[int]],
    tokens: int,
    sampling: Sampling | None = None,
    *,
    cache: bool = True,
    on_logits: Callable[[Tensor], None] | None = None,
) -> list[list[int]]:
    """Continue each prompt by ``tokens`` ids.

    Prompts of unequal length go together: while one is still being read, its next token is given
    and not drawn.

    Args:
        model: a bare ``GPT``, not compiled: lengths differ.
        prompts: one or more lists of ids, none empty.
        tokens: how many to add.
        sampling: ``Sampling()`` when None.
        cache: keep keys and values; False computes all of them anew for every token.
        on_logits: called with the logits (batch, vocab_size) of every token that is chosen.

    Returns:
        each prompt with its continuation.

    Raises:
        ValueError: no prompt, an empty one, an id that the model does not know, or more tokens in
            all than its block size.
    """
    sampling = sampling or Sampling()
    lengths = _lengths(model.config, prompts, tokens)
    device, longest = model.wte.weight.device, max(lengths) + tokens
    room = -(-longest // CHUNK) * CHUNK
    given = torch.zeros((len(prompts), room), dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        given[row, : len(prompt)] = torch.tensor(prompt)
    ids = given.to(device)
    until = torch.tensor(lengths, device=device)
    generator = torch.Generator(device).manual_seed(sampling.seed)
    layers = empty_cache(model, len(prompts), room)
    done = 0  # chunks whose tokens are all known and whose keys and values are kept
    for end in range(min(lengths), longest):  # the number of tokens that every row has by now
        if not cache:
            layers, done = empty_cache(model, len(prompts), room), 0
        for start in range(done * CHUNK, end, CHUNK):
            positions = torch.arange(start, start + CHUNK, device=device)
            # Rows behind the end hold what is not known yet. Nobody reads them, nor their keys.
            logits = chunk_logits(model, ids[:, start : start + CHUNK], positions, layers)
        done = end // CHUNK
        chosen = sampling.choose(last := logits[:, (end - 1) % CHUNK], generator)
        if on_logits is not None:
            on_logits(last)
        ids[:, end] = chosen.where(until <= end, ids[:, end])
    found = ids.tolist()
    return [row[: n + tokens] for row, n in zip(found, lengths, strict=True)]


def _lengths(config: GPTConfig, prompts: Sequence[Sequence[int]], tokens: int) -> list[int]:
    check_int("tokens", tokens)
    lengths = [len(prompt) for prompt in prompts]
    if not lengths or not min(lengths):
        raise ValueError("a prompt is empty; possible: at least one token in each")
    if max(lengths) + tokens > config.block_size:
        raise ValueError(
            f"{max(lengths)} tokens of prompt and {tokens} more are {max(lengths) + tokens}; "
            f"possible: at most {config.block_size}, the model's block size"
        )
    unknown = [i for prompt in prompts for i in prompt if not 0 <= i < config.vocab_size]
    if unknown:
        raise ValueError(f"id {unknown[0]} in a prompt; possible: 0 to {config.vocab_size - 1}")
    return lengths


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m model.generate", description=main.__doc__)
    where = "a run's folder, a checkpoint, or Hugging Face's GPT-2 weights in a local file"
    parser.add_argument("weights", type=Path, help=where)
    parser.add_argument("--prompt", action="append", help="may be given several times")
    parser.add_argument("--tokens", type=int, default=100, help="to add (%(default)s)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0: the likeliest token")
    parser.add_argument("--top-k", type=int, help="draw from so many (all)")
    parser.add_argument("--seed", type=int, default=1337, help="of the draws (%(default)s)")
    parser.add_argument("--no-cache", action="store_true", help="compute the past anew each time")
    devices = possible_devices()
    parser.add_argument("--device", choices=devices, default=devices[-1], help="(%(default)s)")
    parser.add_argument("--bf16", action="store_true", help="parameters in bf16")
    text = "read a file that may run a program when it is read: only if you trust who made it"
    parser.add_argument("--allow-pickle", action="store_true", help=text)
    return parser


def main(arguments: list[str]) -> int:
    """Print what a model makes of prompts, and how many tokens per second it made."""
    from model.data.tokenizer import END_OF_TEXT, get_encoding

    options = _parser().parse_args(arguments)
    try:
        model, name = load_model(
            options.weights, device=options.device, allow_pickle=options.allow_pickle
        )
        model = model.bfloat16() if options.bf16 else model
        encoding = get_encoding(name)
        texts = options.prompt or [END_OF_TEXT]
        prompts = [encoding.encode(text, allowed_special="all") for text in texts]
        sampling = Sampling(options.temperature, options.top_k, options.seed)
        began_s = time.perf_counter()
        rows = generate(model, prompts, options.tokens, sampling, cache=not options.no_cache)
        took_s = time.perf_counter() - began_s  # generate() ends by reading the ids: it has waited
    except (CheckpointError, OSError, RuntimeError, ValueError) as error:
        print(f"model.generate: {error}", file=sys.stderr)
        return 1
    for row in rows:
        # A padded vocabulary has ids that no text is encoded to; a model that has learned little
        # may draw them.
        print(encoding.decode([i for i in row if i < encoding.n_vocab]))
        print("---")
    made = len(rows) * options.tokens
    print(f"{made} tokens in {took_s:.2f} s, {made / took_s:.1f} tokens/s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
