"""Run ranks under torch elastic, torchrun's engine, as forks of the process that runs the engine.

The agent imports what ranks need, once, so a rank starts at once. A fork is safe here since the
agent only imports and waits: CUDA, autograd and OpenMP are first used in a rank, and no Python
thread runs (over several nodes a thread serves a store that ranks never touch). Ranks of one launch
share the layout of their address space and their hash seed. Every launch has its own agent, so
launches differ from each other as processes do.
"""

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from torch.distributed import HashStore, PrefixStore
from torch.distributed.elastic.agent.server import (
    RunResult,
    SimpleElasticAgent,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.rendezvous import RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from stepguard.core.text import DETAIL_CHARACTERS, MESSAGE_CHARACTERS, bounded
from stepguard.machine.lifeline import ENDING_SIGNALS, die_with_parent
from stepguard.worker.counters.locate import raised_at
from stepguard.worker.rank_position import Ending, Note, endings_file, note_ending
from stepguard.worker.rank_session import Session
from stepguard.worker.torch_device import out_of_memory
from stepguard.worker.workload import BadWorkload, import_from_source

MONITOR_INTERVAL_S = 0.1
JOIN_LIMIT_S = 900  # for the other nodes
MOST_BYTES = 1 << 20  # of a file that a rank prints to, above which its middle is removed
KEPT_BYTES = 1 << 17  # of its beginning, and of its end
_SAYS = "\n[stepguard: {} bytes of output are left out here, more than {} were printed]\n"


def run(*, ranks: int, node: int, nodes: int, address: str, port: int) -> int:
    """Run a node's ``ranks`` until all have ended or one failed. Return the exit status."""
    kind = StaticTCPRendezvous if nodes > 1 else OneNode
    token = os.environ["STEPGUARD_TOKEN"].partition("-")[0]  # the same on all nodes
    spec = WorkerSpec(
        role="rank",
        local_world_size=ranks,
        entrypoint=serve,
        rdzv_handler=kind(address, port, node, nodes, token, JOIN_LIMIT_S),
        max_restarts=0,
        monitor_interval=MONITOR_INTERVAL_S,
    )
    folder = Path(os.environ["STEPGUARD_RUN_DIR"])
    return int(Ranks(spec, folder, endings_file(folder, node)).run().is_failed())


class OneNode(StaticTCPRendezvous):  # type: ignore[misc]  # torch is untyped here
    """The rendezvous of a single node, in memory. torch's other rendezvous listen on all
    interfaces, whatever address they are given, and unpickle what comes.
    """

    use_agent_store = False

    def next_rendezvous(self) -> RendezvousInfo:
        """Join nobody."""
        store = PrefixStore(self.run_id, HashStore())
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo.build(0, store, self.master_addr))


class Ranks(SimpleElasticAgent):  # type: ignore[misc]
    """Starts ranks by fork, and writes down how each of them ended."""

    def __init__(self, spec: WorkerSpec, folder: Path, endings: Path) -> None:
        super().__init__(spec)
        self._folder, self._endings = folder, endings
        self._alive: list[int] = []
        self._left_out: dict[Path, int] = {}  # by file of a rank: bytes removed from it so far

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        pids = {w.local_rank: self._fork(worker_group, w) for w in worker_group.workers}
        self._alive = list(pids.values())
        return pids

    def _fork(self, group: WorkerGroup, worker: Worker) -> int:
        variables = _variables(group, worker)
        self._left_out |= dict.fromkeys(_streams(self._folder, worker.global_rank), 0)
        if pid := os.fork():
            return pid
        try:
            os.environ.update(variables)
            _leave_the_agent(self._folder, worker.global_rank)
            serve()
        finally:  # never back into the agent's frames
            traceback.print_exc()
            os._exit(1)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if any(ending.status for ending in self._reap(os.WNOHANG)):
            return RunResult(state=WorkerState.FAILED)
        if self._alive:
            return RunResult(state=WorkerState.HEALTHY)
        ended = {worker.global_rank: None for worker in worker_group.workers}
        return RunResult(state=WorkerState.SUCCEEDED, return_values=ended)

    def _reap(self, options: int, victim: bool = False) -> list[Ending]:
        """Return and note the endings of ranks that are gone; limit what ranks printed."""
        endings = []
        for pid in self._alive:
            gone, status = os.waitpid(pid, options)
            if gone:
                endings.append(Ending(pid, os.waitstatus_to_exitcode(status), victim))
                note_ending(self._endings, endings[-1])
        bound_output(self._left_out)
        ended = {ending.pid for ending in endings}
        self._alive = [pid for pid in self._alive if pid not in ended]
        return endings

    def _shutdown(self, *_: Any, **__: Any) -> None:
        for pid in self._alive:
            os.kill(pid, signal.SIGKILL)
        self._reap(0, victim=True)

    _stop_workers = _shutdown


