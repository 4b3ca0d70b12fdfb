"""A node agent: does on another node what the first one asks for, and leaves nothing behind.

    STEPGUARD_NODE_KEY=... python -m stepguard node --endpoint HOST:PORT

It starts torchrun for each launch, notices deaths, says why, and kills. When the connection ends,
however it does, whatever it started is killed and it ends too; if it is killed itself, every
torchrun that it started does the same (worker/agent.py). It obeys one run.
"""

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import Popen
from types import FrameType
from typing import Any

from stepguard.evidence import Block
from stepguard.gpu.nvml import Gpu, MachineError, Monitor
from stepguard.launch import torchrun
from stepguard.launch.diagnosis import Scene, anything_ended, lost_worker, no_answer, positions
from stepguard.launch.likeness import as_message, describe
from stepguard.launch.torchrun import LaunchSpec, Share
from stepguard.launch.wire import Wire, WireError, connect, key_of
from stepguard.storage.runs import Store

CONNECT_LIMIT_S = 300.0
POLL_S = 0.05


@dataclass
class _Started:
    """A launch's part on this node."""

    spec: LaunchSpec
    token: str  # of its processes here: other nodes may be on this machine, and kill by their own
    scratch: Path
    agent: "Popen[bytes]"
    pids: dict[int, int] = field(default_factory=dict)
    told: bool = False  # that a process ended

    def scene(self, during: str = "") -> Scene:
        spec = self.spec
        return Scene(spec.folder, spec.ranks, self.token, self.pids, self.agent, during, 0.0)


class Agent:
    """The launches of one run on this node."""

    def __init__(
        self, root: Path, wire: Wire, gpus: Sequence[Gpu], show: Callable[[str], None]
    ) -> None:
        self.root, self.wire, self.gpus, self.show = root, wire, gpus, show
        self.monitor: Monitor | None = None
        self.store = Store(root)
        self.launches: dict[str, _Started] = {}
        self.welcome = False  # whether the first node has taken this one
        self.over = ""  # why the first node wants no more of this one
        self.done = False

    def serve(self) -> None:
        """Obey until told that it is over. Raises WireError if the first node is lost."""
        try:
            while not self.done:
                self.wire.wait(POLL_S)
                if self.monitor:
                    self.monitor.poll()
                for message in self.wire.messages():
                    self._obey(dict(message))
                self._notice()
        finally:
            for token in list(self.launches):
                self.do_kill(token)

    def _obey(self, message: dict[str, Any]) -> None:
        number, name = message.pop("id"), message.pop("do")
        handler: Callable[..., dict[str, Any]] = getattr(self, f"do_{name}")
        try:
            answer = {"id": number, "answer": handler(**message)}
        except Exception as error:  # whatever it is, this node can no longer be relied on
            answer = {"id": number, "refused": f"{type(error).__name__}: {error}"}
        with contextlib.suppress(WireError) if self.done else contextlib.nullcontext():
            self.wire.send(answer)

    def _notice(self) -> None:
        """Say at once, and once, that a process of a launch ended."""
        for token, started in self.launches.items():
            if not started.told and anything_ended(started.scene()):
                started.told = True
                self.wire.send({"ended": token})

    def do_start(
        self,
        token: str,
        share: dict[str, Any],
        folder: list[str],
        steering: dict[str, str],
        preload: list[str],
        **rest: Any,
    ) -> dict[str, Any]:
        """Start this node's ranks of a launch, under the first node's steering variables."""
        part = Share(**share)
        self.store.tidy()
        where = self.store.runs.joinpath(*folder) / f"node-{part.node_rank}"
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir(parents=True)
        spec = LaunchSpec(
            root=self.root,
            folder=where,
            cache=self.store.cache,
            share=part,
            steering=steering,
            preload=tuple(preload),
            **rest,
        )
        own, scratch = f"{token}-{part.node_rank}", Path(tempfile.mkdtemp(prefix="stepguard-"))
        try:
            agent = torchrun.start(spec, own, "", scratch)
        except OSError:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        self.launches[token] = _Started(spec, own, scratch, agent)
        first, last = spec.ranks[0], spec.ranks[-1]
        ranks = f"rank {first}" if first == last else f"ranks {first} to {last}"
        self.show(f"{folder[1]}, {spec.label}: {ranks}")
        return {}

    def do_watch(self, token: str, pids: list[int]) -> dict[str, Any]:
        """The ranks stand ready; these are their processes, of all nodes."""
        started = self.launches[token]
        started.pids = {rank: pids[rank] for rank in started.spec.ranks}
        return {}

    def do_preflight(self, gpus: int) -> dict[str, Any]:
        """Whether this node's first so many GPUs are fit; from now on they are watched."""
        problem = unreadable = ""
        try:
            self.monitor = Monitor(self.gpus[:gpus])
            problem = self.monitor.preflight()
        except MachineError as error:
            unreadable = str(error)
        return {"problem": problem, "unreadable": unreadable}

    def do_expect(self, token: str) -> dict[str, Any]:
        """The launch that is measured now: its ranks may be on the GPUs."""
        assert self.monitor is not None
        self.monitor.expect([*self.launches[token].pids.values()])
        return {}

    def do_annotate(self, began_ns: int, ended_ns: int) -> dict[str, Any]:
        """What this node's GPUs did during a block, by this node's clock."""
        assert self.monitor is not None
        return asdict(self.monitor.annotate(Block(1, (1.0,), (1.0,), (1.0,)), began_ns, ended_ns))

    def do_diagnose(self, token: str, during: str) -> dict[str, Any]:
        """Why a process of a launch ended here, if one did."""
        scene = self.launches[token].scene(during)
        return {"fault": asdict(lost_worker(scene)) if anything_ended(scene) else None}

    def do_where(self, token: str, during: str) -> dict[str, Any]:
        """Where this node's ranks are, and their stacks."""
        scene = self.launches[token].scene(during)
        return {"detail": no_answer(scene).detail, "positions": positions(scene)}

    def do_kill(self, token: str) -> dict[str, Any]:
        """Kill what is left of a launch; it is gone when this returns."""
        started = self.launches.pop(token, None)
        if started:
            torchrun.end(started.agent, started.token, started.scratch)
        return {}

    def do_welcome(self) -> dict[str, Any]:
        """The first node has taken this one: key, software and GPUs are right."""
        self.welcome = True
        self.show(f"connected, {len(self.gpus)} GPUs; waiting for launches")
        return {}

    def do_bye(self, why: str = "") -> dict[str, Any]:
        """The run is over, or refuses this node."""
        self.done, self.over = True, why
        return {}


def serve(
    root: Path, endpoint: tuple[str, int], gpus: Sequence[Gpu], show: Callable[[str], None]
) -> int:
    """Connect, describe this node, obey. The exit status: 0 when the run ended in order.

    Raises ValueError without a key that will do.
    """
    key = key_of(dict(os.environ))
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)
    facts = describe(root, gpus)
    agent = None
    try:
        wire = connect(endpoint, key, CONNECT_LIMIT_S, show)
        agent = Agent(root, wire, gpus, show)
        wire.send({"hello": as_message(facts)})
        agent.serve()
    except WireError as error:
        if agent is not None and agent.welcome:
            show(f"the first node is gone: {error}; nothing of it is left here")
        else:
            show(f"not connected: {error}")
        return 1
    if agent.over:
        show(f"refused: {agent.over}")
        return 1
    return 0


def _leave(number: int, frame: FrameType | None) -> None:
    """End through every ``finally``."""
    sys.exit(128 + number)
