"""Finds the cause of a failed launch: rank, command, step, phase, from what its processes left.

Any rank may fail and only rank 0 can speak, so nothing is asked: error files, notes, what agents
noted and the processes' states are read. The first rank to fail is the cause; the others are its
victims.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from stepguard.core.evidence import Fault
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.text import DETAIL_CHARACTERS, bounded
from stepguard.launch.torchrun import LaunchSpec
from stepguard.machine.lifeline import pids_by_token
from stepguard.worker.endings import Ending, Endings, first
from stepguard.worker.position import read_position

SHOWN_STACKS = 2  # ranks; the others are where one of these is, as a rule
_WAITS = re.compile(r'/worker/channel\.py", line \d+ in gather')  # as faulthandler writes it
STDERR_TAIL_LINES = 40
TAIL_BYTES = 1 << 16  # that they are looked for in
# What torch's profiler prints of itself: ten lines and more of every counting pass.
_OF_THE_PROFILER = re.compile(
    r"(USDT|STAGE|INFO):\d{4}-\d\d-\d\d [\d:]+ \d+:\d+ \w+\.cpp:\d+\]"
    r"|\[W[^]]+ CPUAllocator\.cpp:\d+\] .* before the profiling started"
)
STACKS_S = 5.0  # for faulthandler to write every stack
_LOOK_S = 0.1
_LOST_PEER = re.compile(
    r"Connection (closed|reset|refused)|Broken pipe|remote process exited|DistBackendError"
    r"|DistNetworkError|ncclRemoteError"
)
RankError = tuple[int, dict[str, Any]]  # a rank and the error that it wrote down
Cause = tuple[int, str]  # a rank and how it ended
LAST_WORDS_S = 0.3  # for a rank that fails to finish writing why
ENDINGS_S = 5.0  # for agents to note how a rank ended


class LaunchFailed(Exception):
    """A launch that ended in a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(frozen=True)
class Scene:
    """A launch that failed."""

    spec: LaunchSpec  # in its folder: notes, error files and logs
    token: str
    pids: Mapping[int, int]  # by rank, of those that said hello; empty before that
    agent: "subprocess.Popen[bytes]"
    during: str  # "launch 2, block"
    waited_s: float

    @property
    def folder(self) -> Path:
        """Return where its processes on all nodes left errors, notes and logs."""
        return self.spec.folder

    @property
    def ranks(self) -> range:
        """Return all ranks."""
        return range(self.spec.world_size)

    @property
    def pids_here(self) -> dict[int, int]:
        """Return the processes on this host, by rank."""
        return {rank: self.pids[rank] for rank in self.spec.ranks_here if rank in self.pids}

    def position(self, rank: int) -> str:
        """Return where a rank was last: "block, step 12, phase backward"."""
        return read_position(self.folder / f"note-{rank}")

    def stderr_tail(self, rank: int) -> str:
        """Return the last lines a rank wrote."""
        return _tail(self.folder / f"stderr-{rank}.log")

    def agent_log(self) -> str:
        """Return the last lines that a launcher and every node's agent wrote."""
        nodes = [self.spec.folder_of(node) / "agent.log" for node in range(self.spec.nodes)]
        return "".join(_tail(path) for path in (self.folder / "launcher.log", *nodes))

    def endings(self) -> list[Ending]:
        """Return what the agents of all nodes noted so far."""
        nodes = range(self.spec.nodes)
        return [ending for node in nodes for ending in Endings(self.folder, node).read()]


def no_answer(scene: Scene) -> Fault:
    """Return the fault of a deadline that passed: where every rank is, and telling stacks."""
    pids = list(scene.pids_here.values()) or pids_by_token(scene.token)
    logs = [scene.folder / f"stderr-{rank}.log" for rank in scene.spec.ranks_here]
    logs = [log for log in logs if log.exists()] or [scene.folder / "agent.log"]
    before = _sizes(logs)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)  # faulthandler writes every stack to stderr
    _wait_until_written(logs, before, pids)
    code = Reason.NO_ANSWER if scene.pids else Reason.NOT_STARTED
    positions = "; ".join(f"rank {rank} in {scene.position(rank)}" for rank in scene.ranks)
    message = f"no answer {scene.waited_s:.0f} s into the launch: {positions}"
    return Fault(code, message, _stacks(scene) or scene.agent_log(), scene.during)


def _sizes(logs: Sequence[Path]) -> list[int]:
    return [log.stat().st_size if log.exists() else 0 for log in logs]


