"""Run a launcher command beside pytest, and end the launcher in order, whatever happens to pytest.

    STEPGUARD_TOKEN=... python -m stepguard.launch.nodes.run_launcher srun --nodes=2 ...

A launcher that is killed leaves processes on other nodes. So it first gets SIGTERM, on which srun
and mpirun kill what they started. This happens when the run closes the launch, and when the kernel
reports that pytest is gone.
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
    """Ask all processes with the launcher's token to end. After ASK_LIMIT_S kill those that are
    left on this host. The process ``spare`` is left alone.
    """
    for pid in pids_by_token(token):
        if pid != spare:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + ASK_LIMIT_S
    while set(pids_by_token(token)) - {spare} and time.monotonic() < until:
        time.sleep(0.05)
    kill_by_token(token, spare)


def main() -> None:
    """Run the command in the arguments. Exit with its status, or with 128 plus its signal."""
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
    status = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    main()
