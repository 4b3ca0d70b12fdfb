"""The three workloads: a forward pass, forward and backward, and a whole training step.

Each factory returns an object whose ``step()`` enqueues exactly one step and returns its loss,
still on the device. Nothing in a step waits for the device: no ``.item()``, no pageable copy, no
``synchronize()``. Whoever calls decides when to wait; that is what lets a measurement separate
the cost of the step from the cost of waiting.

    workload = train_step(size="124m", batch=64, seq=1024, micro_steps=2)
    loss = workload.step()
    mfu = workload.flops_per_step / step_s / peak_flops_per_s

Under an initialised ``torch.distributed`` with several ranks every workload reads its own share of
the tokens, and ``train_step`` synchronises gradients with DistributedDataParallel. The caller sets
the current CUDA device first.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from model.config import causal_flops_per_token, flops_per_token
from model.data.loader import BatchLoader
from model.data.shards import STDLIB_SHARD, Tokens
from model.ddp import DdpSettings
from model.gpt import GPT, attention_context
from model.phases import OnPhase, phase
from model.settings import Settings, check_int, check_number, settings_of, takes_settings

if TYPE_CHECKING:
    from model.fast import FastGPT


class Workload:
    """A GPT-2 with a stream of batches; subclasses say what a step does with them.

    Attributes:
        tokens_per_step: tokens that this rank reads in a step.
        flops_per_step: this rank's FLOPs by the formula for MFU (``model.config.flops_per_token``).
        floor_flops_per_step: the fewest that could do (``model.config.causal_flops_per_token``).
        precision: as given to the factory.
        phases: the names that ``on_phase`` can be called with.
        on_phase: called with the name of each phase as the host enters it, if not None.
        model: the bare ``GPT``, neither compiled nor wrapped.
    """

    on_phase: OnPhase | None = None

    def __init__(
        self,
        settings: Settings,
        *,
        phases: tuple[str, ...],
        passes: int,
        micro_steps: int = 1,
        tokens: Tokens | None = None,
    ) -> None:
        """``passes``: 1 for the forward pass, 3 with the backward pass, which costs twice that;
        ``tokens``: scattered, to learn from; when None this repository's own, in their order.
        """
        settings.set_matmul_precision()
        config, seq, device = settings.config, settings.seq, settings.torch_device
        self.tokens_per_step = micro_steps * settings.batch * seq
        self.flops_per_step = self.tokens_per_step * flops_per_token(config, seq) * passes / 3
        self.floor_flops_per_step = (
            self.tokens_per_step * causal_flops_per_token(config, seq) * passes / 3
        )
        self.precision = settings.precision
        self.phases = phases
        self.model = GPT(config, seed=settings.seed, device=device, attention=settings.attention)
        self._fast = _fast(self.model) if settings.uses_kernels else None
        self._network = settings.compiled(self._fast or self.model)
        self._autocast = nullcontext() if self._fast else settings.autocast()
        self._attention = settings.attention
        rank, world_size = rank_and_world_size()
        stream = tokens or Tokens.open(STDLIB_SHARD)
        self._loader = BatchLoader(
            stream, settings.batch, seq, rank, world_size, device, scatter=tokens is not None
        )

    def step(self) -> Tensor:
        """Enqueue one step; return its mean loss in nats, a detached scalar on the device."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of the model and everything that holds device memory; no step may follow."""
        held = ("model", "optimizer", "grad_norm", "_fast", "_network", "_replicas", "_loader")
        held = (*held, "_scaler")
        for name in held:
            vars(self).pop(name, None)

    def _phase(self, name: str) -> AbstractContextManager[object]:
        return phase(name, self.on_phase)

    def _forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        with self._phase("forward"), self._autocast, attention_context(self._attention):
            return self._network(inputs, targets)


class _Forward(Workload):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, phases=("forward",), passes=1)
        self.model.eval()

    @torch.no_grad()
    def step(self) -> Tensor:
        return self._forward(*self._loader.next())


class _ForwardBackward(Workload):
    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, phases=("forward", "backward"), passes=3)

    def step(self) -> Tensor:
        self.model.zero_grad(set_to_none=True)
        loss = self._forward(*self._loader.next())
        with self._phase("backward"):
            loss.backward()
        return loss.detach()


