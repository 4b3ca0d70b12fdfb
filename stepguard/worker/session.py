"""A rank's session: runs the host's commands one at a time on a workload that it keeps.

    prepare     import the factory and build the workload
    first_step  run one step and wait for it: compilation
    block       run n timed steps
    alternate   run segments of variants of the step
    count       the counting pass
    trace       write a trace of a few steps
    memory      write what allocates in a step
    sources     the files that the modules came from, those imported late included
    park        give cached memory back, so that another group can use the card
    exit

An exception ends the launch.
"""

import contextlib
import gc
import hashlib
import importlib
import inspect
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter, perf_counter_ns
from typing import Any

import torch.distributed as dist

from stepguard.text import meant
from stepguard.worker import device
from stepguard.worker.channel import Channel
from stepguard.worker.clock import Clock
from stepguard.worker.count import compiler
from stepguard.worker.count.counters import count
from stepguard.worker.count.placement import Placement
from stepguard.worker.count.tally import RankStep
from stepguard.worker.fingerprint import fingerprint, read_once, sources
from stepguard.worker.position import Note, Phases
from stepguard.worker.profilers.memory import record_memory
from stepguard.worker.profilers.traces import record_trace
from stepguard.worker.traced_anew import trace_own_code_anew
from stepguard.worker.variants import VARIANTS, alternate

REQUIRED = ("step", "tokens_per_step")


class BadWorkload(Exception):
    """Raised for a factory that is none, cannot be called so, or did not return a workload."""


class MachineSamples:
    """Samples of another node's GPUs, which a process beside the ranks writes to a file
    (launch/on_node.py): the node's first rank brings them along with its answers.
    """

    def __init__(self) -> None:
        first = os.environ.get("LOCAL_RANK", "0") == "0"
        self._path = os.environ.get("STEPGUARD_SAMPLES", "") if first else ""
        self._read_bytes = 0

    def since(self) -> dict[str, Any]:
        """Return what was written since the last call, as a part of an answer."""
        if not self._path:
            return {}
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            file.seek(self._read_bytes)
            # A line that is still being written is left for the next call.
            whole = file.read().rpartition(b"\n")
            self._read_bytes += len(whole[0]) + len(whole[1])
            return {"samples": [json.loads(line) for line in whole[0].splitlines()]}
        return {}  # a block without samples does not count


