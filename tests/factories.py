"""Workload factories of known truth for the engine's tests: what each does is in its docstring."""

import gc
import os
import signal
import time
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import _get_current_dispatch_mode

COLLECT_S = 0.4


class Linear:
    """k products of (n, n) matrices a step, then a backward pass when asked for."""

    def __init__(self, device, n=32, k=3, backward=False, compile=False):
        # torch.manual_seed keeps stacks for devices that are not used yet, read from their sources.
        on_cpu = str(device) == "cpu"
        (torch.default_generator if on_cpu else torch).manual_seed(0)
        self.x = torch.randn(n, n, device=device)
        self.w = torch.randn(n, n, device=device, requires_grad=backward)
        self.k, self.backward = k, backward
        self.tokens_per_step = n
        self.on_phase = None
        self.run = torch.compile(self._run) if compile else self._run

    def _run(self):
        y = self.x
        for _ in range(self.k):
            y = y @ self.w
        return y

    def step(self):
        if self.on_phase:
            self.on_phase("forward")
        y = self.run()
        if self.backward:
            if self.on_phase:
                self.on_phase("backward")
            y.sum().backward()
            self.w.grad = None


def linear(*, n=32, k=3, backward=False, compile=False, device):
    """A workload whose counts follow from n and k."""
    return Linear(device, n, k, backward, compile)


class Faulty(Linear):
    """Fails in the given way at its nth step (0: while it is built), on one rank or on all. With
    "eager" it has too little memory when its FLOPs are counted.
    """

    def __init__(self, device, how, at_step, rank):
        super().__init__(device)
        mine = rank is None or rank == int(os.environ.get("RANK", "0"))
        self.how, self.at_step, self.steps = how, at_step if mine else -1, 0
        if self.at_step == 0:
            fail(how)

    def step(self):
        super().step()
        self.steps += 1
        if self.steps == self.at_step:
            self.on_phase("backward")
            fail(self.how)
        counting = type(_get_current_dispatch_mode()).__name__ == "_FlopCounterMode"
        if self.how == "eager" and self.at_step > 0 and counting:
            fail("oom")


def fail(how):
    """Raise, die, hang, run out of memory, end the launcher or leave, and note when."""
    noted = os.path.join(os.environ.get("STEPGUARD_RUN_DIR", "."), "failed-at")
    with open(noted, "w") as file:
        file.write(str(time.monotonic()))
    if how == "raise":
        raise ValueError("planted\nsecond line")
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "hang":
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(3600)
    if how == "host-memory":
        torch.empty(1 << 55, dtype=torch.uint8)
    if how == "oom" and torch.cuda.is_available():
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    if how == "oom":
        raise torch.OutOfMemoryError("planted: tried to allocate 1000 GiB")
    if how == "agent":
        os.kill(int(os.environ["STEPGUARD_AGENT_PID"]), signal.SIGKILL)
        time.sleep(3600)
    if how == "term":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(3600)
    if how in ("exit", "status"):
        os._exit(0 if how == "exit" else 3)


def faulty(*, how, at_step=1, rank=None, device):
    """See Faulty."""
    return Faulty(device, how, at_step, rank)


def returns_none(*, device):
    """Returns no workload."""


def without_tokens(*, device):
    """Returns an object without tokens_per_step."""

    class Bare:
        def step(self):
            pass

    return Bare()


class Pair(Faulty):
    """Reduces a value over all ranks in every step, after its fault if it has one."""

    def __init__(self, device, how, at_step, rank):
        super().__init__(device, how, at_step, rank)
        self.value = torch.zeros(5, device=device)

    def step(self):
        super().step()
        self.on_phase("all_reduce")
        if self.how != "leave" or self.steps != self.at_step:
            dist.all_reduce(self.value)


def pair(*, how, at_step=1, rank=None, device):
    """See Pair. A rank that is to "leave" is one reduction short when its block ends."""
    return Pair(device, how, at_step, rank)


class Absorbed(Faulty):
    """Where another rank fails this one hears nothing of it, as one that waits in NCCL; and when it
    is told to end it leaves with a status, as one that saves its state first.
    """

    def __init__(self, device, how, at_step, rank):
        super().__init__(device, how, at_step, rank)
        if self.at_step < 0:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(143))

    def step(self):
        super().step()
        if self.at_step < 0 and self.steps == FAILS_AT_STEP:
            self.on_phase("all_reduce")
            time.sleep(3600)


FAILS_AT_STEP = 60  # in the warm-up: a launch has counted before


def absorbed(*, how, rank, device):
    """See Absorbed."""
    return Absorbed(device, how, FAILS_AT_STEP, rank)


class Littered:
    """Reduces a value over all ranks in every step. Rank 1 collects its garbage for COLLECT_S."""

    tokens_per_step = 1

    def __init__(self):
        self.value = torch.zeros(5)
        if os.environ["RANK"] == "1":
            gc.callbacks.append(self.collected)

    @staticmethod
    def collected(phase, info):
        """Called by the collector when it begins and when it ends."""
        if phase == "start" and info["generation"] == 2:
            time.sleep(COLLECT_S)

    def step(self):
        dist.all_reduce(self.value)


def littered(*, device):
    """See Littered."""
    return Littered()


def ranks(*, device):
    """The training step of a narrow model of one layer."""
    from model.config import SIZES
    from model.workloads import train_step

    SIZES["one layer"] = replace(SIZES["nano"], n_layer=1, n_embd=16)
    return train_step(
        size="one layer", batch=1, seq=16, micro_steps=1, precision="fp32", compile=False,
        device=device)  # fmt: skip
