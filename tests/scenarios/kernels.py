"""Profiles of a step of 250 ms whose kernels are known."""

import random

import msgspec
from builders import CASE, evidence, recording, replace

from stepguard.core.profile import IdleRow, KernelRow, Parts, Profile, added
from stepguard.core.recording import Entry, Epoch
from stepguard.judge.summarise_evidence import stored

STEPS = 6
NORM = "triton_poi_fused_add_gelu_native_layer_norm"


def step(slower=1.0, seed=1, code="a1", more_us=0.0, machine_code=None):
    """The profile of a step of 20 kernels, the longest of which takes ``slower`` times as long, is
    generated from ``code``, compiled to ``machine_code``, and has another kernel behind it that
    takes ``more_us``.
    """
    draw, rows = random.Random(seed), []
    for i in range(20):
        ms = 60.0 / (i + 1) * (slower if i == 0 else 1.0)
        us = tuple(1e3 * ms * draw.gauss(1, 0.001) for _ in range(STEPS))
        phase = ("forward", "backward")[i % 2]
        named = f"{NORM}_{i}", NORM, "Triton", phase, (12.0,) * STEPS, us
        first = {"code": code, "machine_code": machine_code} if i == 0 else {"code": f"n{i}"}
        rows.append(KernelRow(*named, grid=(i + 1, 2, 1), **first))
    if more_us:
        named = "triton_poi_fused_clone_99", "triton_poi_fused_clone", "Triton", "forward"
        rows.append(
            KernelRow(*named, (12.0,) * STEPS, (more_us,) * STEPS, operator="aten.clone", code="c3")
        )
    gaps = IdleRow("sync", "cudaStreamSynchronize", "forward", (1.0,) * STEPS, (2000.0,) * STEPS)
    busy, none = added([row.us for row in rows]), (0.0,) * STEPS
    parts = Parts(added([busy, gaps.us]), busy, none, none, gaps.us)
    return Profile("NVIDIA H200", 1, parts, tuple(rows), (gaps,))


def attending(slower=1.0):
    """The same step, with a library's kernel in its backward pass that takes ``slower`` times as
    long, and the places of its operators.
    """
    made, name = step(), "fmha_cutlassB_bf16_aligned_64x64_k64_sm80(Params)"
    us, place = (5000.0 * slower,) * STEPS, "aten::_efficient_attention_backward"
    row = KernelRow(name, name, "attention", "backward", (12.0,) * STEPS, us, operator=place)
    busy = added([made.parts.compute_us, us])
    parts = replace(made.parts, step_us=added([busy, made.parts.idle_us]), compute_us=busy)
    return replace(made, parts=parts, kernels=(*made.kernels, row))


def counts_of(found, profile, **changes):
    """Evidence with that profile."""
    return replace(found, counts=replace(found.counts, profile=profile, **changes))


def recorded_step(ms):
    """A baseline of that step, at so many ms."""
    own = stored(counts_of(evidence(), step()))
    own = msgspec.structs.replace(own, times_ms=recording(ms).times_ms, commit="0" * 40)
    return Entry(case=CASE, epochs=[Epoch(reason="first recording", recordings=[own])])
