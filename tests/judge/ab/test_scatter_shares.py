"""How kernels are expected to scatter follows from what H200s and H100s recorded, by a rule that
stepguard/judge/kernel_times.py states.
"""

import gzip
import math
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from benchmarks.kernel_difference import times_of
from benchmarks.kernel_rates import Recorded, found_changes
from benchmarks.single_pairs import single_pairs
from stepguard.judge.kernel_times import SCATTER_SHARES, SHARES_BESIDE_EXCHANGE
from stepguard.judge.rules.changed_kernels import LARGE_PCT, bounds_of

DATA = Path(__file__).parents[3] / "benchmarks" / "data"
FILES = {
    "H200": "kernel_pairs_h200_2026-11-26.json.gz",
    "H100": "kernel_pairs_templates_h100_2026-11-26.json.gz",
    "two H100s": "kernel_pairs_two_ranks_h100x2_2026-11-27.json.gz",
}
TABLES = {"H200": SCATTER_SHARES, "H100": SCATTER_SHARES, "two H100s": SHARES_BESIDE_EXCHANGE}
LEAST_PCT = 0.3  # share of a step
# Root mean squares of the differences between launches, in percent of a kernel's time.
FIGURES = {
    "Triton": {"H200": 0.58, "H100": 0.40, "two H100s": 0.86},
    "GEMM": {"H200": 0.54, "H100": 0.59, "two H100s": 1.59},
    "attention": {"H200": 0.68, "H100": 0.70, "two H100s": 0.72},
    "reduction": {"H200": 1.03, "H100": 1.02, "two H100s": 0.95},
    "optimizer": {"H200": 0.51, "H100": 0.59, "two H100s": 0.88},
}


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
            launches = [one for _, its, _, pair in recorded.pairs if its == gpu for one in pair]
            times = times_of([*permutations(launches, 2)])
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
    """Of two kinds of cards by both profiles of each launch, and of two ranks by one."""
    for kind, by_card in FIGURES.items():
        for card, figure in by_card.items():
            squares = [
                np.square(100 * pct / share_pct).mean()
                for its_card, its_kind, share_pct, pct, _ in kernels
                if (its_card, its_kind) == (card, kind)
            ]
            assert math.sqrt(np.mean(squares)) == pytest.approx(figure, abs=0.0051)
    assert {kind for _, kind, *_ in kernels} == {*FIGURES}


@pytest.mark.parametrize("table", [SCATTER_SHARES, SHARES_BESIDE_EXCHANGE])
@pytest.mark.parametrize("kind", SCATTER_SHARES)
def test_a_share_is_the_smallest_that_the_rule_of_choice_allows(kind, table, kernels, monkeypatch):
    """Not below what any of its cards showed, and no kernel's first profile scatters by more than
    1.5 times what is expected. A tenth of a percent less is too small. Beside an exchange no class
    scatters by less than without one.
    """
    cards = [card for card, its in TABLES.items() if its is table]
    classes = [one for one in FIGURES if one == kind or kind == "other" and one == "reduction"]
    figure = max(FIGURES[each][card] for each in classes for card in cards)
    least = 0.0 if table is SCATTER_SHARES else SCATTER_SHARES[kind]

    def allowed(share):
        monkeypatch.setitem(table, kind, share)
        farthest = max(
            math.sqrt(np.square(pct[:, 0]).mean()) / expected()
            for card, its, _, pct, expected in kernels
            if its in classes and card in cards
        )
        return 100 * share >= figure - 1e-9 and share >= least and farthest <= 1.5

    share = table[kind]
    assert allowed(share) and not allowed(share - 0.001)


def test_no_class_scatters_by_more_than_is_expected(kernels):
    """On either kind of card, by both profiles, all its kernels together."""
    for kind, card in {(kind, card) for card, kind, *_ in kernels}:
        mine = [(pct, sd()) for its, of, _, pct, sd in kernels if (its, of) == (card, kind)]
        measured = sum(np.square(pct).mean() for pct, _ in mine)
        assert math.sqrt(measured / sum(sd**2 for _, sd in mine)) < 1.005


def test_a_single_pair_of_two_ranks_is_far_from_a_large_slowdown(recordings, monkeypatch):
    """Of equal code, whichever kernels are said to differ. As kernels of one rank are expected to
    scatter, one product would make it SLOWER.
    """
    alike = recordings["two H100s"].alike()
    assert [len(launches) for launches in alike.values()] == [6]

    def farthest():
        return max(row["low_end_pct"] for row in single_pairs(alike))

    assert farthest() < LARGE_PCT / 7
    for kind, share in SCATTER_SHARES.items():
        monkeypatch.setitem(SHARES_BESIDE_EXCHANGE, kind, share)
    assert farthest() > LARGE_PCT


def test_a_single_pair_of_two_ranks_shows_a_gelu_that_runs_twice(recordings):
    """In three layers of twelve: each recorded pair would be enough."""
    pairs = recordings["two H100s"].of_change("gelu twice in 3 layers")
    assert len(pairs) == 6
    for pair in pairs:
        times = times_of([pair])
        changed = times.matched.changed
        ((longer_pct,),) = times.differences_pct(changed)
        found = bounds_of([math.log1p(longer_pct / 100)], times.known(changed))
        assert 1.0 < longer_pct < 1.2 and 100 * found.low > 1.3 * LARGE_PCT and found.fewest == 1


def test_the_longer_templates_are_found(recordings):
    """An attention and a product that the compiler makes, in two pairs of an H100 each."""
    attention, product = found_changes(recordings["H100"])
    assert [kind for _, kind, *_ in attention["differ"]] == ["attention"] * 2
    assert [kind for _, kind, *_ in product["differ"]] == ["GEMM"]
    for found, least, most in ((attention, 0.30, 0.31), (product, 0.21, 0.23)):
        assert all("triton_tem" in name for _, _, name, _ in found["differ"])
        assert all(least < pct < most for pct in found["differences_pct"])
        assert found["slower"] and not found["vetoed"]
