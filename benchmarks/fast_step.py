"""Training steps of GPT-2 124M beside each other: in one process a GPU, in turns.

    git clone https://github.com/karpathy/build-nanogpt
    python -m benchmarks.fast_step theirs=64 reference=64 fast=64 fast=128 \
        --source build-nanogpt --curve 100 --profile --out fast_step.json
    torchrun --nproc-per-node 2 -m benchmarks.fast_step theirs=64 fast=64 fast=128 \
        --source build-nanogpt --out fast_step_x2.json

``theirs=64`` is a step in micro-steps of 64 sequences a GPU. Compared are build-nanogpt's model in
a loop that waits for nothing (theirs), our reference step and our fast step. All are compiled, in
bf16, with clipping and the fused AdamW, at equal tokens a step over all GPUs. Blocks of steps
alternate, and the order turns around from round to round. A block is timed on the host, from a
drained device to a drained device; of several ranks the slowest counts. A ratio is taken within a
round; its interval is Student's over the rounds.

``--curve N`` trains N steps of one micro-step with the first of each kind, all from the same
parameters, and half as many with the reference from other parameters, and keeps the losses. With
``--warm-up 715`` its learning rates are those of build-nanogpt's first steps. The JSON is written
after each part. What each lever of the fast step gives is judged by ``benchmarks.power``
(fast_levers.py).
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import gc
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cosine_similarity
from torch.nn.parallel import DistributedDataParallel

from benchmarks.shared import Document, about, ratio
from model.config import SIZES, flops_per_token
from model.data.loader import BatchLoader
from model.data.shards import STDLIB_SHARD, Tokens
from model.gpt import GPT
from model.train import leave_group
from model.workloads import make_optimizer, rank_and_world_size, train_step

PEAK_TFLOPS = 989.0  # H100 and H200, data sheet, dense bf16
SEQ = 1024
KINDS = ("theirs", "reference", "fast")
MOST_LR = 6e-4  # of a curve
Losses = dict[str, list[float]]


def gpu() -> torch.device:
    """Return this rank's."""
    return torch.device("cuda", torch.cuda.current_device())


class Theirs:
    """build-nanogpt's model in the shape of our step: no wait, pinned inputs, one clip, AdamW."""

    def __init__(self, source: Path, batch: int, micro_steps: int) -> None:
        torch.set_float32_matmul_precision("high")
        module = _their_classes(source)
        rank, world_size = rank_and_world_size()
        self.model = module.GPT(module.GPTConfig(vocab_size=SIZES["124m"].vocab_size)).to(gpu())
        self._network: Any = torch.compile(self.model, dynamic=False)
        self._ranks = world_size > 1
        if self._ranks:
            self._network = DistributedDataParallel(self._network, device_ids=[gpu().index])
        self.optimizer = make_optimizer(self.model, lr=0.0, weight_decay=0.1)
        tokens = Tokens.open(STDLIB_SHARD)
        self._loader = BatchLoader(tokens, batch, SEQ, rank, world_size, gpu())
        self._micro_names = tuple(range(micro_steps))

    def step(self) -> torch.Tensor:
        """Enqueue one step; return its loss."""
        total = torch.zeros((), device=gpu())
        for index in self._micro_names:
            if self._ranks:
                self._network.require_backward_grad_sync = index == self._micro_names[-1]
            with torch.autocast("cuda", dtype=torch.bfloat16):
                _, loss = self._network(*self._loader.next())
            loss = loss / len(self._micro_names)
            loss.backward()
            total += loss.detach()
        if self._ranks:
            dist.all_reduce(total, dist.ReduceOp.AVG)
        parameters = self.model.parameters()
        self.grad_norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total

    def take(self, model: GPT) -> None:
        """Go on from the parameters of our model, whose names are theirs."""
        state = {f"transformer.{name}": one for name, one in model.state_dict().items()}
        self.model.load_state_dict(state | {"lm_head.weight": model.wte.weight.detach()})


