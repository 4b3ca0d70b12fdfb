"""Runs a launcher command beside pytest; whatever becomes of pytest, the launcher ends in order.

    STEPGUARD_TOKEN=... python -m stepguard.launch.nodes.run_launcher srun --nodes=2 ...

A launcher that is killed leaves what it has started on other nodes. So it is asked first (SIGTERM:
srun and mpirun then kill what they started), when the run closes the launch as well as when the
kernel tells that pytest is gone.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from stepguard.machine.lifeline import die_with_parent, kill_by_token, pids_by_token
from stepguard.worker.agent import STANDBY

ASK_LIMIT_S = 8.0


def end_launcher(token: str, spare: int = 0) -> None:
    """Ask all processes with the launcher's token to end, then kill what is left of them here."""
    for pid in pids_by_token(token):
        if pid != spare:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + ASK_LIMIT_S
    while set(pids_by_token(token)) - {spare} and time.monotonic() < until:
        time.sleep(0.05)
    kill_by_token(token, spare)


def main() -> None:
    """Run the command that the arguments are; end with its status."""
    token, scratch = os.environ["STEPGUARD_TOKEN"], os.environ["STEPGUARD_SCRATCH"]

    def caller_died(signum: int, frame: FrameType | None) -> None:
        end_launcher(token, spare=os.getpid())
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)

    signal.signal(signal.SIGUSR1, caller_died)
    if not die_with_parent(int(os.environ["STEPGUARD_HOST_PID"]), signal.SIGUSR1):
        caller_died(signal.SIGUSR1, None)
    if os.environ.pop("STEPGUARD_STANDBY", ""):
        # At once: nothing is imported here, and on several nodes no launch starts ahead of time.
        Path(scratch, STANDBY).touch()
        if not sys.stdin.buffer.read(1):
            caller_died(signal.SIGUSR1, None)
    status = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
