"""A training run: the guarded step with a schedule, validation, samples, a log and checkpoints.

run = Run(Options(size="nano", ...), Path("runs/a"))
run.resume(content)          # optional: a checkpoint
run.train()
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from model.checkpoint import CheckpointError, Checkpoints
from model.data.loader import BatchLoader
from model.data.shards import Tokens
from model.ddp import DdpSettings
from model.generate import Sampling, generate
from model.gpt import attention_context
from model.settings import Settings, check_int, check_number
from model.workloads import TrainStep, rank_and_world_size

LOG = "log.jsonl"


class TrainingError(RuntimeError):
    """A run that must not go on; one sentence."""


@dataclass(frozen=True)
class Options(Settings):
    """All that a run is started with: the settings of its step, and the following.

    Attributes:
        data: a token shard or a folder of them.
        val_fraction: of the stream, its end, kept for validation.
        micro_steps, grad_clip, weight_decay: as in ``model.workloads.train_step``.
        steps: of the whole run.
        lr, min_lr_share, warm_up_steps: see ``learning_rate``.
        log_every, eval_every, save_every: in steps.
        eval_batches: that each rank reads for a validation.
        sample_tokens: length of the sample after a validation; 0: none.
        peak_tflops: of one device, for MFU; 0: unknown.

    Raises:
        ValueError: a value is impossible, at all or on this machine.
    """

    data: str
    val_fraction: float
    micro_steps: int
    grad_clip: float
    weight_decay: float
    steps: int
    lr: float
    min_lr_share: float
    warm_up_steps: int
    log_every: int
    eval_every: int
    eval_batches: int
    save_every: int
    sample_tokens: int
    peak_tflops: float

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("micro_steps", "steps", "log_every", "eval_every", "eval_batches"):
            check_int(name, getattr(self, name))
        check_int("save_every", self.save_every)
        check_int("warm_up_steps", self.warm_up_steps, least=0)
        check_int("sample_tokens", self.sample_tokens, least=0)
        for name in ("lr", "weight_decay", "min_lr_share", "peak_tflops"):
            check_number(name, getattr(self, name), zero=True)
        check_number("grad_clip", self.grad_clip)
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"val_fraction is {self.val_fraction}; possible: between 0 and 1")

    def learning_rate(self, step: int) -> float:
        """Return the rate of ``step``, counted from 0: up to ``lr`` by equal steps in
        ``warm_up_steps``, then down along half a cosine to ``min_lr_share * lr`` (Loshchilov and
        Hutter 2017, without restarts, as GPT-3 was trained).
        """
        if step < self.warm_up_steps:
            return self.lr * (step + 1) / self.warm_up_steps
        done = (step - self.warm_up_steps) / max(1, self.steps - self.warm_up_steps)
        least = self.lr * self.min_lr_share
        return least + (self.lr - least) * (1 + math.cos(math.pi * min(1.0, done))) / 2

    def border(self, step: int) -> int:
        """Return the next step after ``step`` at which something is due."""
        dues = (self.log_every, self.eval_every, self.save_every)
        return min(self.steps, *(step + every - step % every for every in dues))


class Run:
    """A run in ``folder``, from step 0 or from where a checkpoint left it.

    Under an initialised ``torch.distributed`` every rank has to make one, with equal options.

    Attributes:
        step: steps done.
        stop: set it at any time to end the run after the next line, with a checkpoint.

    Raises:
        ValueError: an impossible option, or tokens that the model has no place for.
        OSError: the data or the folder cannot be used.
    """

    def __init__(
        self, options: Options, folder: Path, say: Callable[[str], None] = lambda text: None
    ) -> None:
        self.step, self.stop = 0, False
        self._options, self._folder = options, folder
        self._rank, self._world_size = rank_and_world_size()
        self.say = say if self._rank == 0 else lambda text: None
        tokens = Tokens.open(Path(options.data))
        vocab = options.config.vocab_size
        if tokens.vocab > vocab:
            raise ValueError(
                f"{options.data} has {tokens.vocab} ids (encoding {tokens.encoding}), size "
                f"{options.size} only {vocab}; choose another --size or --data"
            )
        self._tokens, held_out = tokens.split(options.val_fraction)
        self.workload = TrainStep(
            options,
            DdpSettings(),
            micro_steps=options.micro_steps,
            grad_clip=options.grad_clip,
            lr=options.lr,
            weight_decay=options.weight_decay,
            tokens=self._tokens,
        )
        shape, ranks = (options.batch, options.seq), (self._rank, self._world_size)
        self._held_out = BatchLoader(held_out, *shape, *ranks, options.torch_device, scatter=True)
        self._checkpoints = Checkpoints(folder)
        self._encoding = self._sampling_encoding() if options.sample_tokens else None

    def resume(self, content: dict[str, Any]) -> None:
        """Go on from a checkpoint's content, bit for bit on a CPU.

        Raises CheckpointError where it is of another model, other data or another number of ranks.
        """
        for name, found, wanted in (
            ("the model's shape", content["config"], asdict(self._options.config)),
            ("the encoding", content["encoding"], self._tokens.encoding),
            ("tokens to learn from", content["tokens"], len(self._tokens)),
            ("the number of ranks", len(content["rng"]), self._world_size),
        ):
            if found != wanted:
                raise CheckpointError(f"{name} is {wanted} here, the checkpoint has {found}")
        self.workload.load_state_dict(content["state"])
        states = content["rng"][self._rank]
        torch.set_rng_state(states["cpu"])
        if self._options.device == "cuda" and "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"])
        self.step = content["step"]

    def train(self) -> float:
        """Run to the end, or until ``stop``; return the last validation loss in nats."""
        options = self._options
        self._begin_log()
        val_loss, compiles = math.nan, options.compile
        while self.step < options.steps:
            # The step that compiles has a line of its own: it is no speed.
            self._steps(self.step + 1 if compiles else options.border(self.step))
            compiles = False
            ended = self._agreed_stop() or self.step == options.steps
            if ended or self.step % options.eval_every == 0:
                val_loss = self._validate()
            if ended or self.step % options.save_every == 0:
                self._save()
            if ended:
                break
        return val_loss

    def _steps(self, until: int) -> None:
        """Step up to ``until``; the host waits for the device once, at the end."""
        options, losses, norms, rates = self._options, [], [], []
        began_s, first = time.perf_counter(), self.step
        while self.step < until:
            rates.append(options.learning_rate(self.step))
            self.workload.set_lr(rates[-1])
            losses.append(self.workload.step())
            norms.append(self.workload.grad_norm.detach())
            self.step += 1
        read = torch.stack([*losses, *norms]).tolist()
        took_s = time.perf_counter() - began_s
        values = list(zip(read[: len(losses)], read[len(losses) :], rates, strict=True))
        speed = self._speed((self.step - first) / took_s)
        lines = []
        for step, (loss, norm, rate) in enumerate(values, start=first + 1):
            if not (math.isfinite(loss) and (math.isfinite(norm) or options.precision == "fp16")):
                raise TrainingError(
                    f"step {step}: loss {loss}, gradient norm {norm}; lower --lr (now {rate:.3g})"
                )
            lines.append({"step": step, "loss": loss, "grad_norm": norm, "lr": rate, **speed})
        self._log(*lines)
        self._tell(lines[-1], (options.steps - self.step) * took_s / len(values))

    def _speed(self, steps_per_s: float) -> dict[str, float]:
        tokens_per_s = steps_per_s * self.workload.tokens_per_step * self._world_size
        speed = {"tokens_per_s": tokens_per_s}
        if self._options.peak_tflops:
            peak = self._options.peak_tflops * 1e12
            speed["mfu_pct"] = 100 * steps_per_s * self.workload.flops_per_step / peak
        return speed

    def _tell(self, line: dict[str, float], left_s: float) -> None:
        minutes, seconds = divmod(round(left_s), 60)
        mfu = f"  MFU {line['mfu_pct']:.1f} %" if "mfu_pct" in line else ""
        self.say(
            f"step {self.step}/{self._options.steps}  loss {line['loss']:.4f}  "
            f"lr {line['lr']:.2e}  norm {line['grad_norm']:.3f}  "
            f"{line['tokens_per_s']:,.0f} tokens/s{mfu}  {minutes}:{seconds:02d} left"
        )

    @torch.no_grad()
    def _validate(self) -> float:
        """Return the mean loss over the first batches held out, of all ranks."""
        self._held_out.seek(0)
        total = torch.zeros((), device=self._options.torch_device)
        with self._options.autocast(), attention_context(self._options.attention):
            for _ in range(self._options.eval_batches):
                total += self.workload.model(*self._held_out.next())
        total /= self._options.eval_batches * self._world_size
        if self._world_size > 1:
            dist.all_reduce(total)
        val_loss = float(total)
        self._log({"step": self.step, "val_loss": val_loss})
        self.say(f"step {self.step}/{self._options.steps}  validation loss {val_loss:.4f}")
        self._sample()
        return val_loss

    def _sampling_encoding(self) -> Any:
        from model.data.tokenizer import get_encoding

        try:
            return get_encoding(self._tokens.encoding)
        except (OSError, RuntimeError, ValueError) as error:
            self.say(f"no samples: {error}")
            return None

    def _sample(self) -> None:
        """Write what the model makes of a line's beginning, or of nothing."""
        if self._rank or self._encoding is None:
            return
        from model.data.tokenizer import END_OF_TEXT

        start = self._encoding.encode(END_OF_TEXT, allowed_special="all")
        tokens = min(self._options.sample_tokens, self._options.config.block_size - len(start))
        sampling = Sampling(temperature=0.8, top_k=50, seed=self.step)
        ids = generate(self.workload.model, [start], tokens, sampling)[0]
        text = self._encoding.decode([i for i in ids if i < self._encoding.n_vocab])
        self._log({"step": self.step, "sample": text})
        self.say("\n".join(f"    | {line}" for line in text.splitlines()))

    def _agreed_stop(self) -> bool:
        """Return whether any rank was asked to stop: a signal reaches them at different steps."""
        if self._world_size == 1:
            return self.stop
        asked = torch.tensor(float(self.stop))
        dist.all_reduce(asked)
        return bool(asked.item())

    def _save(self) -> None:
        """Write a checkpoint; every rank takes part."""
        states = {"cpu": torch.get_rng_state()}
        if self._options.device == "cuda":
            states["cuda"] = torch.cuda.get_rng_state()
        rng: list[Any] = [states]
        if self._world_size > 1:
            rng = [None] * self._world_size
            dist.all_gather_object(rng, states)
        if self._rank:
            return
        content = {
            "config": asdict(self._options.config),
            "encoding": self._tokens.encoding,
            "tokens": len(self._tokens),
            "options": asdict(self._options),
            "rng": rng,
            "state": self.workload.state_dict(),
        }
        path = self._checkpoints.save(self.step, content)
        self.say(f"step {self.step}/{self._options.steps}  {path}")

    def _begin_log(self) -> None:
        """Drop what the log says of steps after this one: they come again."""
        if self._rank:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        entropy = self._tokens.unigram_entropy()
        head = {"options": asdict(self._options), "ranks": self._world_size}
        head |= {"unigram_entropy_nats": entropy, "torch": str(torch.__version__)}
        kept = [line for line in read_log(self._folder) if 0 < line.get("step", 0) <= self.step]
        text = "".join(json.dumps(line) + "\n" for line in [head, *kept])
        temporary = self._folder / f".{LOG}"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self._folder / LOG)
        self.say(
            f"{len(self._tokens):,} tokens of encoding {self._tokens.encoding}, unigram entropy "
            f"{entropy:.3f} nats; {self.workload.tokens_per_step * self._world_size:,} a step"
        )

    def _log(self, *lines: dict[str, Any]) -> None:
        if self._rank == 0:
            with (self._folder / LOG).open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's log; a last one that a kill cut off is left out."""
    path = folder / LOG
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found
