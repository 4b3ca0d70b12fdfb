"""However ranks exchange gradients, they are those of one process on all ranks' batches.

python -m pytest tests/model/test_ddp_settings.py
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from training_runs import run_two_ranks

from model.config import SIZES, GPTConfig
from model.ddp import DdpSettings
from model.workloads import train_step

TINY = GPTConfig(n_layer=1, n_head=2, n_embd=64, block_size=32, vocab_size=8256)
SMALL: dict[str, Any] = {
    "size": "tiny", "batch": 2, "seq": 16, "precision": "fp32", "compile": False, "device": "cpu",
    "micro_steps": 2,
    "grad_clip": 1e9  # so that gradients can be compared as they are
}  # fmt: skip
COMPILED = {"compile": True}
WAYS: dict[str, dict[str, Any]] = {
    "default": {}, "small buckets": {"bucket_cap_mb": 0.01}, "one bucket": {"bucket_cap_mb": 100},
    "views": {"gradient_as_bucket_view": True}, "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True}, "compiled before": COMPILED | {"bucket_cap_mb": 1},
    "compiled before, unsplit": COMPILED | {"optimize_ddp": False},
    "compiled after": COMPILED | {"compile_before_wrap": False}}  # fmt: skip
STEPS = 3  # buckets are arranged anew in the second


def gradients(**params: Any) -> list[dict[str, Tensor]]:
    """The gradients that the optimizer is handed in each of STEPS steps."""
    workload: Any = train_step(**SMALL | params)
    seen: list[dict[str, Tensor]] = []

    def look(*_: object) -> None:
        named = workload.model.named_parameters()
        seen.append({name: p.grad.clone() for name, p in named})

    workload.optimizer.register_step_pre_hook(look)
    for _ in range(STEPS):
        workload.step()
    workload.close()
    return seen


def one_rank(rank: int, folder: str) -> None:
    """One of two ranks: its gradients by way."""
    torch.set_num_threads(1)
    SIZES["tiny"] = TINY
    compiler, found = torch.compile, {}
    for name, params in WAYS.items():
        torch.compiler.reset()
        # What DDP and the compiler do to each other ends before any kernel is generated; where the
        # graph is split and what is wrapped, before autograd is traced, which one way shows.
        backend = "aot_eager" if name == "compiled before" else "eager"
        torch.compile = partial(compiler, backend=backend)
        found[name] = gradients(**params)
    torch.save(found, f"{folder}/rank{rank}.pt")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[dict[str, Tensor]]]]:
    """What the two ranks found."""
    folder: Path = tmp_path_factory.mktemp("ranks")
    # What the compiler imports at its first use is imported once for both.
    torch.compile(torch.sin, backend="aot_eager")(torch.ones(1, requires_grad=True)).backward()
    run_two_ranks(one_rank, folder)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_one_process_on_all_batches(ranks, way: str):
    """In every step, after updates too, and on both ranks to the last bit the same."""
    expected = gradients(batch=2 * SMALL["batch"])
    assert len(expected) == STEPS
    for step in range(STEPS):
        first, second = (rank[way][step] for rank in ranks)
        assert first.keys() == expected[step].keys()
        for name, gradient in expected[step].items():
            assert torch.equal(first[name], second[name]), name
            torch.testing.assert_close(first[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize(("change", "message"), [
    ({"bucket_cap_mb": 0}, "bucket_cap_mb is 0; possible: a finite number above 0"),
    ({"bucket_cap_mb": "25"}, "bucket_cap_mb is '25'; possible: "),
    ({"bucket_cap_mb": True}, "bucket_cap_mb is True; possible: "),
    (COMPILED | {"bucket_cap_mb": 0.5},
     "bucket_cap_mb with compile and optimize_ddp is 0.5; possible: a number of 1 or more"),
    ({"gradient_as_bucket_view": 1}, "gradient_as_bucket_view is 1; possible: True, False"),
    ({"static_graph": None}, "static_graph is None; possible: True, False"),
    ({"find_unused_parameters": "no"}, "find_unused_parameters is 'no'; possible: "),
    ({"compile_before_wrap": 0}, "compile_before_wrap is 0; possible: True, False"),
    ({"optimize_ddp": "ddp_optimizer"}, "optimize_ddp is 'ddp_optimizer'; possible: True"),
])  # fmt: skip
def test_an_impossible_setting_is_refused_on_one_rank_too(change, message: str):
    """It is a ValueError of one line with the value found and the values possible."""
    with pytest.raises(ValueError) as caught:
        train_step(**SMALL | change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_on_one_rank_the_settings_change_nothing():
    """Every setting turned round: the same gradients to the last bit, nothing is wrapped."""
    plain = gradients()
    turned = gradients(
        bucket_cap_mb=1.5, gradient_as_bucket_view=True, static_graph=True,
        find_unused_parameters=True, compile_before_wrap=False, optimize_ddp=False)  # fmt: skip
    for one, other in zip(plain, turned, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_defaults_are_those_of_the_factory():
    """``DdpSettings()`` and ``train_step()`` mean the same."""
    defaults = train_step.__kwdefaults__
    assert vars(DdpSettings()) == {name: defaults[name] for name in vars(DdpSettings())}
