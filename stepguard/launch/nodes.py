"""A launcher: a command that starts its arguments once on each node of a job, such as srun, mpirun
or a script.

The variable STEPGUARD_LAUNCHER holds the command. Every launch of a case of several ranks is
started through it. Node 0 must be this host, since rank 0 talks to this process. The project must
be on a file system that all nodes share. On each node the launcher starts this module, which finds
the node's rank in the environment that the scheduler made. Before anything is measured, each node
describes itself:

    srun --nodes=2 --ntasks-per-node=1 env PYTHONPATH=... \\
        python -P -m stepguard.launch.nodes describe .stepguard/shared-...
    ... stepguard.launch.nodes run .stepguard/runs/.../launch-1/launch.json

A node's part of a launch is an agent with the node's ranks. Beside it the node's process samples
the node's GPUs into a file. The first of the ranks reads the file after each block and sends it
with its answer. The process ends when the agent ends, at a signal, or when the process that started
it is gone. It then kills all processes of its part, which it finds by the token in their
environment.
"""

import contextlib
import os
import platform
import random
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

import msgspec

import stepguard
from stepguard.core.case import Case
from stepguard.core.fingerprint import steers
from stepguard.launch import torchrun
from stepguard.launch.torchrun import LaunchSpec, Part, spawn
from stepguard.machine import inherited
from stepguard.machine.git.worktree import FOLDER, keep_out_of_git
from stepguard.machine.gpu import Gpu, MachineError, Monitor, visible_gpus
from stepguard.machine.lifeline import die_with_parent, kill_by_token, pids_by_token
from stepguard.worker.agent import STANDBY

