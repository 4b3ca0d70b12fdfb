"""The numbers of several ranks as one, and of a recording."""

import pytest
from builders import evidence, replace

from stepguard.core.step_numbers import LOSS, StepNumbers, over_ranks
from stepguard.judge.summarise_evidence import stored


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
    """Its being finite, or all of them."""
    one, two = of(2.0, [3.0]), of(None, [4.0])
    assert over_ranks([one, two]).of_steps[LOSS] == [[None]]
    assert over_ranks([one, None]) is None and over_ranks([one]) is one


def test_a_rank_that_lacks_a_parameter_or_a_loss_hides_none():
    """The stages of a pipeline have other parameters, and the last one the loss."""
    first = StepNumbers(listed=[("gradient of a", [[3.0]])])
    last = StepNumbers(listed=[(LOSS, [[2.0]]), ("gradient of b", [[4.0]])])
    found = over_ranks([first, last]).of_steps
    of_each = {name: [[pytest.approx(norm / 2**0.5)]] for name, norm in (("a", 3.0), ("b", 4.0))}
    assert found == {LOSS: [[2.0]]} | {f"gradient of {k}": v for k, v in of_each.items()}


def test_a_recording_keeps_seven_digits():
    """And a step whose loss was not finite."""
    made = evidence()
    counted = replace(made.counts, numbers=of(None, [0.123456789, 3.0]))
    kept = stored(replace(made, counts=counted)).numbers
    assert kept == of(None, [0.1234568, 3.0])
