"""One run of torchrun's engine, in an agent (worker/agent.py): its environment and its end.

Every launch runs the caller's engine, whatever tree is measured. The tree comes first on a launch's
import path, and it may contain another engine: another revision of this project does. So the
caller's package is linked into a folder of its own, which comes before the tree.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from stepguard.core.device import is_gpu
from stepguard.machine.lifeline import holds_memory, kill_by_token, pids_by_token

ENGINE = Path(__file__).resolve().parents[1]  # the package


def command(module: str, python: str = sys.executable) -> list[str]:
    """Return the command that runs a module of the engine. -P keeps the working directory from
    coming first on its import path, and is not inherited as PYTHONSAFEPATH is.
    """
    return [python, "-P", "-m", module]


def caches(folder: Path) -> dict[str, str]:
    """Return variables by which a process compiles into ``folder``, and numbers GPUs as NVML."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "TRITON_CACHE_DIR": str(folder / "triton"),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def import_path(folder: Path, root: Path, theirs: str) -> str:
    """Make ``folder``, which must not exist, with a link to the engine. Return PYTHONPATH of a
    launch: ``folder``, ``root``, and the caller's own paths (``theirs``). What lies beside the
    engine is not on it: a clone has packages of common names, such as ``model``.
    """
    folder.mkdir()
    (folder / ENGINE.name).symlink_to(ENGINE, target_is_directory=True)
    return os.pathsep.join(dict.fromkeys(filter(None, (str(folder), str(root), theirs))))


GONE_LIMIT_S = 10.0  # how long a killed process may take to disappear
LOOPBACK = "lo"
# The number is fixed: what a CPU step allocates depends on it, and more threads only spin on busy
# cores.
CPU_THREADS = 1


