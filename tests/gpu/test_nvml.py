"""The machine, with a fake NVML: which GPUs, whether they are fit, what they did during a block."""

from types import SimpleNamespace

import pynvml
import pytest
from builders import block

from stepguard.core.replies import Timed
from stepguard.machine import gpu as machine
from stepguard.machine.gpu import Gpu, MachineError, Monitor, known_gpus, visible_gpus

UUIDS = ("GPU-aaaa-1", "GPU-bbbb-2", "GPU-cccc-3")
RESERVED = 600 << 20


class Clock:
    """A clock that moves when somebody sleeps."""

    def __init__(self):
        self.now_s = 100.0

    def monotonic(self):
        return self.now_s

    def perf_counter_ns(self):
        return round(self.now_s * 1e9)

    def sleep(self, seconds):
        self.now_s += seconds


class Nvml:
    """Three H200s. A test sets what they say; ``failing`` names calls that raise."""

    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU
    nvmlMemory_v2 = pynvml.nvmlMemory_v2
    NVMLError = pynvml.NVMLError
    NVMLError_LibraryNotFound = pynvml.NVMLError_LibraryNotFound
    NVMLError_DriverNotLoaded = pynvml.NVMLError_DriverNotLoaded

    def __init__(self, clock):
        self.clock = clock
        self.failing = {}
        self.bits = 0x4  # at the power cap, as always
        self.pids = {uuid: [] for uuid in UUIDS}
        self.used = RESERVED
        self.memory_asked = 0
        self.watts = 700.0

    def __getattr__(self, name):
        def answer(*args, **kwargs):
            if name in self.failing:
                raise self.failing[name]
            return getattr(Nvml, f"_{name}")(self, *args, **kwargs)

        if hasattr(Nvml, f"_{name}"):
            return answer
        raise AttributeError(name)

    def _nvmlInit(self):
        pass

    def _nvmlSystemGetDriverVersion(self):
        return "580.159"

    def _nvmlDeviceGetCount(self):
        return len(UUIDS)

    def _nvmlDeviceGetHandleByIndex(self, index):
        return UUIDS[index]

    def _nvmlDeviceGetHandleByUUID(self, uuid):
        return uuid

    def _nvmlDeviceGetUUID(self, handle):
        return handle

    def _nvmlDeviceGetName(self, handle):
        return "NVIDIA H200"

    def _nvmlDeviceGetMaxClockInfo(self, handle, which):
        return 1980

    def _nvmlDeviceGetClockInfo(self, handle, which):
        return 1600

    def _nvmlDeviceGetTemperature(self, handle, which):
        return 65

    def _nvmlDeviceGetPowerUsage(self, handle):
        return round(1e3 * self.watts)

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle):
        return round(1e3 * self.watts * self.clock.now_s)

    def _nvmlDeviceGetCurrentClocksThrottleReasons(self, handle):
        return self.bits

    def _nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid) for pid in self.pids[handle]]

    def _nvmlDeviceGetMemoryInfo(self, handle, version=None):
        self.memory_asked += 1
        if version == self.nvmlMemory_v2:
            return SimpleNamespace(used=self.used - RESERVED, reserved=RESERVED)
        return SimpleNamespace(used=self.used)


@pytest.fixture
def clock(monkeypatch):
    """Time as the module under test sees it."""
    clock = Clock()
    monkeypatch.setattr(machine, "time", clock)
    return clock


