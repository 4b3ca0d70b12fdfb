"""Train a GPT-2 with a step that the suite guards.

    python -m model.train --out runs/a                   # on a CPU: learns in some minutes
    python -m model.train --out runs/a --resume          # goes on as if never interrupted
    torchrun --nproc-per-node 4 -m model.train --out runs/b --data shards/ --size 124m
    python -m model.generate runs/a --prompt "def "

Nothing in a step waits for the device: losses and norms are read once a line, every --log-every
steps. Validation, samples and checkpoints are off the clock; they use the bare model, whose
parameters the compiled one shares, since other shapes would be compiled anew. Ctrl-C or SIGTERM
ends the run after a line, with a checkpoint.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from model.checkpoint import CheckpointError, Checkpoints, load
from model.config import SIZES
from model.data.shards import STDLIB_SHARD
from model.gpt import ATTENTION_BACKENDS
from model.settings import PRECISIONS, USUAL, possible_devices
from model.training import LOG, Options, Run, TrainingError, read_log

DEFAULTS: dict[str, dict[str, Any]] = {
    "cpu": USUAL["cpu"] | {"micro_steps": 1, "steps": 600, "lr": 3e-3, "warm_up_steps": 50},
    "cuda": USUAL["cuda"] | {"micro_steps": 2, "steps": 2000, "lr": 6e-4, "warm_up_steps": 200},
}
# Data sheets, dense half precision, TFLOP/s.
PEAK_TFLOPS = {"NVIDIA H100 80GB HBM3": 989.0, "NVIDIA H200": 989.0}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m model.train",
        description=main.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder of the log and the checkpoints")
    add("--resume", action="store_true", help="go on from the newest checkpoint, if any")
    add("--resume-from", type=Path, help="go on from this checkpoint")
    add(
        "--device",
        choices=possible_devices(),
        default=possible_devices()[-1],
        help="cuda: a GPU a rank",
    )
    add("--data", default=str(STDLIB_SHARD), help="a token shard, or a folder of them")
    add("--val-fraction", type=float, default=0.05, help="of the tokens, for validation")
    add("--size", choices=SIZES, help="of the GPT-2; nano: 3 layers")
    add("--batch", type=int, help="sequences a micro-step and rank")
    add("--seq", type=int, help="tokens a sequence")
    add("--micro-steps", type=int, help="batches a step")
    add("--precision", choices=PRECISIONS, help="of products; parameters stay in fp32")
    add(
        "--attention",
        choices=ATTENTION_BACKENDS,
        default="default",
        help="its kernel; default: as torch chooses",
    )
    add("--compile", action=argparse.BooleanOptionalAction, help="the model, by torch.compile")
    add(
        "--fast",
        action=argparse.BooleanOptionalAction,
        # Several GPUs have not trained on it yet.
        default=os.environ.get("WORLD_SIZE", "1") == "1",
        help="on a GPU in bf16 train on model.fast, the default of one rank",
    )
    add("--seed", type=int, default=1337, help="of the initial parameters")
    add("--steps", type=int, help="of the whole run")
    add("--lr", type=float, help="highest learning rate")
    add("--min-lr-share", type=float, default=0.1, help="of it that the cosine ends at")
    add("--warm-up-steps", type=int, help="until the learning rate is highest")
    add("--weight-decay", type=float, default=0.1, help="of matrices and embeddings")
    add("--grad-clip", type=float, default=1.0, help="highest norm of the gradients")
    add("--log-every", type=int, default=10, help="steps a line, and a wait for the device")
    add("--eval-every", type=int, default=100, help="steps between validations")
    add("--eval-batches", type=int, default=8, help="of a validation, on each rank")
    add("--save-every", type=int, default=100, help="steps between checkpoints")
    add("--sample-tokens", type=int, default=60, help="after a validation; 0: no sample")
    add("--peak-tflops", type=float, default=0.0, help="of a device, for MFU; known: H100, H200")
    parser.set_defaults(**DEFAULTS[possible_devices()[-1]])  # which --help shows
    return parser


def _options(arguments: list[str]) -> tuple[argparse.Namespace, dict[str, Any] | None]:
    """Return the options and the checkpoint to go on from, whose options hold unless given."""
    parser = _parser()
    first = parser.parse_args(arguments)
    parser.set_defaults(**DEFAULTS[first.device])
    path = first.resume_from or (first.resume and Checkpoints(first.out).newest())
    content = load(path) if path else None
    if content:
        parser.set_defaults(**content["options"])
    elif Checkpoints(first.out).newest() and not first.resume_from:
        raise CheckpointError(f"{first.out} has checkpoints: add --resume, or take another --out")
    return parser.parse_args(arguments), content


def _build(arguments: list[str]) -> tuple[Run, Path]:
    given, content = _options(arguments)
    values = dict(vars(given))
    out = values.pop("out")
    del values["resume"], values["resume_from"]
    if not given.peak_tflops and given.device == "cuda" and given.precision in ("bf16", "fp16"):
        values["peak_tflops"] = PEAK_TFLOPS.get(torch.cuda.get_device_name(), 0.0)
    options = Options(**values)
    run = Run(options, out, lambda text: print(text, flush=True))
    if content:
        run.resume(content)
        was = content["options"]
        changed = [f"{k} {was.get(k)} -> {v}" for k, v in values.items() if was.get(k) != v]
        run.say(f"going on after step {run.step}; changed: {', '.join(changed) or 'nothing'}")
    elif given.resume:  # a job that may be preempted says --resume from its first start on
        run.say(f"{out} has no checkpoint: beginning at step 0")
    return run, out


@contextmanager
def group_of_ranks() -> Iterator[None]:
    """Join torchrun's group, if it started this process."""
    if "RANK" not in os.environ:
        yield
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield
    finally:
        leave_group()


