"""Parts of training and generation as workloads of their own.

Each factory returns an object with ``step()``, as those of ``model.workloads`` do; a step is one
call of the part. ``python -m stepguard sweep lab/sweeps/attention.toml`` measures a table of them.

    attention(width=64, seq=1024, batch=8, kind="naive", passes="forward_backward")
    decode(size="124m", batch=1, room=256, mode="cuda-graph")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from model.config import SIZES
from model.data.shards import STDLIB_SHARD, Tokens
from model.generate import CHUNK, chunk_logits, empty_cache
from model.gpt import ATTENTION_BACKENDS, GPT
from model.phases import OnPhase, phase
from model.settings import DTYPES, PRECISIONS, check_choice, check_int, takes_settings
from model.workloads import TrainStep, Workload, forward_backward, train_step

MODES = ("eager", "compile", "reduce-overhead", "cuda-graph")
PASSES = ("forward", "forward_backward")


class Part:
    """A workload of one function. ``saved`` is a phase in which nothing runs: its peak is what the
    forward pass keeps for the backward pass.
    """

    on_phase: OnPhase | None = None

    def __init__(
        self, step: Callable[[Part], object], tokens_per_step: int, phases: tuple[str, ...] = ()
    ) -> None:
        self._step, self.tokens_per_step, self.phases = step, tokens_per_step, phases

    def step(self) -> object:
        """Enqueue the part once."""
        return self._step(self)


def _on(device: str) -> torch.device:
    if device == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(device)


def attention(
    *,
    width: int,
    seq: int,
    batch: int = 8,
    kind: str = "naive",
    passes: str = "forward_backward",
    compile: bool = False,
    precision: str = "fp32",
    seed: int = 1337,
    device: str = "cuda",
) -> Part:
    """One head of attention without a mask, as CS336's table has it.

    Args:
        width: of the head; ``seq``: tokens; ``batch``: how many of them.
        kind: "naive" is softmax(Q K^T / sqrt(width)) V in three steps; else the name of one of
            PyTorch's backends, ``model.gpt.ATTENTION_BACKENDS``.
        passes: "forward" keeps what the backward pass needs, and drops it; or "forward_backward".
        compile: through torch.compile.
        precision: "fp32"; "tf32", single with TF32 products; "bf16" or "fp16", of the inputs, which
            the kernels "flash" and "cudnn" want on a GPU.

    Raises:
        ValueError: an impossible parameter.
    """
    check_choice("kind", kind, ("naive", *ATTENTION_BACKENDS))
    check_choice("passes", passes, PASSES)
    check_choice("precision", precision, PRECISIONS)
    for name, value in (("width", width), ("seq", seq), ("batch", batch)):
        check_int(name, value)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    where = _on(device)
    generator = torch.Generator(where).manual_seed(seed)
    shape = (batch, 1, seq, width)
    query, key, value, gradient = (
        torch.randn(shape, generator=generator, device=where, dtype=DTYPES[precision])
        for _ in range(4)
    )
    inputs = [one.requires_grad_() for one in (query, key, value)]
    call: Any = _naive if kind == "naive" else _fused(kind)
    call = torch.compile(call, dynamic=False) if compile else call

    def step(part: Part) -> None:
        for one in inputs:
            one.grad = None
        with phase("forward", part.on_phase):
            mixed = call(*inputs)
        with phase("saved", part.on_phase):
            pass
        if passes == "forward_backward":
            with phase("backward", part.on_phase):
                mixed.backward(gradient)

    names = ("forward", "saved", "backward")
    return Part(step, batch * seq, names if passes == "forward_backward" else names[:2])


def _naive(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
    return F.softmax(scores, dim=-1) @ value


def _fused(kind: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    backend = ATTENTION_BACKENDS[kind]

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if backend is None:
            return F.scaled_dot_product_attention(query, key, value)
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, key, value)

    return call


def decode(
    *,
    size: str = "124m",
    batch: int = 1,
    room: int = 256,
    precision: str = "bf16",
    mode: str = "eager",
    seed: int = 1337,
    device: str = "cuda",
) -> Part:
    """One token of generation, as ``model.generate`` computes it, for each of ``batch`` texts.

    Args:
        room: tokens that the cache has room for.
        precision: of parameters and cache, "fp32" or "bf16".
        mode: "eager"; "compile"; "reduce-overhead", compiled into CUDA graphs; "cuda-graph", the
            eager kernels captured once and replayed.

    Raises:
        ValueError: an impossible parameter.
    """
    check_choice("size", size, SIZES)
    check_choice("precision", precision, ("fp32", "bf16"))
    check_choice("mode", mode, MODES if device == "cuda" else MODES[:2])
    check_int("batch", batch)
    check_int("room", room, least=CHUNK, most=SIZES[size].block_size)
    torch.set_float32_matmul_precision("highest")
    where = _on(device)
    model = GPT(SIZES[size], seed=seed, device=where).eval()
    if precision == "bf16":
        model = model.bfloat16()
    cache = empty_cache(model, batch, room)
    ids = torch.zeros((batch, CHUNK), dtype=torch.int64, device=where)
    positions = torch.arange(CHUNK, device=where)

    def token() -> Tensor:
        with torch.no_grad():
            return chunk_logits(model, ids, positions, cache)[:, -1].argmax(dim=-1)

    call: Callable[[], object] = token
    if mode == "reduce-overhead":
        for tensor in (tensor for layer in cache for tensor in layer):
            torch._dynamo.mark_static_address(tensor)  # else what is written to has no CUDA graph
    if mode in ("compile", "reduce-overhead"):
        options = {"mode": mode} if mode == "reduce-overhead" else {}
        call = torch.compile(token, dynamic=False, **options)
    elif mode == "cuda-graph":
        call = _captured(token)
    return Part(lambda part: call(), batch)


def _captured(function: Callable[[], object]) -> Callable[[], object]:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is made on the first calls must not be captured
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()

    def replayed() -> object:
        graph.replay()
        return result

    return replayed


class _Recomputed(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=False)


@takes_settings
def checkpointed(*, again: bool = True, **params: Any) -> Workload:
    """``forward_backward`` whose layers keep their inputs alone and compute the rest ``again``."""
    compile = params.pop("compile", False)
    workload = forward_backward(**params, compile=False)
    if again:
        workload.model.h = nn.ModuleList(_Recomputed(block) for block in workload.model.h)
    if compile:
        workload._network = torch.compile(workload.model, dynamic=False)
    return workload


class _Reading(Part):
    def __init__(self, workload: TrainStep, every: int) -> None:
        super().__init__(self._read, workload.tokens_per_step, workload.phases)
        self._workload, self._every, self._count = workload, every, 0

    def _read(self, _: Part) -> None:
        self._workload.on_phase = self.on_phase
        loss = self._workload.step()
        self._count += 1
        if self._count % self._every == 0:
            loss.item()


def reading_step(*, every: int, **params: Any) -> Part:
    """``train_step`` that reads its loss every so many steps, and so waits for the GPU."""
    check_int("every", every)
    return _Reading(train_step(**params), every)


class _Sequences(Dataset[Tensor]):
    """Sequences cut from the shard and tokenized when they are asked for, as a slow input would."""

    def __init__(self, seq: int, cost: int) -> None:
        self._tokens, self._seq, self._cost = Tokens.open(STDLIB_SHARD), seq, cost

    def __len__(self) -> int:
        return 2**31

    def __getitem__(self, index: int) -> Tensor:
        from model.data.tokenizer import get_encoding

        encoding = get_encoding(self._tokens.encoding)
        ids = self._tokens.read(index * self._seq, self._seq).tolist()
        text = encoding.decode(ids)
        for _ in range(self._cost):
            ids = encoding.encode_ordinary(text)
        return torch.tensor((ids * self._seq)[: self._seq])


def loading(
    *,
    batch: int,
    seq: int,
    workers: int = 0,
    pin: bool = False,
    prefetch: int = 2,
    cost: int = 4,
    size: str = "124m",
    device: str = "cuda",
) -> Part:
    """A forward pass on batches of PyTorch's DataLoader, which tokenizes them: input-bound.

    On a GPU the model is in bf16: in single precision it would be what the step waits for.

    Args:
        workers: processes; ``pin``: into pinned memory, copied without waiting; ``prefetch``:
            batches ahead for each worker; ``cost``: how often each text is tokenized.
    """
    where = _on(device)
    model = GPT(SIZES[size], device=where).eval()
    if device == "cuda":
        model = model.bfloat16()
    loader = DataLoader(
        _Sequences(seq, cost),
        batch_size=batch,
        num_workers=workers,
        pin_memory=pin and device == "cuda",
        prefetch_factor=prefetch if workers else None,
    )
    batches: Iterator[Tensor] = iter(loader)

    @torch.no_grad()
    def step(part: Part) -> None:
        with phase("load", part.on_phase):
            ids = next(batches).to(where, non_blocking=pin)
        with phase("forward", part.on_phase):
            model(ids)

    return Part(step, batch * seq, ("load", "forward"))


def tokenization(*, how: str, texts: int = 64, device: str = "cpu") -> Part:
    """Text to ids on the host: "single" calls, one "batch" on all cores, or "cached" results.

    A step makes a tensor of the texts' lengths: one without an operator of torch is refused.
    """
    from model.data.tokenizer import get_encoding

    check_choice("how", how, ("single", "batch", "cached"))
    encoding, tokens = get_encoding("stdlib8k"), Tokens.open(STDLIB_SHARD)
    pieces = [encoding.decode(tokens.read(512 * n, 512).tolist()) for n in range(texts)]
    known = {text: encoding.encode_ordinary(text) for text in pieces}
    calls: dict[str, Callable[[], list[list[int]]]] = {
        "single": lambda: [encoding.encode_ordinary(text) for text in pieces],
        "batch": lambda: encoding.encode_ordinary_batch(pieces),
        "cached": lambda: [known[text] for text in pieces],
    }
    call = calls[how]

    def step(part: Part) -> list[list[int]]:
        ids = call()
        torch.tensor([*map(len, ids)])
        return ids

    return Part(step, sum(map(len, known.values())))


def convolution(*, channels_last: bool, batch: int = 32, device: str = "cuda") -> Part:
    """A 3 x 3 convolution in half precision, its images in either memory layout."""
    where = _on(device)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    half = torch.float16 if device == "cuda" else torch.bfloat16
    network = nn.Conv2d(64, 64, 3, padding=1, device=where, dtype=half).to(memory_format=layout)
    images = torch.ones((batch, 64, 56, 56), device=where, dtype=half).to(memory_format=layout)

    @torch.no_grad()
    def step(part: Part) -> None:
        network(images)

    return Part(step, batch)
