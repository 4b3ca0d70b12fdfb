"""Start a group of ranks under torchrun, and end it however this process ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from stepguard.worker.lifeline import die_with_parent
from studies.common.results import ROOT

END_S = 20.0  # what torchrun gets to end its ranks before it is killed; they then die with it


def start(
    program: Sequence[str],
    count: int,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    output: int | None = None,
) -> "subprocess.Popen[bytes]":
    """Start torchrun with ``count`` ranks of ``program`` (a path or ``-m module``, and arguments).

    The rendezvous stays on the loopback interface: a machine need not know its own name.
    """
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        f"--nproc-per-node={count}",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=127.0.0.1:0",
        "--local-addr=127.0.0.1",
        "--max-restarts=0",
        "--monitor-interval=0.2",
        *program,
    ]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    # One thread a rank, as torchrun itself would set it, but without its warning.
    full = {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    parent = os.getpid()
    return subprocess.Popen(
        command,
        cwd=cwd,
        env=full | dict(env or {}),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
        preexec_fn=lambda: _tie(parent),
    )


def _tie(parent: int) -> None:
    if not die_with_parent(parent, signal.SIGTERM):
        os._exit(1)


def tie_rank() -> None:
    """Make this rank end with its torchrun; called first of all."""
    if not die_with_parent(os.getppid(), signal.SIGKILL):
        os._exit(1)


def end(group: "subprocess.Popen[bytes]") -> None:
    """End torchrun and its ranks; safe to call on a group that has ended."""
    if group.poll() is None:
        group.terminate()
        try:
            group.wait(END_S)
        except subprocess.TimeoutExpired:
            group.kill()
    group.wait()


def wait(group: "subprocess.Popen[bytes]", limit_s: float) -> int:
    """Return the group's exit status, or end it and raise TimeoutError after ``limit_s``."""
    until = time.monotonic() + limit_s
    try:
        while group.poll() is None:
            if time.monotonic() > until:
                raise TimeoutError(f"the ranks did not end within {limit_s:.0f} s")
            time.sleep(0.1)
    finally:
        end(group)
    return int(group.returncode)
