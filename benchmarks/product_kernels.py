"""Each kernel that cuBLASLt offers for each product of the fast step: its tile, cluster and time.

    python -m benchmarks.product_kernels --out product_kernels.json    # on a GPU, about 40 s

The shapes are those of GPT-2 124M in micro-steps of --sequences x 1024 tokens. The kernels of a
product run in turns, four launches a turn. A time is the median of nine turns. The table shows for
each product how much slower than the fastest the kernel is that model/cublaslt.py takes.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.shared import Document, about
from model import cublaslt

SEQ, WIDTH, VOCABULARY = 1024, 768, 50_304
TURNS, LAUNCHES = 9, 4
Calls = dict[str, Callable[[], object]]


def products(rows: int) -> Calls:
    """Return calls that enqueue each product of a step with so many tokens."""
    from model import kernels  # needs Triton, which a machine without a GPU may lack

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, device="cuda").mul_(0.05).bfloat16()

    x, wide, heads, logits = (random(rows, n) for n in (WIDTH, 4 * WIDTH, 3 * WIDTH, VOCABULARY))
    qkv, fc, proj, out = (random(*shape) for shape in (
        (3 * WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (WIDTH, WIDTH)
    ))  # fmt: skip
    tokens, bias, bias3, bias4 = random(VOCABULARY, WIDTH), *(random(n * WIDTH) for n in (1, 3, 4))
    product = kernels.product
    return {
        "heads": lambda: product(x, qkv, bias3, transpose_b=True),
        "attention's projection": lambda: product(x, out, bias, x, transpose_b=True),
        "MLP in, GELU": lambda: kernels.linear_gelu(x, fc, bias4),
        "MLP out": lambda: product(wide, proj, bias, x, transpose_b=True),
        "logits": lambda: product(x, tokens, transpose_b=True),
        "logits, by input": lambda: product(logits, tokens),
        "logits, by weight": lambda: product(logits, x, transpose_a=True, fp32=True),
        "MLP out, GELU, by input": lambda: kernels.linear_gelu_backward(x, proj, wide),
        "MLP out, by weight": lambda: product(x, wide, transpose_a=True, fp32=True),
        "MLP in, by input": lambda: product(wide, fc),
        "MLP in, by weight": lambda: product(wide, x, transpose_a=True, fp32=True),
        "attention's projection, by input": lambda: product(x, out),
        "attention's projection, by weight": lambda: product(x, x, transpose_a=True, fp32=True),
        "heads, by input": lambda: product(heads, qkv),
        "heads, by weight": lambda: product(heads, x, transpose_a=True, fp32=True),
    }


def timed(call: Callable[[], object]) -> dict[str, Any]:
    """Return the tile, the cluster and the time in us of each kernel that cuBLASLt offers for one
    product, in its order; and which of them model/cublaslt.py takes, from 0.
    """
    seen: dict[str, Any] = {}
    choose, kept = cublaslt._choose, cublaslt._products

    def look(offered: Sequence[Any], wanted: Any) -> Any:
        seen["offered"] = offered
        taken = choose(offered, wanted)
        seen["taken"] = next(n for n, one in enumerate(offered) if one is taken)
        return taken

    def runs(number: int) -> float:
        cublaslt._choose = lambda offered, _: offered[number]
        cublaslt._products = by_number[number]
        call()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(LAUNCHES):
            call()
        end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end) / LAUNCHES

    try:
        cublaslt._choose, cublaslt._products = look, {}
        call()
        by_number: list[Any] = [{} for _ in seen["offered"]]
        turns = [[runs(number) for number in range(len(by_number))] for _ in range(TURNS)]
    finally:
        cublaslt._choose, cublaslt._products = choose, kept
    kinds = [[k.get(*cublaslt.TILE), k.get(*cublaslt.CLUSTER)] for k in seen["offered"]]
    us = [round(statistics.median(each), 1) for each in zip(*turns, strict=True)]
    return {"tile_cluster": kinds, "us": us, "taken": seen["taken"]}


def main() -> None:
    """Time the products; print and write a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sequences", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--out", type=Path, required=True, help="result file")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU here; cuBLASLt needs one")
    version = cublaslt._library().cublasLtGetVersion()
    document = Document(options.out, about("cuda") | {"cublaslt": version})
    found: dict[str, dict[str, Any]] = {}
    for sequences in options.sequences:
        mine = found.setdefault(str(sequences), {})
        for name, call in products(sequences * SEQ).items():
            mine[name] = one = timed(call)
            us, least = one["us"], min(one["us"])
            of = " ".join(f"{100 * (each / least - 1):.1f}" for each in us)
            slower = 100 * (us[one["taken"]] / least - 1)
            print(f"{sequences:4} {name:34} {least:8.0f} us, taken +{slower:.1f} %; all: {of}")
            document.update(products=found)


if __name__ == "__main__":
    main()
