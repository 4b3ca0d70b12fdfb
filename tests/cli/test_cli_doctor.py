"""python -m stepguard doctor: what is missing is an ERROR with a remedy, and status 1."""

import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from stepguard.cli import doctor
from stepguard.machine import inherited, packages
from stepguard.machine.gpu import Gpu, MachineError
from stepguard.machine.interpreter import as_typed

H200 = Gpu("GPU-1", "NVIDIA H200", "580.65.06", 1980)
START_TWICE = Path(__file__).resolve().parents[1] / "launch" / "start_twice.py"
TORCH = {"disassembler": True}
USABLE = TORCH | {"version": "2.13.0", "cuda": "13.0", "usable": True, "gpus": 1}


@pytest.fixture
def machine(shell, monkeypatch):
    """``machine(gpus, torch, problem)`` calls the doctor on a machine that is so."""

    def call(gpus=(), torch=USABLE, problem=""):
        monkeypatch.setattr(doctor, "visible_gpus", lambda: list(gpus))
        monkeypatch.setattr(doctor, "_ask_torch", lambda root: torch)

        class Monitor:
            def __init__(self, gpus):
                pass

            def preflight(self):
                return problem

        monkeypatch.setattr(doctor, "Monitor", Monitor)
        return shell("doctor")

    call.shell = shell
    return call


def errors(done):
    """The lines that say ERROR."""
    return [line for line in done.out.splitlines() if line.startswith("ERROR")]


def test_a_machine_without_a_gpu_is_fit(machine):
    """No GPU is a note: the smoke cases run. Status 0."""
    done = machine()
    assert done.status == 0 and errors(done) == []
    assert "no GPU: the smoke cases run" in done.out
    assert done.out.splitlines()[-1] == "0 errors"


def test_a_triton_without_a_disassembler_is_a_note(machine):
    """On a GPU, since there it reads what the compiler makes. The machine is fit for the rest."""
    without = USABLE | {"disassembler": False}
    done = machine([H200], without)
    assert done.status == 0 and "note   no nvdisasm in Triton's folder" in done.out
    assert "nvdisasm" not in machine([H200]).out + machine((), without).out


def test_a_missing_package(machine, monkeypatch):
    """A package that is not there: an ERROR with the command that installs it, status 1."""
    plain = metadata.version

    def version(name):
        if name == "msgspec":
            raise metadata.PackageNotFoundError(name)
        return plain(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    done = machine()
    wanted = next(str(one) for one in packages.requirements() if one.name == "msgspec")
    assert done.status == 1
    command = as_typed(f"pip install '{wanted}'")
    assert errors(done) == [f"ERROR  msgspec is not installed; install it with: {command}"]


def test_without_its_source_tree_the_installation_is_asked(monkeypatch, tmp_path):
    """An installed stepguard has no pyproject.toml beside it: its metadata lists the packages, and
    where there are none either, nobody knows, which is an ERROR.
    """
    monkeypatch.setattr(packages, "_DECLARED", tmp_path / "pyproject.toml")
    listed = [
        'torch>=2.8; extra == "torch"',
        'isal>=1.6; extra == "traces"',
        'tomli>=2; python_version < "3"',
    ]
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: listed)
    assert [str(one) for one in packages.requirements()] == ["torch>=2.8"]

    def unknown(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "requires", unknown)
    assert [level for level, _ in doctor._packages()] == ["ERROR"]


@pytest.mark.parametrize("version", ["2.7.1", "1.13.0+cpu"])
def test_a_torch_that_is_too_old(machine, monkeypatch, version):
    """torch before 2.8 is an ERROR."""
    plain = metadata.version
    monkeypatch.setattr(
        doctor.metadata, "version", lambda name: version if name == "torch" else plain(name)
    )
    done = machine()
    assert done.status == 1
    (line,) = errors(done)
    assert line.startswith(f"ERROR  torch {version} is installed, torch>=2.8 is needed; install")


@pytest.mark.parametrize("torch", [
    TORCH | {"version": "2.13.0+cpu", "cuda": None, "usable": False, "gpus": 0},
    USABLE | {"gpus": 2},
])  # fmt: skip
def test_a_gpu_that_torch_cannot_use(machine, torch):
    """The driver shows a GPU that torch does not: ERROR, both counts, what to install, status 1."""
    done = machine([H200], torch)
    assert done.status == 1
    (line,) = errors(done)
    assert "the driver shows 1 GPU, torch" in line
    assert f"can use {torch['gpus']}; install a torch built for driver 580.65.06" in line


def test_a_fit_gpu(machine):
    """A usable idle GPU: status 0, its name, UUID, driver, and where its baseline would be."""
    done = machine([H200])
    assert done.status == 0
    assert "ok     NVIDIA H200, GPU-1, driver 580.65.06" in done.out
    assert "baselines/h200x1.json: none yet; record it with: " in done.out
    assert "pytest perf_tests --perf-update-new\n" in done.out


