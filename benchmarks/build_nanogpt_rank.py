"""A rank of build_nanogpt.py, under torchrun: so many steps of one side, and what they took.

    torchrun ... -m benchmarks.build_nanogpt_rank theirs SCRIPT LEAD_IN STEPS FOLDER
    torchrun ... -m benchmarks.build_nanogpt_rank ours PARAMETERS LEAD_IN STEPS FOLDER

Nothing in their script is changed. From outside come a ``hellaswag`` module with one made-up
example for each rank, a ``tiktoken`` without encodings, since both would want a network, and a
``time.time`` that notes when the script's own loop calls it: where a step begins and ends.
Our step learns at the rate of their loop: under a power cap a step's time follows the parameters.
"""

import json
import os
import runpy
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

MOST_RATE, WARM_UP_STEPS = 6e-4, 715  # theirs rises to it by equal steps; a launch ends before that


class Over(Exception):
    """All steps are timed."""


class Borders:
    """Times a loop from outside: ``reached()`` is called where each of its steps begins.

    The loop has waited for its device there. Time runs from the border after the lead-in to the
    border after the last step, so that whatever the loop does between its steps is in it.
    """

    def __init__(self, lead_in: int, steps: int, now_ns: Callable[[], int]) -> None:
        self._lead_in, self._steps, self._now_ns = lead_in, steps, now_ns
        self._done, self._began_ns = -1, 0
        self.step_ms, self.tokens_per_step = 0.0, 0

    def reached(self, tokens_per_step: int) -> None:
        """Count a border; raise Over at the last one."""
        now_ns = self._now_ns()
        self._done += 1
        if self._done == self._lead_in:
            self._began_ns = now_ns
        if self._done == self._lead_in + self._steps:
            self.step_ms = (now_ns - self._began_ns) / 1e6 / self._steps
            self.tokens_per_step = tokens_per_step
            raise Over


def stand_ins() -> dict[str, types.ModuleType]:
    """Return modules that stand in for those which fetch files."""

    def iterate_examples(split: str) -> list[int]:
        return list(range(int(os.environ.get("WORLD_SIZE", "1"))))

    def render_example(example: int) -> tuple[dict[str, Any], Any, Any, int]:
        import torch

        tokens = torch.arange(4 * 8).view(4, 8) + example
        return {}, tokens, torch.ones_like(tokens), 0

    def get_encoding(name: str) -> object:
        return object()  # used first in step 250, which is never reached

    hellaswag, tiktoken = types.ModuleType("hellaswag"), types.ModuleType("tiktoken")
    vars(hellaswag).update(iterate_examples=iterate_examples, render_example=render_example)
    vars(tiktoken).update(get_encoding=get_encoding)
    return {"hellaswag": hellaswag, "tiktoken": tiktoken}


def watched(script: str, borders: Borders, real: Callable[[], float]) -> Callable[[], float]:
    """Return a ``time.time`` that counts the calls from the script's own level, which come in twos.

    Libraries call it as well, from other files, and functions of the script may: they pass.
    """
    calls = 0

    def now() -> float:
        nonlocal calls
        frame = sys._getframe(1)
        if frame.f_code.co_filename == script and frame.f_code.co_name == "<module>":
            calls += 1
            if calls % 2 == 1:
                borders.reached(tokens_per_step(frame.f_globals))
        return real()

    return now


def tokens_per_step(names: dict[str, Any]) -> int:
    """Return the tokens of a step over all ranks as the script counts them; KeyError where it has
    other names.
    """
    loader = names["train_loader"]
    return int(loader.B * loader.T * names["grad_accum_steps"] * names["ddp_world_size"])


def theirs(script: str, lead_in: int, steps: int) -> Borders:
    """Run their script until its steps are timed. Raises RuntimeError where it ends before."""
    borders, real = Borders(lead_in, steps, time.perf_counter_ns), time.time
    sys.modules.update(stand_ins())
    sys.argv = [script]
    time.time = watched(script, borders, real)
    try:
        runpy.run_path(script, run_name="__main__")
    except Over:
        return borders
    finally:
        time.time = real
    raise RuntimeError(f"{script} ended before {lead_in} + {steps} steps")


def ours(params: dict[str, Any], lead_in: int, steps: int) -> Borders:
    """Run our step: nothing waits for the device between its steps, only before and behind them."""
    import torch
    import torch.distributed as dist

    from model.workloads import train_step

    cuda = params["device"] == "cuda"
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    workload = train_step(**params)
    borders = Borders(lead_in, steps, time.perf_counter_ns)
    tokens = workload.tokens_per_step * dist.get_world_size()
    try:
        for number in range(lead_in + steps + 1):
            if cuda and number in (lead_in, lead_in + steps):
                torch.cuda.synchronize()
            borders.reached(tokens)
            for group in workload.optimizer.param_groups:
                group["lr"] = MOST_RATE * (number + 1) / WARM_UP_STEPS
            workload.step()
    except Over:
        pass
    return borders


def reserved_bytes() -> int:
    """Return the most that torch's allocator has held on this rank's GPU; 0 without one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return 0
    return int(torch.cuda.max_memory_reserved())


def main() -> None:
    """Run one side and write what it took."""
    side, what, lead_in, steps, folder = sys.argv[1:]
    count = int(lead_in), int(steps)
    found = theirs(what, *count) if side == "theirs" else ours(json.loads(what), *count)
    said = {"step_ms": found.step_ms, "tokens_per_step": found.tokens_per_step}
    text = json.dumps(said | {"reserved_bytes": reserved_bytes()})
    Path(folder, f"rank{os.environ['RANK']}.json").write_text(text)
    sys.stdout.flush()
    os._exit(0)  # the other ranks leave at the same moment: nothing to take leave of


if __name__ == "__main__":
    main()
