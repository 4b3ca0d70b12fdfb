"""Describe a node, or run its part of a launch. A launcher starts this once on each node.

    srun --nodes=2 --ntasks-per-node=1 env PYTHONPATH=... \\
        python -P -m stepguard.launch.nodes.on_node describe .stepguard/shared-...
    ... stepguard.launch.nodes.on_node run .stepguard/runs/.../launch-1/launch.json

A node's part of a launch is an agent with the node's ranks. Beside it this process samples the
node's GPUs into a file. The first of the ranks reads the file after each block and sends it with
its answer. This process ends when the agent ends, at a signal, or when the process that started it
is gone. It then kills all processes of its part, which it finds by the token in their environment.
"""

import contextlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import BinaryIO

import msgspec

import stepguard
from stepguard.core.fingerprint import steers
from stepguard.launch import torchrun
from stepguard.launch.nodes.scheduler import (
    MARK,
    Node,
    SharedLaunch,
    machine_id,
    node_of,
)
from stepguard.launch.torchrun import Part
from stepguard.machine.gpu.nvml import MachineError, Sampler, visible_gpus

PACKAGES = ("torch", "triton", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
POLL_S = 0.05
END_LIMIT_S = 5.0
SAMPLES = "samples.jsonl"  # in the scratch folder; each line is a poll of all GPUs


def describe(proof: Path) -> None:
    """Print a description of this node. If it has the file ``proof``, nodes share files."""
    rank, nodes = node_of(os.environ)
    gpus, problem, unreadable = [], "", ""
    try:
        gpus = visible_gpus()
        problem = Sampler(gpus).preflight()
    except MachineError as error:
        unreadable = str(error)
    node = Node(
        rank=rank,
        nodes=nodes,
        host=socket.gethostname(),
        machine=machine_id(),
        shares_files=proof.exists(),
        software=_software(),
        gpus=tuple(gpus),
        problem=problem,
        unreadable=unreadable,
    )
    sys.stdout.write(f"{MARK}{msgspec.json.encode(node).decode()}\n")


def _software() -> dict[str, str]:
    versions = {"stepguard": stepguard.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def run(path: Path) -> int:
    """Run this node's part of the launch that the file describes. Return its agent's status."""
    parent = os.getppid()
    shared = SharedLaunch.read(path)
    rank, nodes = node_of(os.environ)
    address = shared.address or os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or shared.host
    part = Part(rank, nodes, address, shared.port)
    token = f"{shared.token}-{rank}" if rank else shared.token
    # On pytest's node the folder lies in one that pytest removes: this process may be killed before
    # it can remove the folder itself.
    scratch = Path(tempfile.mkdtemp(prefix="stepguard-", dir=None if rank else shared.scratch))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    # Variables that change what runs have pytest's values on all nodes. Otherwise the nodes' ranks
    # would run different steps.
    own = {name: value for name, value in os.environ.items() if not steers(name)}
    environment = own | shared.steering | {"PYTHONPATH": shared.python_path}
    agent = None
    try:
        if sampler := _sampler(shared, part):
            environment |= {"STEPGUARD_SAMPLES": str(scratch / SAMPLES)}
        agent = torchrun.start(shared.spec, token, scratch, part, environment)
        with (scratch / SAMPLES).open("ab", buffering=0) as samples:
            while agent.poll() is None and os.getppid() == parent:
                if sampler:
                    _sample(sampler, samples)
                time.sleep(POLL_S)
        return 1 if agent.returncode is None or agent.returncode < 0 else agent.returncode
    finally:
        if agent:
            _end_agent(agent)
            torchrun.end(agent, token, scratch)
        shutil.rmtree(scratch, ignore_errors=True)


def _end_agent(agent: "subprocess.Popen[bytes]") -> None:
    """Ask the agent to end its part and to remove its scratch folder. The agent does so even if
    this process is killed meanwhile: launchers send SIGKILL soon after SIGTERM.
    """
    agent.send_signal(signal.SIGUSR1)
    with contextlib.suppress(subprocess.TimeoutExpired):
        agent.wait(END_LIMIT_S)


def _sampler(shared: SharedLaunch, part: Part) -> Sampler | None:
    """Return the sampler of this node's GPUs; None if pytest samples them, or none can."""
    if shared.spec.device == "cpu" or part.node == 0:
        return None
    try:
        return Sampler(visible_gpus()[: shared.spec.world_size // part.nodes])
    except MachineError:
        return None


def _sample(sampler: Sampler, samples: BinaryIO) -> None:
    if sample := sampler.poll():
        samples.write(msgspec.json.encode(sample) + b"\n")


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def main() -> None:
    """Run an action. The first argument is "describe" or "run", the second its file."""
    action, path = sys.argv[1], Path(sys.argv[2])
    try:
        if action == "run":
            sys.exit(run(path))
        describe(path)
    except MachineError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