def _variables(group: WorkerGroup, worker: Worker) -> dict[str, str]:
    handler = group.spec.rdzv_handler
    return {
        "RANK": str(worker.global_rank),
        "LOCAL_RANK": str(worker.local_rank),
        "WORLD_SIZE": str(worker.world_size),
        "LOCAL_WORLD_SIZE": str(group.spec.local_world_size),
        "GROUP_RANK": str(group.group_rank),
        "GROUP_WORLD_SIZE": str(group.group_world_size),
        "ROLE_NAME": group.spec.role,
        "ROLE_RANK": str(worker.role_rank),
        "ROLE_WORLD_SIZE": str(worker.role_world_size),
        "MASTER_ADDR": str(group.master_addr),
        "MASTER_PORT": str(group.master_port),
        "TORCHELASTIC_RUN_ID": handler.get_run_id(),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": str(handler.use_agent_store),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }


def _streams(folder: Path, rank: int) -> list[Path]:
    return [folder / f"{name}-{rank}.log" for name in ("stdout", "stderr")]


def _leave_the_agent(folder: Path, rank: int) -> None:
    """Become what a new process would be, with its own session, streams and signal handlers."""
    os.setsid()
    for number, path in enumerate([Path(os.devnull), *_streams(folder, rank)]):
        opened = open_to_append(path)
        os.dup2(opened, number)
        os.close(opened)
    for signum in ENDING_SIGNALS:
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = [__file__]


def serve() -> None:
    """Serve the host until ``exit``, in a rank; never returns. Errors are written to a file of the
    rank, since any rank may fail, and only rank 0 has a socket to the host.
    """
    if not die_with_parent(int(os.environ["STEPGUARD_AGENT_PID"]), signal.SIGKILL):
        os._exit(1)
    rank = os.environ["RANK"]
    folder = Path(os.environ["STEPGUARD_RUN_DIR"])
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # the host asks where a rank hangs
    sys.path.insert(1, os.getcwd())  # after the engine: the tree may contain another one
    import_from_source(Path.cwd())
    try:
        Session(Note(folder / f"note-{rank}")).serve()
        sys.stdout.flush()
        os._exit(0)  # tearing down the interpreter and CUDA takes seconds and tells nothing
    # SystemExit, too: otherwise a workload that exits would end without a reason.
    except BaseException as error:
        said = bounded(traceback.format_exc(), DETAIL_CHARACTERS // 2)
        description = {
            "type": type(error).__name__,
            "message": bounded(str(error), MESSAGE_CHARACTERS // 2),
            "traceback": said,
            "place": raised_at(error),
            "bad_workload": isinstance(error, BadWorkload),
            "out_of_memory": out_of_memory(error),
            # All processes of a node have one clock: the first to fail is the cause.
            "at_ns": time.perf_counter_ns(),
        }
        (folder / f"error-{rank}.json").write_text(json.dumps(description))
        sys.stderr.write(said)
        sys.stderr.flush()
        os._exit(1)  # a rank stuck in another thread's collective must not delay the exit


def bound_output(left_out: dict[Path, int]) -> None:
    """Remove the middle of each file that is too large, and add the removed bytes: a workload that
    prints a tensor in each step would fill a disk. What a rank writes at that moment may be lost,
    too. A rank writes to its files directly, so printing costs what it costs without the engine.
    """
    for path, before in left_out.items():
        if path.exists() and (size := path.stat().st_size) > MOST_BYTES:
            left_out[path] = before + _cut(path, size, before)


def _cut(path: Path, size: int, before: int) -> int:
    """Remove the middle of a file. Return how many bytes of the rank's output that removes."""
    # After the first time the middle begins with the notice, which is not the rank's output.
    said = len(_SAYS.format(before, MOST_BYTES)) if before else 0
    left_out = size - 2 * KEPT_BYTES - said
    with path.open("r+b") as file:
        file.seek(size - KEPT_BYTES)
        end = file.read(KEPT_BYTES)
        file.truncate(KEPT_BYTES)
    with path.open("ab") as file:  # behind what the rank may have written in the meantime
        file.write(_SAYS.format(before + left_out, MOST_BYTES).encode() + end)
    return left_out


def open_to_append(path: Path) -> int:
    """Return a descriptor that appends to a file, also after its middle was removed."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
