"""Training and generation on a GPU: what a CPU shows bit for bit, here within a tolerance.

python -m pytest tests/gpu/test_training.py
"""

from pathlib import Path

import pytest
import torch
from training_runs import short_run

from model.checkpoint import Checkpoints, load
from model.config import SIZES
from model.generate import Sampling, generate
from model.gpt import GPT
from model.parts import attention, decode
from model.training import Run, read_log

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
RUN = {"size": "nano", "batch": 8, "seq": 128, "precision": "bf16", "compile": True}
RUN |= {"device": "cuda", "steps": 40, "lr": 1e-3, "warm_up_steps": 5}
RUN |= {"log_every": 10, "eval_every": 20, "save_every": 20}
RESUME_RTOL = 2e-3  # of the loss, 20 steps behind the restart: some kernels add in no fixed order


def losses(folder: Path) -> list[float]:
    """Of all steps."""
    return [line["loss"] for line in read_log(folder) if "loss" in line]


@pytest.mark.parametrize("fast", [False, True])
def test_a_resumed_run_has_the_same_losses(fast: bool, tmp_path: Path):
    """Compiled, in bf16: those of a run that was not stopped, within RESUME_RTOL."""
    options = short_run(**RUN, fast=fast)
    Run(options, tmp_path / "whole").train()
    first = Run(options, tmp_path / "parts", lambda _: setattr(first, "stop", first.step >= 20))
    first.train()
    second = Run(options, tmp_path / "parts")
    second.resume(load(Checkpoints(tmp_path / "parts").paths()[-1]))
    second.train()
    assert second.step == 40
    assert losses(tmp_path / "parts") == pytest.approx(losses(tmp_path / "whole"), rel=RESUME_RTOL)


def test_a_cache_changes_no_bit_on_a_gpu():
    """Logits and ids in fp32, with the past kept or computed anew for every token."""
    torch.set_float32_matmul_precision("highest")
    model = GPT(SIZES["nano"], device="cuda")
    seen = []
    for cache in (True, False):
        logits: list[torch.Tensor] = []
        prompts = [[1, 2, 3], [7] * 21]
        rows = generate(model, prompts, 20, Sampling(1.0), cache=cache, on_logits=logits.append)
        seen.append((rows, torch.stack(logits)))
    assert seen[0][0] == seen[1][0] and torch.equal(seen[0][1], seen[1][1])


@pytest.mark.parametrize("mode", ["compile", "reduce-overhead", "cuda-graph"])
def test_decoding_is_the_same_in_all_modes(mode: str):
    """A token by CUDA graphs or compiled is the eager one."""
    shape = {"size": "nano", "room": 64, "precision": "fp32"}
    expected = decode(**shape).step()
    part = decode(**shape, mode=mode)
    for _ in range(3):
        found = part.step()
    assert torch.equal(found, expected)


def test_attention_that_does_not_fit_is_out_of_memory():
    """As a row of a sweep needs it: torch's own error, which the engine knows."""
    with pytest.raises(torch.OutOfMemoryError):
        attention(width=32, seq=400_000).step()


def test_types_under_autocast():
    """On a GPU norms, softmax and loss are in fp32, products in half precision, gradients fp32."""
    linear, norm = torch.nn.Linear(8, 8, device="cuda"), torch.nn.LayerNorm(8, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        hidden = linear(torch.ones(2, 8, device="cuda"))
        normed, shares = norm(hidden), torch.softmax(hidden, -1)
        loss = torch.nn.functional.cross_entropy(hidden, torch.zeros(2, dtype=int, device="cuda"))
    loss.backward()
    assert hidden.dtype == torch.bfloat16
    assert {one.dtype for one in (normed, shares, loss, linear.weight.grad)} == {torch.float32}
