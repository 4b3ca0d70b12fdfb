"""Find the cause of a failed launch: rank, command, step and phase, from what its processes left.

Any rank may fail, and only rank 0 can answer. So no rank is asked: the ranks' error files, the
notes of ranks and agents, and the states of processes are read. The first rank that failed is the
cause; the others are its victims.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stepguard.core.evidence import Fault
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.text import DETAIL_CHARACTERS, bounded
from stepguard.launch.torchrun import LaunchSpec
from stepguard.machine.lifeline import alive, pids_by_token
from stepguard.worker.rank_position import (
    Ending,
    endings_file,
    first_ending,
    read_endings,
    read_position,
)

SHOWN_STACKS = 2  # ranks; the others usually are at the same place as one of these
_WAITS = re.compile(r'/worker/rank_channel\.py", line \d+ in gather')  # as faulthandler writes it
STDERR_TAIL_LINES = 40
TAIL_BYTES = 1 << 16  # how much of the end of a log is read
# Lines that torch's profiler prints about itself, ten or more in every counting pass.
_OF_THE_PROFILER = re.compile(
    r"(USDT|STAGE|INFO):\d{4}-\d\d-\d\d [\d:]+ \d+:\d+ \w+\.cpp:\d+\]"
    r"|\[W[^]]+ CPUAllocator\.cpp:\d+\] .* before the profiling started"
)
STACKS_S = 5.0  # for faulthandler to write all stacks
_LOOK_S = 0.1
_LOST_PEER = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|remote process exited|DistBackendError"
    r"|DistNetworkError|ncclRemoteError"
)
RankError = tuple[int, dict[str, Any]]  # a rank and the error that it wrote
Cause = tuple[int, str]  # a rank and how it ended
# A script's first steps are a part of its preparation: they may load data, and compile. Or it may
# train without end, and by no optimizer that is seen.
LONG_PREPARATION = (
    ", before its first step had ended; if it loads or compiles for so long, give the case a "
    "larger time_limit_s; if a loop trains already, mark the end of each step with "
    "stepguard.step(), or name a function that ends one, --step-at module:function"
)
LAST_WORDS_S = 0.3  # time for a failed rank to finish its error file
ENDINGS_S = 5.0  # for agents to note how a rank ended


class LaunchFailed(Exception):
    """A launch that ended in a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(frozen=True)
class Scene:
    """A launch that failed, and what is known of it."""

    spec: LaunchSpec  # its folder has notes, error files and logs of the processes on all nodes
    token: str
    pids: Mapping[int, int]  # by rank, of ranks that said hello; empty before that
    agent: "subprocess.Popen[bytes]"
    during: str  # "launch 2, block"
    waited_s: float

    @property
    def ranks(self) -> range:
        """Return all ranks."""
        return range(self.spec.world_size)

    @property
    def pids_here(self) -> dict[int, int]:
        """Return the processes on this host, by rank."""
        return self.spec.here(self.pids)

    def position(self, rank: int) -> str:
        """Return the last position of a rank: "block, step 12, phase backward"."""
        return read_position(self.spec.folder / f"note-{rank}")

    def stderr_tail(self, rank: int) -> str:
        """Return the last lines that a rank wrote."""
        return _tail(self.spec.folder / f"stderr-{rank}.log")

    def agent_log(self) -> str:
        """Return the last lines that the launcher, if there is one, and the agents wrote."""
        nodes = [self.spec.folder_of(node) / "agent.log" for node in range(self.spec.nodes)]
        return "".join(_tail(path) for path in (self.spec.folder / "launcher.log", *nodes))

    def endings(self) -> list[Ending]:
        """Return what the agents of all nodes have noted so far."""
        files = [endings_file(self.spec.folder, node) for node in range(self.spec.nodes)]
        return [ending for file in files for ending in read_endings(file)]


