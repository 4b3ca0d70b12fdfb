"""A profiler file's figures by a script of its own: plain JSON or SQL, lists and dictionaries.

It shares no code with stepguard's reader, so that an error of one of the two shows as a difference.
What a step is, and what counts as idle, is as lab/docs/traces.md says.
"""

import gzip
import json
import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

MARKS = (r"^ProfilerStep#\d+$", r"^stepguard\.step$", r"^step[_ #]?\d+$")
EXCHANGE = re.compile(
    r"^(void )?(nccl|rccl|hccl|nvshmem|deep_ep::|multimem_|cross_device_reduce|userbuffers)"
    r"|^(void )?([\w() ]+::)*(one|two)_shot_all_reduce|::cross_device_reduce|::multimem_|ncclKernel"
)
LAUNCH = re.compile(
    r"^(cuda|cu|hip)(Ext|Module|ExtModule|HccModule)?Launch(Cooperative)?Kernel(Ex|ExC)?$"
    r"|^hipModuleLaunchCooperativeKernel$|^(cuda|cu|hip)GraphLaunch$|^(cuda|cu|hip)Memcpy"
)
FILL = re.compile(r"^(cuda|cu|hip)Memset")
HOST = {"cpu_op": "operator", "operator": "operator", "user_annotation": "range"} | dict.fromkeys(
    ("cuda_runtime", "cuda_driver", "runtime"), "call"
)
OF_GPU = {"kernel": "kernel"} | dict.fromkeys(
    ("gpu_memcpy", "memcpy", "gpu_memset", "memset"), "memory"
)
LOST_AT_MOST = 0.005


class Refused(Exception):
    """A file of which nothing can be said, and why."""


class Event(NamedTuple):
    """What lasts; times in us."""

    kind: str
    name: str
    begin: float
    end: float
    thread: Any = None
    device: Any = None
    stream: Any = None
    correlation: Any = None


@dataclass
class Figures:
    """What a file says: of its steps on a GPU, or where it has none of its operators on a CPU."""

    on_gpu: bool
    step_us: list[float] = field(default_factory=list)
    names_us: Counter[str] = field(default_factory=Counter)  # of all steps, by kernel or operator
    idle_us: float = 0.0  # of all steps
    exchanged_us: float = 0.0  # while nothing computes


def figures(path: Path) -> list[Figures]:
    """Return a file's figures, those of an export of nsys for each process. Raises Refused."""
    with path.open("rb") as file:
        if file.read(16).startswith(b"SQLite format 3"):
            return [taken_apart(events) for events in from_sqlite(path)]
    return [taken_apart(list(from_json(path)))]


def from_json(path: Path) -> Iterator[Event]:
    """Yield the events of a Chrome trace. Raises Refused."""
    packed = path.read_bytes()
    try:
        text = gzip.decompress(packed) if packed.startswith(b"\x1f\x8b") else packed
        content = json.loads(text)
    except (OSError, EOFError, ValueError):
        raise Refused("no JSON") from None
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list) or not all(isinstance(one, dict) for one in events):
        raise Refused("no list of events")
    for one in events:
        category = str(one.get("cat") or "").lower()
        kind = HOST.get(category) or OF_GPU.get(category)
        if one.get("ph") != "X" or not kind:
            continue
        begin, length = one.get("ts"), one.get("dur", 0)
        if begin is None or length < 0:
            raise Refused("an event without begin, or that ends before it")
        args = one.get("args") or {}
        yield Event(
            kind,
            str(one.get("name")),
            float(begin),
            float(begin) + float(length),
            (one.get("pid"), one.get("tid")),
            whole(args.get("device", one.get("pid"))),
            whole(args.get("stream", one.get("tid"))),
            whole(args.get("correlation")),
        )


