"""A training loop as a workload: a script, or a function that runs one."""

import builtins
import contextlib
import getpass
import inspect
import math
import os
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any

from stepguard.core.case import BY_OPTIMIZER, Case
from stepguard.worker.counters.locate import keep_tree, raised_at
from stepguard.worker.loops.step_borders import RestingLoop, StepBorders, modes
from stepguard.worker.rank_channel import let_script_join
from stepguard.worker.workload import BadWorkload, build, find_function

# What torchrun sets. A script that finds RANK believes that it is one of several.
OF_TORCHRUN = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)
# Steps of a launch that are not timed: the counting pass, and what settles before it.
COUNTED_STEPS = 50
NO_LINE = "EOF when reading a line"  # the message of input()'s EOFError, and of no other
_NOT_SET = re.compile(r"environment variable (\w+) expected, but not set")
NO_STEP = (
    "no optimizer of torch stepped twice outside of a compiled function: mark the end of each step "
    "with stepguard.step(), or name a function that ends one, --step-at module:function"
)
OF_ITSELF = (
    "--step-at {name} is in the script itself, whose functions do not exist before it runs: call "
    "stepguard.step() at the end of each step instead"
)
INSIDE_OF_RANGE = (
    "{name} ends its steps inside of a record_function that it does not leave after each step, or "
    "leaves by an error: nothing can be profiled from there; leave it before the next step begins"
)
# torch keeps modes in a stack. A loop that left its mode would remove the counting mode above it,
# and nothing would be counted.
INSIDE_OF_MODE = (
    "{name} ends its step inside of a mode of torch that each step enters and leaves, such as "
    "torch.device(...) or FlopCounterMode: mark the end of each step outside of it, with "
    "stepguard.step()"
)


def workload_of(case: Case, device: str, timed_s: float = 0.0) -> Any:
    """Return what the factory makes, or its loop after one step. Raises BadWorkload."""
    if case.loop is None:
        return build(case.workload, dict(case.params), device)
    return LoopedWorkload(case, device, timed_s)


class LoopedWorkload:
    """Runs a case's loop, a step at a time."""

    def __init__(self, case: Case, device: str, timed_s: float) -> None:
        assert case.loop is not None
        run = _runner(case, device)
        if case.is_script:
            _refuse_of_itself(case.workload, case.loop.step_at)
        keep_tree()
        self.tokens_per_step = case.loop.tokens_per_step
        self._every, self._timed_s = case.loop.every, timed_s
        self._name = case.workload
        self._step_s = math.inf  # the shortest step so far
        self._under_torchrun = case.needs_torchrun
        if self._under_torchrun:
            let_script_join()
        else:
            forget_torchrun()
        self._loop = RestingLoop(run)
        self._borders = StepBorders(case.loop, self._loop)
        self._borders.watch()
        began = perf_counter()
        self.step()
        # With the script's imports, data and model; a compiled step compiles here.
        self.first_border_s = perf_counter() - began

    def step(self) -> None:
        """Run the loop to the next border. Raises BadWorkload if it ends, or asks for input."""
        began, outside = perf_counter(), modes()
        try:
            rests = self._loop.run_to_border()
        except SystemExit as error:
            raise BadWorkload(self._exited(error)) from None
        except BadWorkload:
            raise
        except Exception as error:
            if _asks(error):
                place = raised_at(error)
                raise BadWorkload(
                    f"{self._name} asks for input {self._when()} ({place.file}:{place.line}), "
                    "where nobody can answer: give it as an argument, or in a file"
                ) from None
            if not self._under_torchrun and (variable := _missing_variable(error)):
                place = raised_at(error)
                raise BadWorkload(
                    f"{self._name} needs {variable}, which torchrun sets ({place.file}:"
                    f"{place.line}): add --torchrun, in a test loop=Loop(torchrun=True)"
                ) from None
            error.add_note(f"raised by {self._name} {self._when()}")
            raise
        if not rests:
            raise BadWorkload(self._too_short())
        # The first step may enter a mode that the whole loop runs in.
        inside = modes()
        if [*map(id, inside)] != [*map(id, outside)] and self._step_s < math.inf:
            raise BadWorkload(INSIDE_OF_MODE.format(name=self._name))
        self._step_s = min(self._step_s, perf_counter() - began)

    def _when(self) -> str:
        steps = self._borders.seen
        return f"in step {steps + 1}" if steps else "before its first step had ended"

    def _too_short(self) -> str:
        if self._borders.missed_rest:
            return INSIDE_OF_RANGE.format(name=self._name)
        steps = self._borders.seen
        if not steps and self._borders.has_one_optimizer_step:
            return (
                f"{self._name} ended after 1 step, and a launch needs several hundred: let it "
                "train longer, by an argument or by an edit of it"
            )
        if not steps:
            return f"{self._name} ended before the end of a step was seen: {NO_STEP}"
        needed = COUNTED_STEPS * self._every
        if self._step_s < math.inf:
            needed += math.ceil(self._timed_s / self._step_s) * self._every
        return (
            f"{self._name} ended after {steps} steps, and a launch needs about {needed}: let it "
            "train longer, by an argument or by an edit of it"
        )

    def _exited(self, error: SystemExit) -> str:
        done = error.code in (None, 0)
        if done and self._borders.seen:
            return self._too_short()
        if isinstance(error.code, str):
            return f"{self._name} left {self._when()}: {error.code}"
        # A script that finds no GPU, or no data, often prints so and exits as if all were well.
        last = _last_line("stdout" if done else "stderr")
        said = f", its last line: {last}" if last else ""
        return f"{self._name} left {self._when()} with status {error.code or 0}{said}"


