"""Training runs that are killed with SIGKILL at random moments, and what is not as it was."""

import multiprocessing
import os
import random
import signal
import sys
import time
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

import torch
from training_runs import START

from model.checkpoint import Checkpoints, load
from model.train import main as train
from model.training import read_log

STEPS = 12
RUN = ["--device", "cpu", "--batch", "1", "--seq", "16", "--steps", str(STEPS), "--log-every", "1"]
RUN += ["--save-every", "1", "--eval-every", "6", "--eval-batches", "1", "--sample-tokens", "0"]


def trained(context: BaseContext, arguments: list[str], after_s: float | None) -> bool:
    """Train in a process that gets SIGKILL after so long; return whether it had to.

    Raises RuntimeError where it ended in another way.
    """
    process = context.Process(target=_train, args=(arguments,))
    process.start()
    process.join(after_s)
    alive = process.is_alive()
    if alive and process.pid:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    if process.exitcode not in (0, -signal.SIGKILL):
        raise RuntimeError(f"a run ended with status {process.exitcode}: {' '.join(arguments)}")
    return process.exitcode != 0


def _train(arguments: list[str]) -> None:
    # No curve is drawn: it is half of a run's time, and all of that is behind the last step.
    sys.modules["matplotlib"] = None  # type: ignore[assignment]
    sys.exit(train(arguments))


def killed_often(folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Return at which steps a run was killed, and what is not as in a run that never was."""
    context, draw = multiprocessing.get_context(START), random.Random(seed)
    whole, parts = folder / "whole", folder / "parts"
    if START != "fork":
        trained(context, ["--out", str(folder / "first"), *RUN], None)  # the server has to start
    began_s = time.perf_counter()
    trained(context, ["--out", str(whole), *RUN], None)
    whole_s = time.perf_counter() - began_s
    reached: list[int] = []
    at = begun_anew = 0
    while len(reached) < kills:
        # Of a run that goes on there is less left to be killed in. The start is no training.
        after_s = draw.uniform(0.3, 1.0) * whole_s * (1 - at / STEPS)
        if trained(context, ["--out", str(parts), "--resume", *RUN], after_s):
            newest = Checkpoints(parts).newest()
            at = load(newest)["step"] if newest else 0
            reached.append(at)
        else:  # it had come to its end
            at = STEPS
        if at == STEPS and len(reached) < kills:
            at, begun_anew = 0, begun_anew + 1
            for path in parts.iterdir():
                path.unlink()
    trained(context, ["--out", str(parts), "--resume", *RUN], None)
    return {
        "kills": kills,
        "newest_whole_checkpoint_at_each": reached,
        "begun_anew": begun_anew,
        "differs": differing(parts, whole),
    }


def differing(found: Path, expected: Path) -> list[str]:
    """Return what of the newest states and of the logs is not the same."""
    ours, theirs = (load(Checkpoints(one).paths()[-1])["state"] for one in (found, expected))
    paths = [name for name, value in leaves(theirs).items() if not _same(leaves(ours)[name], value)]
    losses = [
        [(line["step"], line["loss"]) for line in read_log(one) if "loss" in line]
        for one in (found, expected)
    ]
    return paths + (["log"] if losses[0] != losses[1] or not losses[0] else [])


def leaves(value: Any, name: str = "") -> dict[str, Any]:
    """Return every tensor and number of a nested state, by its path."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found: dict[str, Any] = {}
    for key, inner in items:
        deeper = isinstance(inner, dict | list | tuple)
        found |= leaves(inner, f"{name}/{key}") if deeper else {f"{name}/{key}": inner}
    return found


def _same(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if torch.is_tensor(other) else bool(one == other)
