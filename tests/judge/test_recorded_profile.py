"""A profile in a baseline: small, one kernel a line, and good enough to explain with."""

import json
import random
from dataclasses import replace

import msgspec
import pytest
from builders import evidence

from stepguard.explain.causes import explain
from stepguard.explanation import Kind
from stepguard.judge.recorded_profile import KERNELS, recorded, restored
from stepguard.judge.summary import stored
from stepguard.profile import IdleRow, KernelRow, Parts, Profile, added
from stepguard.recording import RecordedProfile
from stepguard.storage.json_file import layout

STEPS = 6


def profile(slower=1.0, seed=1):
    """A step of 90 kernels, the first of which takes ``slower`` times as long."""
    rng = random.Random(seed)
    rows = []
    for i in range(90):
        us = [3000.0 / (i + 1) * rng.gauss(1, 0.002) * (1 if i else slower) for _ in range(STEPS)]
        name = f"triton_poi_fused_add_gelu_native_layer_norm_{i}"
        shape = {"grid": (i + 1, 2, 1), "block": () if i % 7 == 0 else (128, 1, 1)}
        phase = ("forward", "backward")[i % 2]
        rows.append(KernelRow(name, name, "Triton", phase, (12.0,) * STEPS, tuple(us), **shape))
    idle = IdleRow("sync", "cudaStreamSynchronize", "forward", (1.0,) * STEPS, (50.0,) * STEPS)
    compute, none = added([row.us for row in rows]), (0.0,) * STEPS
    step = added([compute, idle.us])
    return Profile("H200", 1, Parts(step, compute, none, none, idle.us), tuple(rows), (idle,))


def with_profile(found):
    """Evidence of it."""
    sound = evidence()
    return replace(sound, counts=replace(sound.counts, profile=found))


def test_a_recording_explains_as_the_profile_does():
    """What took a millisecond longer is found beside the forty recorded kernels."""
    before = restored(stored(with_profile(profile())).profile)
    assert len([row for row in before.kernels if row.grid]) == KERNELS
    found = explain(before, restored(recorded(profile(slower=4 / 3, seed=2))))
    first = found.causes[0]
    assert first.kind is Kind.TIME and first.what.endswith("layer_norm_0")
    assert first.us == pytest.approx(1000, rel=0.02)


def test_a_diff_shows_a_kernel_a_line():
    """In a baseline file it has some fifty lines, of figures that a reader can compare."""
    text = layout({"a": {"b": {"c": msgspec.to_builtins(recorded(profile()))}}})
    lines = [line for line in text.splitlines() if "layer_norm_" in line]
    assert len(lines) == KERNELS and len(text.splitlines()) < KERNELS + 40 and len(text) < 8000
    assert '"triton_poi_fused_add_gelu_native_layer_norm_1 2x2x1 128x1x1": [12.0, 1' in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"idle":[', '"idly":['),
        (" 2x2x1 128x1x1", " 2x2x1"),
        (" 2x2x1 128x1x1", " 2xtwox1 128x1x1"),
        ('"ranks":1', '"ranks":0'),
        ('"sync":{"forward":{"cudaStreamSynchronize":[1.0,', '"sync":{"forward":{"x":['),
    ],
)
def test_what_cannot_be_is_refused(old, new):
    """A part that there is not, a kernel without its shape, a figure too few."""
    text = json.dumps(msgspec.to_builtins(recorded(profile())), separators=(",", ":"))
    assert old in text
    with pytest.raises(ValueError):
        restored(msgspec.json.decode(text.replace(old, new), type=RecordedProfile))
