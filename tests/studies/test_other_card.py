"""other_card: kernels of recorded steps, compared from card to card."""

import pytest

from studies.other_card.report import kept, longest, neighbours, seen, slowed, widest

PAIRS = list(neighbours(kept()))


def test_cards_of_each_kind_are_compared():
    """Two cases of two H100s and of two H200s, either way round."""
    assert len(PAIRS) == 8 and {before.device for before, _ in PAIRS} > {"NVIDIA H200"}
    assert all(a.recording.device_uuid != b.recording.device_uuid for a, b in PAIRS)


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_a_longer_kernel_asks_for_pairs_on_any_card(number):
    """The longest and the tenth, and the widest gaps, by 2 % of the step, whatever the cards differ
    by; an unchanged step asks for nothing.
    """
    before, after = PAIRS[number]
    now = after.profile
    assert not seen(now, before)[1]
    kernels = longest(now)
    for row in (kernels[0], kernels[-1], widest(now)):
        assert seen(slowed(now, row, 2.0), before)[1]
