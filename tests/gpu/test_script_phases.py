"""Phases of the kernels of a script that names none, as its first lines name them.

python -m pytest tests/gpu/test_script_phases.py
"""

import pytest
import torch
from torch.nn.functional import cross_entropy

from stepguard.worker.counters.profiled_steps import trace_steps
from stepguard.worker.counters.tally import RankStep, Tally

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
WIDTH, ROWS, CLASSES = 512, 256, 1000


@pytest.mark.parametrize("compiled", [False, True])
def test_kernels_of_a_script_have_the_phase_that_launched_them(compiled):
    """Eager and compiled, with the loss outside of the compiled model. What runs before the forward
    pass and between the backward pass and the optimizer has no phase.
    """
    layers = [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Linear(WIDTH, CLASSES)]
    model = torch.nn.Sequential(*layers).cuda()
    called = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = torch.randn(ROWS, WIDTH, device="cuda")
    wanted = torch.randint(CLASSES, (ROWS,), device="cuda")

    def step():
        shuffled = batch.cumsum(0)
        loss = cross_entropy(called(shuffled), wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    found = Tally()
    trace_steps(found, RankStep(step, torch.device("cuda", 0)))
    assert found.profile is not None, found.profile_problem
    by_phase: dict[str, list[str]] = {}
    for row in found.profile.kernels:
        assert min(row.calls) == max(row.calls)
        by_phase.setdefault(row.phase, []).append(f"{row.operator} {row.name}")
    print({phase: len(rows) for phase, rows in by_phase.items()}, by_phase.get("", []))
    assert set(by_phase) == {"", "forward", "backward", "optimizer"}
    products = {"addmm", "mm", "linear"}
    named = {phase: " ".join(rows) for phase, rows in by_phase.items()}
    assert any(f"aten::{product}" in named["forward"] for product in products)
    assert any(f"aten::{product}" in named["backward"] for product in products)
    assert "nll_loss" in named["forward"] and "cumsum" in named[""] and "norm" in named[""]
    assert "adam" in named["optimizer"].lower()