@pytest.fixture
def nvml(monkeypatch, clock):
    """NVML as the module under test sees it."""
    fake = Nvml(clock)
    monkeypatch.setattr(machine, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def disturbance(block):
    """What spoilt the block; empty if nothing did."""
    return block.disturbance.text if block.disturbance else ""


def uuids():
    """What this process may use."""
    return tuple(gpu.uuid for gpu in visible_gpus())


def test_all_gpus_are_described(nvml):
    """Without CUDA_VISIBLE_DEVICES every GPU is there, in NVML's order."""
    assert visible_gpus()[1] == Gpu("GPU-bbbb-2", "NVIDIA H200", "580.159", 1980)
    assert uuids() == UUIDS


@pytest.mark.parametrize(("variable", "seen"), [
    ("0", UUIDS[:1]),
    ("2,0", (UUIDS[2], UUIDS[0])),
    (" 1 , 2 ", UUIDS[1:]),
    ("GPU-bbbb-2", UUIDS[1:2]),
    ("GPU-bbbb", UUIDS[1:2]),
    ("GPU-cccc-3,0", (UUIDS[2], UUIDS[0])),
    ("", ()),
    ("-1", ()),
    ("NoDevFiles", ()),
    ("3", ()),
    ("0,3,1", UUIDS[:1]),
    ("0,-1,1", UUIDS[:1]),
    ("1,GPU-dddd,0", UUIDS[1:2]),
    ("0,,1", UUIDS[:1]),
    ("\u00b2", ()),
])  # fmt: skip
def test_cuda_visible_devices_is_applied_as_cuda_does(nvml, monkeypatch, variable, seen):
    """By index or UUID, in the order given, up to the first entry that names no GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert uuids() == seen


def test_hidden_gpus_are_known(nvml, monkeypatch):
    """Those that CUDA_VISIBLE_DEVICES leaves out are the machine's all the same."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert (len(visible_gpus()), known_gpus()) == (1, len(UUIDS))


def test_no_driver_is_no_gpu(nvml):
    """A machine without a loaded driver is a CPU machine."""
    nvml.failing["nvmlInit"] = pynvml.NVMLError_DriverNotLoaded()
    assert uuids() == ()


@pytest.mark.parametrize("devices", [[], ["/dev/nvidia0"]])
def test_no_library_is_no_gpu_unless_there_is_one(nvml, monkeypatch, devices):
    """Without the library a machine that has NVIDIA devices is not taken for a CPU machine."""
    nvml.failing["nvmlInit"] = pynvml.NVMLError_LibraryNotFound()
    monkeypatch.setattr(machine.Path, "glob", lambda self, pattern: iter(devices))
    if devices:
        with pytest.raises(MachineError, match="LD_LIBRARY_PATH"):
            visible_gpus()
    else:
        assert uuids() == ()


@pytest.mark.parametrize("call", [
    "nvmlInit", "nvmlSystemGetDriverVersion", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetName", "nvmlDeviceGetUUID",
])  # fmt: skip
def test_a_driver_that_does_not_answer_is_an_error(nvml, call):
    """A GPU that is lost, at whatever call, is MachineError with a remedy, never no GPU."""
    nvml.failing[call] = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(MachineError, match="does not answer.*nvidia-smi"):
        visible_gpus()


@pytest.fixture
def monitor(nvml):
    """A monitor of the first two GPUs, whose ranks are the processes 11 and 12."""
    found = Monitor(visible_gpus()[:2])
    found.expect([11, 12])
    nvml.pids = {UUIDS[0]: [11], UUIDS[1]: [12], UUIDS[2]: []}
    return found


def idle(nvml):
    """Nobody on any GPU."""
    nvml.pids = {uuid: [] for uuid in UUIDS}


def test_an_idle_machine_is_fit(monitor, nvml):
    """With no process and only the driver's own memory in use there is nothing to say."""
    idle(nvml)
    assert monitor.preflight() == ""
    assert nvml.memory_asked == len(monitor.gpus), "each GPU once"


def test_a_foreign_process_is_not_fit(monitor, nvml):
    """A process on one of the case's GPUs is named, with the GPU and what to do."""
    idle(nvml)
    nvml.pids[UUIDS[1]] = [4711]
    problem = monitor.preflight()
    assert UUIDS[1] in problem and "4711" in problem and "CUDA_VISIBLE_DEVICES" in problem


def test_a_process_that_is_ending_is_waited_for(monitor, nvml, clock):
    """The driver lists an ended process for a while; one that goes away is no reason."""
    idle(nvml)
    began = clock.now_s
    listed = Nvml._nvmlDeviceGetComputeRunningProcesses

    def until_gone(handle):
        nvml.pids[UUIDS[0]] = [4711] if clock.now_s < began + 1 else []
        return listed(nvml, handle)

    nvml.nvmlDeviceGetComputeRunningProcesses = until_gone
    assert monitor.preflight() == ""
    assert clock.now_s > began


def test_hidden_memory_is_not_fit(monitor, nvml):
    """Gigabytes in use with no process to be seen: somebody is in another container."""
    idle(nvml)
    nvml.used = RESERVED + (3 << 30)
    assert "cannot be seen" in monitor.preflight()
    nvml.used = RESERVED + machine.HIDDEN_MEMORY_BYTES  # only with the reservation beyond it
    assert monitor.preflight() == ""


def test_a_gpu_that_does_not_answer_is_unreadable(monitor, nvml):
    """A GPU that is lost before the first launch is told from one that is in use."""
    idle(nvml)
    nvml.failing["nvmlDeviceGetMemoryInfo"] = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(MachineError, match="does not answer"):
        monitor.preflight()


def annotated(monitor, clock, during=lambda number: None, seconds=2.0, count=None):
    """A block of that many seconds with a poll each 100 ms."""
    began = clock.perf_counter_ns()
    for number in range(round(seconds / 0.1)):
        clock.sleep(0.1)
        during(number)
        monitor.poll()
    return monitor.annotate(block(), ranks(began, clock, monitor, count))


def ranks(began, clock, monitor, count=None):
    """What the ranks on the monitor's GPUs say of a block that ends now."""
    answer = Timed(began_ns=began, ended_ns=clock.perf_counter_ns())
    return [answer] * (count or len(monitor.gpus))


def test_a_quiet_block_has_its_telemetry(monitor, clock):
    """Clock, temperature, power and the energy of both GPUs; at the power cap is undisturbed."""
    found = annotated(monitor, clock)
    assert disturbance(found) == ""
    assert (found.sm_clock_mhz, found.temperature_c, found.power_w) == (1600.0, 65, 700.0)
    assert found.energy_j == pytest.approx(2 * 700.0 * 2.0)
    assert found.wall_ms == block().wall_ms


def test_the_gpus_of_ranks_that_are_not_there_are_not_watched(monitor, nvml, clock):
    """One rank of two: energy is its own GPU's, a stranger beside it taints, one elsewhere not."""
    monitor.expect([11])
    nvml.pids[UUIDS[1]] = [4711, 4712]
    found = annotated(monitor, clock, count=1)
    assert (disturbance(found), found.energy_j) == ("", pytest.approx(700.0 * 2.0))
    nvml.pids[UUIDS[0]] = [11, 4713]
    assert "4713" in disturbance(annotated(monitor, clock, count=1))
    nvml.pids[UUIDS[0]] = [11]
    monitor.expect([11, 12])
    assert "4712" in disturbance(annotated(monitor, clock))


@pytest.mark.parametrize("bit", [0x08, 0x20, 0x40, 0x80])
@pytest.mark.parametrize("whole", [True, False])
def test_a_slowdown_disturbs(monitor, nvml, clock, bit, whole):
    """Each slowdown reason taints the block, for one sample of it too."""

    def during(number):
        nvml.bits = 0x4 | (bit if whole or number == 7 else 0)

    assert disturbance(annotated(monitor, clock, during))


@pytest.mark.parametrize("bits", [0x0, 0x1, 0x2, 0x4, 0x10, 0x100])
def test_what_is_no_slowdown_does_not_disturb(monitor, nvml, clock, bits):
    """Idle, user-set clocks, the power cap, sync boost and display settings are no reason."""
    nvml.bits = bits
    assert disturbance(annotated(monitor, clock)) == ""


def test_host_pids_in_a_container_are_counted(nvml, clock):
    """Where NVML shows other numbers than ours, one process for our one rank is not foreign."""
    monitor = Monitor(visible_gpus()[:1])
    monitor.expect([7])
    nvml.pids[UUIDS[0]] = [90210]
    assert disturbance(annotated(monitor, clock)) == ""
    nvml.pids[UUIDS[0]] = [90210, 90333]
    assert "process" in disturbance(annotated(monitor, clock))


def test_samples_of_before_are_not_the_blocks(monitor, clock):
    """Samples taken before a block say nothing of it."""
    annotated(monitor, clock)
    clock.sleep(1.0)
    began = clock.perf_counter_ns()
    clock.sleep(1.0)
    assert "no telemetry" in disturbance(monitor.annotate(block(), ranks(began, clock, monitor)))


@pytest.mark.parametrize("call", [
    "nvmlDeviceGetTemperature",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
])  # fmt: skip
def test_a_gpu_lost_during_a_block_taints(monitor, nvml, clock, call):
    """When NVML stops answering the block is tainted, and polling goes on without raising."""
    nvml.failing[call] = pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    assert "no telemetry" in disturbance(annotated(monitor, clock))


def test_one_gpu_without_telemetry_taints(monitor, nvml, clock):
    """Both GPUs of a case must have been watched."""
    asked = Nvml._nvmlDeviceGetTemperature

    def one_only(handle, which):
        if handle == UUIDS[1]:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return asked(nvml, handle, which)

    nvml.nvmlDeviceGetTemperature = one_only
    assert "no telemetry" in disturbance(annotated(monitor, clock))


def test_polls_are_spaced(monitor, nvml, clock):
    """However often the host polls, NVML is read no more than each 50 ms."""
    reads = []
    asked = Nvml._nvmlDeviceGetPowerUsage
    nvml.nvmlDeviceGetPowerUsage = lambda handle: reads.append(handle) or asked(nvml, handle)
    for _ in range(1000):
        clock.sleep(0.001)
        monitor.poll()
    assert 2 * 19 <= len(reads) <= 2 * 21


def test_energy_is_scaled_to_the_block(monitor, nvml, clock):
    """Samples that cover the middle second of two count for both."""
    nvml.watts = 350.0
    began = clock.perf_counter_ns()
    clock.sleep(0.5)
    monitor.poll()
    clock.sleep(1.0)
    monitor.poll()
    clock.sleep(0.5)
    found = monitor.annotate(block(), ranks(began, clock, monitor))
    assert found.energy_j == pytest.approx(2 * 350.0 * 2.0)
