"""other_card: kernels of recorded steps, compared from card to card."""

import pytest

from stepguard.profile import mean
from studies.other_card.report import kept, longest, neighbours, seen, slowed, widest

PAIRS = list(neighbours(kept()))


def test_cards_of_each_kind_are_compared():
    """Three cases of three H100s and of four H200s, either way round."""
    assert len(PAIRS) == 44 and {before.device for before, _ in PAIRS} > {"NVIDIA H200"}
    assert all(a.recording.device_uuid != b.recording.device_uuid for a, b in PAIRS)


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_a_longer_kernel_asks_for_pairs_on_any_card(number):
    """The longest and the tenth, and the widest gaps, by 2 % of the step, whatever the cards differ
    by, unless the kernel's steps are as far apart on one of them; an unchanged step asks for nothing.
    """
    before, after = PAIRS[number]
    now = after.profile
    assert not seen(now, before)[1]
    longer_us = 0.02 * mean(now.parts.step_us)
    kernels = longest(now)
    assert seen(slowed(now, widest(now), 2.0), before)[1]
    for row in (kernels[0], kernels[-1]):
        both = (row, *(one for one in before.profile.kernels if one.name == row.name))
        scatters = any(max(one.us) - min(one.us) > longer_us for one in both)
        assert scatters or seen(slowed(now, row, 2.0), before)[1]
