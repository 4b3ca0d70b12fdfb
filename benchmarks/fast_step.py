"""Training steps of GPT-2 124M beside each other: one GPU, one process, in turns.

    git clone https://github.com/karpathy/build-nanogpt
    python -m benchmarks.fast_step theirs=64 reference=64 fast=64 fast=128 \
        --source build-nanogpt --out fast_step.json
    python -m benchmarks.fast_step reference=64 fast=64 --levers --equality 100 --out levers.json

``theirs=64`` is a step in micro-steps of 64 sequences. Compared are build-nanogpt's model in a loop
that waits for nothing (theirs), our reference step and our fast step. All are compiled, in bf16,
with clipping and the fused AdamW, at equal tokens a step. Blocks of steps alternate, and the order
turns around from round to round. A block is timed on the host, from a drained device to a drained
device. A ratio is taken within a round; its interval is Student's over the rounds.

``--levers`` compares a fast step of one micro-step with itself less one lever each; by default all
of them. ``--equality N`` trains N such steps with the reference, the fast step and the reference of
another seed, and keeps the losses.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from scipy.stats import t as student

from benchmarks.fast_levers import LEVERS
from model.config import SIZES, flops_per_token
from model.data.loader import BatchLoader
from model.data.shards import STDLIB_SHARD, Tokens
from model.workloads import make_optimizer, train_step

PEAK_TFLOPS = 989.0  # H100 and H200, data sheet, dense bf16
SEQ = 1024
KINDS = ("theirs", "reference", "fast")


class Theirs:
    """build-nanogpt's model in the shape of our step: no wait, pinned inputs, one clip, AdamW."""

    def __init__(self, source: Path, batch: int, micro_steps: int) -> None:
        torch.set_float32_matmul_precision("high")
        module = _their_classes(source)
        self.model = module.GPT(module.GPTConfig(vocab_size=50304)).cuda()
        self._network = torch.compile(self.model, dynamic=False)
        self._optimizer = make_optimizer(self.model, lr=0.0, weight_decay=0.1)
        device = torch.device("cuda", 0)
        self._loader = BatchLoader(Tokens.open(STDLIB_SHARD), batch, SEQ, 0, 1, device)
        self._micro_steps = micro_steps

    def step(self) -> torch.Tensor:
        """Enqueue one step; return its loss."""
        total = torch.zeros((), device="cuda")
        for _ in range(self._micro_steps):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                _, loss = self._network(*self._loader.next())
            loss = loss / self._micro_steps
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=True)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total


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


def build(options: argparse.Namespace, document: dict[str, Any]) -> dict[str, Any]:
    """Make what is compared, compile it, and note its memory and the time of its first step."""
    made: dict[str, Any] = {}
    for name, (kind, batch) in options.steps.items():
        micro_steps = options.tokens // (batch * SEQ)
        began_s = time.perf_counter()
        if kind == "theirs":
            one: Any = Theirs(options.source, batch, micro_steps)
        else:
            one = ours(batch, micro_steps, fast=kind == "fast")
        first = float(one.step())
        first_s = time.perf_counter() - began_s
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        one.step()
        torch.cuda.synchronize()
        peak_mib = (torch.cuda.max_memory_allocated() - before) / 2**20
        found = {"batch": batch, "micro_steps": micro_steps, "first_loss": first}
        found |= {"first_step_s": round(first_s, 1), "peak_above_rest_mib": round(peak_mib)}
        document["steps"][name] = found
        print(name, found, flush=True)
        made[name] = one
    return made


def ours(batch: int, micro_steps: int, *, fast: bool) -> Any:
    """Make our step, which learns nothing, so that each costs the same."""
    common = {"size": "124m", "batch": batch, "seq": SEQ, "precision": "bf16", "compile": True}
    return train_step(**common, lr=0.0, micro_steps=micro_steps, fast=fast)


@contextmanager
def one_micro_step(workload: Any) -> Iterator[None]:
    """Let a step have one micro-step meanwhile."""
    whole, workload._micro_names = workload._micro_names, workload._micro_names[:1]
    try:
        yield
    finally:
        workload._micro_names = whole


