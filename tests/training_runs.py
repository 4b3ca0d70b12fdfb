"""Options of short training runs, on a CPU and on a GPU; and processes for such tests."""

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # else each fork would import it, for its optimizer
import torch.distributed as dist
import torch.multiprocessing as mp

from model.config import GPTConfig
from model.data.shards import STDLIB_SHARD
from model.train import leave_group
from model.training import Options

TINY = GPTConfig(n_layer=2, n_head=2, n_embd=16, block_size=32, vocab_size=8256)


def short_run(**changed: Any) -> Options:
    """Eight steps of the size "tiny", which the caller has to offer in ``model.config.SIZES``."""
    shape = {"size": "tiny", "batch": 2, "seq": 16, "precision": "fp32", "compile": False}
    step = {"attention": "default", "seed": 1337, "device": "cpu", "micro_steps": 2}
    step |= {"fast": False}
    learning = {"grad_clip": 1.0, "weight_decay": 0.1, "lr": 1e-2, "min_lr_share": 0.1}
    run = {"data": str(STDLIB_SHARD), "val_fraction": 0.05, "steps": 8, "warm_up_steps": 3}
    every = {"log_every": 2, "eval_every": 4, "eval_batches": 2, "save_every": 4}
    last = {"sample_tokens": 0, "peak_tflops": 0.5}
    return Options(**{**shape, **step, **learning, **run, **every, **last, **changed})


# How processes that train are started. Where there are GPUs, a backward pass starts threads that a
# fork lacks: there a server is forked, which has imported as much.
START = "forkserver" if torch.cuda.is_available() else "fork"
multiprocessing.set_forkserver_preload(["model.train", "torch.distributed", "torch._dynamo"])


def run_two_ranks(function: Callable[[int, str], None], folder: Path) -> None:
    """Call ``function(rank, folder)`` in two processes with a gloo group."""
    given = (function, str(folder))
    mp.start_processes(_rank, args=given, nprocs=2, start_method=START)


def _rank(rank: int, function: Callable[[int, str], None], folder: str) -> None:
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=2)
    function(rank, folder)
    leave_group()
