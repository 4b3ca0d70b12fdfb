"""The rank that got slower is found by what it does itself, not by how long the others wait."""

import pytest
from builders import PROPERTY
from hypothesis import given
from hypothesis import strategies as st

from stepguard.core.profile import Parts
from stepguard.judge.compare_profiles import STRAGGLER_SHARE, straggler

STEPS = 6


def rank(own_us, step_us=250e3, noise=0.0):
    """The parts of a rank's steps: what it does itself, and for the rest it waits for others."""
    own = [own_us * (1 + noise * (-1) ** i) for i in range(STEPS)]
    steps, none = (step_us,) * STEPS, (0.0,) * STEPS
    return Parts(steps, tuple(own), tuple(step_us - one for one in own), none, none)


@pytest.mark.parametrize("slow", [0, 1, 3])
def test_the_slow_rank_is_named(slow):
    """Though the step takes as long on each: the others wait in the exchange."""
    before = [rank(230e3 + 1e3 * i, 250e3) for i in range(4)]
    after = [rank(230e3 + 1e3 * i + (5e3 if i == slow else 0), 255e3) for i in range(4)]
    found = straggler(before, after)
    assert found.rank == slow and found.new_ms - found.old_ms == pytest.approx(5)
    assert found.others_pct == 0
    assert straggler(after, before) is None  # it got faster


@given(st.floats(0, 0.2), st.floats(0, 0.02), st.floats(0, 0.5 * STRAGGLER_SHARE))
@PROPERTY
def test_ranks_that_move_together_have_no_straggler(all_ranks, noise, more):
    """All slower alike, or one by less than can be told: none is named."""
    before = [rank(230e3, noise=noise) for _ in range(3)]
    after = [
        rank(230e3 * (1 + all_ranks + (more if i == 1 else 0)), 300e3, noise) for i in range(3)
    ]
    assert straggler(before, after) is None


@pytest.mark.parametrize(("slower_pct", "named"), [(1.7, False), (1.9, True)])
def test_a_straggler_is_slower_by_four_standard_errors(slower_pct, named):
    """Six steps that scatter by 0.5 %, of two ranks on both sides: four errors are 1.79 %."""
    before = [rank(230e3, noise=0.005) for _ in range(2)]
    after = [before[0], rank(230e3 * (1 + slower_pct / 100), noise=0.005)]
    assert (straggler(before, after) is not None) is named


@pytest.mark.parametrize("ranks", [0, 1])
def test_without_ranks_to_compare_there_is_none(ranks):
    """One rank is no straggler; other numbers of ranks are another case."""
    assert straggler([rank(1e3)] * ranks, [rank(2e3)] * ranks) is None
    assert straggler([rank(1e3)] * 2, [rank(1e3), rank(1e3), rank(9e3)]) is None
