"""The numbers of several ranks as one."""

import pytest

from stepguard.core.step_numbers import LOSS, StepNumbers, over_ranks


def of(loss, norms, **changes):
    """A rank's numbers of one step."""
    listed = [(LOSS, [[loss]]), ("gradient of a", [norms])]
    return StepNumbers(listed=listed, single=True, **changes)


def test_ranks_have_a_mean_loss_and_norms_that_no_share_moves():
    """Two ranks that hold a half each have what one has that holds both."""
    both = over_ranks([of(2.0, [3.0, 0.0]), of(4.0, [4.0, 0.0])]).of_steps
    other = over_ranks([of(4.0, [0.0, 0.0]), of(2.0, [5.0, 0.0])]).of_steps
    assert both == other == {LOSS: [[3.0]], "gradient of a": [[pytest.approx(12.5**0.5), 0.0]]}


def test_what_a_rank_lacks_is_not_known_of_all():
    """A number, its being finite, or all of them."""
    one, two = of(2.0, [3.0]), of(None, [4.0])
    assert over_ranks([one, two]).of_steps[LOSS] == [[None]]
    assert [*over_ranks([one, StepNumbers(listed=one.listed[:1])]).of_steps] == [LOSS]
    assert over_ranks([one, None]) is None and over_ranks([one]) is one
