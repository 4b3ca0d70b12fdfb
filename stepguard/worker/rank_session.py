"""A rank's session. It keeps a workload, and runs the commands that the measuring process sends,
one at a time, until ``exit``: each is a method ``do_NAME``. core/replies.py has their answers.

An exception ends the launch.
"""

import contextlib
import importlib
import json
import os
import random
import shlex
import sys
from collections.abc import Callable, Mapping
from statistics import fmean
from time import perf_counter, perf_counter_ns
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from stepguard.core import replies
from stepguard.core.case import from_dict
from stepguard.worker import torch_device
from stepguard.worker.block_timer import Clock, alternate, synced
from stepguard.worker.compile_caches import (
    has_compiler,
    keep_headers,
    take_kept_headers,
    trace_own_code_anew,
)
from stepguard.worker.counters import compiler, counting
from stepguard.worker.counters.changed_settings import everywhere
from stepguard.worker.counters.collector import note_frozen
from stepguard.worker.counters.profiled_steps import (
    PROFILED_STEPS,
    TakenProfile,
    take_profile,
    unprofiled,
)
from stepguard.worker.counters.syncs import locate_syncs
from stepguard.worker.counters.tally import LEAK_STEPS, RankStep, Tally
from stepguard.worker.counters.tensor_devices import Placement
from stepguard.worker.loops.looped import workload_of
from stepguard.worker.rank_channel import Channel, join_process_group
from stepguard.worker.rank_fingerprint import fingerprint, modules, read_once
from stepguard.worker.rank_position import Note, Phases
from stepguard.worker.workload import BadWorkload


class MachineSamples:
    """Samples of another node's GPUs, which launch/nodes.py writes and its first rank sends."""

    def __init__(self) -> None:
        first = os.environ.get("LOCAL_RANK", "0") == "0"
        self._path = os.environ.get("STEPGUARD_SAMPLES", "") if first else ""
        self._read_bytes = 0

    def since(self) -> list[Any]:
        """Return what was written since the last call."""
        if not self._path:
            return []
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            file.seek(self._read_bytes)
            # A line that is still being written is left for the next call.
            whole = file.read().rpartition(b"\n")
            self._read_bytes += len(whole[0]) + len(whole[1])
            return [json.loads(line) for line in whole[0].splitlines()]
        return []  # a block without samples does not count


