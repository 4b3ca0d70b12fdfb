"""By how much do the numbers of a step move if its form changes, or if it computes another thing?

Each change is made in a copy of ``model/`` and trains in a process of its own. A move is the
largest of one kind of number, relative to the unchanged step's. What is said is the judge's.

    python -m benchmarks.changed_numbers --device cuda --processes 14 --out numbers.json

The unchanged step of another torch or machine is one more row, if its numbers are here:

    python -m benchmarks.changed_numbers --only=none --keep here.json --out alone.json
    python -m benchmarks.changed_numbers --beside here.json --out numbers.json    # the other one
"""

import argparse
import json
import math
import multiprocessing
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # which an optimizer imports: once here, not in each launch
from msgspec import convert, structs, to_builtins

from benchmarks.refactors import REFACTORS
from benchmarks.shared import GPT, ROOT, WORKLOADS, Change, git
from stepguard.core.metrics import NUMBERS
from stepguard.core.reason_sentences import MovedNumbers
from stepguard.core.step_numbers import StepNumbers
from stepguard.judge.compare_numbers import FLOOR_SHARE, LIMITS, moved_numbers, moves_of, shown
from stepguard.worker.counters.numbers import count_numbers
from stepguard.worker.counters.tally import RankStep, Tally

SHAPES: dict[str, dict[str, Any]] = {
    "cpu": {"size": "nano", "batch": 2, "seq": 64, "compile": False},
    "cuda": {"size": "124m", "batch": 2, "seq": 512, "compile": False},
}
PRECISIONS = {"cpu": ("fp32", "bf16"), "cuda": ("fp32", "tf32", "bf16", "fp16")}
TIMES = {"not learning": (0.0, 0), "learning": (6e-4, 0), "after 8 steps": (6e-4, 8)}
WRONG_AT, WRONG_IN = "learning", ("fp32", "bf16")
_ATTEND = "        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)\n"
_PRODUCT = "            for part in self.c_attn(x).split(width, dim=2)\n"
_GELU = 'F.gelu(self.c_fc(x), approximate="tanh")'
_MLP = '        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))\n'
_PROJECT = "        return self.c_proj(mixed.transpose(1, 2).reshape(batch, seq, width))\n"
_ATTENTION = "        x = x + self.attn(self.ln_1(x))\n"
_BRANCH = "        return x + self.mlp(self.ln_2(x))\n"
_LOSS = "        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())\n"
_LOGITS = "        logits = F.linear(x, self.wte.weight)\n"
_FINAL = "        x = self.ln_f(self._blocks(x))\n"
_POSITIONS = "        positions = torch.arange(idx.shape[1], device=idx.device)\n"
_LAYERS = "        for block in self.h:\n"
_SHARE = "            loss = self._forward(*self._loader.next()) / count\n"
_BACKWARD = "                self._scaler.scale(loss).backward()\n"
_CLIP = "self.model.parameters(), self._grad_clip, foreach=True\n"
_ADAMW = "    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)\n"
_DECAYS = '        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},\n'
_STEPPED = "            self._scaler.step(self.optimizer)\n"