def whole(value: Any) -> int | None:
    """Return a number, also one that is written as text; None for anything else."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def from_sqlite(path: Path) -> list[list[Event]]:
    """Return the events of each process of an export of nsys. Raises Refused."""
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    if not {"StringIds", "CUPTI_ACTIVITY_KIND_KERNEL"} <= tables:
        raise Refused("no kernel of a GPU")
    text = dict(connection.execute("SELECT id, value FROM StringIds"))
    found: defaultdict[int, list[Event]] = defaultdict(list)
    users = set()
    queries = {
        "CUPTI_ACTIVITY_KIND_KERNEL": "demangledName, globalPid, deviceId, streamId, correlationId",
        "CUPTI_ACTIVITY_KIND_MEMCPY": "0, globalPid, deviceId, streamId, correlationId",
        "CUPTI_ACTIVITY_KIND_MEMSET": "0, globalPid, deviceId, streamId, correlationId",
        "CUPTI_ACTIVITY_KIND_RUNTIME": "nameId, globalTid, 0, 0, correlationId",
        "NVTX_EVENTS": "COALESCE(text, textId), globalTid, 0, 0, 0",
    }
    for table, columns in queries.items():
        if table not in tables:
            continue
        columns = existing(connection, table, columns)
        rows = connection.execute(f"SELECT start, end, {columns} FROM {table}")
        for begin, end, name, process, device, stream, correlation in rows:
            if end is None:
                continue
            pid = (process or 0) >> 24 & 0xFFFFFF
            label = name if isinstance(name, str) else text.get(name, "")
            kind = "memory"
            if table.endswith("KERNEL"):
                kind = "kernel"
            elif table.endswith("RUNTIME"):
                kind, label = "call", re.sub(r"_v\d{4,}$", "", label)
            elif table == "NVTX_EVENTS":
                kind = "operator" if re.search(", (seq|op_id) = ", label) else "range"
            if kind in ("kernel", "memory"):
                users.add(pid)
            found[pid].append(
                Event(kind, label, begin / 1e3, end / 1e3, process, device, stream, correlation)
            )
    return [found[pid] for pid in sorted(users)]


def existing(connection: sqlite3.Connection, table: str, columns: str) -> str:
    """Return the columns, NULL for those that a table lacks."""
    there = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
    words = re.findall(r"[A-Za-z]+", columns)
    for word in set(words) - there - {"COALESCE"}:
        columns = re.sub(rf"\b{word}\b", "NULL", columns)
    return columns


def taken_apart(events: list[Event]) -> Figures:
    """Return the figures of one process's events. Raises Refused."""
    if not events:
        raise Refused("nothing that lasts")
    kernels = Counter(one.device for one in events if one.kind == "kernel")
    marks = marked(events)
    if not kernels:
        return on_cpu(events, marks)
    # Of equals the first by number, as any order would do.
    device = min(kernels, key=lambda one: (-kernels[one], one))
    gpu = [one for one in events if one.kind in ("kernel", "memory") and one.device == device]
    gpu.sort(key=lambda one: one.begin)
    if not marks:
        end = max(one.end for one in gpu)
        return of_windows(gpu, [(gpu[0].begin, end, 0)], dict.fromkeys(range(len(gpu)), 0))
    return in_steps(events, gpu, marks)


def marked(events: list[Event]) -> list[Event]:
    """Return the ranges that mark steps, in order of time: of the first pattern that occurs."""
    ranges = sorted((one for one in events if one.kind == "range"), key=lambda one: one.begin)
    each = ([one for one in ranges if re.search(pattern, one.name)] for pattern in MARKS)
    return next(filter(None, each), [])


def in_steps(events: list[Event], gpu: list[Event], marks: list[Event]) -> Figures:
    """Return the figures of the complete steps. Raises Refused without one."""
    calls = sorted((one for one in events if one.kind == "call"), key=lambda one: one.begin)
    if not calls:
        raise Refused("marked steps, and no call that launches into them")
    step_of_call, recorded = {}, {one.correlation for one in gpu}
    launches, lost = Counter[int](), Counter[int]()
    for call, step in zip(calls, steps_at(calls, marks), strict=True):
        step_of_call.setdefault(call.correlation, step)
        without = call.correlation not in recorded
        if step is not None and (LAUNCH.search(call.name) or FILL.search(call.name)):
            if without and FILL.search(call.name):
                continue
            launches[step] += 1
            lost[step] += without
    step_of_record = {
        row: step
        for row, one in enumerate(gpu)
        if one.correlation is not None and (step := step_of_call.get(one.correlation)) is not None
    }
    begins = begins_on(main_stream(gpu), gpu, step_of_record)
    windows = []
    for step in range(len(marks)):
        begin, end = begins.get(step), begins.get(step + 1)
        if len(launches) == 1 and step in launches:
            end = max((gpu[r].end for r, s in step_of_record.items() if s == step), default=None)
        enough = lost[step] <= LOST_AT_MOST * max(launches[step], 1)
        if begin is not None and end is not None and end > begin and enough:
            windows.append((begin, end, step))
    if not windows:
        raise Refused("no complete step")
    return of_windows(gpu, windows, step_of_record)


