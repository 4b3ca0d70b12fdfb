"""A rank of somebody else's training script, run as it is; see measure.py.

    torchrun ... -m studies.build_nanogpt.their_rank SCRIPT MOST_STEPS

Nothing in the script is changed. From outside come: a ``hellaswag`` module with one made-up example
for each rank and a ``tiktoken`` without encodings, since both would want a network; and a
``time.time`` that notes when the script's own loop calls it, at the begin and at the end of a step.
"""

import os
import runpy
import sys
import time
import types
from collections.abc import Callable
from typing import Any

from studies.build_nanogpt.orders import Borders, Leave, Line
from studies.common.ranks import tie_rank


def stand_ins() -> dict[str, types.ModuleType]:
    """Modules that stand in for those which fetch files."""

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
    """A ``time.time`` that counts the calls from the script's own level, which come in twos.

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
    """As the script itself counts them, over all ranks; KeyError where it has other names."""
    loader = names["train_loader"]
    return int(loader.B * loader.T * names["grad_accum_steps"] * names["ddp_world_size"])


def main() -> None:
    """Run the script until the order to leave."""
    tie_rank()
    script, most = sys.argv[1], int(sys.argv[2])
    sys.modules.update(stand_ins())
    sys.argv = [script]
    time.time = watched(script, Borders(Line(), most), time.time)
    try:
        runpy.run_path(script, run_name="__main__")
    except Leave:
        sys.stdout.flush()
        os._exit(0)  # the other ranks leave at the same moment: nothing to take leave of
    raise SystemExit(f"{script} ended by itself")


if __name__ == "__main__":
    main()