SURVEY_LIMIT_S = 120.0
END_LIMIT_S = 10.0  # for a launcher that got SIGTERM
ASK_LIMIT_S = 8.0  # the same, at the end of a launch
AGENT_LIMIT_S = 5.0  # for an agent that was told to end its part
POLL_S = 0.05
SAMPLES = "samples.jsonl"  # in the scratch folder; each line is a poll of all GPUs
PACKAGES = ("torch", "triton", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
MARK = "stepguard-node "  # before what a node prints about itself
PORTS = range(20000, 32768)  # Linux assigns none of them by itself, unless it is told to
LAUNCHER = "STEPGUARD_LAUNCHER"
ADDRESS = "STEPGUARD_ADDRESS"  # of this host, as the other nodes reach it
# Variables with the number of nodes and this node's rank, if the launcher starts one process on
# each node.
SIZE_AND_RANK = (
    # The first pair that is set counts. mpirun's variables come before SLURM's, since its processes
    # in a SLURM job have both. A step's come before its job's, since the job may have more nodes.
    ("STEPGUARD_NODES", "STEPGUARD_NODE_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("SLURM_STEP_NUM_NODES", "SLURM_NODEID"),
    ("SLURM_NNODES", "SLURM_NODEID"),
)


@dataclass(frozen=True)
class Node:
    """A node, as it describes itself."""

    rank: int
    nodes: int  # the number of nodes
    host: str
    machine: str  # equal for two processes that see each other's sockets and processes
    shares_files: bool
    software: dict[str, str]
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""  # why its GPUs are not fit to measure on
    unreadable: str = ""  # why its GPUs cannot be checked


@dataclass(frozen=True)
class Launcher:
    """A launcher command and the nodes that it starts on, by rank."""

    command: tuple[str, ...]
    nodes: tuple[Node, ...]

    def per_node(self, case: Case) -> int:
        """Return the case's ranks on each node. Raises MachineError for unequal shares."""
        count = len(self.nodes)
        if case.world_size % count:
            raise MachineError(
                f"{case.id} has {case.world_size} ranks, which {count} nodes cannot share equally; "
                "deselect it, or use another number of nodes"
            )
        return case.world_size // count

    def preflight(self) -> str:
        """Return why GPUs of another node are not fit to measure on; empty if all are."""
        for node in self.nodes[1:]:
            if node.unreadable:
                raise MachineError(f"{node.host}: {node.unreadable}")
            if node.problem:
                return f"{node.host}: {node.problem}"
        return ""

    @property
    def fewest_gpus(self) -> int:
        """Return the number of GPUs that every node has."""
        return min(len(node.gpus) for node in self.nodes)

    def gpus(self, per_node: int) -> tuple[Gpu, ...]:
        """Return the GPUs in rank order, if each node has ``per_node`` ranks."""
        return tuple(gpu for node in self.nodes for gpu in node.gpus[:per_node])


def named_launcher() -> str | None:
    """Return the launcher's command; None if this process was started without one."""
    return inherited.STARTED.variables.get(LAUNCHER)


def spread(case: Case, launcher: Launcher | None) -> Launcher | None:
    """Return the launcher for a case of several ranks. None for a single rank: it runs here."""
    return launcher if case.world_size > 1 else None


def identity(case: Case, launcher: Launcher | None) -> dict[str, Any]:
    """Return the case as its recording has it: its fields, and ``nodes`` if a launcher is used."""
    shared = spread(case, launcher)
    return case.as_dict() | ({"nodes": len(shared.nodes)} if shared else {})


def node_of(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return this node's rank and the number of nodes. Raises MachineError."""
    for size, rank in SIZE_AND_RANK:
        if size in environment and rank in environment:
            numbers = environment[rank], environment[size]
            if not all(text.isdecimal() for text in numbers) or int(numbers[0]) >= int(numbers[1]):
                raise MachineError(f"{rank}={numbers[0]} is no node's rank of {size}={numbers[1]}")
            return int(numbers[0]), int(numbers[1])
    names = ", ".join(f"{size} and {rank}" for size, rank in SIZE_AND_RANK[:3])
    raise MachineError(
        f"the launcher sets none of {names} on {socket.gethostname()}: "
        "srun and mpirun set them, for each process that they start"
    )


def survey(text: str, root: Path) -> Launcher:
    """Ask every node to describe itself. Raises MachineError if it cannot measure."""
    launcher = describe_nodes(text, root)
    if problem := unfit(launcher.nodes, machine_id()):
        raise MachineError(problem)
    return launcher


def describe_nodes(text: str, root: Path) -> Launcher:
    """Ask the nodes, and return their answers by rank. Raises MachineError without one."""
    try:
        command = tuple(shlex.split(text))
    except ValueError as error:
        raise MachineError(f"{text!r} is no command: {error}") from None
    if not command:
        raise MachineError(f"{text!r} is no command: srun --nodes=2 --ntasks-per-node=1 is one")
    folder = root / FOLDER
    folder.mkdir(exist_ok=True)
    keep_out_of_git(folder)
    proof = folder / f"shared-{secrets.token_hex(8)}"
    proof.touch()
    try:
        status, output, errors = _run([*command, *on_each_node("describe", proof)])
    finally:
        proof.unlink(missing_ok=True)
    # A launcher may put a label before each line. It is cut off.
    lines = [line.partition(MARK)[2] for line in output.splitlines() if MARK in line]
    if status or not lines:
        last = (errors.strip() or output.strip() or "it printed nothing").splitlines()[-1]
        raise MachineError(f"{shlex.join(command)} ended with {status}: {last}")
    nodes = [msgspec.json.decode(line, type=Node) for line in lines]
    return Launcher(command, tuple(sorted(nodes, key=lambda node: node.rank)))


def on_each_node(*arguments: object) -> list[str]:
    """Return the command line of a node's process: a launcher may not pass on the environment."""
    this_module = torchrun.command("stepguard.launch.nodes")
    return ["env", f"PYTHONPATH={torchrun.ENGINE.parent}", *this_module, *map(str, arguments)]


def _run(command: list[str]) -> tuple[int, str, str]:
    """Run a launcher to its end. Return its status and what it wrote. Raises MachineError."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # a Ctrl-C at the terminal reaches only this process
        )
    except OSError as error:
        raise MachineError(f"{command[0]} cannot be started: {error.strerror}") from None
    try:
        output, errors = process.communicate(timeout=SURVEY_LIMIT_S)
        return process.returncode, output, errors
    except subprocess.TimeoutExpired:
        text = f"{shlex.join(command[:-1])} has not ended after {SURVEY_LIMIT_S:.0f} s"
        raise MachineError(f"{text}: does the job have so many nodes, and are they free?") from None
    finally:
        if process.poll() is None:
            process.terminate()  # not SIGKILL: srun would leave its tasks
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=END_LIMIT_S)
            process.kill()
            process.wait()


def machine_id() -> str:
    """Return a text that is equal for two processes that see each other's sockets and processes."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/net')} {os.readlink('/proc/self/ns/pid')}"


def unfit(nodes: Sequence[Node], here: str) -> str:
    """Return why cases cannot be spread over these nodes, with the remedy; else empty."""
    first, count = nodes[0], nodes[0].nodes
    ranks = [node.rank for node in nodes]
    if len(set(ranks)) < len(ranks):
        twice = next(node for node in nodes if ranks.count(node.rank) > 1)
        return (
            f"{twice.host} was started on {ranks.count(twice.rank)} times: the launcher has to "
            "start one process on each node (srun: --ntasks-per-node=1)"
        )
    if ranks != list(range(count)):
        return f"{len(nodes)} of {count} nodes answered; give the launcher all of them"
    if count == 1:
        return "the launcher starts on one node only; leave it out"
    if first.machine != here:
        return (
            f"node 0 is {first.host}, and this is {socket.gethostname()}: start it on {first.host},"
            " outside of any container that the launcher does not use"
        )
    if blind := [node.host for node in nodes if not node.shares_files]:
        return (
            f"{', '.join(blind)} does not see a file that was just written here: the project has "
            "to lie on a file system that all nodes share"
        )
    uuids = [gpu.uuid for node in nodes for gpu in node.gpus]
    if same := sorted({uuid for uuid in uuids if uuids.count(uuid) > 1}):
        return f"two nodes show {same[0]}: the launcher has to start one process on each node"
    for node in nodes[1:]:
        known, other = _facts(first), _facts(node)
        # torch comes first, since others follow from its version.
        for name in sorted(known | other, key=lambda name: (name != "torch", name)):
            has, there = known.get(name, "none"), other.get(name, "none")
            if has != there:
                return (
                    f"{node.host} has {name} {there}, {first.host} has {has}: "
                    "use the same software and GPUs of one kind on every node"
                )
    return ""


def _facts(node: Node) -> dict[str, str]:
    kinds = sorted({f"{gpu.name} with driver {gpu.driver}" for gpu in node.gpus})
    return node.software | {"GPU": ", ".join(kinds) or "none"}


@dataclass(frozen=True)
class SharedLaunch:
    """What every node of a launch has to know. It is a file in the launch's folder."""

    spec: LaunchSpec
    token: str
    address: str  # this host's, if the user gives one
    host: str  # this host's name, used if neither user nor scheduler gives an address
    scratch: Path  # a folder of this host that is removed at the end
    port: int  # where node 0's agent lets the others join
    steering: dict[str, str]  # this host's variables that change what runs (steers())
    python_path: str  # the caller's own


def start(
    spec: LaunchSpec, token: str, scratch: Path, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a launch's launcher under run_launcher(), which ends it if this process dies."""
    theirs = environment.get("PYTHONPATH", "")
    shared = SharedLaunch(
        spec=replace(spec, standby=False),  # run_launcher() handles standby
        token=token,
        address=environment.get(ADDRESS, ""),
        host=socket.gethostname(),
        scratch=scratch,
        port=free_port(),
        steering={name: value for name, value in environment.items() if steers(name)},
        python_path=theirs,
    )
    own = {name: v for name, v in environment.items() if not name.startswith("PYTEST_")}
    own |= {
        "STEPGUARD_TOKEN": launcher_token(token),
        "STEPGUARD_SCRATCH": str(scratch),
        "STEPGUARD_HOST_PID": str(os.getpid()),
        "STEPGUARD_STANDBY": "1" if spec.standby else "",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(torchrun.ENGINE.parent), theirs])),
    }
    supervisor = [*torchrun.command("stepguard.launch.nodes"), "launcher", *spec.launcher]
    file = spec.folder / "launch.json"
    file.write_bytes(msgspec.json.encode(shared, enc_hook=str))
    command = [*supervisor, *on_each_node("run", file)]
    return spawn(command, spec, own, spec.folder / "launcher.log")


