"""A trace of a small loop, recorded on this GPU and read back. Skipped without a GPU."""

import re
import time

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from stepguard.core.explanation import Kind
from stepguard.core.profile import mean
from stepguard.explain.causes import explain
from stepguard.trace.chrome_trace import decode_all
from stepguard.trace.kernel_classes import usual_classes
from stepguard.trace.make_profile import Idle, analyse
from stepguard.trace.make_profile import profile as profile_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
STEPS, LAYERS = 6, 12
WAIT_S = 0.02  # of the host, after each sync


def recorded(folder, *, sync=False, extra=False):
    """The profile of a loop of matrix products, by way of the file that the profiler writes."""
    a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    path = folder / f"trace_{sync}_{extra}.json"

    def step():
        with record_function("forward"):
            x = a
            for _ in range(LAYERS):
                x = torch.nn.functional.gelu(a @ x)
                x = x.clone() if extra else x
        if sync:
            x.sum().item()
            time.sleep(WAIT_S)

    plan = schedule(wait=2, warmup=2, active=STEPS)
    kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=kinds, schedule=plan, with_stack=True) as profiler:
        for _ in range(4 + STEPS):
            step()
            profiler.step()
        torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))
    return profile_of(analyse(decode_all(path.read_bytes()).trace(), usual_classes()))


def test_every_launch_is_found(tmp_path):
    """As many products and activations as were launched, in their phase; the identity closes."""
    found = recorded(tmp_path)
    assert found.steps == STEPS - 1 and found.lost_share == 0
    calls = {row.kind: 0.0 for row in found.kernels}
    for row in found.kernels:
        assert set(row.calls) == {row.calls[0]}
        assert row.phase == "forward"
        calls[row.kind] += row.calls[0]
    assert calls["GEMM"] == calls["elementwise"] == LAYERS
    parts = found.parts
    whole = (parts.compute_us, parts.exposed_communication_us, parts.exposed_copies_us)
    assert sum(map(mean, (*whole, parts.idle_us))) == pytest.approx(mean(parts.step_us))


def test_a_sync_is_named_with_its_line(tmp_path):
    """What the GPU waits after a sync is idle time by that, in this file; an extra copy is a cause.
    Which of them is beyond the scatter, other processes on this GPU decide, and how much of a wait
    their work fills.
    """
    base, waiting = recorded(tmp_path), recorded(tmp_path, sync=True)
    assert not [row for row in base.idle if row.cause == Idle.SYNC]
    waits = [row for row in waiting.idle if row.cause == Idle.SYNC]
    assert sum(mean(row.us) for row in waits) > 1e6 * WAIT_S / 4
    assert all(re.search(r"test_trace\.py\(\d+\): step", row.place) for row in waits)
    found = explain(base, waiting)
    assert found.explained_us + found.scatter_us == pytest.approx(found.change_us)
    # Other processes may hide the copies in one profile, hardly in three.
    assert any(copies_are_a_cause(base, recorded(tmp_path, extra=True)) for _ in range(3))


def copies_are_a_cause(base, more):
    """A clone is a copy by the driver, and those are one cause, of no phase."""
    copying = (Kind.ADDED, Kind.REPLACED, Kind.CALLS, Kind.COPIES)
    return any(cause.kind in copying and cause.us > 0 for cause in explain(base, more).causes)