def without_levers(names: list[str], fast: Any, batch: int) -> dict[str, list[float]]:
    """Blocks of the fast step, and of it less each of the levers; one micro-step a step."""
    made = {"fast": fast}
    for name in names or LEVERS:
        lever, key = LEVERS[name], f"less {name}"
        made[key] = fast
        if lever.patch:
            made[key] = ours(batch, 1, fast=True)
            lever.put_into(made[key])
        with lever.active(), one_micro_step(made[key]):
            made[key].step()
    with one_micro_step(fast):
        return blocks_ms(made, 5, 4)


def blocks_ms(made: dict[str, Any], rounds: int, block: int) -> dict[str, list[float]]:
    """Milliseconds a step of each, one block a round."""
    names = list(made)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-1, rounds):  # the first round warms up
        for name in names if number % 2 else names[::-1]:
            lever = LEVERS.get(name.removeprefix("less "))
            torch.cuda.empty_cache()  # two large micro-steps do not fit beside each other
            with lever.active() if lever else nullcontext():
                made[name].step()
                torch.cuda.synchronize()
                began_s = time.perf_counter()
                for _ in range(block):
                    made[name].step()
                torch.cuda.synchronize()
                took_ms = (time.perf_counter() - began_s) / block * 1e3
            if number >= 0:
                found[name].append(round(took_ms, 4))
    return found


def ratios(found: dict[str, list[float]], base: str, tokens: int) -> dict[str, dict[str, float]]:
    """Of each: milliseconds, tokens/s, MFU, and base / this with its 95 % interval."""
    table = {}
    for name, times_ms in found.items():
        ratio = [b / own for own, b in zip(times_ms, found[base], strict=True)]
        mean_ms = statistics.mean(times_ms)
        spread = statistics.stdev(ratio) / len(ratio) ** 0.5
        half = float(student.ppf(0.975, len(ratio) - 1)) * spread
        tokens_per_s = tokens / mean_ms * 1e3
        flops = flops_per_token(SIZES["124m"], SEQ)
        table[name] = {
            "ms_per_step": round(mean_ms, 3),
            "tokens_per_s": round(tokens_per_s),
            "mfu_pct": round(tokens_per_s * flops / PEAK_TFLOPS / 1e10, 2),
            "ratio": round(statistics.mean(ratio), 4),
            "ratio_low": round(statistics.mean(ratio) - half, 4),
            "ratio_high": round(statistics.mean(ratio) + half, 4),
        }
    return table


