"""A launch: one fresh worker group under torchrun, with a time limit and no way to outlive us.

Every process of a launch carries its token in the environment. Closing a launch kills by token and
returns only when nothing that carries it is left; if this process dies, the agent does the same
(worker/agent.py).
"""

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepguard.evidence import Fault
from stepguard.host import engine
from stepguard.host.control import Control, LostWorker, Message, NoAnswer, Poll
from stepguard.host.diagnosis import Scene, alive, lost_worker, no_answer
from stepguard.host.interrupts import interrupts_held
from stepguard.worker.lifeline import kill_by_token, pids_by_token

HELLO_LIMIT_S = 120.0
GONE_LIMIT_S = 10.0  # how long a killed process may take to disappear
CPU_THREADS = 1  # fixed: what a CPU step allocates depends on it, and more only spin on busy cores


class LaunchFailed(Exception):
    """A launch that ended in a fault."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


@dataclass(frozen=True)
class LaunchSpec:
    """Where and with what a launch runs."""

    device: str
    preload: tuple[str, ...]  # modules imported before the ranks say hello
    world_size: int
    root: Path  # the source tree: working directory and, behind the engine, first to import from
    folder: Path  # logs and notes of this launch; kept
    cache: Path  # compile caches, shared by the launches of a checkout
    label: str  # "launch 2"
    time_limit_s: float
    own: Path | None = None  # the whole tree that root is a folder of; None: root is all of it
    forbidden: tuple[Path, ...] = ()  # trees that no module may come from, the engine excepted
    one_of_several: bool = False  # one rank of a case that has several


class WorkerGroup:
    """A running launch. Use as a context manager; leaving it leaves nothing behind."""

    def __init__(self, spec: LaunchSpec) -> None:
        self.spec = spec
        self.token = secrets.token_hex(16)
        self.began = time.monotonic()
        self.pids: list[int] = []
        self._closed = False
        self._poll: Poll = lambda: None
        shutil.rmtree(spec.folder, ignore_errors=True)  # an older launch's errors are not ours
        spec.folder.mkdir(parents=True)
        self._scratch = Path(tempfile.mkdtemp(prefix="stepguard-"))
        self._control = Control(self.token)
        try:
            self._agent = self._start()
        except BaseException:
            self._control.close()
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise

    def __enter__(self) -> "WorkerGroup":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start(self) -> "subprocess.Popen[bytes]":
        arguments = [
            "--nnodes=1",
            f"--nproc-per-node={self.spec.world_size}",
            "--rdzv-backend=c10d",
            "--rdzv-endpoint=127.0.0.1:0",
            f"--rdzv-id={self.token}",
            "--local-addr=127.0.0.1",
            "--max-restarts=0",
            "--monitor-interval=0.1",
            f"--log-dir={self.spec.folder / 'ranks'}",
            "--redirects=3",
            "--no-python",  # so that -P can be said: no torchrun option does
            *engine.command("stepguard.worker.main"),
        ]
        with (self.spec.folder / "agent.log").open("wb") as log:
            return subprocess.Popen(
                [*engine.command("stepguard.worker.agent"), *arguments],
                cwd=self.spec.root,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at the terminal is ours alone to handle
            )

    def _environment(self) -> dict[str, str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        env |= {
            "STEPGUARD_TOKEN": self.token,
            "STEPGUARD_SOCKET": self._control.name,
            "STEPGUARD_RUN_DIR": str(self.spec.folder),
            "STEPGUARD_SCRATCH": str(self._scratch),
            "STEPGUARD_HOST_PID": str(os.getpid()),
            "STEPGUARD_DEVICE": self.spec.device,
            "STEPGUARD_PRELOAD": " ".join(self.spec.preload),
            "TMPDIR": str(self._scratch),
            "PYTHONPATH": engine.import_path(
                self._scratch / "engine",
                self.spec.root,
                env.get("PYTHONPATH", ""),
                self.spec.forbidden,
            ),
            "PYTHONUNBUFFERED": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(self.spec.cache / "inductor"),
            "TRITON_CACHE_DIR": str(self.spec.cache / "triton"),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # so that NVML and CUDA count alike
        }
        if self.spec.one_of_several:  # torchrun gives a rank of several one thread unless told more
            env |= {"STEPGUARD_ONE_OF_SEVERAL": "1"}
            env.setdefault("OMP_NUM_THREADS", "1")
        if self.spec.device == "cpu":
            env |= {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": str(CPU_THREADS)}
        return env

    def hello(self, poll: Poll = lambda: None) -> None:
        """Wait until the ranks have imported torch and stand ready. Once is enough."""
        if self.pids:
            return
        with self._faults("start", poll):
            self.pids = self._control.accept(HELLO_LIMIT_S, self._watch)["pids"]

    def ready(self) -> bool:
        """Whether the ranks stand ready, without waiting. LaunchFailed if they never will."""
        if not self.pids and self._control.somebody_waits():
            self.hello()
        elif not self.pids and time.monotonic() - self.began > HELLO_LIMIT_S:
            raise LaunchFailed(self._diagnose("start", NoAnswer()))
        elif not self.pids and self._agent.poll() is not None:
            raise LaunchFailed(self._diagnose("start", LostWorker("the launcher ended")))
        return bool(self.pids)

    def request(
        self,
        command: str,
        *,
        limit_s: float,
        poll: Poll,
        progress: Callable[[str], None],
        **args: Any,
    ) -> list[Message]:
        """Every rank's answer to a command. Raises LaunchFailed with what went wrong instead."""
        left = self.began + self.spec.time_limit_s - time.monotonic()
        with self._faults(command, poll):
            return self._control.request(
                command, args, max(1.0, min(limit_s, left)), self._watch, progress
            )

    @contextlib.contextmanager
    def _faults(self, command: str, poll: Poll) -> Iterator[None]:
        self._poll = poll
        try:
            yield
        except (LostWorker, NoAnswer) as error:
            raise LaunchFailed(self._diagnose(command, error)) from None

    def _watch(self) -> None:
        """Notice a death at once; torch elastic may wait half a minute for the other ranks."""
        self._poll()
        if self._agent.poll() is not None:
            raise LostWorker("the launcher ended")
        for pid in self.pids:
            if not alive(pid):
                raise LostWorker(f"process {pid} ended")

    def _diagnose(self, command: str, error: Exception) -> Fault:
        scene = Scene(
            folder=self.spec.folder,
            world_size=self.spec.world_size,
            token=self.token,
            pids=tuple(self.pids),
            agent=self._agent,
            during=f"{self.spec.label}, {command}",
            waited_s=time.monotonic() - self.began,
        )
        return no_answer(scene) if isinstance(error, NoAnswer) else lost_worker(scene)

    def leave(self) -> None:
        """End in order: the ranks exit by themselves, then torchrun, which has nothing to add."""
        self._control.close()
        until = time.monotonic() + GONE_LIMIT_S
        while any(alive(pid) for pid in self.pids) and time.monotonic() < until:
            time.sleep(0.02)
        self.close()

    def close(self) -> None:
        """Kill what is left and remove the scratch folder. Safe to call twice.

        SIGINT is held back meanwhile: a second Ctrl-C must not leave processes on the GPU.
        """
        if self._closed:
            return
        with interrupts_held():
            self._control.close()
            until = time.monotonic() + GONE_LIMIT_S
            while True:
                self._agent.poll()  # reaps it
                if not kill_by_token(self.token) and not pids_by_token(self.token):
                    if self._agent.poll() is not None:
                        break
                if time.monotonic() > until:
                    raise RuntimeError(f"processes {pids_by_token(self.token)} do not die")
                time.sleep(0.02)
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._closed = True