def _wait_until_written(logs: Sequence[Path], before: Sequence[int], pids: Sequence[int]) -> None:
    """Wait until each log has grown and grows no more, or nobody writes; STACKS_S at most."""
    until, last = time.monotonic() + STACKS_S, list(before)
    while time.monotonic() < until and any(map(alive, pids)):
        time.sleep(_LOOK_S)
        now = _sizes(logs)
        if now == last and all(size > was for size, was in zip(now, before, strict=True)):
            return
        last = now


def _stacks(scene: Scene) -> str:
    """Return what ranks wrote last, which are their stacks: first of those that did not do their
    part yet. A rank that only waits for the others' answers has.
    """
    tails = [(rank, tail) for rank in scene.ranks if (tail := scene.stderr_tail(rank))]
    tails.sort(key=lambda one: bool(_WAITS.search(one[1])))
    if len(scene.ranks) == 1:
        return "".join(tail for _, tail in tails)
    return "\n".join(f"rank {rank}:\n{tail}" for rank, tail in tails[:SHOWN_STACKS])


def lost_worker(scene: Scene) -> Fault:
    """Return the fault of a process that ended: which was the first, and how."""
    time.sleep(LAST_WORDS_S)
    failed = _error_files(scene)
    if not failed and (scene.agent.poll() or 0) < 0:  # the ranks die with it, being its victims
        return _agent_died(scene)
    dead = [rank for rank, pid in scene.pids_here.items() if not alive(pid)]
    # Processes of other nodes cannot be looked at from here: what their agent noted is read.
    if scene.spec.nodes > 1 and all(_lost_a_peer(described) for _, described in failed):
        dead, failed = dead + _dead_elsewhere(scene), _error_files(scene)
    cause = _silent_death(scene, dead, failed)
    if failed and not cause:
        rank, described = failed[0]
        if scene.spec.nodes > 1 and _lost_a_peer(described):
            return _node_lost(scene, rank, described)
        return _raised(scene, rank, described)
    if not scene.pids:
        message = f"the launcher ended with {scene.agent.poll()} before the workers were ready"
        detail = scene.agent_log() + scene.stderr_tail(scene.ranks[0])
        return Fault(Reason.NOT_STARTED, message, detail, scene.during)
    if dead and not cause and scene.agent.poll() is None:  # which did not come to note how
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


def _node_lost(scene: Scene, rank: int, described: dict[str, Any]) -> Fault:
    """Return the fault of ranks that only tell that another one is gone, and none tells why."""
    lost = _raised(scene, rank, described)
    message = f"processes of another node are gone and left no reason; {lost.message}"
    return replace(lost, code=Reason.KILLED, message=message)


def _lost_a_peer(described: dict[str, Any]) -> bool:
    return bool(_LOST_PEER.search(described["traceback"]))


def _dead_elsewhere(scene: Scene) -> list[int]:
    """Return ranks of other nodes that ended without a word, as agents noted it there; waits until
    one did, or wrote why it failed, ENDINGS_S at most.
    """
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
    found = []
    for rank in scene.ranks:
        with contextlib.suppress(OSError, ValueError):
            text = (scene.folder / f"error-{rank}.json").read_text()
            found.append((rank, json.loads(text)))
    several = scene.spec.nodes > 1  # whose clocks cannot be compared
    # The first to fail is the cause.
    return sorted(found, key=lambda it: (several and _lost_a_peer(it[1]), it[1]["at_ns"]))


def _silent_death(scene: Scene, dead: Sequence[int], failed: Sequence[RankError]) -> Cause | None:
    """Return the rank that the others' ends follow from, and how it ended, if it left no error.
    None if there is none, or if what ``failed`` left goes before: whoever was ended by a signal is
    the cause, but NCCL aborts, and a rank may leave, because another one raised.
    """
    explained = {rank for rank, _ in failed}
    silent = {scene.pids[rank]: rank for rank in dead if rank not in explained}
    cause = first(_endings_of(scene, silent))
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
    """Return how these processes ended, once their agent noted it of one that is no victim or of
    all; or when the agent is gone, or after ENDINGS_S.
    """
    until = time.monotonic() + ENDINGS_S
    while True:
        over = scene.agent.poll() is not None or time.monotonic() >= until
        found = [ending for ending in scene.endings() if ending.pid in pids]
        if over or len(found) == len(pids) or first(found):
            return found
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


def alive(pid: int) -> bool:
    """Tell whether a process runs; a zombie does not."""
    try:
        # The name, in parentheses, may itself hold blanks and parentheses.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def _tail(path: Path, lines: int = STDERR_TAIL_LINES) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
        kept = [line for line in text.splitlines() if not _OF_THE_PROFILER.match(line)]
        return bounded("\n".join(kept[-lines:]), DETAIL_CHARACTERS) + "\n"
    except OSError:
        return ""