def leave_group() -> None:
    """Leave the group of ranks, after all that DDP holds of it has gone."""
    # Its reducer, were it the last owner, would join gloo's thread while it holds the GIL, which
    # that thread may be waiting for.
    gc.collect()
    dist.destroy_process_group()


@contextmanager
def _stopping(run: Run) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM ask the run to stop; the second one ends the process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: object) -> None:
        run.stop = True
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def plot(folder: Path) -> Path | None:
    """Draw a run's losses over its steps into ``curve.svg``; None where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    log = read_log(folder)
    trained = [(line["step"], line["loss"]) for line in log if "loss" in line]
    held_out = [(line["step"], line["val_loss"]) for line in log if "val_loss" in line]
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    axes.plot(*zip(*trained, strict=True), linewidth=0.7, label="training")
    axes.plot(*zip(*held_out, strict=True), marker="o", label="validation")
    entropy = log[0]["unigram_entropy_nats"]
    axes.axhline(entropy, linestyle="--", color="grey", label=f"unigram entropy {entropy:.2f}")
    axes.set(xlabel="step", ylabel="loss [nats]", title=f"model.train, {log[0]['options']['size']}")
    axes.legend()
    path = folder / "curve.svg"
    figure.savefig(path)
    pyplot.close(figure)
    return path


def main(arguments: list[str]) -> int:
    """Train a GPT-2 with a step that the suite guards."""
    with group_of_ranks():
        try:
            return _train(arguments)
        except (CheckpointError, OSError, TrainingError, ValueError) as error:
            print(f"model.train: {error}", file=sys.stderr)
            return 1


def _train(arguments: list[str]) -> int:
    run, out = _build(arguments)
    with _stopping(run):
        run.train()
    if int(os.environ.get("RANK", "0")) == 0:
        drawn = plot(out)
        curve = drawn or f"not drawn (pip install matplotlib); the figures are in {out / LOG}"
        print(f"{'stopped' if run.stop else 'done'} after step {run.step}; curve: {curve}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
