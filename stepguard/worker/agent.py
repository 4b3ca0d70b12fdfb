"""The process that runs torchrun's engine and forks a launch's ranks of one node, with one promise
added: nothing outlives the process that asked for the launch.

Ranks are in sessions of their own, so a killed caller would leave them on the GPU. The kernel tells
this process when its caller dies (PR_SET_PDEATHSIG); it then kills every process of the launch,
found by the launch's token in its environment, and removes the launch's temporary directory.

With STEPGUARD_STANDBY it imports all that ranks need, says so by a file, and starts them when a
byte comes on its standard input; if that ends instead, so does it.

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
    """Watch the caller, import, and run ranks with the first argument's keywords of ranks.run."""
    token, scratch = os.environ["STEPGUARD_TOKEN"], os.environ["STEPGUARD_SCRATCH"]

    def end_launch(signum: int, frame: FrameType | None) -> None:
        until = time.monotonic() + 5.0
        while kill_by_token(token, spare=os.getpid()) and time.monotonic() < until:
            time.sleep(0.02)  # until none is found: one may be born while the others are killed
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)

    faulthandler.register(signal.SIGUSR2, all_threads=True)  # the host asks where an import hangs
    for ending in ENDING_SIGNALS:
        signal.signal(ending, end_launch)
    if not die_with_parent(int(os.environ["STEPGUARD_HOST_PID"]), signal.SIGUSR1):
        end_launch(signal.SIGUSR1, None)
    # For the ranks, whose parent this process is: they ask the kernel to die with it.
    os.environ["STEPGUARD_AGENT_PID"] = str(os.getpid())
    try:
        # What an import makes stays: to look for garbage meanwhile takes a sixth of its time.
        gc.disable()
        # Here, since it imports torch, for all ranks at once.
        from stepguard.worker import rank_session, ranks

        rank_session.preload("STEPGUARD_SHARED")
        try_widest_instructions()
        if os.environ.pop("STEPGUARD_STANDBY", ""):
            Path(scratch, STANDBY).touch()
            if not sys.stdin.buffer.read(1):
                end_launch(signal.SIGUSR1, None)
        # Ranks need not look through it either, nor copy its pages, to collect.
        gc.freeze()
        gc.enable()
        status = ranks.run(**json.loads(sys.argv[1]))
    finally:  # whoever started this may be killed before it does so
        shutil.rmtree(scratch, ignore_errors=True)
    os._exit(status)  # there is nothing to tear down


def try_widest_instructions() -> None:
    """Let the compiler, if it is imported, try no more of the CPU's vector instructions than it
    will use when a rank first compiles: the widest that work. By itself it compiles ten programs,
    one after the other, to know of all the others, too.
    """
    module: Any = sys.modules.get("torch._inductor.cpu_vec_isa")
    all_of_them = getattr(module, "valid_vec_isa_list", None)
    if all_of_them is None:
        return

    def widest() -> Any:
        with contextlib.suppress(Exception):  # private to torch, which then tries by itself
            if module.config.cpp.simdlen is None and not os.environ.get("ATEN_CPU_CAPABILITY"):
                known, has = module.supported_vec_isa_list, {*module.x86_isa_checker()}
                of_cpu = (isa for isa in known if {*str(isa).split()} <= has)
                if (widest_isa := next(filter(bool, of_cpu), None)) is not None:
                    return [widest_isa]
        return all_of_them()

    module.valid_vec_isa_list = widest


if __name__ == "__main__":
    main()
