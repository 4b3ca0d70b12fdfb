"""The command doctor: say if this machine is fit to measure, and which baseline it would use.

    python -m stepguard doctor

torch is imported in a process of its own, so that it finds what a worker will find.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from stepguard.cli.common import add_parser, say
from stepguard.core.device import GPU
from stepguard.core.reason_sentences import uncommitted
from stepguard.core.text import counted, short_hash
from stepguard.launch import torchrun
from stepguard.launch.nodes import (
    describe_nodes,
    machine_id,
    named_launcher,
    unfit,
)
from stepguard.machine.git.revision import current, no_commit
from stepguard.machine.git.worktree import FOLDER
from stepguard.machine.gpu import MachineError, Monitor, visible_gpus
from stepguard.machine.interpreter import as_typed
from stepguard.machine.packages import requirements, unmet
from stepguard.storage import baseline_files as baseline
from stepguard.storage.json_file import FileError
from stepguard.worker.counters.cubin import DISASSEMBLER

_ASK_TORCH = """
import json, os, sys, torch
from importlib.util import find_spec
usable, triton = torch.cuda.is_available(), find_spec("triton")
tool = os.path.join(os.path.dirname(triton.origin), sys.argv[1]) if triton else ""
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "usable": usable,
    "gpus": torch.cuda.device_count() if usable else 0,
    "disassembler": os.path.exists(tool)}))
"""
COMES_WITH = {
    "nsys": "Nsight Systems: https://developer.nvidia.com/nsight-systems",
    "ncu": "Nsight Compute: https://developer.nvidia.com/nsight-compute",
}
TOOLS = {
    "nvidia-smi": "the GPU's driver",
    "nvcc": "the CUDA toolkit: https://developer.nvidia.com/cuda-downloads",
    **COMES_WITH,
}
_NO_DISASSEMBLER = (
    "no nvdisasm in Triton's folder: counters of a compiled step's kernels (spill_bytes, "
    "fp64_kernels) stay undecided; install Triton's own wheel"
)
LITTLE_BYTES = 100e6  # of free space; a choice, not a measurement
Finding = tuple[str, str]  # "ok", "note" or "ERROR", and a sentence


def add_command(commands: Any, root: Path) -> None:
    text = "is this machine fit, and is there a baseline?"
    add_parser(commands, root, "doctor", _doctor, text)


def _doctor(options: argparse.Namespace) -> int:
    parts = [_packages(), _machine(options.root, options.baselines), _host(), _tools()]
    parts += [_waivers(options.baselines), _tree(options.root, options.baselines)]
    if (launcher := named_launcher()) is not None:
        parts.append(_nodes(launcher, options.root))
    findings = [finding for part in parts for finding in _with_its_error(part)]
    for level, text in sorted(findings, key=lambda finding: finding[0] == "ERROR"):
        say(f"{level:5}  {text}")
    errors = sum(level == "ERROR" for level, _ in findings)
    say(counted(errors, "error"))
    return 1 if errors else 0


def _with_its_error(part: Iterator[Finding]) -> Iterator[Finding]:
    """Yield a part's findings. An exception that ends the part becomes an error."""
    try:
        yield from part
    except (FileError, MachineError) as error:
        yield "ERROR", str(error)


def _packages() -> Iterator[Finding]:
    try:
        needed = requirements()
    except metadata.PackageNotFoundError:
        yield "ERROR", "nothing says which packages stepguard needs: install it with pip"
        return
    for wanted in needed:
        if problem := unmet(wanted):
            yield "ERROR", problem
        else:
            yield "ok", f"{wanted.name} {metadata.version(wanted.name)}"


def _machine(root: Path, baselines: Path) -> Iterator[Finding]:
    gpus, torch = visible_gpus(), _ask_torch(root)
    if not gpus:
        yield "note", "no GPU: the smoke cases run, their times are not gated"
        yield _baseline(baselines / "cpu.json")
        return
    if not torch["usable"] or torch["gpus"] != len(gpus):
        mine = f"torch {torch['version']} (CUDA {torch['cuda']}) can use {torch['gpus']}"
        mend = f"install a torch built for driver {gpus[0].driver}"
        yield "ERROR", f"the driver shows {counted(len(gpus), 'GPU')}, {mine}; {mend}"
    elif not torch["disassembler"]:
        yield "note", _NO_DISASSEMBLER
    for gpu in gpus:
        yield "ok", f"{gpu.name}, {gpu.uuid}, driver {gpu.driver}"
        try:
            problem = Monitor([gpu]).preflight()
        except MachineError as error:
            problem = str(error)
        if problem:
            yield "ERROR", problem
    if len({gpu.name for gpu in gpus}) > 1:
        yield "ERROR", "GPUs of several kinds: choose one kind with CUDA_VISIBLE_DEVICES"
    yield _baseline(baselines / baseline.file_name(GPU, gpus[0].name, 1))