class TrainStep(Workload):
    """A training step, the one that is guarded and the one that ``model.train`` trains with.

    Attributes:
        grad_norm: of the last step's gradient before it was clipped, a scalar on the device.
    """

    grad_norm: Tensor | None = None

    def __init__(
        self,
        settings: Settings,
        ddp: DdpSettings,
        *,
        micro_steps: int,
        grad_clip: float,
        lr: float,
        weight_decay: float,
        tokens: Tokens | None = None,
    ) -> None:
        _, self._world_size = rank_and_world_size()
        self._micro_names = tuple(f"micro_step_{index}" for index in range(micro_steps))
        reduce = ("all_reduce",) if self._world_size > 1 else ()
        phases = (*self._micro_names, "forward", "backward", *reduce, "clip_grad", "optimizer")
        super().__init__(settings, phases=phases, passes=3, micro_steps=micro_steps, tokens=tokens)
        self._replicas: DistributedDataParallel | None = None
        if self._world_size > 1:
            self._network, self._replicas = ddp.wrap(self._fast or self.model, settings)
        # DistributedDataParallel learns a static graph in its first backward pass, which therefore
        # must not go without exchange. One exchange more does not change the sum.
        self._must_sync = ddp.static_graph
        self._grad_clip = grad_clip
        self.optimizer = make_optimizer(self.model, lr=lr, weight_decay=weight_decay)
        # Looking whether a gradient overflowed would make the host wait in every step. It does
        # not have to: GradScaler hands its scale and its overflow flag, both on the device, to an
        # optimizer that takes them, and the fused AdamW does; its kernel then skips the update.
        # A disabled scaler does nothing at all.
        self._scaler = torch.amp.GradScaler(settings.device, enabled=self.precision == "fp16")

    def step(self) -> Tensor:
        self.grad_norm = None  # the last one's would count among this step's memory
        total = self._micro_step(0)
        for index in range(1, len(self._micro_names)):
            total = total + self._micro_step(index)
        if self._world_size > 1:
            with self._phase("all_reduce"):
                total = total / self._world_size  # gloo sums, but has no mean
                dist.all_reduce(total)
        with self._phase("clip_grad"):
            self._scaler.unscale_(self.optimizer)
            self.grad_norm = nn.utils.clip_grad_norm_(
                self.model.parameters(), self._grad_clip, foreach=True
            )
        with self._phase("optimizer"):
            self._scaler.step(self.optimizer)
            self._scaler.update()
            if self._fast:
                self._fast.renew()
            self.optimizer.zero_grad(set_to_none=True)
        return total

    def set_lr(self, lr: float) -> None:
        """Let the steps from now on learn at this rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Return all that decides the steps to come, less what the constructor was given."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self._scaler.state_dict(),
            "position": self._loader.position,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what ``state_dict`` returned, here or in another process."""
        self.model.load_state_dict(state["model"])
        if self._fast:
            self._fast.renew()
        self.optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])
        self._loader.seek(state["position"])

    def _micro_step(self, index: int) -> Tensor:
        """Add the gradients of one batch; return its share of the step's loss."""
        count = len(self._micro_names)
        with self._phase(self._micro_names[index]), self._gradients_synced(index == count - 1):
            loss = self._forward(*self._loader.next()) / count
            with self._phase("backward"):
                self._scaler.scale(loss).backward()
        return loss.detach()

    def _gradients_synced(self, last: bool) -> AbstractContextManager[object]:
        """Ranks exchange gradients once a step, during the last backward pass."""
        wanted = last or self._must_sync
        self._must_sync = False
        return nullcontext() if wanted or self._replicas is None else self._replicas.no_sync()


def make_optimizer(model: nn.Module, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """Fused AdamW with betas 0.9 and 0.95; only matrices decay, not biases and norms."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


@takes_settings
def forward(*, device: str = "cuda", **asked: Any) -> Workload:
    """A forward pass with the loss, without gradients, in evaluation mode.

    Parameters are those of ``model.settings.Settings``; what is None, or not given, is ``USUAL``
    there.

    Raises:
        ValueError: an impossible parameter.
    """
    return _Forward(settings_of(device, **asked))


@takes_settings
def forward_backward(*, device: str = "cuda", **asked: Any) -> Workload:
    """A forward and a backward pass; gradients are thrown away before each step.

    In fp16 the loss is not scaled: the kernels are the same, and nobody uses the gradients.

    Parameters are those of ``model.settings.Settings``; what is None, or not given, is ``USUAL``
    there.

    Raises:
        ValueError: an impossible parameter.
    """
    return _ForwardBackward(settings_of(device, **asked))


@takes_settings
def train_step(
    *,
    device: str = "cuda",
    fast: bool = False,
    micro_steps: int = 2,
    grad_clip: float = 1.0,
    lr: float = 6e-4,
    weight_decay: float = 0.1,
    bucket_cap_mb: float | None = None,
    gradient_as_bucket_view: bool = False,
    static_graph: bool = False,
    find_unused_parameters: bool = False,
    compile_before_wrap: bool = True,
    optimize_ddp: bool = True,
    **asked: Any,
) -> Workload:
    """A training step: ``micro_steps`` times forward and backward, clip, AdamW.

    Parameters that are not named here are those of ``model.settings.Settings``; what is None, or
    not given, is ``USUAL`` there.

    Args:
        fast: run on ``model.fast`` where the settings allow (``Settings.uses_kernels``).
        micro_steps: batches whose gradients are added up before the update.
        grad_clip: largest norm of the gradient of all parameters together.
        lr, weight_decay: of AdamW; the learning rate stays constant. At 0 every kernel runs and
            no parameter changes, so that a step costs the same however many came before it.
        bucket_cap_mb and all that follow: of several ranks, see ``model.ddp.DdpSettings``; on one
            rank they are checked and have no effect.

    Raises:
        ValueError: an impossible parameter.
    """
    settings = settings_of(device, fast=fast, **asked)
    check_int("micro_steps", micro_steps)
    check_number("grad_clip", grad_clip)
    check_number("lr", lr, zero=True)
    check_number("weight_decay", weight_decay, zero=True)
    ddp = DdpSettings(
        bucket_cap_mb,
        gradient_as_bucket_view,
        static_graph,
        find_unused_parameters,
        compile_before_wrap,
        optimize_ddp,
    )
    ddp.check(settings.compile)
    return TrainStep(
        settings,
        ddp,
        micro_steps=micro_steps,
        grad_clip=grad_clip,
        lr=lr,
        weight_decay=weight_decay,
    )


def _fast(model: GPT) -> FastGPT:
    from model.fast import FastGPT  # imports Triton, which not every PyTorch brings

    return FastGPT(model)


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's place among the ranks; (0, 1) without a process group."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1