def test_gpus_of_several_kinds(machine):
    """Mixed GPUs are an ERROR with the remedy."""
    other = Gpu("GPU-2", "NVIDIA H100", "580.65.06", 1980)
    done = machine([H200, other], USABLE | {"gpus": 2})
    assert done.status == 1
    assert "CUDA_VISIBLE_DEVICES" in errors(done)[0]


def test_a_driver_that_does_not_answer(machine, monkeypatch):
    """NVML that fails is an ERROR, not a machine without GPUs."""

    def silent():
        raise MachineError("NVML does not answer: planted; try: nvidia-smi")

    machine()
    monkeypatch.setattr(doctor, "visible_gpus", silent)
    done = machine.shell("doctor")
    assert done.status == 1
    assert errors(done) == ["ERROR  NVML does not answer: planted; try: nvidia-smi"]


def test_torch_is_asked_as_a_launch_imports_it(shell, monkeypatch, tmp_path):
    """The torch that PYTHONPATH puts before the installed one is what workers get, and is asked. An
    error is told in a line.
    """
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "torch.py").write_text("raise ImportError('planted')\n")
    monkeypatch.setenv("PYTHONPATH", str(theirs))
    done = shell("doctor")
    assert done.status == 1
    assert "ERROR  torch cannot be imported: ImportError: planted" in errors(done)


def test_the_tree(machine):
    """A clean and a dirty one: said in a note, with what mends it."""
    (machine.shell.path / "a.py").write_text("")
    machine.shell.commit()
    assert "sources clean" in machine().out
    (machine.shell.path / "b.py").write_text("")
    assert "nothing can be recorded: uncommitted changes (b.py): commit them" in machine().out


def test_a_launchers_nodes_are_examined(machine, monkeypatch):
    """Each is described; what keeps them from measuring is an error."""
    machine()
    launchers = {"STEPGUARD_LAUNCHER": f"{sys.executable} {START_TWICE}"}
    monkeypatch.setattr(inherited, "STARTED", inherited.Inherited(launchers, {}))
    done = machine.shell("doctor")
    assert done.status == 0, done.out
    assert "ok     node 1, " in done.out and "2 nodes can share a case's ranks" in done.out
    monkeypatch.setenv("STEPGUARD_NODES", "2")
    monkeypatch.setenv("STEPGUARD_NODE_RANK", "0")
    launchers["STEPGUARD_LAUNCHER"] = "env"
    done = machine.shell("doctor")
    assert done.status == 1
    assert errors(done) == ["ERROR  1 of 2 nodes answered; give the launcher all of them"]


def test_the_tree_is_looked_at_beside_the_baselines_that_are_named(machine):
    """Only files of the folder that is given are no uncommitted changes."""
    shell = machine.shell
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        author = ["-c", "user.name=t", "-c", "user.email=t@t"]
        subprocess.run(["git", *author, *command], cwd=shell.path, check=True)
    (shell.path / "elsewhere").mkdir()
    (shell.path / "elsewhere" / "cpu.json").write_text("{}")
    machine()
    assert "uncommitted changes (elsewhere/cpu.json)" in shell("doctor").out
    assert "uncommitted" not in shell("doctor", "--baselines", "elsewhere").out


@pytest.mark.parametrize(
    ("git", "told"), [(True, "no git repository: git init"), (False, "git is not on PATH")]
)
def test_why_nothing_can_be_recorded(machine, monkeypatch, git, told):
    """Each of its reasons, with the command that mends it."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(machine.shell.path.parent))
    if not git:
        monkeypatch.setenv("PATH", "")
    assert told in machine().out


@pytest.mark.parametrize(("load", "compiler", "told"), [
    (0.1, "/usr/bin/g++", ["ok     load 0.1 on 8 cores", "ok     C++ compiler /usr/bin/g++"]),
    (6.3, None, ["note   load 6.3 on 8 cores: a busy host", "note   no C++ compiler (g++): "]),
])  # fmt: skip
def test_the_host(machine, monkeypatch, load, compiler, told):
    """What else it does, and whether it can compile."""
    which = shutil.which
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(
        doctor.shutil, "which", lambda name: compiler if name == "g++" else which(name)
    )
    out = machine().out
    assert all(line in out for line in told), out


def test_profilers_of_nvidia(machine, monkeypatch, tmp_path):
    """What is there, with its version and path; what is not, and where it comes from."""
    fake = tmp_path / "ncu"
    fake.write_text("#!/bin/sh\necho 'Version 2025.3.1.0 (build 1)'\n")
    fake.chmod(0o755)
    there = shutil.which
    monkeypatch.setattr(
        doctor.shutil,
        "which",
        lambda name: str(fake) if name == "ncu" else None if name in doctor.TOOLS else there(name),
    )
    out = machine().out
    assert f"ok     ncu 2025.3.1.0, {fake}" in out
    assert "note   no nsys: it comes with Nsight Systems" in out
    assert "note   no nvcc" in out and "note   no nvidia-smi" in out
