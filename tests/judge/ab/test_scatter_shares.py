"""How kernels are expected to scatter follows from what H200s and H100s recorded, by a rule that
stepguard/judge/kernel_times.py states. Launches of one code that are paired anew are hardly ever
SLOWER, whichever kernels are said to differ.
"""

import gzip
import math
import random
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from builders import replace
from recorded_kernels import BASE, launches, profile
from scipy import stats

from benchmarks.kernel_difference import times_of
from benchmarks.kernel_rates import Recorded, found_changes
from stepguard.core.margins import ALPHA
from stepguard.core.status import Status
from stepguard.judge.kernel_times import SCATTER_SHARES, Matched, Times
from stepguard.judge.time_rules import (
    KERNEL_MARGINS,
    LARGE_PCT,
    PROFILED_PAIRS,
    bounds_of,
)

STEP_US = 250e3
GPUS = sorted({one.gpu for one in launches("base")})
DATA = Path(__file__).parents[3] / "benchmarks" / "data"
FILES = {
    "H200": "kernel_pairs_h200_2026-11-26.json.gz",
    "H100": "kernel_pairs_templates_h100_2026-11-26.json.gz",
}
LEAST_PCT = 0.3  # share of a step
# Root mean squares of the differences between launches, in percent of a kernel's time.
FIGURES = {"Triton": {"H200": 0.58, "H100": 0.40}, "GEMM": {"H200": 0.54, "H100": 0.59},
           "attention": {"H200": 0.68, "H100": 0.70}, "reduction": {"H200": 1.03, "H100": 1.02},
           "optimizer": {"H200": 0.51, "H100": 0.59}}  # fmt: skip


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """What was recorded, by kind of card."""
    found = {}
    for card, name in FILES.items():
        path = tmp_path_factory.mktemp("recorded") / f"{card}.json"
        path.write_bytes(gzip.decompress((DATA / name).read_bytes()))
        found[card] = Recorded.read(path)
    return found


@pytest.fixture(scope="module")
def kernels(recordings):
    """Each kernel of LEAST_PCT and more that no pair of a card changes: its kind of card and class,
    its share of a step, its differences between any two launches in each profile (both in percent
    of a step), and how they are expected to scatter.
    """
    found = []
    for card, recorded in recordings.items():
        for gpu in dict.fromkeys(gpu for _, gpu, *_ in recorded.pairs):
            mine = [one for _, its, _, pair in recorded.pairs if its == gpu for one in pair]
            times = times_of([*permutations(mine, 2)])
            equal, step_us = ~times.matched.changed, float(times.step_us.mean())
            for at in np.flatnonzero(equal & (times.share_pct >= LEAST_PCT)):
                mine = np.arange(len(equal)) == at
                others = equal & ~mine
                longer_pct = 100 * times.times.longer_us(mine, others) / times.step_us

                def expected(times=times.times, mine=mine, others=others, step_us=step_us):
                    return times.scatter(mine, others, step_us).sd_pct

                kind, share_pct = str(times.matched.kinds[at]), float(times.share_pct[at])
                found.append((card, kind, share_pct, longer_pct, expected))
    return found


def test_the_figures_are_those_of_the_recordings(kernels):
    """Of two kinds of cards, by both profiles of each launch."""
    for kind, by_card in FIGURES.items():
        for card, figure in by_card.items():
            squares = [
                np.square(100 * pct / share_pct).mean()
                for its_card, its_kind, share_pct, pct, _ in kernels
                if (its_card, its_kind) == (card, kind)
            ]
            assert math.sqrt(np.mean(squares)) == pytest.approx(figure, abs=0.0051)
    assert {kind for _, kind, *_ in kernels} == {*FIGURES}


@pytest.mark.parametrize("kind", SCATTER_SHARES)
def test_a_share_is_the_smallest_that_the_rule_of_choice_allows(kind, kernels, monkeypatch):
    """Not below what any of its cards showed, and no kernel's first profile scatters by more than
    1.5 times what is expected. A tenth of a percent less is too small.
    """
    classes = [one for one in FIGURES if one == kind or kind == "other" and one == "reduction"]
    figure = max(FIGURES[each][card] for each in classes for card in FILES)

    def allowed(share):
        monkeypatch.setitem(SCATTER_SHARES, kind, share)
        farthest = max(
            math.sqrt(np.square(pct[:, 0]).mean()) / expected()
            for _, its, _, pct, expected in kernels
            if its in classes
        )
        return 100 * share >= figure - 1e-9 and farthest <= 1.5

    share = SCATTER_SHARES[kind]
    assert allowed(share) and not allowed(share - 0.001)


def test_no_class_scatters_by_more_than_is_expected(kernels):
    """On either kind of card, by both profiles, all its kernels together."""
    for kind, card in {(kind, card) for card, kind, *_ in kernels}:
        mine = [(pct, sd()) for its, of, _, pct, sd in kernels if (its, of) == (card, kind)]
        measured = sum(np.square(pct).mean() for pct, _ in mine)
        assert math.sqrt(measured / sum(sd**2 for _, sd in mine)) < 1.005


def test_the_longer_templates_are_found(recordings):
    """An attention and a product that the compiler makes, in two pairs of an H100 each."""
    attention, product = found_changes(recordings["H100"])
    assert [kind for _, kind, *_ in attention["differ"]] == ["attention"] * 2
    assert [kind for _, kind, *_ in product["differ"]] == ["GEMM"]
    for found, least, most in ((attention, 0.30, 0.31), (product, 0.21, 0.23)):
        assert all("triton_tem" in name for _, _, name, _ in found["differ"])
        assert all(least < pct < most for pct in found["differences_pct"])
        assert found["slower"] and not found["vetoed"]