def _their_classes(source: Path) -> Any:
    """Import the part of their script that stands before the first thing it does."""
    text = (source / "train_gpt2.py").read_text(encoding="utf-8")
    text = text[: text.index("import tiktoken")]
    text = "".join(line for line in text.splitlines(True) if "from hellaswag" not in line)
    path = Path(tempfile.mkdtemp()) / "their_gpt.py"  # the compiler wants to read its source
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("their_gpt", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["their_gpt"] = module
    spec.loader.exec_module(module)
    return module


def ours(batch: int, micro_steps: int, *, fast: bool, optimize_ddp: bool) -> Any:
    """Make our step, which learns nothing, so that each costs the same."""
    common = {"size": "124m", "batch": batch, "seq": SEQ, "precision": "bf16", "compile": True}
    # Over several GPUs: fewer and larger exchanges, without a copy of the gradients.
    ddp = {"bucket_cap_mb": 100, "gradient_as_bucket_view": True, "optimize_ddp": optimize_ddp}
    return train_step(**common, **ddp, lr=0.0, micro_steps=micro_steps, fast=fast)


def built(kind: str, batch: int, options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """Make and compile one side; return it, and its first loss, seconds and memory."""
    micro_steps = options.tokens // (batch * SEQ * rank_and_world_size()[1])
    began_s = time.perf_counter()
    if kind == "theirs":
        one: Any = Theirs(options.source, batch, micro_steps)
    else:
        one = ours(batch, micro_steps, fast=kind == "fast", optimize_ddp=options.optimize_ddp)
    loss, norm = float(one.step()), float(one.grad_norm)
    first_s = time.perf_counter() - began_s
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    one.step()
    torch.cuda.synchronize()
    peak_mib = (torch.cuda.max_memory_allocated() - before) / 2**20
    found = {"batch": batch, "micro_steps": micro_steps, "first_loss": loss}
    found |= {"first_grad_norm": norm, "first_step_s": round(first_s, 1)}
    return one, found | {"peak_above_rest_mib": round(peak_mib)}


@contextmanager
def one_micro_step(step: Any) -> Iterator[None]:
    """Let a step have one micro-step meanwhile."""
    whole, step._micro_names = step._micro_names, step._micro_names[:1]
    try:
        yield
    finally:
        step._micro_names = whole


def rounds_of(made: dict[str, Any], rounds: int, block: int) -> Iterator[dict[str, list[float]]]:
    """Yield after each round the milliseconds a step of each, one block a round."""
    names = list(made)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-1, rounds):  # the first round warms up
        for name in names if number % 2 else names[::-1]:
            torch.cuda.empty_cache()  # two large micro-steps do not fit beside each other
            took_ms = block_ms(made[name], block)
            if number >= 0:
                found[name].append(round(took_ms, 4))
        if number >= 0:
            yield found


def block_ms(one: Any, block: int) -> float:
    """Return the milliseconds a step of one block, on the slowest rank."""
    one.step()
    torch.cuda.synchronize()
    several = rank_and_world_size()[1] > 1
    if several:
        dist.barrier()
        torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(block):
        one.step()
    torch.cuda.synchronize()
    took_ms = torch.tensor((time.perf_counter() - began_s) / block * 1e3)
    if several:
        dist.all_reduce(took_ms, dist.ReduceOp.MAX)
    return float(took_ms)


def table_of(found: dict[str, list[float]], base: str, tokens: int) -> dict[str, dict[str, Any]]:
    """Of each: milliseconds, tokens/s, MFU, and base / this with its 95 % interval."""
    table = {}
    flops, gpus = flops_per_token(SIZES["124m"], SEQ), rank_and_world_size()[1]
    for name, times_ms in found.items():
        mean_ms = statistics.mean(times_ms)
        tokens_per_s = tokens / mean_ms * 1e3
        beside = ratio(list(zip(found[base], times_ms, strict=True)))
        table[name] = {
            "ms_per_step": round(mean_ms, 3),
            "tokens_per_s": round(tokens_per_s),
            "mfu_pct": round(tokens_per_s * flops / gpus / PEAK_TFLOPS / 1e10, 2),
            "ratio": round(beside["ratio"], 4),
            "interval_95": [round(one, 4) for one in beside["interval_95"] or ()],
        }
    return table


def matmul_tflops() -> float:
    """TFLOP/s of a bf16 product of 8192 x 8192 matrices, over two seconds of load."""
    a, b = (torch.randn(8192, 8192, device=gpu(), dtype=torch.bfloat16) for _ in range(2))
    for count in (200, 600):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for _ in range(count):
            a @ b
        torch.cuda.synchronize()
    return round(600 * 2 * 8192**3 / (time.perf_counter() - began_s) / 1e12, 1)


def profile_ms(one: Any, steps: int = 3) -> list[list[Any]]:
    """Kernel name, launches a step and milliseconds a step, the longest first, of steps of one
    micro-step.
    """
    with one_micro_step(one):
        one.step()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(steps):
                one.step()
            torch.cuda.synchronize()
    rows = [
        [event.key[:100], event.count / steps, round(event.device_time_total / steps / 1e3, 3)]
        for event in profile.key_averages()
    ]
    return sorted(rows, key=lambda row: -row[2])[:60]


def curves(steps: int, warm_up: int, made: dict[str, Any]) -> Iterator[Losses]:
    """Yield the losses by name and seed, after each curve."""
    losses: Losses = {}
    for kind, seed, count in (
        ("reference", 1337, steps),
        ("fast", 1337, steps),
        ("reference", 1338, steps // 2),
        ("theirs", 1337, steps),
    ):
        one = next((one for name, one in made.items() if name.startswith(kind)), None)
        if one is not None:
            losses[f"{kind} {seed}"] = curve(one, seed, count, warm_up)
            yield losses


def curve(one: Any, seed: int, steps: int, warm_up: int) -> list[float]:
    """Train from a seed's parameters and the first batch, one micro-step a step; return losses."""
    if isinstance(one, Theirs):
        one.take(GPT(SIZES["124m"], seed=seed, device=gpu()))
    else:
        one.model.init_weights(seed)
        if one._fast:
            one._fast.renew()
    one.optimizer.state.clear()
    one._loader.seek(0)
    losses = []
    with one_micro_step(one):
        for step in range(steps):
            for group in one.optimizer.param_groups:
                group["lr"] = MOST_LR * min(1.0, (step + 1) / warm_up)
            losses.append(one.step())
    return [round(loss, 6) for loss in torch.stack(losses).tolist()]


def apart(losses: Losses) -> dict[str, dict[str, Any]]:
    """Return how far each curve is from the reference's first one, in nats: over all of its steps,
    and over each ten.
    """
    own, *others = losses
    found = {}
    for name in others:
        both = zip(losses[own], losses[name], strict=False)  # one is half as long
        differences = [abs(a - b) for a, b in both]
        tens = [differences[first : first + 10] for first in range(0, len(differences), 10)]
        found[name] = {
            "steps": len(differences),
            "largest_difference": round(max(differences), 6),
            "mean_difference": round(statistics.mean(differences), 6),
            "largest_of_each_ten": [round(max(ten), 6) for ten in tens],
            "mean_of_each_ten": [round(statistics.mean(ten), 6) for ten in tens],
        }
    return found


def gradient_cosines() -> dict[str, float]:
    """1 - cosine of whole gradients at the first step: to fp32, and to the reference's."""
    from model.fast import FastGPT

    batch = BatchLoader(Tokens.open(STDLIB_SHARD), 8, SEQ, 0, 1, gpu()).next()
    gradients = {}
    for name, context, precision in (
        ("fp32", nullcontext(), "highest"),
        ("reference", torch.autocast("cuda", torch.bfloat16), "high"),
        ("fast", nullcontext(), "high"),
    ):
        torch.set_float32_matmul_precision(precision)
        model = GPT(SIZES["124m"], device=gpu())
        with context:
            loss = (FastGPT(model) if name == "fast" else model)(*batch)
        loss.backward()
        gradients[name] = torch.cat([one.grad.flatten().double() for one in model.parameters()])
    torch.set_float32_matmul_precision("high")
    pairs = (("reference", "fp32"), ("fast", "fp32"), ("fast", "reference"))
    cosines = ((a, b, cosine_similarity(gradients[a], gradients[b], dim=0)) for a, b in pairs)
    return {f"{a} to {b}": 1 - float(cosine) for a, b, cosine in cosines}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("steps", nargs="+", metavar="KIND=BATCH", help=f"of {', '.join(KINDS)}; the first is 1")
    add("--source", type=Path, help="a clone of karpathy/build-nanogpt")
    add("--tokens", type=int, default=524_288, help="a step of all GPUs (%(default)s)")
    add("--rounds", type=int, default=6, help="0: nothing is timed (%(default)s)")
    add("--block", type=int, default=2, help="steps (%(default)s)")
    add("--curve", type=int, default=0, metavar="STEPS", help="losses; of one GPU")
    add("--warm-up", type=int, default=50, metavar="STEPS", help="of a curve (%(default)s)")
    add("--profile", action="store_true", help="kernels of one micro-step; of one GPU")
    add(
        "--optimize-ddp",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="of our steps on several GPUs: split the graph where buckets of gradients end",
    )
    add("--out", type=Path, required=True)
    options = parser.parse_args()
    given = [one.split("=") for one in options.steps]
    if not all(len(one) == 2 and one[0] in KINDS and one[1].isdigit() for one in given):
        parser.error(f"steps are {options.steps}; possible: KIND=BATCH, of {', '.join(KINDS)}")
    if options.source is None and any(kind == "theirs" for kind, _ in given):
        parser.error("theirs: --source is needed, a clone of karpathy/build-nanogpt")
    options.steps = {f"{kind} {batch}": (kind, int(batch)) for kind, batch in given}
    return options


class Results(Document):
    """The file, which the first rank writes, and prints what it writes."""

    def update(self, **more: Any) -> None:
        """Add entries, write the file, and print a table of them, a row a line."""
        if rank_and_world_size()[0]:
            return
        super().update(**more)
        for part, rows in more.items():
            if part in ("sides", "table", "curves_apart", "one_less_cosine", "matmul_tflops"):
                for name, row in rows.items() if isinstance(rows, dict) else [(part, rows)]:
                    print(f"{name:24}", row, flush=True)


def measure(options: argparse.Namespace, document: Results) -> None:
    """Measure part by part."""
    made, sides = {}, {}
    for name, (kind, batch) in options.steps.items():
        made[name], sides[name] = built(kind, batch, options)
        document.update(sides=dict(sides))
    base = next(iter(made))
    for found in rounds_of(made, options.rounds, options.block):
        if len(found[base]) > 1:
            document.update(table=table_of(found, base, options.tokens), blocks_ms=found)
    if rank_and_world_size()[1] > 1:
        return
    if options.profile:
        document.update(profile_ms={name: profile_ms(one) for name, one in made.items()})
    for losses in curves(options.curve, options.warm_up, made) if options.curve else ():
        document.update(curves_apart=apart(losses), losses=losses)
    made.clear()
    gc.collect()
    torch.cuda.empty_cache()
    document.update(one_less_cosine=gradient_cosines(), matmul_tflops=(matmul := matmul_tflops()))
    for row in document.content.get("table", {}).values():
        row["share_of_matmul_pct"] = round(row["mfu_pct"] * PEAK_TFLOPS / matmul, 2)
    document.update()


def main() -> None:
    """Measure, print the tables, write the JSON after each part."""
    options = arguments()
    several = "RANK" in os.environ
    if several:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("cpu:gloo,cuda:nccl")
    how = about("cuda", rank_and_world_size()[1])
    how |= {"torch": str(torch.__version__), "tokens_per_step": options.tokens}
    measure(options, Results(options.out, how))
    if several:
        leave_group()


if __name__ == "__main__":
    main()
