"""The identity of profiled steps, read off the events of a Chrome trace with shapes.

What is not known for sure makes it unknown: a launch without the GPU's record, a graph, whose
kernels need not be the ones that were launched last time, steps that are not all alike.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from stepguard.core.step_identity import StepIdentity
from stepguard.trace.calls import LAUNCH_CALLS, SYNC_CALLS, orders, works
from stepguard.trace.host_steps import HOST, Event, host_steps, records_of, sound_events
from stepguard.trace.phases import LIBRARIES

_TORCHS = ("aten::", "c10d::", "nccl:", "record_param_comms")  # versions are software
_RECORDS = ("kernel", "gpu_memcpy", "gpu_memset")
# Operands; and of a kernel that the compiler made, which.
_INPUTS: tuple[str, ...] = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")
_INPUTS += ("kernel_hash", "kernel_kwargs", "num_warps", "num_stages", "kernel_backend")
# Of a collective; its other inputs have a number that counts it.
_MESSAGE = ("Collective name", "In msg nelems", "Out msg nelems", "dtype", "Group size")
_SHAPE = ("grid", "block", "registers per thread", "shared memory", "bytes")


def identity_of(events: Iterable[Event], mark: str, steps: int) -> StepIdentity:
    """Return the identity of the marked steps. Raises RuntimeError for a trace that lacks one."""
    with sound_events():
        return _identity(list(events), mark, steps)


def _identity(events: list[Event], mark: str, steps: int) -> StepIdentity:
    records, hosts = records_of(events, _RECORDS), host_steps(events, mark, steps)
    host = (e for e in events if e.get("cat") in HOST)
    called = {e.get("args", {}).get("correlation") for e in host if works(str(e["name"]))}
    # What was launched before the file begins has a lower number.
    first_call = min((n for n in called if n is not None), default=0)
    if any(n > first_call and n not in called for n in records):
        return StepIdentity(problem="it launches by calls that are not known")
    found: list[dict[str, str]] = []
    for one in hosts:
        parts = _parts(one, records)
        if isinstance(parts, str):
            return StepIdentity(problem=parts)
        found.append(parts)
    moving = [name for name in found[0] if len({parts[name] for parts in found}) > 1]
    if moving:
        return StepIdentity(problem=f"{', '.join(moving)} differ from step to step")
    return StepIdentity(found[0])


def _parts(host: Sequence[Event], records: dict[Any, Event]) -> dict[str, str] | str:
    """Return the hashes of one step, or why it has none."""
    threads: dict[Any, int] = {}
    streams: dict[Any, int] = {}
    operators, calls, work, messages = [], [], [], []
    around: dict[Any, list[Event]] = defaultdict(list)  # by thread: operators that have begun
    for event in host:
        name, args = str(event["name"]), event.get("args", {})
        operator = event["cat"] == "cpu_op"
        launches = works(name)
        if operator:
            around[event["tid"]].append(event)
        # One more wait between streams takes away an overlap.
        called = launches or name in SYNC_CALLS or orders(name)
        if not called and (not operator or LIBRARIES.search(name)):
            continue  # polls vary, and so do the threads that poll
        thread = threads.setdefault(event["tid"], len(threads))
        if operator and name == "record_param_comms":
            messages.append([thread, *(args.get(key) for key in _MESSAGE)])
        elif operator:
            operators.append([thread, name, *(args.get(key) for key in _INPUTS)])
        else:
            calls.append([thread, name])
        if launches:
            if "Graph" in name:
                return "it launches a graph"
            record = records.get(args.get("correlation"))
            if record is None:
                return "launches lack the GPU's record"
            if name in LAUNCH_CALLS and not _known_code(around[event["tid"]], event["ts"]):
                return "a kernel's code is not known: no operator of torch's launches it"
            made = record["args"]
            stream = streams.setdefault(made.get("stream"), len(streams))
            shape = [made.get(key) for key in _SHAPE]
            work.append([thread, stream, record["name"], *shape])
    if not work:
        return "it launches nothing"
    parts = {"kernels and copies": work, "operators": operators, "CUDA calls": calls}
    return {name: _hash(rows) for name, rows in (parts | {"collectives": messages}).items()}


def _known_code(around: list[Event], ts: float) -> bool:
    """Tell whether the innermost operator at that time is torch's own, NCCL's, or generated code
    with its hash: a kernel that somebody wrote can change without its name, grid or registers.
    """
    while around and float(around[-1]["ts"]) + float(around[-1]["dur"]) < ts:
        around.pop()
    if not around:
        return False
    name = str(around[-1]["name"])
    return name.startswith(_TORCHS) or "kernel_hash" in around[-1].get("args", {})


def with_settings(found: StepIdentity, settings: dict[str, Any]) -> StepIdentity:
    """Return the identity, if it is known, with the settings as one more part of it."""
    if found.problem:
        return found
    return replace(found, parts=found.parts | {"settings": _hash([settings])})


def _hash(rows: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
