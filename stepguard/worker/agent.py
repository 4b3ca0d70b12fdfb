"""The process that runs torchrun's engine and forks a node's ranks of a launch. It adds one
promise: nothing outlives the process that asked for the launch.

Ranks are in sessions of their own, so a killed caller would leave them on the GPU. The kernel tells
this process when its caller dies (PR_SET_PDEATHSIG). This process then kills every process of the
launch, found by the launch's token in the environment, and removes the launch's temporary folder.

With STEPGUARD_STANDBY it imports all that ranks need and says so with a file. It starts the ranks
when a byte comes on its standard input. It ends if the input ends instead.

    STEPGUARD_TOKEN=... python -m stepguard.worker.agent '{"ranks": 2, "node": 0, ...}'
"""

import contextlib
import faulthandler
import gc
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from stepguard.machine.lifeline import ENDING_SIGNALS, die_with_parent, kill_by_token

STANDBY = "standby"  # in the scratch folder: a launch on standby has imported, and waits


def main() -> None:
    """Watch the caller, import, and run ranks with the keywords of ranks.run, as JSON."""
    token, scratch = os.environ["STEPGUARD_TOKEN"], os.environ["STEPGUARD_SCRATCH"]

    def end_launch(signum: int, frame: FrameType | None) -> None:
        until = time.monotonic() + 5.0
        while kill_by_token(token, spare=os.getpid()) and time.monotonic() < until:
            time.sleep(0.02)  # until none is left: one may start while the others are killed
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)

    faulthandler.register(signal.SIGUSR2, all_threads=True)  # the host asks where an import hangs
    for ending in ENDING_SIGNALS:
        signal.signal(ending, end_launch)
    if not die_with_parent(int(os.environ["STEPGUARD_HOST_PID"]), signal.SIGUSR1):
        end_launch(signal.SIGUSR1, None)
    # For the ranks, which ask the kernel to die with this process, their parent.
    os.environ["STEPGUARD_AGENT_PID"] = str(os.getpid())
    try:
        # Imports make no garbage. Looking for some would take a sixth of their time.
        gc.disable()
        # Imported here, once for all ranks, since it imports torch.
        from stepguard.worker import rank_session, ranks

        rank_session.preload("STEPGUARD_SHARED")
        try_widest_instructions()
        if os.environ.pop("STEPGUARD_STANDBY", ""):
            Path(scratch, STANDBY).touch()
            if not sys.stdin.buffer.read(1):
                end_launch(signal.SIGUSR1, None)
        # The ranks' collector does not search frozen objects, and so does not copy their pages.
        gc.freeze()
        gc.enable()
        status = ranks.run(**json.loads(sys.argv[1]))
    finally:  # the caller may be killed before it can remove the folder
        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(status)  # there is nothing to tear down


def try_widest_instructions() -> None:
    """Limit the compiler, if it is imported, to the widest vector instructions of the CPU that
    work. It would use these anyway. But to find them it would try all others, too, by compiling ten
    programs one after the other.
    """
    module: Any = sys.modules.get("torch._inductor.cpu_vec_isa")
    all_of_them = getattr(module, "valid_vec_isa_list", None)
    if all_of_them is None:
        return

    def widest() -> Any:
        with contextlib.suppress(Exception):  # private to torch; on an error torch tries by itself
            if module.config.cpp.simdlen is None and not os.environ.get("ATEN_CPU_CAPABILITY"):
                known, has = module.supported_vec_isa_list, {*module.x86_isa_checker()}
                of_cpu = (isa for isa in known if {*str(isa).split()} <= has)
                if (widest_isa := next(filter(bool, of_cpu), None)) is not None:
                    return [widest_isa]
        return all_of_them()

    module.valid_vec_isa_list = widest


if __name__ == "__main__":
    main()
