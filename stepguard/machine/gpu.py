"""Find, check, lock and sample the GPUs of this host.

NVML: everything is read by GPU UUID, and nothing is ever set. NVML starts no CUDA context. So this
process, which is not timed, can sample while a worker is timed.

Ranks are numbered node after node, ``per_node`` on each. Rank i of a node is on its GPU i. Every
node has its own clock. So a node's own ranks say when a block began and ended. Only the samples
between these two times count.

One measurement on a GPU at a time: each GPU has a lock that all users of the machine share.

    /tmp/stepguard-<uuid>.lock     locked while a case is measured; names the process
    /tmp/stepguard-<uuid>.queue    locked by the run that is next, so that runs take turns by case

The kernel releases both locks when the process ends, however it ends. The files stay, empty. A
container with a /tmp of its own does not see the files, but its process on the GPU is noticed.
"""

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median_high
from typing import Any

import msgspec
import pynvml

from stepguard.core.evidence import Block, Disturbance
from stepguard.core.reasons import Reason
from stepguard.core.replies import Timed

# Bits of nvmlDeviceGetCurrentClocksThrottleReasons (nvml.h). The software power cap, 0x4, does not
# count as a slowdown: a big GPU runs at its cap all the time, also in the recordings.
SLOWDOWN_BITS = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}
Ranks = Sequence[Timed]  # the answers of all ranks to one command, in rank order


@dataclass(frozen=True)
class Sample:
    """One reading of one GPU."""

    at_ns: int  # time.perf_counter_ns
    sm_clock_mhz: int
    temperature_c: int
    power_w: float
    energy_mj: int
    slowdown: str  # what slows the clocks down, other than the power cap; else empty
    pids: tuple[int, ...]  # of the processes on the GPU


def slowdown(bits: int) -> str:
    """Return the slowdowns among the driver's throttle reasons, in words."""
    return ", ".join(text for bit, text in SLOWDOWN_BITS.items() if bits & bit)


Poll = Sequence[Sample | None]  # a sample of every GPU of a node
# The worker groups whose ranks may be on the GPUs: the process ids of each, by rank.
Expected = Sequence[Sequence[int]]


def _stranger(pids: Sequence[int], expected: Expected, node: range) -> int | None:
    """Return a process on the GPUs of ``node`` (a range of ranks) that belongs to no expected
    group; None if there is none.

    In a container NVML may show the pids of the host, which are not the ones known here. Then only
    the number of processes is compared: a GPU has one rank of each group.
    """
    ours = {pid for group in expected for pid in group[node.start : node.stop]}
    if not ours:
        return None
    strangers = sorted(set(pids) - ours) if ours & set(pids) else pids[len(expected) :]
    return min(strangers, default=None)


def annotate(
    block: Block, ranks: Ranks, local: Sequence[Poll], expected: Expected, per_node: int
) -> Block:
    """Return the block with the telemetry of all nodes that ran it. ``local`` are the polls of this
    host. The polls of another node come with the answer of its first rank.

    The block's ``disturbance``, if it has one, says why the block must be measured again.
    """
    gpus: list[list[Sample]] = []  # what was read during the block, by rank
    joules: list[float | None] = []
    strangers: set[str] = set()
    for first in range(0, len(ranks), per_node):
        # A case of one rank has fewer ranks than a node.
        node = range(first, min(first + per_node, len(ranks)))
        polls = local if first == 0 else _carried(ranks[first])
        where = f" of node {first // per_node}" if first else ""
        began_ns = min(ranks[rank].began_ns for rank in node)
        ended_ns = max(ranks[rank].ended_ns for rank in node)
        for at in range(len(node)):
            read = [poll[at] for poll in polls if at < len(poll)]
            inside = [one for one in read if one and began_ns <= one.at_ns <= ended_ns]
            gpus.append(inside)
            joules.append(_energy_j(inside, (ended_ns - began_ns) / 1e9))
            pids = {_stranger(sample.pids, expected, node) for sample in inside} - {None}
            strangers |= {f"process {pid} on the GPU{where}" for pid in pids}
    if unseen := [str(rank) for rank, samples in enumerate(gpus) if not samples]:
        where = f" of rank {', '.join(unseen)}" if len(gpus) > 1 else ""
        text = f"no telemetry{where} during the block"
        return replace(block, disturbance=Disturbance(Reason.MACHINE_UNREADABLE, text))
    flat = [sample for samples in gpus for sample in samples]
    slowdowns = {sample.slowdown for sample in flat if sample.slowdown}
    return replace(
        block,
        sm_clock_mhz=float(median_high(sample.sm_clock_mhz for sample in flat)),
        temperature_c=max(sample.temperature_c for sample in flat),
        power_w=median_high(sample.power_w for sample in flat),
        energy_j=sum(j for j in joules if j is not None) if None not in joules else None,
        disturbance=_disturbance(strangers, slowdowns),
    )


