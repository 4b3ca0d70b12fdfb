"""A profile in a baseline: small, one kernel a line, and good enough to explain with."""

import json
import random

import msgspec
import pytest
from alarms import by_recordings, confirmed, ended, to_confirm
from builders import CASE, COUNTS, evidence, recording, replace, with_counts
from comparisons import alike

from stepguard.core.explanation import Kind
from stepguard.core.profile import IdleRow, KernelRow, Parts, Profile, Work, added
from stepguard.core.reasons import Reason
from stepguard.core.recording import Entry, Epoch, RecordedProfile
from stepguard.core.status import Status
from stepguard.explain.causes import explain
from stepguard.judge.compare_profiles import KERNELS, recorded, restored
from stepguard.judge.summarise_evidence import stored
from stepguard.report.verdict_text import evidence_lines, headline
from stepguard.storage.json_file import layout

STEPS = 6


def profile(slower=1.0, seed=1, idle_us=50.0):
    """A step of 90 kernels, the first of which takes ``slower`` times as long."""
    rng, canonical = random.Random(seed), "triton_poi_fused_add_gelu_native_layer_norm"
    rows = []
    for i in range(90):
        us = [3000.0 / (i + 1) * rng.gauss(1, 0.002) * (1 if i else slower) for _ in range(STEPS)]
        named = f"{canonical}_{i}", canonical, "Triton", ("forward", "backward")[i % 2]
        shape = {"grid": (i + 1, 2, 1), "block": () if i % 7 == 0 else (128, 1, 1)}
        rows.append(KernelRow(*named, (12.0,) * STEPS, tuple(us), **shape))
    idle = IdleRow("sync", "cudaStreamSynchronize", "forward", (1.0,) * STEPS, (idle_us,) * STEPS)
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


def test_a_kernel_of_several_products_is_recorded_once():
    """With the time of all of them: a run that makes the same ones asks for no pairs."""
    found = profile()
    first, *others = found.kernels
    half = tuple(us / 2 for us in first.us)
    rows = [replace(first, us=half, work=Work(flops)) for flops in (1e9, 2e9)]
    several = replace(found, kernels=(*rows, *others))
    (kept,) = [row for row in restored(recorded(several)).kernels if row.name == first.name]
    assert kept.us == pytest.approx(first.us, rel=1e-4)
    assert to_confirm(by_recordings(with_profile(several), entry())) is None


@pytest.mark.parametrize(("old", "new"), [
    ('"idle":[', '"idly":['),
    (" 2x2x1 128x1x1", " 2x2x1"),
    (" 2x2x1 128x1x1", " 2xtwox1 128x1x1"),
    ('"ranks":1', '"ranks":0'),
    ('"sync":{"forward":{"cudaStreamSynchronize":[1.0,', '"sync":{"forward":{"x":['),
])  # fmt: skip
def test_what_cannot_be_is_refused(old, new):
    """A part that there is not, a kernel without its shape, a figure too few."""
    text = json.dumps(msgspec.to_builtins(recorded(profile())), separators=(",", ":"))
    assert old in text
    # Before 0.19 msgspec's own error was no ValueError.
    with pytest.raises((ValueError, msgspec.ValidationError)):
        restored(msgspec.json.decode(text.replace(old, new), type=RecordedProfile))


def entry(card="GPU-1234", found=None):
    """A baseline with a profile, of that card, 0.4 % away from the evidence's 250 ms."""
    own = msgspec.structs.replace(
        stored(with_profile(found or profile())),
        device_uuid=card,
        times_ms=recording(249.0).times_ms,
    )
    return Entry(case=CASE, epochs=[Epoch(reason="first", recordings=[own])])


@pytest.mark.parametrize(("slower", "card", "asks"), [
    (1.0, "GPU-1234", False),
    (1.05, "GPU-1234", True),  # 1 % of this step
    (1.05, "GPU-5678", True),
    (0.9, "GPU-1234", False),
])  # fmt: skip
def test_kernels_ask_for_pairs(slower, card, asks):
    """A kernel beyond its own spread does, though the step is within its limit. Without pairs that
    is no verdict, and the line names the kernel.
    """
    found = by_recordings(with_profile(profile(slower, seed=3)), entry(card))
    assert (to_confirm(found) is not None) is asks
    assert (found.metrics[0].reason is Reason.KERNELS_MOVED) is asks
    assert ended(found).status is (Status.INCONCLUSIVE if asks else Status.SAME)
    if asks:
        assert "3.00 -> 3." in (line := headline(ended(found))) and line.endswith("yer_norm_0")
        assert any("launches as before" in line for line in evidence_lines(ended(found)))


def test_a_counter_that_fell_hides_no_kernels():
    """A launch less is FASTER, and a kernel that takes longer asks all the same: fused, maybe."""
    fewer = with_counts(
        with_profile(profile(1.05, seed=3)), launches_per_step=COUNTS["launches_per_step"] - 1
    )
    found = by_recordings(fewer, entry())
    assert to_confirm(found) is found.metrics[0]
    slower, same = (confirmed(found, alike([ratio] * 8), "aaa") for ratio in (2.0, 0.0))
    assert (slower.status, same.status) == (Status.SLOWER, Status.FASTER)
    assert slower.worst.metric == "step_ms"


@pytest.mark.parametrize(
    ("idle_us", "more_us", "asks"), [(50.0, 60.0, False), (50.0, 100.0, True), (5e3, 100.0, False)]
)
@pytest.mark.parametrize("card", ["GPU-1234", "GPU-5678"])
def test_gaps_between_kernels_ask_for_pairs(idle_us, more_us, asks, card):
    """By half a percent of a step of 15 ms that the GPU bounds, on any card. A step that waits for
    its host does it for longer on another host.
    """
    base = entry(card, profile(idle_us=idle_us))
    found = by_recordings(with_profile(profile(idle_us=idle_us + more_us, seed=3)), base)
    assert (to_confirm(found) is not None) is asks


def test_a_card_at_another_clock_asks_for_nothing():
    """All kernels of a class 1 % slower are the card."""
    calm = profile(seed=4)
    slow = [replace(row, us=tuple(1.01 * us for us in row.us)) for row in calm.kernels]
    assert (
        to_confirm(by_recordings(with_profile(replace(calm, kernels=tuple(slow))), entry())) is None
    )


def test_pairs_explain_better_than_a_recording():
    """Both sides have a profile of this card, at this time."""
    screened = by_recordings(with_profile(profile(1.1, seed=3)), entry())
    sides = {"head": profile(1.3, seed=5), "base": profile(seed=6)}
    pairs = alike([2.0] * 8)
    both = {
        name: replace(getattr(pairs, name), counts=with_profile(one).counts)
        for name, one in sides.items()
    }
    found = confirmed(screened, replace(pairs, **both), "aaa").explanation
    assert found.causes[0].us == pytest.approx(900, rel=0.05)
    assert confirmed(screened, pairs, "aaa").explanation == screened.explanation
