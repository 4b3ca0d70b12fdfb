"""The true size of changes: steps of several trees alternate in one process, for seconds.

    python -m studies.power.sizes BASE HEAD [HEAD ...] --seconds 40

Each tree's training step is built from its own ``model/``; then blocks of about a second follow in
mirrored order, synchronize to synchronize. Prints one JSON object: for each tree but the first, how
much longer its step takes, in percent, with a 95 % interval over the blocks.

A tree that says which attention kernels are allowed says it to the whole process: each has its own.
"""

import argparse
import contextlib
import gc
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._functorch import config as functorch

from perf_tests.parameters import NANO_STEP, SEED_STEP
from studies.common.series import mirrored, ratio

BLOCK_S, SETTLE_S = 1.0, 5.0
ATTENTION = ("flash", "mem_efficient", "math", "cudnn")


class Step:
    """The training step of a tree, with what that tree allows of attention."""

    def __init__(self, tree: Path, device: str) -> None:
        before = allowed()
        params = SEED_STEP if device == "cuda" else NANO_STEP
        # A trace that another tree left does not depend on what is allowed.
        with functorch.patch(enable_autograd_cache=False), modules_of(tree) as workloads:
            self._workload = workloads.train_step(**params, device=device)
            self._workload.step()
            self._workload.step()
        self._allowed = allowed()
        allow(before)

    def run_s(self, steps: int, synchronize: Callable[[], None]) -> float:
        """Return the seconds of a step, over so many."""
        allow(self._allowed)
        synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            self._workload.step()
        synchronize()
        return (time.perf_counter() - began) / steps


def allowed() -> list[bool]:
    """Return which of the ATTENTION kernels may be chosen."""
    return [bool(getattr(torch.backends.cuda, f"{name}_sdp_enabled")()) for name in ATTENTION]


def allow(kernels: list[bool]) -> None:
    """Let these of the ATTENTION kernels be chosen, and no others."""
    for name, on in zip(ATTENTION, kernels, strict=True):
        getattr(torch.backends.cuda, f"enable_{name}_sdp")(on)


@contextlib.contextmanager
def modules_of(tree: Path) -> Iterator[Any]:
    """Import a tree's workloads; at the end forget its modules, so that the next one's come."""
    sys.path.insert(0, str(tree))
    try:
        module = importlib.import_module("model.workloads")
        if tree.resolve() not in Path(str(module.__file__)).resolve().parents:
            raise SystemExit(f"{module.__file__} is not in {tree}")
        yield module
    finally:
        sys.path.remove(str(tree))
        for name in [one for one in sys.modules if one.partition(".")[0] == "model"]:
            del sys.modules[name]


def sizes(trees: list[Path], device: str, seconds: float) -> list[dict[str, Any]]:
    """Measure the trees against the first one, for so many seconds after they are built."""
    synchronize: Callable[[], None] = torch.cuda.synchronize if device == "cuda" else lambda: None
    workloads = {str(at): Step(tree, device) for at, tree in enumerate(trees)}
    block_s, settle_s = (BLOCK_S, SETTLE_S) if device == "cuda" else (0.2, 0.5)
    step_s = {name: one.run_s(2, synchronize) for name, one in workloads.items()}
    steps = max(1, round(block_s / max(step_s.values())))
    began = time.monotonic()
    while time.monotonic() - began < settle_s:
        workloads["0"].run_s(steps, synchronize)
    gc.collect()
    gc.disable()
    series: list[dict[str, float]] = []
    began = time.monotonic()
    while time.monotonic() - began < seconds or len(series) < 2:
        order = mirrored(list(workloads), len(series))
        series.append({name: workloads[name].run_s(steps, synchronize) for name in order})
    return [
        ratio([(1e3 * one[name], 1e3 * one["0"]) for one in series])
        | {"base_ms": 1e3 * sum(one["0"] for one in series) / len(series)}
        for name in list(workloads)[1:]
    ]


def main() -> None:
    """Print the sizes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("trees", type=Path, nargs="+")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, default=40.0, help="(%(default)s)")
    options = parser.parse_args()
    print(json.dumps(sizes(options.trees, options.device, options.seconds)))


if __name__ == "__main__":
    main()