def _disturbance(strangers: Set[str], slowdowns: Set[str]) -> Disturbance | None:
    """Return what disturbed a block. Another process comes first, since it explains a slowdown."""
    if not strangers and not slowdowns:
        return None
    reason = Reason.FOREIGN_PROCESS if strangers else Reason.THROTTLED
    return Disturbance(reason, "; ".join([*sorted(strangers), *sorted(slowdowns)]))


def _energy_j(samples: Sequence[Sample], block_s: float) -> float | None:
    """Return the rise of the energy counter over the samples, scaled to the block."""
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    between_s = (last.at_ns - first.at_ns) / 1e9
    if between_s <= 0:
        return None
    return (last.energy_mj - first.energy_mj) / 1e3 / between_s * block_s


def _carried(rank: Timed) -> Sequence[Poll]:
    """Return what a rank of another node sent along; empty if it could read nothing."""
    try:
        return msgspec.convert(rank.samples, list[list[Sample | None]])
    except msgspec.ValidationError:
        return []


SAMPLE_S = 0.05
GONE_LIMIT_S = 10.0
HIDDEN_MEMORY_BYTES = 2 << 30  # if more is in use, there is a process that NVML does not show


class MachineError(Exception):
    """A machine or a launcher of several that cannot be used. One sentence, with the remedy."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process may use."""

    uuid: str
    name: str
    driver: str
    max_sm_clock_mhz: int


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES allows, or raise MachineError."""
    return _visible(_all_gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))


def known_gpus() -> int:
    """Return how many GPUs this machine has, also hidden ones. Raises MachineError."""
    return len(_all_gpus())


def _all_gpus() -> list[Gpu]:
    try:
        pynvml.nvmlInit()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        return [_describe(handle, driver) for handle in handles]
    except pynvml.NVMLError_LibraryNotFound:
        if any(Path("/dev").glob("nvidia[0-9]*")):
            raise MachineError(
                "/dev has NVIDIA GPUs but libnvidia-ml.so.1 cannot be loaded; "
                "put the driver's library folder on LD_LIBRARY_PATH"
            ) from None
        return []
    except pynvml.NVMLError_DriverNotLoaded:
        return []
    except pynvml.NVMLError as error:
        raise MachineError(f"NVML does not answer: {error}; try: nvidia-smi") from None


def _describe(handle: Any, driver: str) -> Gpu:
    return Gpu(
        uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
        name=str(pynvml.nvmlDeviceGetName(handle)),
        driver=driver,
        max_sm_clock_mhz=int(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)),
    )


def _visible(gpus: list[Gpu], variable: str | None) -> list[Gpu]:
    """Apply CUDA_VISIBLE_DEVICES as CUDA does: up to the first entry that names no GPU."""
    if variable is None:
        return gpus
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in variable.split(",")):
        if entry.isdecimal() and int(entry) < len(gpus):
            chosen.append(gpus[int(entry)])
        elif entry.startswith("GPU-") and (hit := [g for g in gpus if g.uuid.startswith(entry)]):
            chosen.append(hit[0])
        else:
            break
    return chosen


class Monitor:
    """Watches a case's ``gpus``, by rank over all nodes, while its blocks run. This host has the
    first ``per_node``; other ranks send their samples.
    """

    def __init__(self, gpus: Sequence[Gpu], per_node: int = 0) -> None:
        self.gpus = tuple(gpus)
        self._per_node = per_node or len(gpus)
        # By UUID: an index of NVML also counts the GPUs that CUDA_VISIBLE_DEVICES hides.
        here = [gpu.uuid for gpu in gpus[: self._per_node]]
        self._handles = {uuid: pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in here}
        self._next = 0.0
        self._polls: list[Poll] = []
        self._expected: Expected = ()

    def preflight(self) -> str:
        """Return why a GPU of this host is unfit, with the remedy; empty if none is. It is asked
        again, since an ended process may be listed for seconds. Raises MachineError.
        """
        until = time.monotonic() + GONE_LIMIT_S
        while (problem := self._problem()) and time.monotonic() < until:
            time.sleep(0.2)
        return problem

    def _problem(self) -> str:
        for uuid, handle in self._handles.items():
            try:
                if problem := _preflight(handle):
                    return f"{uuid}: {problem}"
            except pynvml.NVMLError as error:
                problem = f"{uuid}: NVML does not answer ({error}); try: nvidia-smi"
                raise MachineError(problem) from None
        return ""

    def sample(self) -> list[Sample | None]:
        """Return a sample of each GPU of this host, None for an unreadable one; empty within
        SAMPLE_S of the last one.
        """
        now = time.monotonic()
        if now < self._next:
            return []
        self._next = now + SAMPLE_S
        return [_sample(handle) for handle in self._handles.values()]

    def expect(self, *groups: Sequence[int]) -> None:
        """Set which processes may be on the GPUs from now on: by group and rank."""
        self._expected = groups

    def poll(self) -> None:
        """Take a sample of every GPU of this host if one is due."""
        if samples := self.sample():
            self._polls.append(samples)

    def annotate(self, block: Block, ranks: Ranks) -> Block:
        """Return the block with the telemetry of the GPUs that its ranks used."""
        polls, self._polls = self._polls, self._polls[-2:]
        return annotate(block, ranks, polls, self._expected, self._per_node)


def _preflight(handle: Any) -> str:
    if processes := pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        pids = ", ".join(str(process.pid) for process in processes)
        return f"in use by process {pids}; end it, or choose a GPU with CUDA_VISIBLE_DEVICES"
    # Version 2 leaves out what the driver reserves for itself.
    used = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used
    if used > HIDDEN_MEMORY_BYTES:
        return f"{used >> 20} MiB in use by a process that cannot be seen; see: nvidia-smi"
    return ""


def _sample(handle: Any) -> Sample | None:
    try:
        bits = int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return Sample(
            at_ns=time.perf_counter_ns(),
            sm_clock_mhz=int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
            temperature_c=int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
            power_w=pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
            energy_mj=int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
            slowdown=slowdown(bits),
            pids=tuple(sorted({process.pid for process in processes})),
        )
    except pynvml.NVMLError:  # a block without samples does not count
        return None


# The lock is written here: no package of locks queues, names the holder, and safely opens a file
# that all users share.
LOCKS = Path("/tmp")  # not TMPDIR, which may belong to one user
WAIT_LIMIT_S = 900.0  # several times what a case takes
LOCK_POLL_S = 0.2
NOTE_BYTES = 400


class GpuLocked(Exception):
    """A GPU that is not available. One sentence, with what to do."""


@contextlib.contextmanager
def exclusive(
    uuids: Sequence[str],
    command: str,
    progress: Callable[[str], None],
    folder: Path = LOCKS,
    limit_s: float = WAIT_LIMIT_S,
) -> Iterator[None]:
    """Lock the GPUs during the block, or raise GpuLocked after ``limit_s``."""
    until = time.monotonic() + limit_s

    @contextlib.contextmanager
    def taken(path: Path, uuid: str) -> Iterator[int]:
        """Lock a file of a GPU; yield its descriptor."""
        while (handle := _try(path, uuid)) is None:
            holder = _holder(path.with_suffix(".lock"))
            left = until - time.monotonic()
            if left <= 0:
                raise GpuLocked(
                    f"{uuid}: {holder} measures on it, waited {limit_s:.0f} s; measure again when "
                    "that is over, or choose a GPU with CUDA_VISIBLE_DEVICES"
                )
            # The text stays the same during the wait, since a log has a line for each text.
            progress(f"waiting for the GPU, {limit_s:.0f} s at most: {holder} measures")
            time.sleep(min(LOCK_POLL_S, left))
        try:
            yield handle
        finally:
            os.close(handle)

    with contextlib.ExitStack() as stack:
        # All runs use one order. Otherwise two runs could each wait for what the other one has.
        for uuid in sorted(uuids):
            path = folder / f"stepguard-{uuid}.lock"
            with taken(path.with_suffix(".queue"), uuid):
                handle = stack.enter_context(taken(path, uuid))
            stack.enter_context(_noted(handle, command))
        yield


def _try(path: Path, uuid: str) -> int | None:
    """Return a descriptor of the locked file; None while another process has the lock."""
    try:
        handle = _opened(path)
    except OSError as error:
        problem = f"{error.strerror or error}; see: ls -l {path}"
        raise GpuLocked(f"{uuid}: cannot be locked: {path}: {problem}") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # If the file was removed before it was locked, others now open another file.
        if os.path.samestat(os.fstat(handle), os.stat(path)):
            return handle
    except (BlockingIOError, FileNotFoundError):  # another process locked or removed the file
        pass
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _opened(path: Path) -> int:
    """Open the file and return its descriptor. If it is missing, make it, readable and writable for
    all users. A link is not followed, since anybody could have put one there. Raises OSError, also
    for anything but a plain file.
    """
    # O_NONBLOCK: otherwise opening a FIFO would wait for its other end.
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        handle = os.open(path, flags)  # no O_CREAT: in /tmp the kernel refuses it for others' files
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(handle, 0o666)  # whatever the umask is
            return handle
        handle = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("not a plain file")
    return handle


@contextlib.contextmanager
def _noted(handle: int, command: str) -> Iterator[None]:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    note = f"process {os.getpid()} since {since} ({command})"
    os.ftruncate(handle, 0)
    os.pwrite(handle, note.encode(errors="replace")[:NOTE_BYTES], 0)
    try:
        yield
    finally:
        os.ftruncate(handle, 0)


def _holder(path: Path) -> str:
    """Return what the holder wrote, as one line of plain characters: anybody can write there."""
    try:
        handle = _opened(path)
    except OSError:
        return "another run"
    try:
        text = os.pread(handle, NOTE_BYTES, 0).decode(errors="replace")
    finally:
        os.close(handle)
    return "".join(c if c.isprintable() else "?" for c in text) or "another run"
