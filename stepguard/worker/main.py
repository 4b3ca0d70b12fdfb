"""A rank's process: serves the host, and dies with its launcher.

What goes wrong is written to a file of the rank's own, since any rank may fail and only rank 0 can
speak.

    torchrun --nproc-per-node=2 -m stepguard.worker.main
"""

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path

from stepguard.worker.lifeline import die_with_parent
from stepguard.worker.position import Note

# By name, since its module imports torch, and that may be what failed.
BAD_WORKLOAD = ("stepguard.worker.session", "BadWorkload")


def main() -> None:
    """Serve until ``exit``; leave a description of what went wrong in a file, if anything did."""
    if not die_with_parent(int(os.environ["STEPGUARD_AGENT_PID"]), signal.SIGKILL):
        os._exit(1)
    rank = os.environ.get("RANK", "0")
    folder = Path(os.environ["STEPGUARD_RUN_DIR"])
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # the host asks where a rank hangs
    sys.path.insert(1, os.getcwd())  # behind the engine: the tree may hold another one
    note = Note(folder / f"note-{rank}")
    try:
        # Imported here, since it imports torch: what fails there has to be reported too.
        from stepguard.worker.session import Session

        Session(note).serve()
        sys.stdout.flush()
        os._exit(0)  # tearing the interpreter and CUDA down takes seconds and tells nothing
    # SystemExit, too: a workload that leaves would otherwise end without a reason.
    except BaseException as error:
        description = {
            "type": type(error).__name__,
            "message": str(error),
            "traceback": traceback.format_exc(),
            "bad_workload": (type(error).__module__, type(error).__name__) == BAD_WORKLOAD,
            "out_of_memory": type(error).__name__ == "OutOfMemoryError",
            # One clock for all processes of a node: the first to fail is taken for the cause.
            "at_ns": time.perf_counter_ns(),
        }
        (folder / f"error-{rank}.json").write_text(json.dumps(description))
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # a rank stuck in another thread's collective must not hold up the exit


if __name__ == "__main__":
    main()
