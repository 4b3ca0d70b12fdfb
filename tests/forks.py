"""What a function does to its process, done in a fork of the test's: 20 ms, and nothing is left."""

import json
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

LIMIT_S = 900  # of torchrun, on a machine that is busy with something else


def in_a_fork(function: Callable[[], Any]) -> dict[str, Any]:
    """Return what a function returns there, as JSON has it: {"is": ...}; or what it raised."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            result = {"is": function()}
        except BaseException as error:
            notes = getattr(error, "__notes__", [])
            result = {"raised": type(error).__name__, "says": str(error), "notes": notes}
        with os.fdopen(writing, "w") as file:
            json.dump(result, file)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        result = json.load(file)
    os.waitpid(pid, 0)
    return result


def torchrun(arguments: list[str], log: Path, folder: Path, **variables: str) -> dict[str, Any]:
    """Return how ``python -m torch.distributed.run`` ends, in a fork that holds torch already. What
    it and its ranks print is in the log. ``folder``: where it runs. A fork that hangs is ended.
    """

    def run() -> None:
        signal.alarm(LIMIT_S)
        with log.open("wb") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
        os.chdir(folder)
        os.environ.update(variables)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        sys.argv = ["torchrun", *arguments]
        runpy.run_module("torch.distributed.run", run_name="__main__")

    return in_a_fork(run)
