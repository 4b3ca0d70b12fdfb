"""Do CUPTI's SASS metrics count what every kernel of a step executes, exactly, and at which cost?

    python -m studies.sass_metrics.measure --out sass_metrics.json
    python -m studies.sass_metrics.measure --out sass_metrics.json --cupti 'other/**/libcupti.so.13'

CUPTI patches the machine code of kernels: no hardware counter, so maybe no permission. It is called
by ctypes. Every attempt is a process of its own with a deadline, since a patched launch may hang.

1. Facts: card, driver, permission, CUPTI's versions and metrics.
2. Ways: a program of six kernels whose work is known (products, attention, a generated kernel, a
   backward pass in another thread) is counted in many ways: CUPTI begun before the CUDA context or
   after the kernels are loaded, patched lazily or all at once, launches that wait, modules that are
   loaded eagerly, several collections in one process, another user than root, other versions of
   CUPTI (--cupti). A way is good if it has records of all six kernels.
3. The compiled 124M train step in the best ways: instructions and sectors of global memory by
   kernel, in several processes. Which kernels differ, which share of the kernels' time is exact
   and covered, and what the pass costs.

At most 120 s on an H100 with 16 cores (--seconds). A line of JSON after each part; the file is
written after each part, too, and has all that every attempt printed.
"""

import argparse
import ctypes as C
import faulthandler
import fcntl
import glob
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

