"""The identity of profiled steps, from the events of a Chrome trace with shapes.

It is unknown if anything is not certain: a launch without a GPU record, a graph (whose kernels may
have changed since the last launch), or steps that are not all alike.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepguard.core.profile import StepIdentity
from stepguard.trace.api_calls import LAUNCH_CALLS, SYNC_CALLS, orders, works
from stepguard.trace.chrome_events import DetailedEvent as Event
from stepguard.trace.chrome_events import Details
from stepguard.trace.host_steps import (
    HOST,
    decoded,
    host_steps,
    record_of,
    records_of,
    sound_events,
)
from stepguard.trace.phases import LIBRARIES

# Operators of torch and NCCL. Their code changes only with these versions, which are part of the
# software.
_TORCHS = ("aten::", "c10d::", "nccl:", "record_param_comms")
_LABELS = "profiler::"
_RECORDS = ("kernel", "gpu_memcpy", "gpu_memset")


def identity_of(events: Sequence[Event], mark: str, steps: int) -> StepIdentity:
    """Return the identity of the marked steps. Raises RuntimeError if the trace lacks one of
    them.
    """
    with sound_events():
        return _identity(events, mark, steps)


def _identity(events: Sequence[Event], mark: str, steps: int) -> StepIdentity:
    records, hosts = records_of(events, _RECORDS), host_steps(events, mark, steps)
    called = {e.args.correlation for e in events if e.cat in HOST and works(e.name)}
    # A launch from before the begin of the file has a lower correlation number.
    first_call = min((n for n in called if n is not None), default=0)
    if any(n > first_call and n not in called for n in records):
        return StepIdentity(problem="it launches by calls that are not known")
    of_steps: list[dict[str, str]] = []
    for events_of in hosts:
        parts = _parts(events_of, records)
        if isinstance(parts, str):
            return StepIdentity(problem=parts)
        of_steps.append(parts)
    moving = [name for name in of_steps[0] if len({parts[name] for parts in of_steps}) > 1]
    if moving:
        return StepIdentity(problem=f"{', '.join(moving)} differ from step to step")
    return StepIdentity(of_steps[0])


def _parts(host: Sequence[Event], records: Mapping[float, Event]) -> dict[str, str] | str:
    """Return the hashes of one step, or why it has none."""
    threads: dict[Any, int] = {}
    streams: dict[Any, int] = {}
    operators, calls, work, messages = [], [], [], []
    around: dict[Any, list[Event]] = defaultdict(list)  # by thread: operators that have begun
    for event in host:
        name = event.name
        operator = event.cat == "cpu_op"
        launches = works(name)
        if operator:
            around[event.tid].append(event)
        # One more wait between streams takes away an overlap, so such calls count.
        called = launches or name in SYNC_CALLS or orders(name)
        # Not polls, whose number and threads vary, and not the labels of record_function.
        silent = LIBRARIES.search(name) or name.startswith(_LABELS)
        if not called and (not operator or silent):
            continue
        thread = threads.setdefault(event.tid, len(threads))
        if operator and name == "record_param_comms":
            messages.append([thread, *_message(event.args)])
        elif operator:
            operators.append([thread, name, *_inputs(event.args)])
        else:
            calls.append([thread, name])
        if launches:
            if "Graph" in name:
                return "it launches a graph"
            record = record_of(event, records)
            if record is None:
                return "launches lack the GPU's record"
            if name in LAUNCH_CALLS and not _known_code(around[event.tid], event.ts):
                return "a kernel's code is not known: no operator of torch's launches it"
            stream = streams.setdefault(record.args.stream, len(streams))
            work.append([thread, stream, record.name, *_shape(record.args)])
    if not work:
        return "it launches nothing"
    parts = {"kernels and copies": work, "operators": operators, "CUDA calls": calls}
    return {name: _hash(rows) for name, rows in (parts | {"collectives": messages}).items()}


def _inputs(args: Details) -> tuple[Any, ...]:
    """Return the operands. For a kernel of the compiler also return which kernel it is."""
    operands = args.dims, args.strides, args.types, args.values
    kernel = args.code, args.kernel_kwargs, args.warps, args.stages, args.backend
    return *(decoded(bytes(operand)) for operand in operands), *kernel


def _message(args: Details) -> tuple[Any, ...]:
    """Return what a collective exchanges. Other inputs contain a counter."""
    return args.collective, args.elements_in, args.elements_out, args.dtype, args.group


def _shape(args: Details) -> tuple[Any, ...]:
    """Return how a kernel is launched, or how much is copied."""
    return args.grid, args.block, args.registers, args.shared_memory, args.copied_bytes


def _known_code(around: list[Event], ts: float) -> bool:
    """Tell whether the innermost operator at that time is torch's own, NCCL's, or generated code
    with a hash. A kernel that somebody wrote can change while its name, grid and registers stay the
    same.
    """
    while around and around[-1].ts + around[-1].dur < ts:
        around.pop()
    if not around:
        return False
    return around[-1].name.startswith(_TORCHS) or bool(around[-1].args.code)


def with_settings(identity: StepIdentity, settings: dict[str, Any]) -> StepIdentity:
    """Return a known identity with the settings as one more part; an unknown one as it is."""
    if identity.problem:
        return identity
    return replace(identity, parts=identity.parts | {"settings": _hash([settings])})


def _hash(rows: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:16]
