"""The shape of a GPT-2 and its arithmetic: how many parameters, how many FLOPs a token costs.

The formulas are pure functions of the configuration, so a time becomes a utilisation without a
model or a GPU.

    flops_per_token(SIZES["124m"], seq=1024)
    python -m model.config         # a table of sizes, parameters and FLOPs per token
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT-2.

    Raises:
        ValueError: a field is not a positive int, or ``n_embd`` cannot be cut into ``n_head``.
    """

    n_layer: int
    n_head: int
    n_embd: int  # width C of the residual stream
    block_size: int = 1024  # longest sequence
    vocab_size: int = 50304  # GPT-2's 50257 rounded up to a multiple of 64, as nanoGPT does

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{field.name} is {value!r}; possible: an int of 1 or more")
        if self.n_embd % self.n_head:
            raise ValueError(
                f"n_embd is {self.n_embd}; possible: a multiple of n_head, which is {self.n_head}"
            )


SIZES: dict[str, GPTConfig] = {
    # For a laptop's CPU. Its vocabulary just holds the repository's own encoding: with 50304 rows
    # nearly all of the time would go into the output layer.
    "nano": GPTConfig(n_layer=3, n_head=4, n_embd=128, vocab_size=8256),
    "124m": GPTConfig(n_layer=12, n_head=12, n_embd=768),
    "350m": GPTConfig(n_layer=24, n_head=16, n_embd=1024),
    "774m": GPTConfig(n_layer=36, n_head=20, n_embd=1280),
    "1.5b": GPTConfig(n_layer=48, n_head=25, n_embd=1600),
    "2.7b": GPTConfig(n_layer=32, n_head=32, n_embd=2560),
}


def num_params(config: GPTConfig, *, non_embedding: bool = False) -> int:
    """Number of parameters, the tied output layer counted once.

    Args:
        config: the shape.
        non_embedding: leave out the position table (nanoGPT's convention: the token table stays
            in, because it is also the output layer and does the work of one).
    """
    width = config.n_embd
    norm = 2 * width
    attention = (3 * width * width + 3 * width) + (width * width + width)
    mlp = (4 * width * width + 4 * width) + (4 * width * width + width)
    blocks = config.n_layer * (2 * norm + attention + mlp)
    positions = 0 if non_embedding else config.block_size * width
    return config.vocab_size * width + positions + blocks + norm


def num_matmul_params(config: GPTConfig) -> int:
    """Number of parameters that stand in a matrix product: 12 C^2 a layer, and the output layer."""
    return config.n_layer * 12 * config.n_embd**2 + config.vocab_size * config.n_embd


def flops_per_token(config: GPTConfig, seq: int) -> float:
    """FLOPs of one forward and backward pass per token, for model FLOPs utilisation (MFU).

    ``6 N + 12 L H Q T``, N the parameters without the position table, L layers, H heads of Q
    channels, T = ``seq`` tokens: PaLM paper (Chowdhery et al. 2022), appendix B, as nanoGPT counts
    N. It charges attention for the full T x T square, though a causal kernel skips half of it, and
    counts biases and norms as if they were matrix products; both are conventions that published
    MFU figures share. 855.4e6 for 124m at T = 1024. The forward pass is a third.
    """
    _check_seq(config, seq)
    attention = 12 * config.n_layer * config.n_embd * seq  # H * Q is the width
    return float(6 * num_params(config, non_embedding=True) + attention)


def causal_flops_per_token(config: GPTConfig, seq: int) -> float:
    """The fewest FLOPs per token in which a causal forward and backward pass can be done.

    ``6 M + 6 L C T``: M the parameters in matrix products, and half of the attention square. A
    step faster than this at the device's peak rate was not measured correctly, which makes it a
    physical floor; it is no figure for MFU. 798.0e6 for 124m at T = 1024. The forward pass is a
    third.
    """
    _check_seq(config, seq)
    return float(6 * num_matmul_params(config) + 6 * config.n_layer * config.n_embd * seq)


def _check_seq(config: GPTConfig, seq: int) -> None:
    if isinstance(seq, bool) or not isinstance(seq, int) or not 1 <= seq <= config.block_size:
        raise ValueError(f"seq is {seq!r}; possible: an int from 1 to {config.block_size}")


def main() -> None:
    """Print the sizes with their parameters and FLOPs per token at the longest sequence."""
    print(
        f"{'size':6} {'layers':>6} {'width':>6} {'parameters':>14} {'MFLOP/token':>12} {'floor':>9}"
    )
    for name, config in SIZES.items():
        seq = config.block_size
        print(
            f"{name:6} {config.n_layer:6d} {config.n_embd:6d} {num_params(config):14,d} "
            f"{flops_per_token(config, seq) / 1e6:12.1f} "
            f"{causal_flops_per_token(config, seq) / 1e6:9.1f}"
        )


if __name__ == "__main__":
    main()
