"""Runs a script in this process as ``python train.py --lr=1`` would in one of its own."""

import builtins
import os
import runpy
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

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