@dataclass(frozen=True)
class Variant:
    """A change of the sources or of the parameters, and how many threads compute."""

    edits: tuple[tuple[str, str, str], ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1


def _gpt(old: str, new: str) -> Variant:
    return Variant(((GPT, old, new),))


def _step(old: str, new: str) -> Variant:
    return Variant(((WORKLOADS, old, new),))


def _written_out(mask: str, scale: str = "(width // self.n_head) ** -0.5") -> str:
    return (
        f"        scores = query @ key.transpose(2, 3) * {scale}\n"
        f"        seen = torch.ones(seq, seq, dtype=torch.bool, device=x.device){mask}\n"
        "        mixed = scores.masked_fill(~seen, -math.inf).softmax(3).to(value.dtype) @ value\n"
    )


# Of a kind each: functions, loops, classes.
REFACTORED = ("a helper extracted", "a loop in place of the first call", "sizes in a dataclass")
HONEST = {
    **{name: Variant(REFACTORS[name].edits) for name in REFACTORED},
    "compiled": Variant(params={"compile": True}),
    "two threads": Variant(threads=2),
    "attention by plain products": Variant(params={"attention": "math"}),
    "attention written out": _gpt(_ATTEND, _written_out(".tril()")),
    "query, key and value in a product each": _gpt(
        _PRODUCT,
        "            for part in (\n"
        "                F.linear(x, weight, bias)\n"
        "                for weight, bias in zip(\n"
        "                    self.c_attn.weight.chunk(3), self.c_attn.bias.chunk(3)\n"
        "                )\n"
        "            )\n",
    ),
    "projection in four products": _gpt(
        _PROJECT,
        "        parts = mixed.transpose(1, 2).reshape(batch, seq, width).chunk(4, dim=2)\n"
        "        weights = self.c_proj.weight.chunk(4, dim=1)\n"
        "        return sum(map(F.linear, parts, weights), self.c_proj.bias)\n",
    ),
    "a bias added behind its product": _gpt(
        _MLP, _MLP.replace("self.c_fc(x)", "F.linear(x, self.c_fc.weight) + self.c_fc.bias")
    ),
    "tanh GELU written out": _gpt(
        _MLP,
        "        x = self.c_fc(x)\n"
        "        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)\n"
        "        return self.c_proj(0.5 * x * (1 + torch.tanh(inner)))\n",
    ),
    "norm written out": _gpt(
        _BRANCH,
        "        y = x - x.mean(2, keepdim=True)\n"
        "        y = y * torch.rsqrt(y.square().mean(2, keepdim=True) + 1e-5)\n"
        "        return x + self.mlp(y * self.ln_2.weight + self.ln_2.bias)\n",
    ),
    "loss of two halves": _gpt(
        _LOSS,
        "        pairs = zip(logits.chunk(2), targets.chunk(2), strict=True)\n"
        "        losses = [F.cross_entropy(one.flatten(0, 1), t.flatten()) for one, t in pairs]\n"
        "        return (losses[0] + losses[1]) / 2\n",
    ),
    "logits of two halves": _gpt(
        _LOGITS, "        logits = torch.cat([F.linear(y, self.wte.weight) for y in x.chunk(2)])\n"
    ),
    "logits widened before the loss": _gpt(
        _LOSS, _LOSS.replace("logits.flatten", "logits.float().flatten")
    ),
    "one batch in place of two": Variant(params={"batch": 4, "micro_steps": 1}),
    "four batches in place of two": Variant(params={"batch": 1, "micro_steps": 4}),
    "losses scaled after their backward pass": Variant(
        (
            (WORKLOADS, _SHARE, _SHARE.replace(" / count", "")),
            (WORKLOADS, _BACKWARD, _BACKWARD.replace("(loss)", "(loss * (1 / count))")),
            (
                WORKLOADS,
                "        return loss.detach()\n\n    def _gradients",
                "        return loss.detach() / count\n\n    def _gradients",
            ),
        )
    ),
    "clip without foreach": _step(_CLIP, _CLIP.replace("True", "False")),
    "AdamW by foreach": _step(_ADAMW, _ADAMW.replace("fused=True", "foreach=True")),
    "AdamW one by one": _step(_ADAMW, _ADAMW.replace("fused=True", "foreach=False")),
}
OF_A_GPU = {
    "kernels of model/fast": Variant(params={"fast": True}),
    "flash attention": Variant(params={"attention": "flash"}),
    "efficient attention": Variant(params={"attention": "efficient"}),
    "attention of cuDNN": Variant(params={"attention": "cudnn"}),
}
HALF_ALONE = ("kernels of model/fast", "flash attention", "attention of cuDNN")
WRONG = {
    "softmax scale doubled": _gpt(
        _ATTEND, _ATTEND.replace("True)", "True, scale=2.0 / query.shape[-1] ** 0.5)")
    ),
    "softmax without scale": _gpt(_ATTEND, _ATTEND.replace("True)", "True, scale=1.0)")),
    "no mask": _gpt(_ATTEND, _ATTEND.replace("True", "False")),
    "mask sees one token ahead": _gpt(_ATTEND, _written_out(".tril(1)")),
    "mask forgets beyond 48 tokens": _gpt(_ATTEND, _written_out(".tril().triu(-47)")),
    "query and key swapped": _gpt(
        _ATTEND, _ATTEND.replace("query, key, value", "key, query, value")
    ),
    "residual of attention dropped": _gpt(_ATTENTION, _ATTENTION.replace("x + ", "")),
    "residual of the MLP dropped": _gpt(_BRANCH, _BRANCH.replace("x + ", "")),
    "last layer skipped": _gpt(_LAYERS, _LAYERS.replace("self.h", "self.h[:-1]")),
    "layers in reverse": _gpt(_LAYERS, _LAYERS.replace("self.h", "reversed(self.h)")),
    "norm before attention removed": _gpt(_ATTENTION, _ATTENTION.replace("self.ln_1(x)", "x")),
    "last norm removed": _gpt(_FINAL, "        x = self._blocks(x)\n"),
    "norms with eps 1e-3": _gpt(_BRANCH, "        self.ln_2.eps = 1e-3\n" + _BRANCH),
    "GELU exact": _gpt(_MLP, _MLP.replace(', approximate="tanh"', "")),
    "ReLU for GELU": _gpt(_MLP, _MLP.replace(_GELU, "F.relu(self.c_fc(x))")),
    "positions begin at 1": _gpt(_POSITIONS, _POSITIONS + "        positions = positions + 1\n"),
    "positions forgotten": _gpt(_POSITIONS, _POSITIONS + "        positions = positions * 0\n"),
    "dropout of 0.1": _gpt(
        _BRANCH, _BRANCH.replace("self.mlp(", "F.dropout(self.mlp(").replace("(x))", "(x)), 0.1)")
    ),
    "attention's input detached": _gpt(_ATTENTION, _ATTENTION.replace("(x))", "(x).detach())")),
    "value detached": _gpt(_ATTEND, _ATTEND.replace("value,", "value.detach(),")),
    "output weights detached": _gpt(_LOGITS, _LOGITS.replace("weight)", "weight.detach())")),
    "labels shifted": _gpt(_LOSS, _LOSS.replace("targets.f", "targets.roll(1, 1).f")),
    "labels smoothed by 0.01": _gpt(
        _LOSS, _LOSS.replace("flatten())", "flatten(), label_smoothing=0.01)")
    ),
    "last token left out": _gpt(
        _LOSS, _LOSS.replace("logits.", "logits[:, :-1].").replace("targets.", "targets[:, :-1].")
    ),
    "sum in place of mean": _gpt(_LOSS, _LOSS.replace("flatten())", 'flatten(), reduction="sum")')),
    "logits rounded to bf16": _gpt(  # in bf16 they are already
        _LOGITS, _LOGITS + "        logits = logits.bfloat16().float()\n"
    ),
    "loss not divided by the batches": _step(_SHARE, _SHARE.replace(" / count", "")),
    "backward pass not divided by the batches": _step(
        _BACKWARD, _BACKWARD.replace("(loss)", "(loss * count)")
    ),
    "first batch's gradient lost": _step(
        _BACKWARD, "                self.optimizer.zero_grad()\n" + _BACKWARD
    ),
    "first batch twice": _step(
        _SHARE,
        "            if index:\n"
        "                self._loader.seek(self._loader.position - self._loader._stride)\n"
        + _SHARE,
    ),
    "clip removed": _step(_CLIP, _CLIP.replace("self._grad_clip", "1e9")),
    "clip at twice the norm": _step(_CLIP, _CLIP.replace("self._grad_clip", "2 * self._grad_clip")),
    "gradients rounded to bf16": _step(
        _STEPPED,
        "            for parameter in self.model.parameters():\n"
        "                parameter.grad = parameter.grad.bfloat16().float()\n" + _STEPPED,
    ),
    "AdamW with eps 1e-3": _step(_ADAMW, _ADAMW.replace("betas", "eps=1e-3, betas")),
    "AdamW with beta 0.999": _step(_ADAMW, _ADAMW.replace("0.95", "0.999")),
    "decay on biases and norms": _step(_DECAYS, _DECAYS.replace("0.0", "weight_decay")),
    "Adam for AdamW": _step(_ADAMW, _ADAMW.replace("AdamW", "Adam")),
    "every second update left out": _step(
        _STEPPED,
        "            self._odd = not getattr(self, '_odd', False)\n"
        "            if not self._odd:\n"
        "                self.optimizer.zero_grad()\n" + _STEPPED,
    ),
}


@dataclass(frozen=True)
class Launch:
    """A variant in one precision, at one time of training."""

    kind: str  # "unchanged", "elsewhere", "again", "honest" or "wrong"
    name: str
    variant: Variant
    precision: str
    time: str
    device: str = "cpu"


def take(launch: Launch) -> Tally:
    """Return the numbers of a launch's steps, in a process that has not trained yet."""
    lr, before = TIMES[launch.time]
    torch.set_num_threads(launch.variant.threads)
    params = SHAPES[launch.device] | {"precision": launch.precision, "lr": lr}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT / "model", Path(folder, "model"))
        Change(launch.variant.edits).plant(Path(folder))
        for name in [name for name in sys.modules if name.partition(".")[0] == "model"]:
            del sys.modules[name]  # whoever forks may have imported the unchanged one
        sys.path.insert(0, folder)
        from model.workloads import train_step

        workload = train_step(device=launch.device, **params | launch.variant.params)
        for _ in range(1 + before):
            workload.step()
        tally = Tally()
        count_numbers(tally, RankStep(workload.step, torch.device(launch.device)))
    single = launch.precision == "fp32"  # what the counting pass sees in an eager step
    return replace(tally, numbers=structs.replace(tally.numbers, single=single))