def steps_at(events: Iterable[Event], marks: list[Event]) -> Iterator[int | None]:
    """Yield the mark that each event begins in, None outside all; both are in order of time."""
    at = -1
    for one in events:
        while at + 1 < len(marks) and marks[at + 1].begin <= one.begin:
            at += 1
        yield at if at >= 0 and one.begin < marks[at].end else None


def main_stream(gpu: list[Event]) -> Any:
    """Return the stream whose kernels, but exchanges, take longest together."""
    busy, any_kernel = Counter[Any](), Counter[Any]()
    for one in gpu:
        if one.kind == "kernel":
            any_kernel[one.stream] += one.end - one.begin
            if not EXCHANGE.search(one.name):
                busy[one.stream] += one.end - one.begin
    busy = busy or any_kernel
    return min(busy, key=lambda stream: (-busy[stream], stream))


def begins_on(stream: Any, gpu: list[Event], steps: dict[int, int]) -> dict[int, float]:
    """Return when the first record of each step begins on a stream."""
    found: dict[int, float] = {}
    for row, step in steps.items():
        if gpu[row].stream == stream:
            found[step] = min(found.get(step, gpu[row].begin), gpu[row].begin)
    return found


def of_windows(
    gpu: list[Event], windows: list[tuple[float, float, int]], steps: dict[int, int]
) -> Figures:
    """Return the figures of steps between their begin and end."""
    found, kept = Figures(on_gpu=True), {step for _, _, step in windows}
    for row, step in steps.items():
        if step in kept and gpu[row].kind == "kernel":
            found.names_us[gpu[row].name] += gpu[row].end - gpu[row].begin
    kernels = [one for one in gpu if one.kind == "kernel"]
    computing = [one for one in kernels if not EXCHANGE.search(one.name)]
    for begin, end, _ in windows:
        found.step_us.append(end - begin)
        found.idle_us += end - begin - covered(gpu, begin, end)
        both, alone = (covered(rows, begin, end) for rows in (kernels, computing))
        found.exchanged_us += both - alone
    return found


def covered(events: list[Event], begin: float, end: float) -> float:
    """Return how long any of these runs between two moments; they are in order of their begin."""
    total, reached = 0.0, begin
    for one in events:
        if one.begin >= end:
            break
        if one.end > reached:
            total += min(one.end, end) - max(one.begin, reached)
            reached = min(max(reached, one.end), end)
    return total


def on_cpu(events: list[Event], marks: list[Event]) -> Figures:
    """Return each operator's own time: its length without the operators directly inside it."""
    if not marks:
        raise Refused("neither a kernel of a GPU nor a marked step")
    found = Figures(on_gpu=False, step_us=[one.end - one.begin for one in marks])
    order = sorted(
        (one for one in events if one.kind == "operator"), key=lambda e: (e.begin, e.begin - e.end)
    )
    rows = [
        one for one, step in zip(order, steps_at(order, marks), strict=True) if step is not None
    ]
    own = [one.end - one.begin for one in rows]
    open_: defaultdict[Any, list[int]] = defaultdict(list)
    for row, one in enumerate(rows):
        around = open_[one.thread]
        while around and rows[around[-1]].end <= one.begin:
            around.pop()
        if around:
            own[around[-1]] -= one.end - one.begin
        around.append(row)
    for one, us in zip(rows, own, strict=True):
        found.names_us[one.name] += max(us, 0.0)
    return found
