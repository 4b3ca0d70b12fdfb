"""torchrun, with one promise added: nothing outlives the process that asked for the launch.

torch elastic starts its ranks in sessions of their own, so a killed caller would leave them on the
GPU. The kernel tells this process when its caller dies (PR_SET_PDEATHSIG); it then kills every
process of the launch, found by the launch's token in its environment, and removes the launch's
temporary directory.

With STEPGUARD_STANDBY it imports what torchrun needs, says so by a file, and starts the ranks when
a byte comes on its standard input; if that ends instead, so does it.

    STEPGUARD_TOKEN=... python -m stepguard.worker.agent --nproc-per-node=2 -m stepguard.worker.main
"""

import os
import runpy
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from stepguard.worker.lifeline import die_with_parent, kill_by_token

STANDBY = "standby"  # in the scratch folder: a launch on standby has imported, and waits


def main() -> None:
    """Watch the caller, then become torchrun with this process's arguments."""
    token, scratch = os.environ["STEPGUARD_TOKEN"], os.environ["STEPGUARD_SCRATCH"]

    def caller_died(signum: int, frame: FrameType | None) -> None:
        until = time.monotonic() + 5.0
        while kill_by_token(token, spare=os.getpid()) and time.monotonic() < until:
            time.sleep(0.02)  # until none is found: one may be born while the others are killed
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)

    # SIGUSR1, since torch elastic installs handlers of its own for TERM, INT, HUP and QUIT.
    signal.signal(signal.SIGUSR1, caller_died)
    if not die_with_parent(int(os.environ["STEPGUARD_HOST_PID"]), signal.SIGUSR1):
        caller_died(signal.SIGUSR1, None)
    # For the ranks, whose parent this process is: they ask the kernel to die with it.
    os.environ["STEPGUARD_AGENT_PID"] = str(os.getpid())
    if os.environ.pop("STEPGUARD_STANDBY", ""):
        import torch.distributed.launcher  # noqa: F401  all that takes long

        Path(scratch, STANDBY).touch()
        if not sys.stdin.buffer.read(1):
            caller_died(signal.SIGUSR1, None)
    sys.argv[0] = "torchrun"
    try:
        # In this process, since it is the one that the kernel signals when the caller dies.
        runpy.run_module("torch.distributed.run", run_name="__main__")
    finally:  # whoever started this may be killed before it does so
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
