"""What a function does to its process, done in a fork of the test's: 20 ms, and nothing is left."""

import json
import os
from collections.abc import Callable
from typing import Any


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
