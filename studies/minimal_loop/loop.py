"""Train a GPT-2 by a plain loop that shares no line with model/, as nanoGPT's tutorials write it.

    python -m studies.minimal_loop.loop --data corpus.bin --out loop.jsonl --steps 300
    python -m studies.minimal_loop.loop --data corpus.bin --out loop.jsonl --device cpu \\
        --layers 2 --heads 2 --width 64 --seq 64 --batch 4 --micro-steps 1 --vocab 8256 --steps 20

Sequences begin at random places, inputs are pageable and copied blockingly, and each step ends in a
synchronize() and a printed line: what such a loop costs is part of what it shows. Only the format
of the tokens, uint16, and the share that is held out are those of `python -m model.train`, and with
--order spread the sequences: each once a pass, neighbours far apart.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    """Attention and an MLP, each behind a norm, added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.mixed = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        """(batch, seq, width) to the same."""
        batch, seq, width = stream.shape
        parts = self.qkv(self.norms[0](stream)).chunk(3, dim=-1)
        q, k, v = (part.view(batch, seq, self.heads, -1).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        stream = stream + self.mixed(attended.transpose(1, 2).flatten(2))
        hidden = functional.gelu(self.wide(self.norms[1](stream)), approximate="tanh")
        return stream + self.narrow(hidden)


class Network(nn.Module):
    """GPT-2: tokens and positions in, cross-entropy out; the token table is also the head."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.tokens = nn.Embedding(options.vocab, options.width)
        self.places = nn.Embedding(options.seq, options.width)
        each = (Layer(options.width, options.heads) for _ in range(options.layers))
        self.layers, self.norm = nn.ModuleList(each), nn.LayerNorm(options.width)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                into_stream = name.endswith(("mixed.weight", "narrow.weight"))
                share = 1 / math.sqrt(2 * options.layers) if into_stream else 1.0
                nn.init.normal_(parameter, std=0.02 * share)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return a scalar, in nats."""
        stream = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            stream = layer(stream)
        logits = self.norm(stream) @ self.tokens.weight.T
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def optimizer_of(network: Network, options: argparse.Namespace) -> torch.optim.AdamW:
    """AdamW that decays matrices alone."""
    found = [p for p in network.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in found if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in found if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=options.lr, betas=(0.9, 0.95), fused=True)


def rate_at(step: int, options: argparse.Namespace) -> float:
    """Linear warm-up, then a cosine down to a tenth."""
    if step < options.warm_up_steps:
        return options.lr * (step + 1) / options.warm_up_steps
    done = (step - options.warm_up_steps) / max(1, options.horizon - options.warm_up_steps)
    return options.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, done))))


class Loop:
    """The state of a run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.device = options, torch.device(options.device)
        torch.manual_seed(options.seed)
        torch.set_float32_matmul_precision("high")
        tokens = np.fromfile(options.data, dtype=np.uint16)
        border = len(tokens) - round(options.val_fraction * len(tokens))
        self.learned = torch.from_numpy(tokens[:border].astype(np.int64))
        self.held_out = torch.from_numpy(tokens[border:].astype(np.int64))
        self.network = Network(options).to(self.device)
        self.compiled: Any = torch.compile(self.network) if options.compile else self.network
        self.optimizer = optimizer_of(self.network, options)
        self.places, self.taken = torch.Generator().manual_seed(options.seed), 0

    def wait(self) -> None:
        """Wait for the GPU."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def loss(self, network: Any, begins: list[int], tokens: torch.Tensor) -> torch.Tensor:
        """Of sequences that begin there."""
        seq = self.options.seq
        ids, targets = (
            torch.stack([tokens[at + by : at + by + seq] for at in begins]).to(self.device)
            for by in (0, 1)
        )
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.options.bf16):
            return network(ids, targets)

    def begins(self) -> list[int]:
        """Return where the next batch's sequences begin."""
        seq, batch = self.options.seq, self.options.batch
        if self.options.order == "random":
            last = len(self.learned) - seq - 1
            return torch.randint(last, (batch,), generator=self.places).tolist()
        count = len(self.learned) // seq
        stride = next(n for n in range(round(0.618034 * count), count) if math.gcd(n, count) == 1)
        self.taken += batch
        return [at * stride % count * seq for at in range(self.taken - batch, self.taken)]

    def step(self, number: int) -> tuple[float, float]:
        """Return loss and norm of one step, which are read as soon as it is done."""
        options, total = self.options, 0.0
        for group in self.optimizer.param_groups:
            group["lr"] = rate_at(number, options)
        self.optimizer.zero_grad()
        for _ in range(options.micro_steps):
            loss = self.loss(self.compiled, self.begins(), self.learned) / options.micro_steps
            loss.backward()
            total = total + loss.detach()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.wait()
        return float(total), float(norm)

    @torch.no_grad()
    def validate(self) -> float:
        """Mean loss over the held-out tokens, cut into sequences, as far as whole batches go."""
        seq, batch = self.options.seq, self.options.batch
        begins = list(range(0, len(self.held_out) - seq, seq))
        whole = [begins[at : at + batch] for at in range(0, len(begins) - batch + 1, batch)]
        losses = [float(self.loss(self.network, one, self.held_out)) for one in whole]
        return sum(losses) / len(losses)


def parsed() -> argparse.Namespace:
    """Read the command line; the shape's defaults are GPT-2's smallest."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="uint16 token ids")
    parser.add_argument("--out", type=Path, required=True, help="a line of JSON for each step")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--order", default="random", choices=("random", "spread"))
    parser.add_argument("--horizon", type=int, help="of the cosine (--steps)")
    numbers = {"steps": 300, "warm_up_steps": 30, "batch": 64, "seq": 1024, "micro_steps": 2}
    numbers |= {"layers": 12, "heads": 12, "width": 768, "vocab": 50304, "seed": 1}
    for name, value in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=6e-4)
    parser.add_argument("--val-fraction", type=float, default=0.05)
    options = parser.parse_args()
    options.horizon = options.horizon or options.steps
    options.compile = options.bf16 = options.device == "cuda"
    return options


def main() -> int:
    """Train, print and log."""
    options = parsed()
    loop = Loop(options)
    tokens = options.batch * options.seq * options.micro_steps
    with options.out.open("w", encoding="utf-8") as log:
        for number in range(options.steps):
            began = time.perf_counter()
            loss, norm = loop.step(number)
            took_s = time.perf_counter() - began
            line = {"step": number + 1, "loss": loss, "grad_norm": norm}
            line |= {"tokens_per_s": tokens / took_s}
            print(f"step {number + 1} | loss {loss:.4f} | norm {norm:.3f} | {took_s * 1e3:.1f} ms")
            log.write(json.dumps(line) + "\n")
            log.flush()
        log.write(json.dumps({"step": options.steps, "val_loss": loop.validate()}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
