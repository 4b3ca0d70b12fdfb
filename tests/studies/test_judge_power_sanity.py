"""sanity: pairs of launches of unchanged code, and what makes them odd."""

from statistics import fmean

import pytest

from studies.judge_power.sanity import launch_of, odd, pairs, planted

CASES = [f"{step}[124m-bf16]" for step in ("forward", "forward_backward", "train_step")]


@pytest.mark.parametrize("case", CASES)
def test_unchanged_launches_are_hardly_ever_odd(case):
    """Or a step that did not change would need pairs as if it had; and what slows every eighth step
    down is seen at least as often as by each side's own median.
    """
    assert len(list(pairs(case))) >= 20
    assert fmean(odd(case, "in use", 1, 0.0)) < 0.05
    in_use, own = (fmean(odd(case, criterion, 16, 0.1)) for criterion in ("in use", "own median"))
    assert in_use > own and in_use > 0.8


def test_every_nth_step_is_longer():
    """Counted through all blocks."""
    made = planted(launch_of([[10.0] * 3, [10.0] * 3]), 2, 0.5, 1)
    assert [list(block.step_ms) for block in made.blocks] == [
        [10.0, 15.0, 10.0],
        [15.0, 10.0, 15.0],
    ]