def planned(device: str, only: str = "", again: int = 10) -> list[Launch]:
    """Return all launches, the unchanged ones first."""
    where = [(precision, time) for precision in PRECISIONS[device] for time in TIMES]
    plain = partial(Launch, name="nothing", variant=Variant(), device=device)
    launches = [plain("unchanged", precision=p, time=t) for p, t in where]
    for precision, time in where:
        if time == WRONG_AT:
            launches += [plain("again", precision=precision, time=time)] * again
        kinds = {"honest": HONEST | (OF_A_GPU if device == "cuda" else {})}
        kinds |= {"wrong": WRONG} if time == WRONG_AT and precision in WRONG_IN else {}
        launches += [
            Launch(kind, name, variant, precision, time, device)
            for kind, variants in kinds.items()
            for name, variant in variants.items()
            if only in name and (precision in ("bf16", "fp16") or name not in HALF_ALONE)
        ]
    return launches


def row(launch: Launch, now: Tally, past: Tally) -> dict[str, Any]:
    """Return what a launch's numbers moved by, and what the judge says of them."""
    assert now.numbers and past.numbers
    largest: dict[str, float] = {}
    for move in moves_of(now.numbers, past.numbers):
        share = move.size * LIMITS[move.kind][now.numbers.single]
        largest[move.kind] = max(share, largest.get(move.kind, 0.0))
    moved = moved_numbers(now.numbers, past.numbers)
    options = sorted(now.detail[NUMBERS].keys() ^ past.detail[NUMBERS].keys())
    said = MovedNumbers(moved=tuple(shown(moved))).text if moved else ", ".join(options)
    about = {"kind": launch.kind, "change": launch.name, "precision": launch.precision}
    moves = {kind: float(f"{share:.2g}") for kind, share in largest.items() if share < math.inf}
    return {**about, "time": launch.time, "largest moves": moves, "said": said}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a line for each change, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=SHAPES, default="cpu")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--again", type=int, default=10, help="launches of the unchanged step")
    parser.add_argument("--only", default="", help="changes whose names contain this")
    parser.add_argument("--keep", type=Path, help="for the unchanged step's numbers")
    parser.add_argument("--beside", type=Path, help="such numbers of another torch or machine")
    options = parser.parse_args(arguments)
    launches = planned(options.device, options.only, options.again)
    past, rows = {}, []
    kept = json.loads(options.beside.read_text()) if options.beside else {}
    others = {
        where: Tally(numbers=convert(numbers, StepNumbers), detail={NUMBERS: said})
        for where, (numbers, said) in kept.items()
    }
    with multiprocessing.get_context("fork").Pool(options.processes, maxtasksperchild=1) as forks:
        for launch, now in zip(launches, forks.imap(take, launches), strict=True):
            where = f"{launch.precision}, {launch.time}"
            if launch.kind == "unchanged":
                past[where] = now
                if where not in others:
                    continue
                launch = replace(launch, kind="elsewhere")
            then = others[where] if launch.kind == "elsewhere" else past[where]
            rows.append(row(launch, now, then))
            print(*rows[-1].values(), sep="  ", flush=True)
    red = {
        kind: [sum(bool(one["said"]) for one in rows if one["kind"] == kind), of]
        for kind, of in Counter(one["kind"] for one in rows).items()
    }
    print(red)
    content = {
        "command": "python -m benchmarks.changed_numbers " + " ".join(arguments or sys.argv[1:]),
        "commit": git(ROOT, "rev-parse", "HEAD"),
        "torch": str(torch.__version__),
        "machine": torch.cuda.get_device_name() if options.device == "cuda" else "CPU",
        "limits": {"of": LIMITS, "floor": FLOOR_SHARE},
        "red": red,
        "rows": rows,
    }
    options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if options.keep:
        kept = {
            where: (to_builtins(one.numbers), one.detail[NUMBERS]) for where, one in past.items()
        }
        options.keep.write_text(json.dumps(kept), encoding="utf-8")


if __name__ == "__main__":
    main()
