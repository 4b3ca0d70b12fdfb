"""A step that takes several times as long is SLOWER after the fewest pairs."""

import numpy as np
import pytest
from builders import replace
from comparisons import comparison_of, with_margins

from stepguard.core.margins import ALPHA
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.judge_pairs import judge_ab, wants_another_pair
from stepguard.judge.rules import several_times
from stepguard.judge.rules.several_times import LEAST_PAIRS, SEVERAL_TIMES
from stepguard.judge.sequential_plan import level_of
from stepguard.report.verdict_text import headline, times

BASE_MS = [(5.0, 5.5), (5.2, 4.0), (4.5, 5.1), (5.0, 4.4)]


def several(factor, pairs=LEAST_PAIRS, cpu=True, **changes):
    """Pairs on a busy CPU of which each block of HEAD takes ``factor`` times the slowest block of
    the other tree at least.
    """
    head = [(5.5 * factor * 1.2, 5.5 * factor) for _ in BASE_MS]
    found = comparison_of(head[:pairs], BASE_MS[:pairs], **changes)
    sides = (replace(one, floor_flops_per_step=0.0) for one in (found.head, found.base))
    head, base = sides
    found = replace(found, head=head, base=base, glance=cpu)
    return with_margins(found, 5.0, 20.0) if cpu else found


@pytest.mark.parametrize("cpu", [True, False])
def test_three_pairs_are_enough(cpu):
    """Whatever they scatter by; the text has the range of the blocks, and no more are wanted."""
    found = several(7.0, cpu=cpu)
    assert not wants_another_pair(found)
    verdict = judge_ab(found)
    assert (verdict.status, verdict.reason) == (Status.SLOWER, Reason.BEYOND_MARGIN)
    assert verdict.p_value <= ALPHA
    assert "SLOWER: step_ms 4.8" in headline(verdict)
    assert times(verdict)[0].startswith("step_ms: [+600.00, +1055.00] % over 3 pairs")


@pytest.mark.parametrize(
    ("factor", "pairs", "changes"),
    [
        (7.0, LEAST_PAIRS - 1, {}),
        (0.99 * SEVERAL_TIMES, LEAST_PAIRS, {}),
        (7.0, LEAST_PAIRS, {"together": False}),
        (7.0, LEAST_PAIRS, {"alpha": level_of(60)}),
    ],
)
def test_what_is_less_waits_for_the_plan(factor, pairs, changes):
    """Two pairs, a block that is not so slow, launches one after the other, or a stricter level."""
    found = several(factor, pairs, **changes)
    assert several_times.rule(found) is None
    assert wants_another_pair(found)
    assert judge_ab(found).status is Status.INCONCLUSIVE


def test_margins_that_are_wider_are_kept():
    """A case whose matter margin is beyond it decides by its margins alone."""
    assert several_times.rule(with_margins(several(7.0), 100.0, 900.0)) is None
    assert several_times.rule(with_margins(several(7.0), 100.0, 400.0)) is not None


NOISES = {
    "half of the blocks disturbed": lambda draw, size: np.log(4.0) * (draw.random(size) < 0.5),
    "a tenth disturbed": lambda draw, size: np.log(4.0) * (draw.random(size) < 0.1),
    "blocks that scatter by 100 %": lambda draw, size: draw.standard_normal(size),
    "heavy tails": lambda draw, size: 0.5 * draw.standard_t(2, size),
}


@pytest.mark.parametrize("noise", NOISES)
def test_unchanged_code_does_not_look_like_it(noise):
    """Of 400,000 comparisons of three pairs at most 0.03 % do, and at most what the rule says."""
    logs = NOISES[noise](np.random.default_rng(43), (400_000, 2, 2 * LEAST_PAIRS))
    alike = logs[:, 0].min(axis=1) - logs[:, 1].max(axis=1) >= np.log(SEVERAL_TIMES)
    assert alike.mean() <= 3e-4
    assert several_times.chance(4 * LEAST_PAIRS) <= 3e-4
