"""Profiles of steps: taken again where the GPU's records are not whole, by all ranks alike."""

from dataclasses import replace

import pytest
import torch

from stepguard.trace.host_steps import read_steps
from stepguard.worker.count import profiled_steps
from stepguard.worker.count.profiled_steps import MARK, ProfiledSteps
from stepguard.worker.count.tally import RankStep, Tally


@pytest.mark.parametrize(
    ("lost", "others_lost", "profiles"),
    [
        ([0], [False], 1),
        ([0, 0], [True, False], 2),
        ([1, 0], [False, False], 2),
        ([1] * 3, [0] * 3, 3),
    ],
)
def test_all_ranks_profile_again_if_one_has_to(monkeypatch, lost, others_lost, profiles):
    """A rank whose own trace is whole takes part: its steps have the others' exchanges."""
    found = read_steps([{"name": MARK, "cat": "user_annotation", "ts": 0, "dur": 1}], MARK, 1)
    taken = iter([ProfiledSteps([replace(found[0], lost_copies=count)], []) for count in lost])
    monkeypatch.setattr(profiled_steps, "profile_steps", lambda *rest: next(taken))
    others = iter(others_lost)
    asked = []

    def any_rank(own):
        asked.append(own)
        return own or bool(next(others))

    counted = RankStep(lambda: None, torch.device("cpu"), any_rank=any_rank)
    profiled_steps.count_profiled(Tally(), counted)
    assert asked == [bool(count) for count in lost[:profiles]] and next(taken, None) is None


def test_a_trace_that_found_no_room_says_so(monkeypatch):
    """On a full disk torch writes what it can, and says nothing."""
    monkeypatch.setattr(
        profiled_steps, "_exported", lambda profile: b'{"traceEvents": [{"ph": "X",'
    )
    counted = RankStep(lambda: None, torch.device("cpu"))
    with pytest.raises(OSError, match=r"no whole trace to .* \(28 bytes of it\): make room"):
        profiled_steps.count_profiled(Tally(), counted)
