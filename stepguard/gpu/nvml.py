"""The machine: which GPUs there are, whether they are fit to measure on, what they did meanwhile.

Everything is read through NVML by GPU UUID and nothing is ever set. NVML starts no CUDA context, so
the calling process can sample while a worker is timed: it is idle then, and not the timed process.
"""

import contextlib
import dataclasses
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pynvml

from stepguard.evidence import Block, Disturbance
from stepguard.verdict import Reason

SAMPLE_S = 0.05
GONE_LIMIT_S = 10.0
HIDDEN_MEMORY_BYTES = 2 << 30  # more than this in use with no process to see: somebody is hiding
# Bits of nvmlDeviceGetCurrentClocksThrottleReasons (nvml.h). The software power cap, 0x4, is left
# out: a big GPU lives at it, and the recordings do too.
_SLOWDOWN_BITS = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown (software)",
    0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}


class MachineError(Exception):
    """The machine's state cannot be read, or it is not fit; one sentence, with the remedy."""


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process may use."""

    uuid: str
    name: str
    driver: str
    max_sm_clock_mhz: int


@dataclass(frozen=True)
class Sample:
    """One reading of one GPU."""

    at_ns: int  # time.perf_counter_ns
    sm_clock_mhz: int
    temperature_c: int
    power_w: float
    energy_mj: int
    slowdown: str  # what holds the clocks down besides the power cap, or ""
    foreign: str  # a process that is not ours, or ""


def visible_gpus() -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in PCI order; empty without an NVIDIA driver.

    Raises MachineError when a driver is there but does not answer: that is not a CPU machine.
    """
    try:
        pynvml.nvmlInit()
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
    try:
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        gpus = [_describe(handle, driver) for handle in handles]
    except pynvml.NVMLError as error:
        raise MachineError(f"NVML does not answer: {error}; try: nvidia-smi") from None
    return _visible(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))


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
    """Samples the GPUs of a case while its blocks run."""

    def __init__(self, gpus: Sequence[Gpu]) -> None:
        self.gpus = tuple(gpus)
        self._handles = [pynvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in gpus]
        self._samples: list[list[Sample]] = [[] for _ in gpus]
        self._ours: frozenset[int] = frozenset()
        self._groups = 1
        self._watched = len(self.gpus)
        self._next = 0.0

    def expect(self, *groups: Sequence[int]) -> None:
        """The processes that may be on the GPUs from now on: of each worker group one on each, in
        the GPUs' order.

        With fewer of them than GPUs the GPUs that are left over are not watched: nothing runs there
        that is measured.
        """
        self._ours, self._groups = frozenset().union(*groups), len(groups)
        self._watched = min(max(map(len, groups), default=0), len(self.gpus)) or len(self.gpus)

    def preflight(self) -> str:
        """Why the machine is not fit to measure on, with the remedy, or the empty string.

        Raises MachineError when the machine cannot be asked. The driver may list a process for
        seconds after it has ended, so a first no is not final.
        """
        until = time.monotonic() + GONE_LIMIT_S
        while (problem := self._problem()) and time.monotonic() < until:
            time.sleep(0.2)
        return problem

    def _problem(self) -> str:
        for gpu, handle in zip(self.gpus, self._handles, strict=True):
            try:
                if problem := _preflight(handle):
                    return f"{gpu.uuid}: {problem}"
            except pynvml.NVMLError as error:
                problem = f"{gpu.uuid}: NVML does not answer ({error}); try: nvidia-smi"
                raise MachineError(problem) from None
        return ""

    def poll(self) -> None:
        """Take a sample of every watched GPU if one is due."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + SAMPLE_S
        watched = slice(self._watched)
        for handle, samples in zip(self._handles[watched], self._samples[watched], strict=True):
            with contextlib.suppress(pynvml.NVMLError):  # a block without samples is measured again
                samples.append(_sample(handle, self._ours, self._groups))

    def annotate(self, block: Block, began_ns: int, ended_ns: int) -> Block:
        """The block with its telemetry; ``disturbance`` says why it must be measured again."""
        inside = [
            [s for s in samples if began_ns <= s.at_ns <= ended_ns]
            for samples in self._samples[: self._watched]
        ]
        for samples in self._samples:
            del samples[:-2]
        if not all(inside):
            silent = Disturbance(Reason.MACHINE_UNREADABLE.name, "no telemetry during the block")
            return dataclasses.replace(block, disturbance=silent)
        flat = [sample for samples in inside for sample in samples]
        slowdowns = {s.slowdown for s in flat if s.slowdown}
        foreign = {s.foreign for s in flat if s.foreign}
        joules = [_energy_j(samples, (ended_ns - began_ns) / 1e9) for samples in inside]
        return dataclasses.replace(
            block,
            sm_clock_mhz=_median([s.sm_clock_mhz for s in flat]),
            temperature_c=max(s.temperature_c for s in flat),
            power_w=_median([s.power_w for s in flat]),
            energy_j=sum(j for j in joules if j is not None) if None not in joules else None,
            disturbance=_disturbance(foreign, slowdowns),
        )


def _disturbance(foreign: set[str], slowdowns: set[str]) -> Disturbance | None:
    """Return what spoilt a block; another process explains a slowdown, and goes first."""
    if not foreign and not slowdowns:
        return None
    reason = Reason.FOREIGN_PROCESS if foreign else Reason.THROTTLED
    return Disturbance(reason.name, "; ".join([*sorted(foreign), *sorted(slowdowns)]))


def _energy_j(samples: Sequence[Sample], seconds: float) -> float | None:
    """Energy of a block: the counter's rise between its first and last sample, scaled up to it."""
    if len(samples) < 2 or (span := (samples[-1].at_ns - samples[0].at_ns) / 1e9) <= 0:
        return None
    return (samples[-1].energy_mj - samples[0].energy_mj) / 1e3 / span * seconds


def _median(values: Sequence[float]) -> float:
    return float(sorted(values)[len(values) // 2])


def _preflight(handle: Any) -> str:
    if processes := pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        pids = ", ".join(str(process.pid) for process in processes)
        return f"in use by process {pids}; end it, or choose a GPU with CUDA_VISIBLE_DEVICES"
    # Version 2 leaves out what the driver reserves for itself.
    used = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used
    if used > HIDDEN_MEMORY_BYTES:
        return f"{used >> 20} MiB in use by a process that cannot be seen; see: nvidia-smi"
    return ""


def _sample(handle: Any, ours: frozenset[int], groups: int) -> Sample:
    bits = int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    slowdown = ", ".join(text for bit, text in _SLOWDOWN_BITS.items() if bits & bit)
    pids = {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}
    # In a container NVML may show host pids: ours are not among them, and only numbers compare. A
    # GPU has one rank of each group.
    strangers = pids - ours if pids & ours else set(sorted(pids)[groups:])
    foreign = f"process {min(strangers)} on the GPU" if ours and strangers else ""
    return Sample(
        at_ns=time.perf_counter_ns(),
        sm_clock_mhz=int(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        temperature_c=int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
        power_w=pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        energy_mj=int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)),
        slowdown=slowdown,
        foreign=foreign,
    )
