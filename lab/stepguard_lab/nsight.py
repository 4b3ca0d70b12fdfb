"""The commands nsys and ncu: a workload under NVIDIA's profilers, and what they found. Both run a
worker of stepguard. They record after a warm-up, between cudaProfilerStart and cudaProfilerStop.
"""

import argparse
import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from stepguard.cli.common import UsageError, say
from stepguard.cli.doctor import COMES_WITH
from stepguard.cli.workload_arguments import add_workload, chosen_case
from stepguard.core.case import Case
from stepguard.core.device import GPU, is_gpu
from stepguard.launch import torchrun
from stepguard.machine.git.worktree import FOLDER
from stepguard.machine.gpu import GpuLocked, exclusive, visible_gpus
from stepguard.machine.interpreter import as_typed
from stepguard.storage.compile_cache import CompileCache, Mark
from stepguard.storage.kept_runs import Store
from stepguard_lab import analyze
from stepguard_lab.printed import add_top
from stepguard_lab.record_traces import new_folder

NSYS = """a workload under Nsight Systems: phases, kernels and calls, and what to try.

    python -m stepguard nsys 'train_step[124m-bf16]'

It records after a warm-up."""
NCU = """a workload's kernels under Nsight Compute: occupancy, throughputs, caches.

    python -m stepguard ncu 'train_step[124m-bf16]' --kernel flash
    python -m stepguard ncu my_model:train_step width=64 --kernel nvjet --print

It runs each kernel several times, one by one, after a warm-up, and leaves the clocks as they are
(--clock-control none): otherwise it would lock them at the base clock."""
REPORTS = (
    "cuda_gpu_kern_sum",
    "cuda_api_sum",
    "cuda_gpu_mem_time_sum",
    "nvtx_pushpop_sum",
    "nvtx_gpu_proj_sum",
)


def add_command(commands: Any, root: Path) -> None:
    nsys = _parser(commands, root, "nsys", NSYS)
    nsys.add_argument("--steps", type=int, default=5, metavar="N", help="recorded (%(default)s)")
    text = "operators as ranges, with their shapes: slows the host (nsys of 2025 or newer)"
    nsys.add_argument("--shapes", action="store_true", help=text)
    ncu = _parser(commands, root, "ncu", NCU)
    ncu.add_argument("--kernel", metavar="REGEX", required=True, help="kernels by name")
    ncu.add_argument("--phase", metavar="NAME", help="only launches inside this NVTX range")
    text = "of these kernels at most (%(default)s)"
    ncu.add_argument("--launches", type=int, default=10, metavar="N", help=text)
    ncu.set_defaults(steps=1)


def _parser(commands: Any, root: Path, tool: str, text: str) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        tool, help=text.partition(".\n")[0], description=text
    )
    add_workload(command)
    command.add_argument("--warmup", type=int, default=5, metavar="N", help="steps (%(default)s)")
    text = f"folder of the files (.stepguard/{tool})"
    command.add_argument("--out", type=Path, metavar="DIR", help=text)
    command.add_argument("--print", action="store_true", help="show the commands, run nothing")
    add_top(command, 12)
    command.set_defaults(call=_profile, tool=tool, root=root)
    return command