class Session:
    """One rank's state and its commands: ``do_NAME`` runs NAME and returns the rank's answer."""

    def __init__(self, note: Note) -> None:
        self._frozen, self._read_once = gc.get_freeze_count(), read_once()
        trace_own_code_anew()  # before the workload is imported, and not in an agent that forks
        preload("STEPGUARD_PRELOAD")
        self.note = note
        self.phases = Phases(note.phase)
        try:
            local_rank = int(os.environ.get("LOCAL_RANK", "0"))
            self.device = device.rank_device(os.environ["STEPGUARD_DEVICE"], local_rank)
        except ValueError as error:
            raise BadWorkload(str(error)) from None
        self.on_gpu = device.on_gpu(self.device)
        join_process_group(device.backend(self.device))
        self.channel = Channel()
        self.clock = Clock(self.device)
        self.machine = MachineSamples()
        self.placement = Placement()
        self.workload: Any = None
        self.package = ""  # of the workload's factory

    def serve(self) -> None:
        """Answer commands until ``exit``."""
        while True:
            message = self.channel.receive()
            name = message.pop("command")
            self.note.command(name.replace("_", " "))
            if name == "exit":
                break
            handler: Callable[..., Any] = getattr(self, f"do_{name}")
            replies = self.channel.gather(handler(**message) | self.machine.since())
            self.channel.reply({"reply": name, "ranks": replies})
            self.note.command("idle")
        if dist.is_initialized():  # in order, so that no rank is left waiting for another
            dist.destroy_process_group()
        if _has_compiler():
            keep_headers()

    def do_prepare(self, factory: str, params: dict[str, Any]) -> dict[str, Any]:
        """Build the workload; return what it says of itself, and what this rank runs on."""
        device.select(self.device)  # not before: a launch on standby must not hold a GPU context
        if _has_compiler():
            take_kept_headers()
        self.package = factory.partition(":")[0].partition(".")[0]
        # A GPU's tensors say themselves where they are.
        watched = contextlib.nullcontext() if self.on_gpu else self.placement.observed()
        with watched:
            self.workload = build(factory, params, self.device.type)
        refuse_set_too_late(self._read_once, read_once())
        compiler.install()  # not before: only a workload that compiles has imported the compiler
        if hasattr(self.workload, "on_phase"):
            self.workload.on_phase = self.phases
        return {
            "tokens_per_step": int(self.workload.tokens_per_step),
            "flops_per_step": float(getattr(self.workload, "flops_per_step", 0.0)),
            "floor_flops_per_step": float(getattr(self.workload, "floor_flops_per_step", 0.0)),
            "precision": str(getattr(self.workload, "precision", "")),
            "fingerprint": fingerprint(self.device),
            "memory_bytes": device.usable_bytes(self.device),
            **self.do_sources(),
        }

    def do_sources(self) -> dict[str, Any]:
        """Return the files that this rank's modules came from."""
        return {"sources": sources(self.package)}

    def do_first_step(self) -> dict[str, Any]:
        """Run the first step, compilation included; return the seconds to synchronization, and
        whether something was compiled that no cache had.
        """
        device.synchronize(self.device)
        began = perf_counter()
        self.workload.step()
        device.synchronize(self.device)
        took_s = perf_counter() - began
        compiler.install()  # a step may have been the first to ask for the compiler
        return {"compile_s": took_s, "compiled_afresh": compiler.compiled_afresh()}

    def do_block(self, steps: int) -> dict[str, Any]:
        """Time one block; return its times, and what would show that it was not steady."""
        found = self.clock.block(self.workload.step, steps, self.note.step, self._line_up)
        found["compiled_graphs"] = compiler.unique_graphs()
        found["compiled_afresh"] = compiler.compiled_afresh()
        if self.on_gpu:
            found["device_allocations"] = device.allocator_calls()["cudaMalloc"]
        return found

    def _line_up(self) -> None:
        self.channel.barrier()  # or the host's time would hold what another rank still does
        self.channel.begin()
        self.channel.barrier()

    def do_alternate(self, variants: list[str], order: list[int], steps: int) -> dict[str, Any]:
        """Time segments of the named variants, in the order of their indices."""
        try:
            chosen = [VARIANTS[name](self.workload, self.device) for name in variants]
        except ValueError as error:
            raise BadWorkload(str(error)) from None
        self.channel.begin()
        began_ns = perf_counter_ns()
        segments_ms = alternate(chosen, order, steps, self.device, self.channel.barrier)
        ended_ns = perf_counter_ns()
        return {"segments_ms": segments_ms, "began_ns": began_ns, "ended_ns": ended_ns}

    def do_count(self) -> dict[str, Any]:
        """Run the counting pass; return its counts."""
        return count(self._step(), self._progress)

    def _step(self) -> RankStep:
        ranks, step = self.channel, self.workload.step
        return RankStep(
            step,
            self.device,
            self.phases,
            ranks.world_size,
            ranks.any,
            self._frozen,
            self.placement,
        )

    def _progress(self, text: str) -> None:
        self.note.command(text)
        self.channel.reply({"progress": text})

    def do_trace(self, folder: str, plan: list[int], **wanted: bool) -> dict[str, Any]:
        """Write a trace of this rank's steps into the folder; return its path and size."""
        path = Path(folder) / f"rank{self.channel.rank}.json.gz"
        return record_trace(self._step(), path, plan, self._progress, **wanted)

    def do_memory(self, folder: str) -> dict[str, Any]:
        """Write what allocates in a step of this rank into the folder; return paths and bytes."""
        path = Path(folder) / f"rank{self.channel.rank}.json.gz"
        return record_memory(self._step(), path, self._progress)

    def do_park(self) -> dict[str, Any]:
        """Hand cached memory back to the driver."""
        device.synchronize(self.device)
        if self.on_gpu:
            device.empty_cache()
        return {}


def build(factory: str, params: dict[str, Any], device: str) -> Any:
    """Call ``package.module:function`` with the case's parameters and the rank's device.

    Raises BadWorkload, in one line, for anything that is wrong with the name, the parameters or the
    result; ValueError from the factory itself (an impossible value) passes through.
    """
    function = _function_of(factory)
    signature = inspect.signature(function)
    try:
        signature.bind(device=device, **params)
    except TypeError as error:
        if not _takes_device(signature):
            told = "with which every factory is called"
            raise BadWorkload(f"{factory} has no parameter 'device', {told}") from None
        possible = [n for n in signature.parameters if n != "device"]
        unknown = {name: meant(name, possible) for name in params if name not in possible}
        # Python names the one that is missing first, though it may be the misspelt one.
        misspelt = [f"no parameter {name!r}{hint}" for name, hint in unknown.items() if hint]
        why, its = ", ".join(misspelt) or error, ", ".join(possible) or "none but device"
        raise BadWorkload(f"{factory}: {why}; its parameters: {its}") from None
    workload = function(device=device, **params)
    missing = [name for name in REQUIRED if not hasattr(workload, name)]
    if missing or not callable(workload.step):
        kind = f"a {type(workload).__name__}" if workload is not None else "None"
        raise BadWorkload(f"{factory} returned {kind} without {' and '.join(missing) or 'step()'}")
    try:
        tokens = int(workload.tokens_per_step)
    except (TypeError, ValueError, OverflowError):
        tokens = 0
    if tokens < 1:
        shown = f"{workload.tokens_per_step!r:.80}"
        raise BadWorkload(f"{factory}: tokens_per_step is {shown}, not a positive number")
    return workload


