"""Run a launcher command beside pytest, and end the launcher in order, whatever happens to pytest.

    STEPGUARD_TOKEN=... python -m stepguard.launch.nodes.run_launcher srun --nodes=2 ...

A killed launcher leaves processes on other nodes. So it is asked to end first (SIGTERM: srun and
mpirun then kill what they started), both when the run closes the launch and when the kernel reports
that pytest is gone.
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
    """Ask all processes with the launcher's token to end. Then kill those that are left here."""
    for pid in pids_by_token(token):
        if pid != spare:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + ASK_LIMIT_S
    while set(pids_by_token(token)) - {spare} and time.monotonic() < until:
        time.sleep(0.05)
    kill_by_token(token, spare)


def main() -> None:
    """Run the command that the arguments are. End with its status."""
    token, scratch = os.environ["STEPGUARD_TOKEN"], os.environ["STEPGUARD_SCRATCH"]

    def caller_died(signum: int, frame: FrameType | None) -> None:
        end_launcher(token, spare=os.getpid())
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)

    signal.signal(signal.SIGUSR1, caller_died)
    if not die_with_parent(int(os.environ["STEPGUARD_HOST_PID"]), signal.SIGUSR1):
        caller_died(signal.SIGUSR1, None)
    if os.environ.pop("STEPGUARD_STANDBY", ""):
        # At once: this process imports nothing, and on several nodes no launch starts ahead of
        # time.
        Path(scratch, STANDBY).touch()
        if not sys.stdin.buffer.read(1):
            caller_died(signal.SIGUSR1, None)
    status = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