def _profile(options: argparse.Namespace) -> int:
    tool = options.tool
    folder = (options.out or options.root / FOLDER / tool).absolute()
    options.device = options.device or GPU
    case = chosen_case(options)
    if not is_gpu(case.device):
        raise UsageError(
            f"{tool} looks at a GPU; for a CPU: {as_typed('stepguard record-traces')} ..."
        )
    if min(options.steps, options.warmup) < 1:
        raise UsageError("--steps and --warmup: at least 1 is needed")
    commands = (nsys_commands if tool == "nsys" else ncu_commands)(case, folder, options)
    if options.print:
        say(shlex.join(["export", f"PYTHONPATH={_python_path(options.root)}"]))
        say(*(shlex.join(command) for command in commands))
        return 0
    if shutil.which(tool) is None:
        raise UsageError(f"{tool} is not installed; it comes with {COMES_WITH[tool]}")
    new_folder(folder)
    gpus = [gpu.uuid for gpu in visible_gpus()[: case.world_size]]
    try:
        # While another run has the GPU, the text of what is waited for comes several times a
        # second. It is printed once.
        with exclusive(gpus, shlex.join(sys.argv), cache(say)):
            with contextlib.closing(CompileCache(Store(options.root).cache)) as compiled:
                for command in commands:
                    with Mark(compiled.folder, str(os.getpid())).during():
                        _run(command, options.root, compiled.folder)
    except GpuLocked as error:
        raise ValueError(str(error)) from None
    return analyze.report([folder], options.top)


def _run(command: list[str], root: Path, compiled: Path) -> None:
    """Run one command and pass on its output. Raises ValueError if it fails."""
    say(shlex.join(command))
    env = os.environ | torchrun.caches(compiled) | {"PYTHONPATH": _python_path(root)}
    status = subprocess.run(command, cwd=root, env=env, check=False).returncode
    if status:
        hint = ""
        if command[0] == "ncu":
            hint = "; ERR_NVGPUCTRPERM means that counters are for administrators: run as root"
        raise ValueError(f"{command[0]} ended with status {status}{hint}")


def _python_path(root: Path) -> str:
    packages = (torchrun.ENGINE.parent, Path(__file__).resolve().parents[1])
    paths = [str(root), *map(str, packages), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(dict.fromkeys(path for path in paths if path))


def nsys_commands(case: Case, folder: Path, options: argparse.Namespace) -> list[list[str]]:
    """Return the commands that record, export to SQLite, and print the tables as CSV."""
    report = str(folder / "report")
    record = [
        "nsys", "profile", "--trace=cuda,nvtx,cublas,cudnn", "--sample=none", "--cpuctxsw=none",
        "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--force-overwrite=true",
        *(["--pytorch=autograd-shapes-nvtx"] if options.shapes else []),
        f"--output={report}", *_worker(case, options),
    ]  # fmt: skip
    export = ["nsys", "export", "--type=sqlite", "--force-overwrite=true",
              f"--output={report}.sqlite", f"{report}.nsys-rep"]  # fmt: skip
    stats = ["nsys", "stats", f"--report={','.join(REPORTS)}", "--format=csv",
             "--force-overwrite=true", f"--output={report}", f"{report}.sqlite"]  # fmt: skip
    return [record, export, stats]


def ncu_commands(case: Case, folder: Path, options: argparse.Namespace) -> list[list[str]]:
    """Return the command that profiles kernels into a table in CSV."""
    only = ["--nvtx", "--nvtx-include", f"{options.phase}/"] if options.phase else []
    return [[
        "ncu", "--target-processes=all", "--clock-control=none", "--profile-from-start=off",
        "--set=detailed", f"--kernel-name=regex:{options.kernel}",
        f"--launch-count={options.launches}", *only, "--csv", "--page=raw",
        f"--log-file={folder / 'kernels.csv'}", *_worker(case, options),
    ]]  # fmt: skip


def _worker(case: Case, options: argparse.Namespace) -> list[str]:
    """Return the command of our own worker. torchrun starts several, or one that needs it."""
    run: dict[str, Any] = {"case": case.as_dict()}
    # A range belongs to its thread, and ncu looks for it on the thread that launches.
    run |= {"warmup": options.warmup, "steps": options.steps, "one_thread": options.tool == "ncu"}
    module, ranks = "stepguard_lab.profilers.for_nsight", case.world_size
    python = torchrun.command(module)
    if case.needs_torchrun:
        python = torchrun.command("torch.distributed.run")
        python += [f"--nproc-per-node={ranks}", "--standalone", "-m", module]
    return [*python, msgspec.json.encode(run).decode()]