def _nodes(text: str, root: Path) -> Iterator[Finding]:
    """Describe every node that a launcher starts on, and what keeps it from measuring."""
    nodes = describe_nodes(text, root).nodes
    for node in nodes:
        gpus = Counter(f"{gpu.name}, driver {gpu.driver}" for gpu in node.gpus)
        shown = ", ".join(f"{count} x {kind}" for kind, count in gpus.items()) or "no GPU"
        software = ", ".join(f"{name} {version}" for name, version in node.software.items())
        yield "ok", f"node {node.rank}, {node.host}: {shown}; {software}"
        if problem := node.unreadable or node.problem:
            yield "ERROR", f"node {node.rank}, {node.host}: {problem}"
    if problem := unfit(nodes, machine_id()):
        yield "ERROR", problem
    else:
        yield "ok", f"{len(nodes)} nodes can share a case's ranks; node 0 is this host"


def _ask_torch(root: Path) -> dict[str, Any]:
    """Return what _ASK_TORCH prints. Raises MachineError if torch cannot be imported."""
    command = [sys.executable, "-P", "-c", _ASK_TORCH, str(DISASSEMBLER)]
    return dict(json.loads(last_line(command, "torch cannot be imported", root)))


def last_line(command: list[str], failure: str, root: Path) -> str:
    """Return the last line that a process prints. It imports torch as a launch does."""
    theirs = os.environ.get("PYTHONPATH", "")
    try:
        with tempfile.TemporaryDirectory() as folder:
            paths = torchrun.import_path(Path(folder, "engine"), root, theirs)
            env = os.environ | {"PYTHONPATH": paths}
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=120, check=False, env=env
            )
    except subprocess.TimeoutExpired:
        raise MachineError(f"{failure}: no answer after 120 s") from None
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise MachineError(f"{failure}: {last[0]}")
    # Only the last line: an import may print lines before it.
    return done.stdout.splitlines()[-1]


def _baseline(path: Path) -> Finding:
    content = baseline.load(path)
    if content is None:
        record = as_typed("pytest perf_tests --perf-update-new")
        return "note", f"{path}: none yet; record it with: {record}"
    return "ok", f"{path}: {counted(len(content.cases), 'case')}, {content.machine}"


def _host() -> Iterator[Finding]:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    busy = f"load {load:.1f} on {cores} cores"
    if load > cores / 2:
        yield "note", f"{busy}: a busy host slows a step, but changes no counter"
    else:
        yield "ok", busy
    # torch's inductor looks for a compiler in the same way, by default.
    wanted = os.environ.get("CXX") or "g++"
    if compiler := shutil.which(wanted):
        yield "ok", f"C++ compiler {compiler}"
    else:
        yield "note", f"no C++ compiler ({wanted}): torch.compile fails on a CPU; install g++"


def _tools() -> Iterator[Finding]:
    """Report which of NVIDIA's tools are installed. None is needed to measure."""
    for tool, origin in TOOLS.items():
        if (program := shutil.which(tool)) is None:
            yield "note", f"no {tool}: it comes with {origin}"
            continue
        done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
        version = re.search(r"\d+\.\d[\w.]*", done.stdout)
        yield "ok", f"{tool} {version[0] if version else '(of no known version)'}, {program}"


def _waivers(baselines: Path) -> Iterator[Finding]:
    if waivers := baseline.load_waivers(baselines, baseline.today()):
        yield "ok", f"{baselines / baseline.WAIVERS}: {counted(len(waivers), 'waiver')}"


def _tree(root: Path, baselines: Path) -> Iterator[Finding]:
    free_bytes = shutil.disk_usage(root).free
    if not os.access(root, os.W_OK):
        yield "ERROR", f"{root} cannot be written: evidence is kept in {root / FOLDER}"
    elif free_bytes < LITTLE_BYTES:
        left = f"{free_bytes / 1e6:.0f} MB are free at {root}"
        yield "ERROR", f"{left}: evidence and compile caches are kept in {root / FOLDER}"
    revision = current(root, baselines)
    if problem := no_commit(root) or uncommitted(revision.dirty):
        yield "note", f"nothing can be recorded: {problem}"
    else:
        yield "ok", f"commit {short_hash(revision.commit)}, sources clean"