class Session:
    """One rank's state and its commands: ``do_NAME`` runs NAME and returns the rank's answer."""

    def __init__(self, note: Note) -> None:
        self._frozen, self._read_once = note_frozen(), read_once()
        self._settings = everywhere()
        trace_own_code_anew()  # in each rank, not in its agent; before the workload is imported
        preload("STEPGUARD_PRELOAD")
        self.note = note
        self.phases = Phases(note.phase)
        try:
            local_rank = int(os.environ.get("LOCAL_RANK", "0"))
            self.device = torch_device.rank_device(os.environ["STEPGUARD_DEVICE"], local_rank)
        except ValueError as error:
            raise BadWorkload(str(error)) from None
        self.on_gpu = torch_device.on_gpu(self.device)
        self.channel = Channel()
        self.clock = Clock(self.device)
        self.machine = MachineSamples()
        self.placement = Placement()
        self.workload: Any = None
        self._taken: TakenProfile | None = None  # the last profile, until it is read
        self._tally = Tally()  # what the counting pass has counted
        self.package = ""  # of the workload's factory
        self.in_group = False  # torchrun's variables lead a script to make one

    def serve(self) -> None:
        """Answer commands until ``exit``."""
        while True:
            message = self.channel.receive()
            name = message.pop("command")
            self.note.command(name.replace("_", " "))
            if name == "exit":
                break
            handler: Callable[..., replies.Reply] = getattr(self, f"do_{name}")
            reply = handler(**message)
            reply.samples = self.machine.since()
            ranks = self.channel.gather(msgspec.to_builtins(reply))
            self.channel.reply({"reply": name, "ranks": ranks})
            self.note.command("idle")
        if dist.is_initialized():  # each rank leaves the group, so that none waits for another
            dist.destroy_process_group()
        if has_compiler():
            keep_headers()

    def do_prepare(self, case: dict[str, Any], timed_s: float = 0.0) -> replies.Prepared:
        """Build the workload. Return its description, and what this rank runs on."""
        wanted = from_dict(case)
        # Not earlier: a launch on standby must not have a GPU context.
        torch_device.select(self.device)
        if has_compiler():
            take_kept_headers()
        self.package = wanted.module.partition(".")[0]
        self.in_group = wanted.needs_torchrun
        seed(self.channel.rank)
        if wanted.loop is None:  # a loop's own code joins the group
            join_process_group(torch_device.backend(self.device))
        compiler.install()  # before workload_of, where a loop already compiles
        # On a GPU a tensor's device is known.
        watched = contextlib.nullcontext() if self.on_gpu else self.placement.observed()
        with watched:
            self.workload = workload_of(wanted, self.device.type, timed_s)
        refuse_set_too_late(self._read_once, read_once())
        compiler.install()  # once more: the workload may have been the first to import the compiler
        if hasattr(self.workload, "on_phase"):
            self.workload.on_phase = self.phases
        loaded = modules(self.package)
        return replies.Prepared(
            tokens_per_step=int(self.workload.tokens_per_step),
            flops_per_step=float(getattr(self.workload, "flops_per_step", 0.0)),
            floor_flops_per_step=float(getattr(self.workload, "floor_flops_per_step", 0.0)),
            precision=str(getattr(self.workload, "precision", "")),
            fingerprint=fingerprint(self.device),
            memory_bytes=torch_device.usable_bytes(self.device),
            sources=loaded.sources,
            installed=loaded.installed,
        )

    def do_sources(self) -> replies.Sources:
        """Return the files that this rank's modules came from, and which of them are installed."""
        return modules(self.package)

    def do_first_step(self) -> replies.FirstStep:
        """Run the first step, with its compilation, until the device is done."""
        torch_device.synchronize(self.device)
        began = perf_counter()
        self.workload.step()
        torch_device.synchronize(self.device)
        took_s = perf_counter() - began + getattr(self.workload, "first_border_s", 0.0)
        compiler.install()  # a step may have been the first to use the compiler
        reserved = torch_device.peak_bytes(torch_device.RESERVED) if self.on_gpu else 0
        return replies.FirstStep(
            compile_s=took_s,
            compiled_afresh=compiler.compiled_afresh(),
            missed_graphs=compiler.missed_graphs(),
            reserved_bytes=reserved,
        )

    def do_block(self, steps: int) -> replies.TimedBlock:
        """Time one block."""
        block = self.clock.block(self.workload.step, steps, self.note.step, self._line_up)
        block.compiled_graphs = compiler.unique_graphs()
        block.compiled_afresh = compiler.compiled_afresh()
        if self.on_gpu:
            block.device_allocations = torch_device.allocator_calls()["cudaMalloc"]
        return block

    def _line_up(self) -> None:
        # Otherwise the host's time would contain what another rank still does.
        self.channel.barrier()
        self.channel.begin()
        self.channel.barrier()

    def do_alternate(self, order: list[int], steps: int) -> replies.TimedSegments:
        """Time segments of two variants: the step (0), and with a synchronization behind it (1)."""
        step = self.workload.step
        chosen = (step, synced(step, self.device))
        self.channel.begin()
        began_ns = perf_counter_ns()
        line_up, collector = self.channel.barrier, self.clock.collector
        segments_ms = alternate(chosen, order, steps, self.device, line_up, collector)
        ended_ns = perf_counter_ns()
        return replies.TimedSegments(segments_ms=segments_ms, began_ns=began_ns, ended_ns=ended_ns)

    def do_count(self) -> replies.Counted:
        """Run the first part of the counting pass. Return its counts."""
        tokens: list[int] = []
        self._tally = counting.count_compiled(self._step(tokens), self._progress)
        mean = fmean(tokens[counting.SETTLING_STEPS :])
        return replies.Counted(counts=self._tally.counts(), tokens_per_step=round(mean))

    def do_count_eager(self) -> replies.Counted:
        """Run the second part. Return the counts of both."""
        counting.count_without_compiler(self._step(), self._progress, self._tally)
        return replies.Counted(counts=self._tally.counts())

    def do_locate(self) -> replies.Counted:
        """Return the count of host syncs with their lines. Nothing is timed after it."""
        tally = Tally()
        locate_syncs(tally, self._step(), self._tally.calls)
        return replies.Counted(counts=tally.counts())

    def do_profile(self) -> replies.Reply:
        """Profile a few steps. do_kernels() reads the profile."""
        self._taken = take_profile(self._step(), PROFILED_STEPS)
        return replies.Reply()

    def do_kernels(self) -> replies.Kernels:
        """Read the profile that do_profile() took, without a step. On a CPU there is none."""
        taken, self._taken = self._taken, None
        if taken is None:
            raise RuntimeError("kernels: no profile was taken before")
        profile, problem = taken.kernels()
        return replies.Kernels(profile=profile, problem=problem)

    def _step(self, tokens: list[int] | None = None) -> RankStep:
        """Return the step as counters run it. The first ones append their tokens to the list."""
        ranks = self.channel

        def step() -> Any:
            returned = self.workload.step()
            # The same steps of each launch, before those whose syncs count: tokens may be a tensor.
            if tokens is not None and len(tokens) < counting.SETTLING_STEPS + LEAK_STEPS:
                tokens.append(int(self.workload.tokens_per_step))
            return returned

        return RankStep(
            unprofiled(step),
            self.device,
            self.phases,
            ranks.world_size,
            ranks.any,
            self._frozen,
            self.placement,
            self._settings,
            in_group=self.in_group,
        )

    def _progress(self, text: str) -> None:
        self.note.command(text)
        self.channel.reply({"progress": text})

    def do_call(self, function: str, arguments: dict[str, Any]) -> replies.Called:
        """Call "module:function" with the step and the arguments. Return what it returns."""
        module, _, name = function.partition(":")
        self.note.command(name.replace("_", " "))
        called = getattr(importlib.import_module(module), name)
        returned = called(self._step(), self.channel.rank, self._progress, **arguments)
        return replies.Called(returned=returned)

    def do_park(self) -> replies.Reply:
        """Give cached memory back to the driver."""
        torch_device.synchronize(self.device)
        if self.on_gpu:
            torch_device.empty_cache()
        return replies.Reply()


def refuse_set_too_late(then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise BadWorkload if a workload changed variables that torch had already read."""
    moved = sorted(key for key in then.keys() | now.keys() if then.get(key) != now.get(key))
    if moved:
        unset = [f"-u {key}" for key in moved if key not in now]
        set_to = [f"{key}={shlex.quote(now[key])}" for key in moved if key in now]
        raise BadWorkload(
            f"the workload changes {', '.join(moved)}, which torch has read by then: set it in "
            "torch._inductor.config or torch._dynamo.config, or begin the command with: env "
            + " ".join(unset + set_to)
        )


def seed(rank: int) -> None:
    """Seed what a workload may draw from without a seed of its own, so that launches draw alike."""
    random.seed(rank)
    torch.manual_seed(rank)
    if numpy := sys.modules.get("numpy"):  # torch imports it if it is installed
        numpy.random.seed(rank)


def preload(variable: str) -> None:
    """Import the modules that an environment variable lists. A launch does so while the launch
    before it is measured, so it costs no time. If an import fails, it fails once more in
    ``prepare``, which reports it.
    """
    for name in os.environ.get(variable, "").split():
        with contextlib.suppress(Exception):
            importlib.import_module(name)
