"""other_card: kernels of recorded steps, compared from card to card."""

import sys

import pytest

from benchmarks.other_card import KEPT, kept, longest, main, neighbours, seen, slowed, widest
from stepguard.core.profile import mean

PAIRS = list(neighbours(kept()))


def test_unchanged_steps_ask_for_nothing():
    """Three cases of six H100s and of four H200s, either way round."""
    assert len(PAIRS) == 110 and {before.device for before, _ in PAIRS} > {"NVIDIA H200"}
    assert all(a.recording.device_uuid != b.recording.device_uuid for a, b in PAIRS)
    assert not [after for before, after in PAIRS if seen(after.profile, before)[1]]


def test_longer_gaps_and_kernels_ask_for_pairs_on_another_card():
    """By 2 % of the step: the widest gaps always; the longest kernel in every tenth pair unless
    its own steps are as far apart.
    """
    for before, after in PAIRS[::10]:
        now = after.profile
        assert seen(slowed(now, widest(now), 2.0), before)[1]
        row = longest(now)[0]
        if not seen(slowed(now, row, 2.0), before)[1]:
            same = [one for one in before.profile.kernels if one.name == row.name]
            apart_us = max(max(one.us) - min(one.us) for one in (row, *same))
            assert apart_us / mean(now.parts.step_us) > 0.012


def test_the_kept_figures_stay(monkeypatch, capsys):
    """They are finished: what is kept goes into another file."""
    before = KEPT.read_bytes()
    monkeypatch.setattr(sys, "argv", ["other_card", "--keep", "some.json"])
    with pytest.raises(SystemExit):
        main()
    assert "name another --profiles" in capsys.readouterr().err and KEPT.read_bytes() == before