def free_port() -> int:
    """Return a free port. Every node knows it seconds before node 0 listens on it, so no other
    process may get it from the kernel meanwhile. Raises MachineError if no port is free.
    """
    for port in random.sample(PORTS, len(PORTS)):
        with contextlib.suppress(OSError), socket.create_server(("", port)) as probe:
            return int(probe.getsockname()[1])
    raise MachineError("no TCP port is free here, for node 0 to listen on: ss -tlnp names who has")


def launcher_token(token: str) -> str:
    """Return the token of the launcher's own processes, which must end before the ranks."""
    return f"{token}-launcher"


def end_launcher(token: str, spare: int = 0) -> None:
    """End all processes with the launcher's token, but for ``spare``."""
    for pid in pids_by_token(token):
        if pid != spare:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + ASK_LIMIT_S
    while set(pids_by_token(token)) - {spare} and time.monotonic() < until:
        time.sleep(0.05)
    kill_by_token(token, spare)


def describe(proof: Path) -> None:
    """Print a description of this node. If it has the file ``proof``, nodes share files."""
    rank, nodes = node_of(os.environ)
    software = {"stepguard": stepguard.__version__, "python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            software[name] = metadata.version(name)
    gpus, problem, unreadable = [], "", ""
    try:
        gpus = visible_gpus()
        problem = Monitor(gpus).preflight()
    except MachineError as error:
        unreadable = str(error)
    node = Node(
        rank=rank,
        nodes=nodes,
        host=socket.gethostname(),
        machine=machine_id(),
        shares_files=proof.exists(),
        software=software,
        gpus=tuple(gpus),
        problem=problem,
        unreadable=unreadable,
    )
    sys.stdout.write(f"{MARK}{msgspec.json.encode(node).decode()}\n")


def run_part(path: Path) -> int:
    """Run this node's part of the launch that the file describes. Return its agent's status."""
    parent = os.getppid()
    data = path.read_bytes()
    shared = msgspec.json.decode(data, type=SharedLaunch, dec_hook=lambda kind, text: kind(text))
    rank, nodes = node_of(os.environ)
    address = shared.address or os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or shared.host
    part = Part(rank, nodes, address, shared.port)
    token = f"{shared.token}-{rank}" if rank else shared.token
    # On pytest's node the folder lies in one that pytest removes: this process may be killed before
    # it can remove the folder itself.
    scratch = Path(tempfile.mkdtemp(prefix="stepguard-", dir=None if rank else shared.scratch))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    # Variables that change what runs have pytest's values on all nodes. Otherwise the nodes' ranks
    # would run different steps.
    own = {name: value for name, value in os.environ.items() if not steers(name)}
    environment = own | shared.steering | {"PYTHONPATH": shared.python_path}
    agent = None
    try:
        if monitor := _monitor(shared, part):
            environment |= {"STEPGUARD_SAMPLES": str(scratch / SAMPLES)}
        agent = torchrun.start(shared.spec, token, scratch, part, environment)
        with (scratch / SAMPLES).open("ab", buffering=0) as samples:
            while agent.poll() is None and os.getppid() == parent:
                if monitor:
                    _sample(monitor, samples)
                time.sleep(POLL_S)
        return 1 if agent.returncode is None or agent.returncode < 0 else agent.returncode
    finally:
        if agent:
            # The agent ends its part even if this process is killed meanwhile: launchers send
            # SIGKILL soon after SIGTERM.
            agent.send_signal(signal.SIGUSR1)
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(AGENT_LIMIT_S)
            torchrun.end(agent, token, scratch)
        shutil.rmtree(scratch, ignore_errors=True)


def _monitor(shared: SharedLaunch, part: Part) -> Monitor | None:
    """Return the monitor of this node's GPUs; None if pytest samples them, or none can."""
    if shared.spec.device == "cpu" or part.node == 0:
        return None
    try:
        return Monitor(visible_gpus()[: shared.spec.world_size // part.nodes])
    except MachineError:
        return None


def _sample(monitor: Monitor, samples: BinaryIO) -> None:
    if sample := monitor.sample():
        samples.write(msgspec.json.encode(sample) + b"\n")


def run_launcher(command: list[str]) -> int:
    """Run a launcher's command beside pytest. Return its status, or 128 plus its signal.

    A launcher that is killed leaves processes on other nodes. So it first gets SIGTERM, on which
    srun and mpirun kill what they started. This happens when the run closes the launch, and when
    the kernel reports that pytest is gone.
    """
    token, scratch = os.environ["STEPGUARD_TOKEN"], os.environ["STEPGUARD_SCRATCH"]

    def caller_died(signum: int, frame: FrameType | None) -> None:
        end_launcher(token, spare=os.getpid())
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)

    signal.signal(signal.SIGUSR1, caller_died)
    if not die_with_parent(int(os.environ["STEPGUARD_HOST_PID"]), signal.SIGUSR1):
        caller_died(signal.SIGUSR1, None)
    if os.environ.pop("STEPGUARD_STANDBY", ""):
        # The file says that the imports are done. It is made at once: on several nodes nothing is
        # imported ahead of time.
        Path(scratch, STANDBY).touch()
        if not sys.stdin.buffer.read(1):
            caller_died(signal.SIGUSR1, None)
    status = subprocess.call(command, stdin=subprocess.DEVNULL)
    return status if status >= 0 else 128 - status


def main() -> None:
    """Do what the first argument says: "describe" or "run" with a file, or run a "launcher"."""
    action, *arguments = sys.argv[1:]
    try:
        if action == "launcher":
            sys.exit(run_launcher(arguments))
        if action == "run":
            sys.exit(run_part(Path(arguments[0])))
        describe(Path(arguments[0]))
    except MachineError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