def no_answer(scene: Scene) -> Fault:
    """Return the fault of a launch that did not answer in time: where every rank is."""
    pids = list(scene.pids_here.values()) or pids_by_token(scene.token)
    logs = [scene.spec.folder / f"stderr-{rank}.log" for rank in scene.spec.ranks_here]
    logs = [log for log in logs if log.exists()] or [scene.spec.folder / "agent.log"]
    before = _sizes(logs)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)  # faulthandler writes all stacks to stderr
    _wait_until_written(logs, before, pids)
    positions = "; ".join(f"rank {rank} in {scene.position(rank)}" for rank in scene.ranks)
    message = f"no answer {scene.waited_s:.0f} s into the launch: {positions}"
    if any(scene.position(rank) == "prepare" for rank in scene.ranks):
        message += LONG_PREPARATION
    return Fault(Reason.NO_ANSWER, message, _stacks(scene) or scene.agent_log(), scene.during)


def _sizes(logs: Sequence[Path]) -> list[int]:
    return [log.stat().st_size if log.exists() else 0 for log in logs]


def _wait_until_written(logs: Sequence[Path], before: Sequence[int], pids: Sequence[int]) -> None:
    """Wait until each log has grown and stopped growing, or no process lives; STACKS_S at most."""
    until, last = time.monotonic() + STACKS_S, list(before)
    while time.monotonic() < until and any(map(alive, pids)):
        time.sleep(_LOOK_S)
        now = _sizes(logs)
        if now == last and all(size > was for size, was in zip(now, before, strict=True)):
            return
        last = now


def _stacks(scene: Scene) -> str:
    """Return the stacks that ranks wrote last. The ranks that still work come first."""
    tails = [(rank, tail) for rank in scene.ranks if (tail := scene.stderr_tail(rank))]
    tails.sort(key=lambda tail: bool(_WAITS.search(tail[1])))
    if len(scene.ranks) == 1:
        return "".join(tail for _, tail in tails)
    return "\n".join(f"rank {rank}:\n{tail}" for rank, tail in tails[:SHOWN_STACKS])


def lost_worker(scene: Scene) -> Fault:
    """Return the fault of a process that ended: which one was the first, and how it ended."""
    time.sleep(LAST_WORDS_S)
    failed = _error_files(scene)
    if not failed and (scene.agent.poll() or 0) < 0:  # the ranks die with the agent
        return _agent_died(scene)
    dead = [rank for rank, pid in scene.pids_here.items() if not alive(pid)]
    # This host cannot see processes of other nodes, so it reads their agents' notes.
    if scene.spec.nodes > 1 and all(_lost_a_peer(described) for _, described in failed):
        dead, failed = dead + _dead_elsewhere(scene), _error_files(scene)
    cause = _silent_death(scene, dead, failed)
    if failed and not cause:
        raised = _raised(scene, *failed[0])
        if scene.spec.nodes == 1 or not _lost_a_peer(failed[0][1]):
            return raised
        # The ranks that are left only say that another one is gone.
        message = f"processes of another node are gone and left no reason; {raised.message}"
        return Fault(Reason.KILLED, message, raised.detail, raised.during, raised.site)
    if not scene.pids:
        message = f"the launcher ended with {scene.agent.poll()} before the workers were ready"
        detail = scene.agent_log() + scene.stderr_tail(scene.ranks[0])
        return Fault(Reason.KILLED, message, detail, scene.during)
    if dead and not cause and scene.agent.poll() is None:  # the agent has not noted how it ended
        cause = dead[0], "ended"
    if not cause:
        return _agent_died(scene)
    rank, how = cause
    message = f"rank {rank} {how} in {scene.position(rank)}"
    return Fault(Reason.KILLED, message, scene.stderr_tail(rank), scene.during)


def _agent_died(scene: Scene) -> Fault:
    rank = scene.ranks[0]
    where = f"rank {rank} was in {scene.position(rank)}"
    name = "the launcher" if scene.spec.launcher else "torchrun"
    message = f"{name} ended with {scene.agent.poll()} while {where}"
    return Fault(Reason.KILLED, message, scene.agent_log(), scene.during)