def _takes_device(signature: inspect.Signature) -> bool:
    try:
        signature.bind_partial(device="")
    except TypeError:
        return False
    return True


def refuse_set_too_late(then: Mapping[str, str], now: Mapping[str, str]) -> None:
    """Raise BadWorkload where a workload changed variables that torch had read ``then``: without
    the engine it would run with other settings than it is measured with.
    """
    moved = sorted(key for key in then.keys() | now.keys() if then.get(key) != now.get(key))
    if moved:
        unset = [f"-u {key}" for key in moved if key not in now]
        set_to = [f"{key}={shlex.quote(now[key])}" for key in moved if key in now]
        raise BadWorkload(
            f"the workload changes {', '.join(moved)}, which torch has read by then: set it in "
            "torch._inductor.config or torch._dynamo.config, or begin the command with: env "
            + " ".join(unset + set_to)
        )


def _function_of(factory: str) -> Callable[..., Any]:
    """Import a factory. Raises BadWorkload for a module or a function that is not there."""
    module_name, _, function_name = factory.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module that is missing elsewhere is the workload's own failure, and has a traceback.
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            told = f"no module {error.name!r} for {factory!r} in {os.getcwd()}"
            raise BadWorkload(told + _where_else(error.name)) from None
        raise
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(function):
        public = {name: value for name, value in vars(module).items() if name[0] != "_"}
        own = [n for n, v in public.items() if getattr(v, "__module__", "") == module_name]
        known = ", ".join(n for n in own if inspect.isfunction(public[n])) or "none"
        raise BadWorkload(f"{module_name} has no factory {function_name!r}; it has: {known}")
    return function


def _where_else(name: str) -> str:
    """Return how a module is found that lies in a folder of the working directory, as in ``src``:
    what pytest's own setting adds to its path, no rank has.
    """
    for inner in sorted(Path().glob(f"*/{name}")) + sorted(Path().glob(f"*/{name}.py")):
        if inner.suffix == ".py" or inner.is_dir():
            folder = shlex.quote(str(inner.parent))
            return f"; it is in {folder}: begin the command with: env PYTHONPATH={folder}"
    return ""


def preload(variable: str) -> None:
    """Import the modules that an environment variable lists, while nobody waits for them: the next
    launch starts early. Whatever fails here fails again in ``prepare``, where it is reported.
    """
    for name in os.environ.get(variable, "").split():
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _has_compiler() -> bool:
    """Tell whether the compiler is imported, as the agent does it: a rank without it compiles
    nothing, and would take a second to ask it for its folders.
    """
    return "torch._inductor" in sys.modules


def _headers() -> tuple[Path, Path]:
    """Return the folders of precompiled headers: torch's own, and where they outlast the launch."""
    # torch wants them beside TMPDIR's files, which end with the launch, and not in its cache.
    folder = importlib.import_module("torch._inductor.runtime.cache_dir_utils").default_cache_dir()
    own = Path(folder, "precompiled_headers")
    return own, Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], own.name)


def take_kept_headers() -> None:
    """Give torch the headers that earlier launches precompiled: on a CPU one takes it 5 s."""
    with contextlib.suppress(Exception):  # what is private to torch saves seconds, or does not
        own, kept = _headers()
        own.mkdir(parents=True, exist_ok=True)
        for path in kept.glob("*.h.*"):
            if path.suffix != _checksum(path):
                path.unlink()  # a disk that was full, a machine that fell: it is made anew
                continue
            with contextlib.suppress(FileExistsError):  # another rank was here
                (own / path.stem).symlink_to(path)


def keep_headers() -> None:
    """Keep the headers that this launch precompiled, whole ones only, with their checksum in their
    names: a launch may be killed while one is written, and with half of it nothing compiles any
    more.
    """
    with contextlib.suppress(Exception):
        own, kept = _headers()
        made = [path for path in own.glob("*.h.gch") if not path.is_symlink()]
        for path in (one for gch in made for one in (gch.with_suffix(""), gch)):
            kept.mkdir(parents=True, exist_ok=True)
            part = kept / f"{os.getpid()}.part"
            shutil.copyfile(path, part)
            part.replace(kept / f"{path.name}{_checksum(path)}")


def _checksum(path: Path) -> str:
    """Return the suffix that a file's content has: ".1c291ca30a1b2c3d"; 150 MB take 0.1 s."""
    with path.open("rb") as file:
        return f".{hashlib.file_digest(file, 'sha256').hexdigest()[:16]}"


def join_process_group(backend: str) -> None:
    """Join the other ranks, if there are any. A single rank of a case that has several does it too:
    its workload may reduce without asking how many ranks there are.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 and "STEPGUARD_ONE_OF_SEVERAL" not in os.environ:
        return
    # No device_id: that would open NCCL at once, on a card that another launch is measured on.
    if path := os.environ.get("STEPGUARD_STORE"):  # of a launch on one node; see launch/torchrun.py
        rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        store = dist.FileStore(path, ranks)
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)
    else:
        dist.init_process_group(backend)