@dataclass(frozen=True)
class LaunchSpec:
    """Where and with what a launch runs."""

    device: str
    preload: tuple[str, ...]  # modules that each rank imports before it says hello
    world_size: int
    root: Path  # the source tree: the working directory, and on the import path after the engine
    folder: Path  # logs and notes of this launch; kept
    cache: Path  # compile caches, shared by the launches of a checkout
    label: str  # "launch 2"
    time_limit_s: float
    python: str = sys.executable  # the interpreter that runs it
    own: Path | None = None  # the whole tree that contains root; None: root is all of it
    forbidden: tuple[Path, ...] = ()  # trees that no module may come from, except for the engine
    shared: tuple[str, ...] = ()  # modules that the agent imports, once for all ranks of a node
    # The agent imports, but starts no rank before release().
    standby: bool = field(default=False, compare=False)
    # A command that starts its argument on each node; empty: it runs here.
    launcher: tuple[str, ...] = ()
    nodes: int = 1  # nodes, which share the ranks equally

    @property
    def ranks_here(self) -> range:
        """Return the ranks on this host, which is node 0."""
        return range(self.world_size // self.nodes)

    def here(self, pids: Mapping[int, int]) -> dict[int, int]:
        """Return those of the ranks' processes that are on this host, by rank."""
        return {rank: pids[rank] for rank in self.ranks_here if rank in pids}

    def folder_of(self, node: int) -> Path:
        """Return the folder of a node's logs."""
        return self.folder / f"node-{node}" if node else self.folder


@dataclass(frozen=True)
class Part:
    """One node's part of a launch. Node 0 has rank 0."""

    node: int = 0
    nodes: int = 1
    address: str = "127.0.0.1"  # of node 0, as the others reach it
    port: int = 0  # where node 0's agent lets the others join


def start(
    spec: LaunchSpec,
    token: str,
    scratch: Path,
    part: Part = Part(),  # noqa: B008  frozen
    environment: Mapping[str, str] = os.environ,
) -> "subprocess.Popen[bytes]":
    """Start the agent that starts a node's ranks."""
    folder = spec.folder_of(part.node)
    folder.mkdir(exist_ok=True)
    keywords = asdict(part) | {"ranks": spec.world_size // part.nodes}
    typed = [*command("stepguard.worker.agent", spec.python), json.dumps(keywords)]
    own = launch_environment(spec, token, scratch, environment) | _network(part, scratch)
    return spawn(typed, spec, own, folder / "agent.log")


def spawn(
    command: list[str], spec: LaunchSpec, environment: Mapping[str, str], log: Path
) -> "subprocess.Popen[bytes]":
    """Start a process of a launch. On standby it waits for standard input."""
    with log.open("wb") as file:
        return subprocess.Popen(
            command,
            cwd=spec.root,
            env=environment,
            stdin=subprocess.PIPE if spec.standby else subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # a Ctrl-C at the terminal reaches only the caller
        )


def _network(part: Part, scratch: Path) -> dict[str, str]:
    """Return the variables that keep a launch on one node off the network."""
    if part.nodes > 1:
        return {}
    return {
        # A TCP store listens on all interfaces, whatever address it is given.
        "STEPGUARD_STORE": str(scratch / "ranks"),
        "GLOO_SOCKET_IFNAME": LOOPBACK,
        "NCCL_SOCKET_IFNAME": LOOPBACK,
    }


def launch_environment(
    spec: LaunchSpec, token: str, scratch: Path, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a launch's processes on one node."""
    env = {key: value for key, value in environment.items() if not key.startswith("PYTEST_")}
    if spec.python != sys.executable:
        # As when the environment is activated: compilers and tools of a package are found by PATH.
        bin_folder = os.path.dirname(spec.python)
        env |= {"PATH": os.pathsep.join(filter(None, (bin_folder, env.get("PATH", ""))))}
        env |= {"VIRTUAL_ENV": os.path.dirname(bin_folder)} if "VIRTUAL_ENV" in env else {}
    tree = hashlib.sha256(str(spec.root).encode()).hexdigest()[:16]
    env |= {
        "STEPGUARD_TOKEN": token,
        "STEPGUARD_RUN_DIR": str(spec.folder),
        "STEPGUARD_SCRATCH": str(scratch),
        "STEPGUARD_HOST_PID": str(os.getpid()),
        "STEPGUARD_DEVICE": spec.device,
        "STEPGUARD_PRELOAD": " ".join(spec.preload),
        "STEPGUARD_SHARED": " ".join(spec.shared),
        # The scratch folder is removed at the end, with what a killed process left in it.
        "TMPDIR": str(scratch),
        "PYTHONPATH": import_path(scratch / "engine", spec.root, env.get("PYTHONPATH", "")),
        "PYTHONUNBUFFERED": "1",
        # torch finds built extensions by name alone. A process that waits while another one builds
        # loads the result, which may belong to another tree or checkout.
        "TORCH_EXTENSIONS_DIR": str(spec.cache / "extensions" / tree),
        **caches(spec.cache),
    }
    if spec.world_size > 1:
        # torchrun sets this if a node has several ranks.
        env.setdefault("OMP_NUM_THREADS", "1")
    if spec.standby:
        env |= {"STEPGUARD_STANDBY": "1"}
    if not is_gpu(spec.device):
        # torch prefers MKL's number to OMP's if it is set.
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(CPU_THREADS))
        env |= {"CUDA_VISIBLE_DEVICES": "", **threads}
    return env


def end(
    agent: "subprocess.Popen[bytes]", token: str, scratch: Path, ranks: Collection[int] = ()
) -> None:
    """Kill the processes that are left of a launch, and remove ``scratch``. Return when no process
    is left, so that what the launch had on the GPUs is free. ``ranks`` are the ranks' pids: a rank
    that is exiting is no longer found by its token. It gets GONE_LIMIT_S at most.

    Raises RuntimeError if a process with the token does not die within GONE_LIMIT_S.
    """
    until = time.monotonic() + GONE_LIMIT_S
    if agent.stdin:
        agent.stdin.close()
    known = set(ranks)
    while True:
        agent.poll()  # reaps it
        killed, left = kill_by_token(token), pids_by_token(token)
        known |= {*killed, *left}
        over = time.monotonic() > until
        if not killed and not left and agent.poll() is not None:
            if over or not any(map(holds_memory, known)):
                break
        if over:
            raise RuntimeError(f"processes {left} do not die")
        time.sleep(0.02)
    shutil.rmtree(scratch, ignore_errors=True)