def _runner(case: Case, device: str) -> Callable[[], object]:
    if case.is_script:
        _, as_module, module = case.workload.partition("-m ")
        if as_module:
            return lambda: run_module(module, case.args)
        if not Path(case.workload).is_file():
            raise BadWorkload(f"there is no script {case.workload} in {os.getcwd()}")
        return lambda: run_script(case.workload, case.args)
    function = find_function(case.workload)
    params = dict(case.params)
    signature = inspect.signature(function)
    if "device" in signature.parameters:
        params.setdefault("device", device)
    try:
        signature.bind(**params)
    except TypeError as error:
        raise BadWorkload(f"{case.workload}: {error}") from None
    return lambda: function(**params)


def _refuse_of_itself(script: str, step_at: str) -> None:
    """Raise BadWorkload if a step ends at a function of the script, which no import may run."""
    module = step_at.partition(":")[0]
    named = [module]
    with contextlib.suppress(ImportError, ValueError):
        spec = find_spec(module) if step_at != BY_OPTIMIZER else None
        named += [os.path.relpath(spec.origin)] if spec and spec.origin else []
    if {"__main__", script.removeprefix("-m ")} & {*named}:
        raise BadWorkload(OF_ITSELF.format(name=step_at))


def _asks(error: Exception) -> bool:
    """Tell whether input() or getpass() raised the error. A cut file raises EOFError, too."""
    if not isinstance(error, EOFError):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return str(error) == NO_LINE or frames[-1].filename == getpass.__file__


def _missing_variable(error: Exception) -> str:
    """Return the variable of torchrun that a script lacked; empty if it failed in another way."""
    if isinstance(error, KeyError) and error.args[:1] and error.args[0] in OF_TORCHRUN:
        return str(error.args[0])
    said = _NOT_SET.search(str(error))  # by init_process_group()
    return said[1] if said else ""


def _last_line(stream: str) -> str:
    """Return the last line of this rank's log of "stdout" or "stderr"; else empty."""
    getattr(sys, stream).flush()
    name = f"{stream}-{os.environ.get('RANK', 0)}.log"
    try:
        lines = Path(os.environ.get("STEPGUARD_RUN_DIR", ""), name).read_text(errors="replace")
    except OSError:
        return ""
    written = [line.strip() for line in lines.split("\n") if line.strip()]
    return written[-1] if written else ""


def run_script(path: str, args: Sequence[str]) -> None:
    """Run the script ``path`` of the working directory as ``__main__``. Raises what it raises."""
    file = Path(path).absolute()
    code = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=str(file),
        __builtins__=builtins,
        __cached__=None,
        # Spawned processes read both, to import the script again.
        __loader__=SourceFileLoader("__main__", str(file)),
        __spec__=None,
    )
    sys.modules["__main__"] = main
    sys.argv = [path, *args]
    # Python puts the script's folder first. Ranks have the working directory in their path, too, as
    # if it were on PYTHONPATH, where a project often is.
    sys.path.insert(0, str(file.parent))
    exec(code, main.__dict__)


def run_module(name: str, args: Sequence[str]) -> None:
    """Run a module as ``python -m name`` would. Raises what it raises."""
    sys.argv = ["-m", *args]  # runpy puts the module's file in the first place
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def forget_torchrun() -> None:
    """Remove torchrun's variables from the environment, for the script of a rank that is alone."""
    for name in OF_TORCHRUN:
        os.environ.pop(name, None)