def _lost_a_peer(described: dict[str, Any]) -> bool:
    return bool(_LOST_PEER.search(described["traceback"]))


def _dead_elsewhere(scene: Scene) -> list[int]:
    """Return the ranks of other nodes that ended first, as agents noted within ENDINGS_S."""
    until = time.monotonic() + ENDINGS_S
    there = {rank: pid for rank, pid in scene.pids.items() if rank not in scene.pids_here}
    while True:
        over = scene.agent.poll() is not None or time.monotonic() >= until
        ended = {ending.pid for ending in scene.endings() if not ending.victim}
        dead = [rank for rank, pid in there.items() if pid in ended]
        explained = any(not _lost_a_peer(described) for _, described in _error_files(scene))
        if over or dead or explained:
            return dead
        time.sleep(0.05)


def _error_files(scene: Scene) -> list[RankError]:
    errors = []
    for rank in scene.ranks:
        with contextlib.suppress(OSError, ValueError):
            text = (scene.spec.folder / f"error-{rank}.json").read_text()
            errors.append((rank, json.loads(text)))
    several = scene.spec.nodes > 1
    # The cause comes first: the earliest error. Clocks of several nodes cannot be compared, so
    # there an error about a lost rank comes after the others.
    return sorted(errors, key=lambda it: (several and _lost_a_peer(it[1]), it[1]["at_ns"]))


def _silent_death(scene: Scene, dead: Sequence[int], failed: Sequence[RankError]) -> Cause | None:
    """Return the rank that ended the launch without leaving an error, and how it ended. A rank that
    a signal killed is the cause. A rank that NCCL aborted, or that left, is the cause only if no
    rank raised an error of its own (``failed``). None if there is no such rank.
    """
    explained = {rank for rank, _ in failed}
    silent = {scene.pids[rank]: rank for rank in dead if rank not in explained}
    cause = first_ending(_endings_of(scene, silent))
    if not cause or not cause.killed and not all(_lost_a_peer(error) for _, error in failed):
        return None
    return silent[cause.pid], _ended(cause.status)


def _ended(status: int) -> str:
    if status >= 0:
        return f"ended by itself with status {status}" if status else "ended by itself"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # real-time signals have no names
        return f"was killed by signal {-status}"


def _endings_of(scene: Scene, pids: Collection[int]) -> list[Ending]:
    """Return how these processes ended. Wait until the agents have noted one that is no victim, or
    all of them, or until the agent is gone; ENDINGS_S at most.
    """
    until = time.monotonic() + ENDINGS_S
    while True:
        over = scene.agent.poll() is not None or time.monotonic() >= until
        endings = [ending for ending in scene.endings() if ending.pid in pids]
        if over or len(endings) == len(pids) or first_ending(endings):
            return endings
        time.sleep(0.05)


def _raised(scene: Scene, rank: int, described: dict[str, Any]) -> Fault:
    first = described["message"].strip().splitlines()[:1]
    code = Reason.RAISED
    if described["bad_workload"]:
        code = Reason.BAD_WORKLOAD
    elif described["out_of_memory"]:
        code = Reason.OUT_OF_MEMORY
    kind = [] if described["bad_workload"] else [described["type"]]
    message = ": ".join([f"rank {rank} in {scene.position(rank)}", *kind, *first])
    file, line, function, text, via = described["place"]
    site = Site(described["type"], file, line, function, text, via=via or msgspec.UNSET)
    return Fault(code, message, described["traceback"], scene.during, site)


def _tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
        kept = [line for line in text.splitlines() if not _OF_THE_PROFILER.match(line)]
        last = "\n".join(kept[-STDERR_TAIL_LINES:])
        return bounded(last, DETAIL_CHARACTERS) + "\n"
    except OSError:
        return ""
