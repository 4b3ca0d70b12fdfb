"""Bring the ranks of a launch together: the engine's own channel, and the workload's group.

On one node ranks meet through a file, without an open port. Each group has its own keys in the one
store, so a script can make its process group beside the channel.
"""

import functools
import itertools
import os
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import _rendezvous_handlers, rendezvous

Meeting = tuple[dist.Store, int, int]  # the store, this rank, the number of ranks


@functools.cache
def _store() -> dist.Store:
    """Return the store in which this launch's ranks find each other."""
    if path := os.environ.get("STEPGUARD_STORE"):  # of a launch on one node; see launch/torchrun.py
        return dist.FileStore(path, int(os.environ["WORLD_SIZE"]))
    store, _, _ = next(rendezvous("env://"))
    return store


def meet(name: str) -> Meeting:
    """Return what a rank needs to make the group ``name``: the store, this rank, and the number of
    ranks. Use each name for one group only.
    """
    ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return dist.PrefixStore(name, _store()), *ranks


def join_process_group(backend: str) -> None:
    """Join the other ranks, if there are any. If a case with several ranks runs with one, this rank
    joins a group of one: its workload may reduce without asking how many ranks there are.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    store, rank, ranks = meet("group")
    # No device_id: that would open NCCL at once, on a card that another launch is measured on.
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks)


def let_script_join() -> None:
    """Have a script that calls init_process_group() meet in the launch's own store."""
    _store()  # opened first, since the store of several nodes needs torch's own handler
    numbers = itertools.count()  # a group that was destroyed leaves its keys

    def by_launch(url: str, *others: Any, **more: Any) -> Iterator[Meeting]:
        yield meet(f"script-{next(numbers)}")

    _rendezvous_handlers["env"] = by_launch