# launches of one code that are paired anew


def series(turn, gpu):
    """The kernels' us of the launches of the base's code on a card."""
    of_code = [
        one
        for side in ("head", "base")
        for one in launches(side)
        if (one.step, one.gpu) == (BASE, gpu)
    ]
    return np.array([one.kernels_us[turn] for one in of_code])


@pytest.fixture(scope="module")
def rates():
    """What kernels take longer in one to three pairs of launches of one code that share no launch,
    with how that is known to scatter. A kernel is said to differ, or a random set of them. By
    number of pairs.
    """
    draw = random.Random(45)
    rows, found = profile().kernels, {1: [], 2: [], 3: []}
    matched = Matched.of(rows, rows)
    count = len(matched.matches)
    for turn in (0, 1):
        for us in (series(turn, gpu) for gpu in GPUS):
            order = [*permutations(range(len(us)), 2)]
            at = {both: place for place, both in enumerate(order)}
            base, head = (us[[both[side] for both in order]] for side in (0, 1))
            times = matched.times(base, head)
            for _ in range(120):
                chosen = draw.sample(range(count), draw.choice((1, 1, 1, 2, 3, 5, 10)))
                mine = np.isin(np.arange(count), chosen)
                longer = times.longer_us(mine, ~mine) / STEP_US
                its = times.scatter(mine, ~mine, STEP_US)
                for pairs in found:
                    if len(us) < 2 * pairs:
                        continue
                    for _ in range(10):
                        drawn = draw.sample(range(len(us)), 2 * pairs)
                        places = [at[one] for one in zip(drawn[::2], drawn[1::2], strict=True)]
                        values = longer[places].tolist()
                        found[pairs].append((values, its))
    return found


def shares(verdicts, more_pct=0.0):
    """The share of each status, if the kernels took so much of a step longer."""
    counted = [
        bounds_of([value + more_pct / 100 for value in values], its).status(KERNEL_MARGINS)
        for values, its in verdicts
    ]
    return {status: counted.count(status) / len(counted) for status in set(counted)}


def test_kernels_that_take_as_long_are_hardly_ever_slower(rates):
    """Not one in a thousand of several thousand verdicts on launches of the same code."""
    assert [len(verdicts) for verdicts in rates.values()] == [4800, 4800, 2400]
    for verdicts in rates.values():
        found = shares(verdicts)
        assert found.get(Status.SLOWER, 0.0) <= ALPHA >= found.get(Status.FASTER, 0.0)
        assert found.get(Status.SAME, 0.0) > 0.75 or verdicts is rates[1]
    assert shares(rates[1]) == {Status.INCONCLUSIVE: 1.0}


def test_a_large_slowdown_is_beyond_any_drift(rates):
    """Of single pairs of the same code. Most intervals begin below zero."""
    lows = [bounds_of(values, its).low for values, its in rates[1]]
    assert 3 * max(lows) < math.log1p(LARGE_PCT / 100)
    assert np.mean(np.array(lows) > 0.0) < 0.01


@pytest.mark.parametrize(
    ("pct", "pairs", "least"), [(0.2, 2, 0.85), (0.2, 3, 0.9), (0.3, 2, 0.9), (0.8, 1, 0.9)]
)
def test_a_longer_kernel_is_found_among_them(rates, pct, pairs, least):
    """Of the sets that are not much of the step."""
    small = [(values, its) for values, its in rates[pairs] if its.sd_pct < 0.05]
    assert len(small) > 0.7 * len(rates[pairs])
    assert shares(small, pct)[Status.SLOWER] > least


@pytest.mark.parametrize(("sd_pct", "ratio", "most"), [
    (None, 1.0, 1e-5), (None, 1.5, 1e-5), (None, 2.0, 1e-4), (None, 2.5, 0.001),
    (0.15, 0.3, 1e-5), (0.15, 1.0, 1e-5), (0.15, 1.5, 1e-4), (0.15, 2.0, 0.0014),
    (0.15, 2.5, 0.007),
])  # fmt: skip
def test_a_scatter_that_is_not_as_known_errs_as_stated(sd_pct, ratio, most):
    """All four analyses together, integrated over the sample variance of normal pairs: of GELU, and
    of kernels that are half of the step.
    """
    rows, us = profile().kernels, np.array([row.us[0] for row in profile().kernels])
    mine = np.array([row.name == "triton_poi_fused_gelu_view_9" for row in rows])
    its, total = Times(np.array([row.kind for row in rows]), us, us), 0.0
    its = its.scatter(mine, ~mine, STEP_US)
    its = replace(its, sd_pct=sd_pct or its.sd_pct)
    sd = ratio * its.sd_pct / 100
    for pairs in range(1, PROFILED_PAIRS + 1):
        points = stats.chi2.ppf((np.arange(100) + 0.5) / 100, pairs - 1) if pairs > 1 else [0.0]
        found = [
            red_from(its, math.sqrt(sd**2 * point / max(pairs - 1, 1)), pairs) for point in points
        ]
        total += stats.norm.sf(np.array(found) * math.sqrt(pairs) / sd).mean()
    assert total <= most


def red_from(its, sample_sd, pairs):
    """The mean of pairs that scatter so from which on they are SLOWER: by bounds_of() itself."""
    low, high = 0.0, 0.1
    shape = np.resize([1.0, -1.0], pairs)
    shape -= shape.mean()
    if pairs > 1:
        shape *= sample_sd / shape.std(ddof=1)
    while high - low > 1e-6:
        middle = (low + high) / 2
        status = bounds_of([middle + one for one in shape], its).status(KERNEL_MARGINS)
        low, high = (low, middle) if status is Status.SLOWER else (middle, high)
    return high