def matmul_tflops() -> float:
    """TFLOP/s of a bf16 product of 8192 x 8192 matrices, over two seconds of load."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for count in (200, 600):
        torch.cuda.synchronize()
        began_s = time.perf_counter()
        for _ in range(count):
            a @ b
        torch.cuda.synchronize()
    return round(600 * 2 * 8192**3 / (time.perf_counter() - began_s) / 1e12, 1)


def profile_ms(one: Any, steps: int = 2) -> list[list[Any]]:
    """Kernel name, launches a step and milliseconds a step, the longest first."""
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
    return sorted(rows, key=lambda row: -row[2])[:40]


def equality(steps: int, reference: Any, fast_step: Any) -> dict[str, Any]:
    """Losses of the reference, the fast step and the reference of another seed, which takes half
    the steps.
    """
    losses = {}
    for name, one, seed, count in (
        ("reference", reference, 1337, steps),
        ("fast", fast_step, 1337, steps),
        ("reference", reference, 1338, steps // 2),
    ):
        one.model.init_weights(seed)
        if one._fast:
            one._fast.renew()
        one.optimizer.state.clear()
        one._loader.seek(0)
        curve = []
        with one_micro_step(one):
            for step in range(count):
                one.set_lr(6e-4 * min(1.0, (step + 1) / 50))
                curve.append(one.step())
        losses[f"{name} {seed}"] = [round(loss, 6) for loss in torch.stack(curve).tolist()]
    own, fast, other = losses.values()
    apart = [abs(a - b) for a, b in zip(own, fast, strict=True)]
    seeds = [abs(a - b) for a, b in zip(own, other, strict=False)]
    return {
        "steps": steps,
        "largest_difference": max(apart),
        "mean_difference": statistics.mean(apart),
        "largest_difference_of_seeds": max(seeds),
        "mean_difference_of_seeds": statistics.mean(seeds),
        "losses": losses,
    }


def gradient_cosines() -> dict[str, float]:
    """1 - cosine of whole gradients at the first step: to fp32, and to the reference's."""
    from model.fast import FastGPT
    from model.gpt import GPT

    loader = BatchLoader(Tokens.open(STDLIB_SHARD), 8, SEQ, 0, 1, torch.device("cuda", 0))
    batch = loader.next()
    gradients = {}
    for name, context, precision in (
        ("fp32", nullcontext(), "highest"),
        ("reference", torch.autocast("cuda", torch.bfloat16), "high"),
        ("fast", nullcontext(), "high"),
    ):
        torch.set_float32_matmul_precision(precision)
        model = GPT(SIZES["124m"], device="cuda")
        with context:
            loss = (FastGPT(model) if name == "fast" else model)(*batch)
        loss.backward()
        gradients[name] = torch.cat([one.grad.flatten().double() for one in model.parameters()])
    torch.set_float32_matmul_precision("high")

    def apart(a: str, b: str) -> float:
        one, other = gradients[a], gradients[b]
        return 1 - float(one @ other / one.norm() / other.norm())

    pairs = (("reference", "fp32"), ("fast", "fp32"), ("fast", "reference"))
    return {f"{a} to {b}": apart(a, b) for a, b in pairs}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add = parser.add_argument
    add("steps", nargs="+", metavar="KIND=BATCH", help=f"of {', '.join(KINDS)}; the first is 1")
    add("--source", type=Path, help="a clone of karpathy/build-nanogpt")
    add("--tokens", type=int, default=524_288, help="a step (%(default)s)")
    add("--rounds", type=int, default=8)
    add("--block", type=int, default=2, help="steps (%(default)s)")
    add("--levers", nargs="*", help="a fast step less each of these, or of all")
    add("--equality", type=int, default=0, metavar="STEPS")
    add("--profile", action="store_true")
    add("--out", type=Path, required=True)
    options = parser.parse_args()
    given = [one.split("=") for one in options.steps]
    if not all(len(one) == 2 and one[0] in KINDS and one[1].isdigit() for one in given):
        parser.error(f"steps are {options.steps}; possible: KIND=BATCH, of {', '.join(KINDS)}")
    options.steps = {f"{kind} {batch}": (kind, int(batch)) for kind, batch in given}
    return options


def of_kind(made: dict[str, Any], kind: str) -> Any:
    """The first step of this kind."""
    return next(one for name, one in made.items() if name.startswith(kind))


def main() -> None:
    """Measure, print the table, write the JSON after each part."""
    options = arguments()
    document: dict[str, Any] = {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "device": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
        "tokens_per_step": options.tokens,
        "steps": {},
    }

    def write(**more: Any) -> None:
        document.update(more)
        options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    made = build(options, document)
    found = blocks_ms(made, options.rounds, options.block)
    base = next(iter(made))
    write(base=base, table=ratios(found, base, options.tokens), blocks_ms=found)
    show(document["table"])
    if options.levers is not None:
        batch = next(batch for kind, batch in options.steps.values() if kind == "fast")
        found = without_levers(options.levers, of_kind(made, "fast"), batch)
        write(levers=ratios(found, "fast", batch * SEQ), lever_blocks_ms=found)
        show(document["levers"])
    if options.equality:
        pair = of_kind(made, "reference"), of_kind(made, "fast")
        write(equality=equality(options.equality, *pair))
        show({"equality": {k: v for k, v in document["equality"].items() if k != "losses"}})
    if options.profile:
        write(profile={name: profile_ms(one) for name, one in made.items()})
    made.clear()
    gc.collect()
    torch.cuda.empty_cache()
    write(matmul_tflops=matmul_tflops(), one_less_cosine=gradient_cosines())
    show({name: document[name] for name in ("matmul_tflops", "one_less_cosine")})


def show(rows: dict[str, Any]) -> None:
    """Print a table, a row a line."""
    for name, row in rows.items():
        print(f"{name:32}", row, flush=True)


if __name__ == "__main__":
    main()
