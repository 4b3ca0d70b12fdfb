"""other_card: kernels of recorded steps, compared from card to card."""

import pytest

from stepguard.profile import mean
from studies.other_card.report import LONGEST, kept, longest, neighbours, seen, slowed, widest

PAIRS = list(neighbours(kept()))


def test_cards_of_each_kind_are_compared():
    """Three cases of six H100s and of four H200s, either way round."""
    assert len(PAIRS) == 110 and {before.device for before, _ in PAIRS} > {"NVIDIA H200"}
    assert all(a.recording.device_uuid != b.recording.device_uuid for a, b in PAIRS)


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_longer_gaps_ask_for_pairs_on_any_card(number):
    """The widest, by 2 % of the step, whatever the cards differ by; an unchanged step asks for
    nothing.
    """
    before, after = PAIRS[number]
    now = after.profile
    assert not seen(now, before)[1]
    assert seen(slowed(now, widest(now), 2.0), before)[1]


def test_a_longer_kernel_asks_for_pairs_on_any_card():
    """The longest and the tenth, by 2 % of the step, unless its own steps are as far apart."""
    silent = []
    for before, after in PAIRS:
        now = after.profile
        for row in longest(now)[:: LONGEST - 1]:
            if not seen(slowed(now, row, 2.0), before)[1]:
                same = [one for one in before.profile.kernels if one.name == row.name]
                apart_us = max(max(one.us) - min(one.us) for one in (row, *same))
                silent.append(apart_us / mean(now.parts.step_us))
    assert len(silent) == 14 and min(silent) > 0.012