INSTRUCTIONS, SECTORS = "smsp__sass_inst_executed", "smsp__sass_sectors_mem_global"
TRAIN = {"size": "124m", "batch": 4, "seq": 1024, "micro_steps": 2, "lr": 0.0}
ELEMENTS = 1 << 24  # of the program's vectors, fp32: 64 MiB are 2,097,152 sectors of 32 B
SECTORS_KNOWN = {"MulFunctor": 2 * ELEMENTS // 8, "add_known": 3 * ELEMENTS // 8}
AT_ONCE = 14
SMALL_S, TRAIN_S = 20.0, 50.0  # deadlines of a process
WAYS_S, VARIANTS_S = 38.0, 20.0  # ... and of all processes of these parts
TURN_S = 4.0  # how long a step waits for those of other processes, so that times are its own
EXACT_SHARE = 0.95  # of the kernels' time, for a counter that gates


@dataclass(frozen=True)
class Way:
    """How kernels are counted."""

    when: str = "late"  # "early": all before the first kernel; "late": CUPTI begun before the
    # context, patched after a warm-up; "after": all after a warm-up; "each": late, one collection
    # for each kernel
    lazy: int = 1  # a function is patched at its first launch, else all when patching is enabled
    blocking: int = 0  # CUDA_LAUNCH_BLOCKING: no kernel is in flight when another one is patched
    loading: str = "LAZY"  # CUDA_MODULE_LOADING
    subscribe: int = 0  # also subscribe to CUPTI's callbacks about modules
    between: str = ""  # what ends a collection: "", "deinitialize", "finalize"
    metrics: tuple[str, ...] = (INSTRUCTIONS,)
    cupti: str = ""  # path of another library than PyTorch's
    user: int = 0  # 65534: nobody

    @property
    def name(self) -> str:
        """Return what differs from the usual way."""
        usual = asdict(Way())
        own = {key: value for key, value in asdict(self).items() if value != usual[key]}
        shown = own | {"cupti": Path(self.cupti).resolve().name} if self.cupti else own
        return ", ".join(f"{key} {value}" for key, value in shown.items()) or "late, lazy"


# --- CUPTI, by ctypes -----------------------------------------------------------------------------


def _struct(*fields: tuple[str, Any], sized: str = "") -> type[C.Structure]:
    """Return a parameter block of CUPTI: its size up to a field (the last one), private, fields."""
    own = {"_fields_": [("size", C.c_size_t), ("private", C.c_void_p), *fields]}
    made = type("Block", (C.Structure,), own)
    last = getattr(made, sized or made._fields_[-1][0])
    made.bytes = last.offset + last.size  # type: ignore[attr-defined]
    return made


class _Metric(C.Structure):
    _fields_ = [("id", C.c_uint64), ("name", C.c_char_p), ("text", C.c_char_p)]


class _Chosen(C.Structure):
    _fields_ = [("id", C.c_uint64), ("granularity", C.c_uint8)]  # 0: one value for the GPU


class _Value(C.Structure):
    _fields_ = [("id", C.c_uint64), ("value", C.c_uint64)]


class _Record(C.Structure):
    _fields_ = [
        ("size", C.c_size_t), ("private", C.c_void_p), ("cubin", C.c_uint32),
        ("function", C.c_uint32), ("name", C.c_char_p), ("pc", C.c_uint32),
        ("values", C.POINTER(_Value)),
    ]  # fmt: skip


_BARE = _struct()
_CHIP = _struct(("device", C.c_size_t), ("name", C.c_char_p))
_NUMBER = _struct(("chip", C.c_char_p), ("number", C.c_size_t))
_LIST = _struct(("chip", C.c_char_p), ("number", C.c_size_t), ("list", C.POINTER(_Metric)))
_CONFIG = _struct(("number", C.c_size_t), ("chosen", C.POINTER(_Chosen)), ("device", C.c_uint32))
_UNSET = _struct(("device", C.c_uint32))
_ENABLE = _struct(("context", C.c_void_p), ("lazy", C.c_uint8))
_DISABLE = _struct(("context", C.c_void_p), ("dropped", C.c_size_t))
_SIZES = ("context", C.c_void_p), ("records", C.c_size_t), ("instances", C.c_size_t)
_PROPERTIES = _struct(*_SIZES)
_FLUSH = _struct(*_SIZES, ("list", C.POINTER(_Record)), sized="instances")
_RESOURCE_DOMAIN = 3


class Cupti:
    """The calls that a collection makes. Raises RuntimeError with CUPTI's words."""

    def __init__(self, path: str) -> None:
        self._lib = C.CDLL(path, mode=C.RTLD_GLOBAL)
        self._ids: dict[int, str] = {}
        self._context = C.c_void_p()

    def version(self) -> int:
        """Return the version of its interface."""
        found = C.c_uint32()
        self._checked("cuptiGetVersion", self._lib.cuptiGetVersion(C.byref(found)))
        return found.value

    def begin(self) -> None:
        """Attach it to the process."""
        self._call("cuptiProfilerInitialize", _BARE)

    def subscribe(self) -> None:
        """Subscribe to callbacks about contexts and modules. getpid() is a callback that does
        nothing and needs no interpreter's lock.
        """
        handle, idle = C.c_void_p(), C.cast(C.CDLL(None).getpid, C.c_void_p)
        told = self._lib.cuptiSubscribe(C.byref(handle), idle, None)
        self._checked("cuptiSubscribe", told)
        self._checked("cuptiEnableDomain", self._lib.cuptiEnableDomain(1, handle, _RESOURCE_DOMAIN))

    def chip(self) -> bytes:
        """Return the name of the GPU's chip."""
        return bytes(self._call("cuptiDeviceGetChipName", _CHIP, device=0).name)

    def metrics(self, chip: bytes) -> dict[str, int]:
        """Return the metrics of a chip, and their numbers."""
        number = self._call("cuptiSassMetricsGetNumOfMetrics", _NUMBER, chip=chip).number
        listed = (_Metric * number)()
        self._call("cuptiSassMetricsGetMetrics", _LIST, chip=chip, number=number, list=listed)
        return {metric.name.decode(): metric.id for metric in listed}

    def configure(self, names: Iterable[str]) -> None:
        """Choose metrics. A context must exist."""
        known = self.metrics(self.chip())
        self._ids = {known[name]: name for name in names}
        chosen = (_Chosen * len(self._ids))(*[(number, 0) for number in self._ids])
        self._call(
            "cuptiSassMetricsSetConfig", _CONFIG, number=len(chosen), chosen=chosen, device=0
        )

    def enable(self, lazy: int) -> None:
        """Patch the kernels of the current context."""
        driver = C.CDLL("libcuda.so.1")
        if driver.cuCtxGetCurrent(C.byref(self._context)) or not self._context:
            raise RuntimeError("there is no current context")
        self._call("cuptiSassMetricsEnable", _ENABLE, context=self._context, lazy=lazy)

    def flush(self) -> dict[str, Any]:
        """Return the values by function and metric, and how many records there are."""
        sizes = self._call("cuptiSassMetricsGetDataProperties", _PROPERTIES, context=self._context)
        room = sizes.instances * len(self._ids) + 8
        records, values = (_Record * sizes.records)(), (_Value * (room * sizes.records))()
        for at, record in enumerate(records):
            record.size = _FLUSH.bytes  # type: ignore[attr-defined]
            record.values = C.cast(C.byref(values, at * room * C.sizeof(_Value)), C.POINTER(_Value))
        if sizes.records:
            self._call(
                "cuptiSassMetricsFlushData", _FLUSH, context=self._context, records=sizes.records,
                instances=sizes.instances, list=records,
            )  # fmt: skip
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for record in records:
            for at in range(room):
                if metric := self._ids.get(record.values[at].id):
                    name = demangled(record.name or b"?")
                    found[name][metric] += record.values[at].value
        by = {name: dict(counts) for name, counts in sorted(found.items())}
        return {"records": sizes.records, "instances": sizes.instances, "functions": by}

    def end(self, how: str) -> None:
        """Take the patches away, and detach it as far as ``how`` says."""
        self._call("cuptiSassMetricsDisable", _DISABLE, context=self._context)
        self._call("cuptiSassMetricsUnsetConfig", _UNSET, device=0)
        if how:
            self._call("cuptiProfilerDeInitialize", _BARE)
        if how == "finalize":
            self._checked("cuptiFinalize", self._lib.cuptiFinalize())

    def _call(self, name: str, kind: type[C.Structure], **given: Any) -> Any:
        block = kind(**given)
        block.size = kind.bytes  # type: ignore[attr-defined]
        self._checked(name, getattr(self._lib, name)(C.byref(block)))
        return block

    def _checked(self, name: str, told: int) -> None:
        if told:
            text = C.c_char_p()
            self._lib.cuptiGetResultString(told, C.byref(text))
            raise RuntimeError(f"{name}: {told} {(text.value or b'').decode()}")


def demangled(symbol: bytes | str) -> str:
    """Return a kernel's name as PyTorch's profiler writes it."""
    raw = symbol.encode() if isinstance(symbol, str) else symbol
    if not raw.startswith(b"_Z") or len(raw) > 1024:
        return raw.decode()
    demangle = C.CDLL("libstdc++.so.6").__cxa_demangle
    demangle.restype, status = C.c_void_p, C.c_int()
    found = demangle(C.c_char_p(raw), None, None, C.byref(status))
    return C.string_at(found).decode() if found else raw.decode()


# --- what runs in a process -----------------------------------------------------------------------

_KERNEL = """
import triton
import triton.language as tl

@triton.jit
def add_known(x, y, out, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at) + tl.load(y + at))
"""


def say(**facts: Any) -> None:
    """Print a line of JSON for the parent."""
    print(json.dumps(facts), flush=True)


def program() -> list[Callable[[], object]]:
    """Return the six kernels' launches. Their inputs are made by other kernels."""
    import torch
    import torch.nn.functional as F

    Path("sass_kernel.py").write_text(_KERNEL)
    sys.path.insert(0, os.getcwd())
    from sass_kernel import add_known

    torch.manual_seed(0)
    x, y = torch.randn(ELEMENTS, device="cuda"), torch.randn(ELEMENTS, device="cuda")
    out = torch.empty_like(x)
    half = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(8, 12, 1024, 64, device="cuda", dtype=torch.bfloat16)
    leaf = torch.randn(4096, 1024, device="cuda", requires_grad=True)
    return [
        lambda: torch.mul(x, 2.0, out=out),
        lambda: add_known[(ELEMENTS // 1024,)](x, y, out, SIZE=1024),
        lambda: torch.mm(half, half),
        lambda: torch.softmax(half, -1),
        lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
        lambda: leaf.tanh().sum().backward(),
    ]


def workload(kind: str) -> list[Callable[[], object]]:
    """Return the parts of a step."""
    if kind == "small":
        return program()
    from model.workloads import train_step

    return [train_step(**TRAIN).step]


class Clock:
    """Seconds of the parts of a process."""

    def __init__(self, turns: bool) -> None:
        self.seconds: dict[str, float] = {}
        self._turns = turns

    def __call__(self, name: str, body: Callable[[], Any]) -> Any:
        """Return what the body returns, and keep its time. The GPU is waited for."""
        import torch

        with open("../turn", "w") as file:
            if name.startswith(("alone", "patched", "warm-up")):
                self._wait(file)
            began = time.perf_counter()
            made = body()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            self.seconds[name] = round(time.perf_counter() - began, 4)
        say(did=name, s=self.seconds[name])
        return made

    def _wait(self, file: Any) -> None:
        """Wait until no other process runs a step. If that takes too long, one hangs: never wait
        again.
        """
        ends = time.monotonic() + TURN_S
        while self._turns:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                time.sleep(0.01)
            self._turns = time.monotonic() < ends


def count(kind: str, way: Way) -> None:
    """Count a workload in that way. Print each collection as soon as it is there."""
    cupti = Cupti(way.cupti)
    if way.when != "after":
        _begin(cupti, way)
    clock = Clock(turns=kind == "train")
    import torch

    clock("context", lambda: torch.empty(1, device="cuda"))
    early = way.when == "early"
    if early:
        _arm(cupti, way, clock)
    parts = clock("made", lambda: workload(kind))

    def step() -> None:
        for part in parts:
            part()

    for number in range(3):
        clock(f"warm-up {number}", step)
    if way.when == "after":
        clock("begin", lambda: _begin(cupti, way))
    if way.when == "each":
        _count_each(cupti, way, clock, parts)
        return
    if not early:
        clock("alone", step)
        _arm(cupti, way, clock)
        clock("patched", step)
    for number in range(3):
        found = clock(f"flush {number}", cupti.flush)
        say(collection=number, found=found, seconds=clock.seconds)
        clock(f"patched again {number}", step)
    clock("end", lambda: cupti.end(way.between))
    clock("alone again", step)
    say(seconds=clock.seconds)


def _begin(cupti: Cupti, way: Way) -> None:
    if way.subscribe:
        cupti.subscribe()
    cupti.begin()


def _arm(cupti: Cupti, way: Way, clock: Clock) -> None:
    clock("configure", lambda: cupti.configure(way.metrics))
    clock("enable", lambda: cupti.enable(way.lazy))


def _count_each(cupti: Cupti, way: Way, clock: Clock, parts: list[Callable[[], object]]) -> None:
    """Count each part in a collection of its own. Print their sum after each."""
    functions: dict[str, Any] = {}
    records = 0
    for number, part in enumerate(parts):
        if number and way.between:
            clock("begin", lambda: _begin(cupti, way))
        _arm(cupti, way, clock)
        clock(f"part {number}", part)
        found = clock("flush", cupti.flush)
        functions |= found["functions"]
        records += found["records"]
        say(collection=0, found={"records": records, "functions": functions}, seconds=clock.seconds)
        clock("end", lambda: cupti.end(way.between))


def profile(kind: str) -> None:
    """Print the kernels of a step that is not counted, with their launches and times in us."""
    clock = Clock(turns=kind == "train")
    import torch

    parts = clock("made", lambda: workload(kind))

    def step() -> None:
        for part in parts:
            part()

    for number in range(4):
        clock(f"warm-up {number}", step)
    steps_s = [clock("alone", step) or clock.seconds["alone"] for _ in range(5)]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
        clock("profiled", step)
    kernels: dict[str, list[float]] = defaultdict(lambda: [0, 0.0])
    for event in profiled.events():
        kernel = event.device_type == torch.autograd.DeviceType.CUDA
        kernel &= not getattr(event, "is_user_annotation", False)
        if kernel and not event.name.startswith(("Mem", "Optimizer.")):
            row = kernels[demangled(event.name)]
            row[0] += 1
            row[1] += event.time_range.elapsed_us()
    say(kernels=dict(kernels), step_s=sorted(steps_s)[2], seconds=clock.seconds)


def facts(paths: str) -> None:
    """Print what is known of the machine, and the versions and metrics of each CUPTI."""
    import torch

    maps = Path("/proc/self/maps").read_text().splitlines()
    own = sorted({line.split()[-1] for line in maps if "libcupti.so" in line})
    files = Path("/proc/driver/nvidia/params"), Path("/proc/driver/nvidia/version")
    told = {file.name: file.read_text() for file in files if file.exists()}
    admin = [line for line in told.get("params", "").splitlines() if "RmProfilingAdminOnly" in line]
    say(
        gpu=torch.cuda.get_device_name(0), torch=torch.__version__, uid=os.getuid(), own=own,
        params=admin, driver=told.get("version", "").split("\n")[0],
    )  # fmt: skip
    torch.zeros(1, device="cuda")
    for path in [*own[:1], *filter(None, paths.split(","))]:
        cupti = Cupti(path)
        say(cupti=path, version=cupti.version())
        if path in own:
            cupti.begin()
            chip = cupti.chip()
            say(cupti=path, chip=chip.decode(), metrics=sorted(cupti.metrics(chip)))


def child(kind: str, what: str, given: str, seconds: float) -> None:
    """Run one attempt in this process."""
    faulthandler.dump_traceback_later(max(seconds - 2.0, 1.0), file=sys.stderr)
    try:
        if kind == "count":
            fields = json.loads(given)
            count(what, Way(**fields | {"metrics": tuple(fields["metrics"])}))
        elif kind == "profile":
            profile(what)
        else:
            facts(given)
    except (RuntimeError, AttributeError, KeyError, ImportError, OSError) as error:
        say(problem=f"{type(error).__name__}: {error}"[:600])
    sys.stdout.flush()
    os._exit(0)  # CUPTI may hang when a patched process ends


# --- the parent -----------------------------------------------------------------------------------


class Attempts:
    """Start processes, none of which outlives its deadline or the whole run's."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._ends = folder, time.monotonic() + seconds
        self._numbers = itertools.count()
        self.script = folder / "measure.py"
        shutil.copy(__file__, self.script)
        folder.chmod(0o755)
        self.script.chmod(0o644)
        (folder / "turn").touch()
        (folder / "turn").chmod(0o666)

    def left(self) -> float:
        """Return how many seconds of the run are left."""
        return self._ends - time.monotonic()

    def run(self, kind: str, what: str, given: str, seconds: float, way: Way | None = None) -> Any:
        """Return what a process printed, how it ended and how long it ran."""
        place = self._folder / f"{next(self._numbers)}"
        place.mkdir()
        place.chmod(0o777)
        began, limit = time.monotonic(), min(seconds, self.left() - 1.0)
        if limit < 3.0:
            return {"lines": [], "ended": "not begun: no time", "s": 0.0}
        command = [sys.executable, str(self.script), "--child", kind, what, given, f"{limit}"]
        own = {"user": way.user, "group": way.user, "extra_groups": []} if way and way.user else {}
        with open(place / "out", "wb") as out, open(place / "err", "wb") as err:
            try:
                process = subprocess.Popen(
                    command, stdout=out, stderr=err, cwd=place, env=_environment(place, way),
                    start_new_session=True, **own,
                )  # fmt: skip
            except OSError as error:
                return {"lines": [], "ended": f"not begun: {error}", "s": 0.0}
            ended = _ended(process, limit)
        lines = []
        for line in (place / "out").read_text(errors="replace").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                continue
        told = {"lines": lines, "ended": ended, "s": round(time.monotonic() - began, 1)}
        if ended != "0":
            told["stderr"] = (place / "err").read_text(errors="replace")[-1200:]
        return told


def _ended(process: subprocess.Popen[bytes], limit: float) -> str:
    """Return how a process ended. All that it started ends with it."""
    try:
        ended = str(process.wait(limit))
    except subprocess.TimeoutExpired:
        ended = f"killed after {limit:.0f} s"
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        ended += ", and does not end"
    return ended


def _environment(place: Path, way: Way | None) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    own = {"PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))}
    if way:
        own |= {"CUDA_LAUNCH_BLOCKING": str(way.blocking), "CUDA_MODULE_LOADING": way.loading}
    if way and way.user:
        own |= {"HOME": str(place), "TRITON_CACHE_DIR": str(place / "triton"), "USER": "nobody"}
        own |= {"TORCHINDUCTOR_CACHE_DIR": str(place / "inductor")}
    return dict(os.environ) | own


def ways() -> list[Way]:
    """Return the ways that are tried first, the likelier ones first."""
    grid = [
        Way(when=when, lazy=lazy, blocking=blocking)
        for when in ("late", "early", "after")
        for lazy in (0, 1)
        for blocking in (1, 0)
    ]
    more = [
        Way(subscribe=1, blocking=1), Way(subscribe=1, lazy=0), Way(when="early", subscribe=1),
        Way(loading="EAGER", blocking=1), Way(loading="EAGER", lazy=0),
        Way(when="early", loading="EAGER", lazy=0),
        Way(when="each"), Way(when="each", lazy=0), Way(when="each", between="deinitialize"),
        Way(when="each", between="finalize"), Way(when="each", between="finalize", subscribe=1),
    ]  # fmt: skip
    return grid + more


def collections(told: Any) -> list[dict[str, Any]]:
    """Return the functions of each collection that a process printed."""
    return [line["found"]["functions"] for line in told["lines"] if "collection" in line]


def steps_of(way: Way, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the functions of each counted step. What comes before the first step is left out if
    it was counted too. If a collection keeps the counts of those before it, steps are differences.
    """
    if way.when == "early":
        found = found[1:] if len(found) > 1 else found
    if len(found) < 2:
        return found
    shared = [name for name in found[0] if name in found[1]]
    twice = [n for n in shared if all(found[1][n].get(m) == 2 * v for m, v in found[0][n].items())]
    if not shared or len(twice) <= len(shared) / 2:
        return found
    return [found[0]] + [
        {n: {m: v - old.get(n, {}).get(m, 0) for m, v in new[n].items()} for n in new}
        for old, new in itertools.pairwise(found)
    ]


def summary(way: Way, told: Any, expected: dict[str, Any]) -> dict[str, Any]:
    """Return how far a way came, and how many of the expected kernels it counted."""
    found = collections(told)
    did = [line["did"] for line in told["lines"] if "did" in line]
    problems = [line["problem"] for line in told["lines"] if "problem" in line]
    row: dict[str, Any] = {"way": way.name, "last": did[-1] if did else "", "s": told["s"]}
    row["functions"] = [len(functions) for functions in found]
    row["covered"] = sorted(set(found[0]) & set(expected)) if found else []
    if problems or told["ended"] != "0":
        row["problem"] = (problems or [told["ended"]])[0][:200]
    row["known"] = {
        name: [functions.get(full, {}).get(SECTORS) for functions in found]
        for name in SECTORS_KNOWN
        for full in expected
        if name in full and SECTORS in way.metrics
    }
    return row


def compared(processes: list[dict[str, Any]], kernels: dict[str, Any]) -> dict[str, Any]:
    """Return which share of the kernels' time is covered by all processes, and which is equal."""
    total = sum(us for _, us in kernels.values()) or 1.0
    covered = [name for name in kernels if all(name in each for each in processes)]
    equal = [name for name in covered if len({str(each[name]) for each in processes}) == 1]
    share = {
        key: round(sum(kernels[name][1] for name in names) / total, 5)
        for key, names in (("covered", covered), ("exact", equal))
    }
    moving = {n[:100]: [each[n] for each in processes] for n in covered if n not in equal}
    lacking = sorted(set(kernels) - set(covered), key=lambda name: -kernels[name][1])
    return {
        "processes": len(processes),
        "kernels": len(kernels),
        "share_of_kernel_time": share,
        "differ": moving,
        "lacking": [[name[:100], *kernels[name]] for name in lacking[:12]],
        "beyond_the_profile": sorted(set().union(*processes) - set(kernels))[:12],
    }


class Study:
    """The parts of a run, in their order. Each adds to the document."""

    def __init__(self, attempts: Attempts, out: Path, cupti: list[str]) -> None:
        self._attempts, self._out, self._cupti = attempts, out, cupti
        self._document: dict[str, Any] = {"command": " ".join(sys.argv), "attempts": {}}
        self._began, self._own = time.monotonic(), ""

    def run(self) -> None:
        """Run all parts for which time is left."""
        with ThreadPoolExecutor(AT_ONCE + 1) as pool:
            # It compiles for a minute, and fills the cache for those that count.
            step = pool.submit(self._attempts.run, "profile", "train", "", TRAIN_S + 35)
            known = self._attempts.run("facts", "", ",".join(self._cupti), 30.0)
            lines = known["lines"]
            self._own = next(iter(lines[0].get("own", ()) if lines else ()), _system_cupti())
            self._keep("facts", lines or known)
            small = pool.submit(self._attempts.run, "profile", "small", "", SMALL_S + 5)
            good = self._small(pool, ways(), small, "ways")
            good = self._variants(pool, good, small)
            self._train(pool, good, step)

    def _small(
        self, pool: ThreadPoolExecutor, tried: list[Way], small: Future[Any], part: str
    ) -> list[Way]:
        """Try ways with the small program; return those that counted something, the best first."""
        ends = time.monotonic() + (WAYS_S if part == "ways" else VARIANTS_S)
        running = [pool.submit(self._count, "small", way, SMALL_S, ends) for way in tried]
        expected = self._expected(small.result())
        rows = [
            (summary(way, told.result(), expected), way)
            for way, told in zip(tried, running, strict=True)
        ]
        self._keep(part, [row for row, _ in rows])
        counted = [(row, way) for row, way in rows if row["covered"]]
        best = sorted(
            counted,
            key=lambda item: (
                -len(item[0]["covered"]),
                item[1].when in ("early", "each"),
                -len(item[0]["functions"]),
                item[0]["s"],
            ),
        )
        return [way for _, way in best]

    def _expected(self, told: Any) -> dict[str, Any]:
        kernels = next((line["kernels"] for line in told["lines"] if "kernels" in line), {})
        if "small_program" not in self._document:
            self._keep("small_program", {"kernels": kernels} if kernels else told)
        return dict(kernels)

    def _variants(self, pool: ThreadPoolExecutor, good: list[Way], small: Future[Any]) -> list[Way]:
        """Try the best way with other metrics, as another user and with other versions."""
        usual = good[0] if good else Way(lazy=0, blocking=1)
        tried = [
            replace(usual, metrics=(SECTORS,)),
            replace(usual, metrics=(INSTRUCTIONS, SECTORS)),
            replace(usual, user=65534),
        ]
        for path in self._cupti:
            tried += [
                replace(way, cupti=path)
                for way in (usual, Way(), Way(blocking=1), Way(lazy=0), Way(when="early"))
            ]
        better = self._small(pool, list(dict.fromkeys(tried)), small, "variants")
        newer = [way for way in better if way.cupti and way.metrics == (INSTRUCTIONS,)]
        return [*good[:2], *newer[:1]] if good else newer[:1]

    def _train(self, pool: ThreadPoolExecutor, good: list[Way], step: Future[Any]) -> None:
        """Count the train step in the best ways: several processes, each metric alone."""
        told = step.result()
        line = next((line for line in told["lines"] if "kernels" in line), None)
        if line is None:
            self._keep("train_step", {"problem": told})
            return
        kernels = line["kernels"]
        self._keep("train_step", {"step_s": line["step_s"], "kernels": len(kernels)})
        jobs: list[Way] = []
        for at, way in enumerate(good[:3]):
            jobs += [way] * (3 if at == 0 else 1)
            jobs += [replace(way, metrics=(SECTORS,))] * (2 if at == 0 else 0)
        ends = time.monotonic() + TRAIN_S
        running = [(way, pool.submit(self._count, "train", way, TRAIN_S, ends)) for way in jobs]
        by_way: dict[Way, list[Any]] = defaultdict(list)
        for way, future in running:
            by_way[way].append(future.result())
        for way, processes in by_way.items():
            judged = self._judged(way, processes, kernels)
            self._keep(f"train_step, {way.name}", judged | {"step_s": line["step_s"]})
        self._keep("train_kernels", kernels)

    def _judged(self, way: Way, processes: list[Any], kernels: Any) -> dict[str, Any]:
        found = [steps_of(way, collections(told)) for told in processes]
        first = [steps[0] for steps in found if steps]
        told: dict[str, Any] = {"counted": len(first), "of": len(processes)}
        if first:
            told["between_processes"] = compared(first, kernels)
        if several := [steps for steps in found if len(steps) > 1]:
            told["within_a_process"] = compared(several[0], kernels)
        exact = told.get("between_processes", {}).get("share_of_kernel_time", {}).get("exact", 0)
        lines = [line for process in processes for line in process["lines"]]
        return told | {
            "gates": len(first) > 1 and exact >= EXACT_SHARE,
            "seconds": [
                next((line["seconds"] for line in told["lines"][::-1] if "seconds" in line), {})
                for told in processes
            ],
            "ended": [(process["ended"], process["s"]) for process in processes],
            "problems": [line["problem"] for line in lines if "problem" in line],
        }

    def _count(self, what: str, way: Way, seconds: float, ends: float) -> Any:
        limit = min(seconds, ends - time.monotonic())
        given = json.dumps(asdict(replace(way, cupti=way.cupti or self._own)))
        told = self._attempts.run("count", what, given, limit, way)
        self._document["attempts"].setdefault(f"{what}: {way.name}", []).append(told)
        return told

    def _keep(self, part: str, what: Any) -> None:
        self._document[part] = what
        self._document["seconds"] = round(time.monotonic() - self._began, 1)
        self._out.write_text(json.dumps(self._document) + "\n")
        print(json.dumps({"at_s": self._document["seconds"], part: what})[:4000], flush=True)


def _system_cupti() -> str:
    found = glob.glob("/usr/local/cuda*/**/libcupti.so.13", recursive=True)
    return found[0] if found else "libcupti.so.13"


def main() -> None:
    """Run the study, or one attempt of it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("sass_metrics.json"))
    parser.add_argument("--seconds", type=float, default=118.0, help="of the whole run")
    parser.add_argument("--cupti", default="", help="pattern of other versions' libraries")
    parser.add_argument("--child", nargs=4)
    options = parser.parse_args()
    if options.child:
        kind, what, given, seconds = options.child
        child(kind, what, given, float(seconds))
    other = sorted({str(Path(path).resolve()) for path in glob.glob(options.cupti, recursive=True)})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Study(Attempts(Path(folder), options.seconds), options.out, other).run()


if __name__ == "__main__":
    main()
