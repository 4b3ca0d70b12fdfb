"""Pairs whose blocks are out of line: another is measured, and no estimate moves by it."""

from types import SimpleNamespace

import numpy as np
import pytest
from builders import block, launch

from stepguard import Case
from stepguard.ab_margins import Prior
from stepguard.comparison import LaunchPair
from stepguard.judge.ab.pairs import decide, out_of_line
from stepguard.measure.ab import MOST_AGAIN, PairsWanted, _PairRun
from stepguard.verdict import Status

GPU = Case("a", "m:f")


def pair(draw, pct=0.0, slow=0.0, by_pct=3.0, own_pct=0.1, block_pct=0.14):
    """A pair of two blocks a side with a true change of so many percent; each block is slower by
    ``by_pct`` with the chance ``slow``.
    """
    sides = []
    for shift in (pct, 0.0):
        level = shift + own_pct * draw.standard_normal()
        logs = level + block_pct * draw.standard_normal(2) + by_pct * (draw.random(2) < slow)
        sides.append(launch(blocks=tuple(block(250 * np.exp(x / 100)) for x in logs)))
    return LaunchPair(*sides)


class Run(_PairRun):
    """A run of pairs that only takes what it is given."""

    def __init__(self, case=GPU, steps=range(0)):
        sides = [SimpleNamespace(launches=[]) for _ in "hb"]
        super().__init__(case, sides, "main", PairsWanted(600.0, steps=steps))

    def comparison(self):
        """All that is asked of it."""
        return SimpleNamespace(prior=Prior())

    def ratios(self):
        """The log-ratios of the pairs that count."""
        head, base = (side.launches for side in self.sides)
        return [np.log(h.step_ms / b.step_ms) for h, b in zip(head, base, strict=True)]


def taken(draw, count, again=True, **how):
    """A run that has so many pairs."""
    run = Run(steps=range(0) if again else range(1))
    while len(run.ratios()) < count:
        run._take(pair(draw, **how))
    return run


def odd(side=0):
    """A pair with one slow block, of HEAD or the base."""
    slow = launch(blocks=(block(250.0), block(258.0)))
    sides = [launch(blocks=(block(250.0),) * 2)] * 2
    sides[side] = slow
    return LaunchPair(*sides)


EVEN = LaunchPair(launch(blocks=(block(250.0),) * 2), launch(blocks=(block(250.0),) * 2))


@pytest.mark.parametrize("side", [0, 1])
def test_a_pair_out_of_line_is_replaced_and_kept(side):
    """On whichever side the slow block is; the next pair takes its place."""
    assert out_of_line(odd(side).head, odd(side).base) and not out_of_line(EVEN.head, EVEN.base)
    run = Run()
    run._take(odd(side))
    assert run.ratios() == [] and run.again == []
    run._take(EVEN)
    assert run.ratios() == [0.0] and run.again == [odd(side)] and run.aside is None
    assert [one.index for one in run.sides[0].launches] == [1]


def test_what_returns_counts():
    """A second pair out of line is no accident: both count, so that rare work of HEAD is seen."""
    run = Run()
    run._take(odd())
    run._take(odd())
    assert len(run.ratios()) == 2 and run.again == []


def test_it_is_bounded():
    """Three pairs are replaced; then all count. On a CPU none is, nor where steps are asked for."""
    run = Run()
    for _ in range(MOST_AGAIN):
        run._take(odd())
        run._take(EVEN)
    run._take(odd())
    assert len(run.again) == MOST_AGAIN and len(run.ratios()) == MOST_AGAIN + 1
    cpu = Case("a", "m:f", device="cpu", launches=1)
    for other in (Run(cpu), Run(steps=range(3, 9))):
        other._take(odd())
        assert len(other.ratios()) == 1


@pytest.mark.parametrize("pct", [0.0, 0.5])
def test_no_estimate_moves_by_it(pct):
    """Disturbances that may hit either side, one block in fifty: the mean over runs is the truth,
    as it is without replacing any.
    """
    draw = np.random.default_rng(18)
    means = [100 * np.mean(taken(draw, 6, pct=pct, slow=0.02).ratios()) for _ in range(400)]
    assert abs(np.mean(means) - pct) < 4 * np.std(means) / np.sqrt(len(means))


def test_half_a_percent_is_found_among_disturbances():
    """More often than without, and nothing is found where nothing changed."""
    found = {}
    for again in (True, False):
        draw = np.random.default_rng(18)
        runs = [taken(draw, 12, again, pct=0.5, slow=0.02).ratios()[:12] for _ in range(150)]
        found[again] = sum(decide(one).status is Status.SLOWER for one in runs) / len(runs)
    assert found[True] > 0.8 and found[True] > found[False] + 0.2, found
    draw = np.random.default_rng(18)
    none = [decide(taken(draw, 12, slow=0.02).ratios()[:12]).status for _ in range(150)]
    assert Status.SLOWER not in none
