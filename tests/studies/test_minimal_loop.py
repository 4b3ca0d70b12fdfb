"""The plain loop is the same model, the same schedule, and code of its own."""

import ast
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from training_runs import TINY, short_run

from model import config
from model.data.shards import STDLIB_SHARD
from model.gpt import GPT
from model.training import Run, read_log
from studies.minimal_loop import compare, loop

SHAPE = Namespace(layers=2, heads=2, width=16, seq=32, vocab=8256, lr=1.0, warm_up_steps=3)
PARTS = {"norms.0": "ln_1", "norms.1": "ln_2", "qkv": "attn.c_attn", "mixed": "attn.c_proj"}
PARTS |= {"wide": "mlp.c_fc", "narrow": "mlp.c_proj"}


def test_it_imports_nothing_of_the_model():
    """Else it would be no second opinion."""
    imported = [n for n in ast.walk(ast.parse(Path(loop.__file__).read_text()))]
    names = [n.module or "" for n in imported if isinstance(n, ast.ImportFrom)]
    names += [alias.name for n in imported if isinstance(n, ast.Import) for alias in n.names]
    assert names and not [name for name in names if name.startswith(("model", "stepguard"))]


def copy(ours: GPT, theirs: loop.Network) -> None:
    """Give the plain network our parameters."""
    state = {"tokens.weight": ours.wte.weight, "places.weight": ours.wpe.weight}
    state |= {f"norm.{end}": getattr(ours.ln_f, end) for end in ("weight", "bias")}
    for at, block in enumerate(ours.h):
        for mine, name in PARTS.items():
            for end in ("weight", "bias"):
                state[f"layers.{at}.{mine}.{end}"] = block.get_parameter(f"{name}.{end}")
    theirs.load_state_dict(state)


def test_it_is_the_same_function():
    """With our parameters its network has our loss."""
    torch.manual_seed(0)
    ours, theirs = GPT(TINY, seed=3), loop.Network(SHAPE)
    copy(ours, theirs)
    ids, targets = torch.randint(TINY.vocab_size, (2, 3, 20)).unbind()
    torch.testing.assert_close(theirs(ids, targets), ours(ids, targets))


def test_it_begins_as_ours_does():
    """Parameters have our deviations, to within what drawing them leaves open."""
    torch.manual_seed(0)
    ours, theirs = GPT(TINY, seed=3), loop.Network(SHAPE)
    for at, block in enumerate(ours.h):
        for mine, name in PARTS.items():
            expected = block.get_submodule(name).weight.std()
            found = theirs.get_parameter(f"layers.{at}.{mine}.weight").std()
            torch.testing.assert_close(found, expected, rtol=0.2, atol=1e-9)


def test_it_has_our_schedule(monkeypatch: pytest.MonkeyPatch):
    """Step for step."""
    monkeypatch.setitem(config.SIZES, "tiny", TINY)
    options = short_run(steps=20, lr=1.0)
    rates = [loop.rate_at(step, Namespace(horizon=20, **vars(SHAPE))) for step in range(20)]
    assert rates == pytest.approx([options.learning_rate(step) for step in range(20)])


def test_it_trains_as_ours_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From our parameters and in our order it has our losses and norms, step for step."""
    monkeypatch.setitem(config.SIZES, "tiny", TINY)
    options = short_run(steps=5, seq=32, batch=3, eval_every=5, save_every=5)
    run = Run(options, tmp_path)
    more = {"data": STDLIB_SHARD, "device": "cpu", "order": "spread", "seed": 1, "horizon": 5}
    more |= {"batch": 3, "micro_steps": 2, "val_fraction": 0.05, "compile": False, "bf16": False}
    plain = loop.Loop(Namespace(**{**vars(SHAPE), **more, "lr": options.lr}))
    copy(run.workload.model, plain.network)
    run.train()
    lines = [line for line in read_log(tmp_path) if "loss" in line]
    found = [plain.step(number) for number in range(5)]
    assert [loss for loss, _ in found] == pytest.approx([one["loss"] for one in lines], rel=1e-5)
    norms = [one["grad_norm"] for one in lines]
    assert [norm for _, norm in found] == pytest.approx(norms, rel=1e-4)


def log(steps: int, offset: float = 0.0, val: float | None = None, tokens: float = 100.0):
    """A run's lines; its loss falls by 0.01 a step from 9."""
    lines = [
        {"step": n, "loss": 9 - n / 100 + offset, "tokens_per_s": 1.0 if n < 5 else tokens}
        for n in range(1, steps + 1)
    ]
    return lines + ([{"step": steps, "val_loss": val}] if val else [])


def test_two_runs_are_apart_as_far_as_they_are():
    """Means over windows, the speed without the first steps, the validation where there is one."""
    found = compare.summary(log(105, 0.2, 7.5, 300.0), log(105, 0.0, 7.4), log(60, 0.05))
    assert found["apart_nats"]["largest"] == pytest.approx(0.2)
    assert found["by_chance_nats"]["mean"] == pytest.approx(0.05)
    assert found["tokens_per_s"] == {"ours": 300.0, "loop": 100.0}
    assert max(found["curves"]["ours"]) == 100
    text = compare.page(found)
    assert (
        "| steps 91 to 100 | 8.245 | 8.045 |" in text and "| validation | 7.500 | 7.400 |" in text
    )
    assert "Apart by 0.200 nats on average" in text


def test_runs_without_a_common_window_are_not_compared():
    """Nor is a speed made of the step that compiles."""
    with pytest.raises(ValueError, match="no windows in common"):
        compare.summary(log(105), log(105), log(15))
    with pytest.raises(ValueError, match="behind the first 20"):
        compare.speed(log(20))
