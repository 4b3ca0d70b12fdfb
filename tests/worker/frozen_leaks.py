"""Leaks that Python's collector does not see, counted as in a rank.

It runs by itself: where gc.freeze() hides leaks, the engine has the collector walk through all that
the process holds, and a process of tests holds five times as much.
"""

import gc
import json

import torch

from stepguard.worker.counters import garbage
from stepguard.worker.counters.collector import hides_more, live_objects, note_frozen
from stepguard.worker.counters.kept_memory import live_tensor_bytes
from stepguard.worker.counters.memory_counters import count_memory
from stepguard.worker.counters.tally import RankStep, Tally

garbage.PAUSED_STEPS = 5  # what the collector's pauses cost is not asked here


def leaks(hidden):
    """Bytes a step that are counted of steps whose tensors the collector does not see."""
    weight, kept = torch.ones(250, requires_grad=True), []

    def held():
        """A bare storage, and a graph that keeps a product's factor."""
        kept.append(torch.zeros(1000, dtype=torch.uint8).untyped_storage())
        kept.append((weight * torch.ones(250)).grad_fn)

    def frozen():
        """Garbage, and a tensor."""
        made = [torch.zeros(1000, dtype=torch.uint8)]
        made.append(made)
        kept.append(torch.zeros(3000, dtype=torch.uint8))
        gc.freeze()
        gc.disable()

    found = {}
    for step in (held, frozen):
        tally, counted = Tally(), RankStep(step, torch.device("cpu"), frozen=hidden)
        count_memory(tally, counted)
        found[step.__name__] = tally.values["leaked_bytes_per_step"]
    live_tensor_bytes(hidden)
    # What is frozen is in no generation of the collector's.
    return [found, gc.isenabled(), any(one is kept[-1] for one in gc.get_objects())]


def seen(hidden, freezes):
    """How many of a workload's tensors are seen after each step, some of which freeze."""
    kept, found = [], []
    for freeze in freezes:
        kept.append(torch.zeros(1000, dtype=torch.uint8))
        if freeze:
            gc.freeze()
        hides_more(hidden)  # to ask changes nothing
        alive = {*map(id, live_objects(hidden))}
        found.append(sum(id(one) in alive for one in kept))
    return found


def hide():
    """Freeze all, as an agent does before it forks a rank; the key of what is frozen."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    return note_frozen()


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = {"seen": [seen(hide(), freezes) for freezes in ((0, 1, 0, 1, 1), (1, 0))]}
    print(json.dumps(found | {"leaks": leaks(hide())}))
