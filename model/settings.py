"""What can be asked of a workload, checked before anything is built.

A mistyped parameter must not be measured as something else: each one is checked against what this
machine can do, and the error is one line with the value found and the values possible. Attention
backends are tried on the device, since what a kernel supports depends on card, precision and
head width.

    settings = Settings(size="124m", batch=64, seq=1024, precision="bf16", compile=True,
                        attention="default", seed=1337, device="cuda")
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import sdpa_kernel

from model.config import SIZES, GPTConfig
from model.gpt import ATTENTION_BACKENDS

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
PRECISIONS = tuple(DTYPES)
DEVICES = ("cpu", "cuda")
# Where nobody says: on an H100 the smallest GPT-2, on a CPU what takes it a fraction of a second.
USUAL: dict[str, dict[str, Any]] = {
    "cpu": {"size": "nano", "batch": 8, "seq": 128, "precision": "fp32", "compile": False},
    "cuda": {"size": "124m", "batch": 64, "seq": 1024, "precision": "bf16", "compile": True},
}
DEFAULTS: dict[str, Any] = {"attention": "default", "seed": 1337, "device": "cuda", "fast": False}


@dataclass(frozen=True)
class Settings:
    """The parameters that all workloads share.

    Attributes:
        size: a key of ``model.config.SIZES``.
        batch: sequences per micro-step and rank.
        seq: tokens per sequence.
        precision: of matrix products. ``fp32``: IEEE single; ``tf32``: single with TF32 products;
            ``bf16``, ``fp16``: autocast to that type, TF32 for what autocast leaves in single.
        compile: run the model through ``torch.compile``.
        attention: a key of ``model.gpt.ATTENTION_BACKENDS``.
        seed: of the initial parameters.
        device: ``cpu`` or ``cuda``; the latter means the process's current CUDA device.
        fast: train on ``model.fast`` where ``uses_kernels``.

    Raises:
        ValueError: a value is impossible, at all or on this machine.
    """

    size: str
    batch: int
    seq: int
    precision: str
    compile: bool
    attention: str
    seed: int
    device: str
    fast: bool

    def __post_init__(self) -> None:
        check_choice("size", self.size, SIZES)
        check_int("batch", self.batch)
        check_int("seq", self.seq, most=self.config.block_size)
        check_choice("compile", self.compile, (True, False))
        check_choice("fast", self.fast, (True, False))
        check_int("seed", self.seed, least=0)
        check_choice("device", self.device, possible_devices())
        check_choice("precision", self.precision, PRECISIONS)
        check_choice(f"precision on {self.device}", self.precision, possible_precisions(self))
        check_choice("attention", self.attention, ATTENTION_BACKENDS)
        if self.attention != "default":
            name = f"attention on {self.device} in {self.precision}"
            check_choice(name, self.attention, possible_attention(self))

    @property
    def config(self) -> GPTConfig:
        """The shape of the model."""
        return SIZES[self.size]

    @property
    def torch_device(self) -> torch.device:
        """The device with its index, so that a later change of the current one has no effect."""
        if self.device == "cuda":
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device(self.device)

    @property
    def uses_kernels(self) -> bool:
        """Whether a training step runs on ``model.fast``: asked for, and in bf16 on a GPU with
        PyTorch's choice of attention, where Triton is installed. Anything else runs on
        ``model.gpt``.
        """
        possible = self.device == "cuda" and self.precision == "bf16"
        return bool(self.fast and possible and self.attention == "default" and find_spec("triton"))

    def set_matmul_precision(self) -> None:
        """Set this process's precision of single-precision products: there is only a global one."""
        torch.set_float32_matmul_precision("highest" if self.precision == "fp32" else "high")

    def compiled(self, module: nn.Module) -> nn.Module:
        """The module, through ``torch.compile`` if that was asked for."""
        return cast(nn.Module, torch.compile(module, dynamic=False)) if self.compile else module

    def autocast(self) -> AbstractContextManager[object]:
        """A context for the forward pass, to be entered any number of times."""
        if self.precision in ("fp32", "tf32"):
            return nullcontext()
        return torch.autocast(self.device, dtype=DTYPES[self.precision])


def settings_of(device: str, **asked: Any) -> Settings:
    """The settings of a workload; what is None, or not asked for, is what is ``USUAL`` there."""
    usual = USUAL.get(device, USUAL["cpu"])  # for another one Settings has an error
    said = {name: value for name, value in asked.items() if value is not None or name not in usual}
    return Settings(**{**DEFAULTS, **usual, **said, "device": device})


Factory = Callable[..., Any]


def takes_settings(factory: Factory) -> Factory:
    """Give a factory that hands its ``**asked`` on to ``settings_of`` a signature with the names of
    them: whoever calls it by parameters of a file can say which one is misspelt.
    """
    signature = inspect.signature(factory)
    own = {key: one for key, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD}
    shared = [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=DEFAULTS.get(field.name),  # None: what is usual on the device
        )
        for field in fields(Settings)
        if field.name not in {*own, "fast"}
    ]
    factory.__signature__ = signature.replace(parameters=[*shared, *own.values()])  # type: ignore
    return factory


def check_choice(name: str, value: object, possible: Iterable[object]) -> None:
    """Raise a one-line ValueError unless ``value`` is one of ``possible``, of the same type."""
    possible = tuple(possible)
    if not any(type(value) is type(choice) and value == choice for choice in possible):
        listed = ", ".join(str(choice) for choice in possible)
        raise ValueError(f"{name} is {value!r}; possible: {listed}")


def check_int(name: str, value: object, *, least: int = 1, most: int | None = None) -> None:
    """Raise a one-line ValueError unless ``value`` is an int (no bool) in the range."""
    if type(value) is not int or value < least or (most is not None and value > most):
        bounds = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name} is {value!r}; possible: an int {bounds}")


def check_number(name: str, value: object, *, zero: bool = False) -> None:
    """Raise a one-line ValueError unless ``value`` is a positive number, or 0 where ``zero``."""
    number = value if isinstance(value, (int, float)) and type(value) is not bool else -1
    if not math.isfinite(number) or number < 0 or (number == 0 and not zero):
        bounds = "of 0 or more" if zero else "above 0"
        raise ValueError(f"{name} is {value!r}; possible: a finite number {bounds}")


def possible_devices() -> tuple[str, ...]:
    """The device names that this process can use."""
    return DEVICES if torch.cuda.is_available() else ("cpu",)


def possible_precisions(settings: Settings) -> tuple[str, ...]:
    """The precisions that the settings' device computes in hardware, or as PyTorch offers them."""
    if settings.device == "cpu":
        return tuple(name for name in PRECISIONS if name != "tf32" and _attends(settings, name))
    ampere = torch.cuda.get_device_capability() >= (8, 0)
    return PRECISIONS if ampere else ("fp32", "fp16")


def possible_attention(settings: Settings) -> tuple[str, ...]:
    """The attention backends that work at this precision and head width on this device."""
    return tuple(
        name
        for name in ATTENTION_BACKENDS
        if name == "default" or _attends(settings, settings.precision, name)
    )


def _attends(settings: Settings, precision: str, attention: str = "math") -> bool:
    """Whether a very small attention runs, forward and backward."""
    backend = ATTENTION_BACKENDS[attention]
    assert backend is not None, "the default backend cannot fail"
    width = settings.config.n_embd // settings.config.n_head
    query = torch.zeros(
        (1, 1, 16, width),
        dtype=DTYPES[precision],
        device=settings.torch_device,
        requires_grad=True,
    )
    try:
        with warnings.catch_warnings(action="ignore"), sdpa_kernel(backend):
            F.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
    except RuntimeError:  # PyTorch's word for "no kernel for this"
        return False
    return True
