"""Differences of two ways to run a step, and counts of several ranks: from pairs to a verdict."""

import math

import numpy as np
import pytest
from builders import PROPERTY, compared, entry, evidence, one_recording, recording, values_of
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from scipy import stats

from stepguard.core.comparison import Question
from stepguard.core.evidence import Counts, Difference
from stepguard.core.reasons import Reason
from stepguard.core.recording import RecordedDifference
from stepguard.core.replies import Counted
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.judge.compare_metric import DIFFERENCE_LIMIT_PCT
from stepguard.judge.rule_book import judge
from stepguard.judge.summarise_evidence import paired
from stepguard.measure.combine_ranks import counts_of

OVERHEAD = "sync_overhead_pct"
SYNCS = "host_syncs_per_step"
TIMES = st.floats(0.1, 1e4)


# paired


@pytest.mark.parametrize("truth_ms", [0.0, 1.0, -2.0])
@pytest.mark.parametrize("pairs", [2, 5, 20])
def test_the_interval_holds_the_truth_as_often_as_it_says(truth_ms, pairs):
    """In 95 % of seeded runs of few or many pairs, whether the truth is zero or not."""
    rng, trials = np.random.default_rng(20261121), 2000
    plain = rng.normal(250.0, 0.2, (trials, pairs))  # the card drifts, both ways alike
    other = plain + rng.normal(truth_ms, 0.5, (trials, pairs))
    hits = 0
    for some, others in zip(plain.tolist(), other.tolist(), strict=True):
        _, found = paired(list(zip(some, others, strict=True)))
        hits += abs(found.mean - 100 * truth_ms / 250.0) <= found.half_width
    low, high = stats.binom.ppf([1e-4, 1 - 1e-4], trials, 0.95)
    assert low <= hits <= high


@PROPERTY
@given(st.lists(st.tuples(TIMES, TIMES), min_size=2, max_size=12))
def test_the_interval_is_students(pairs):
    """Mean and half width are those of a t interval of the differences, in percent of plain."""
    plain, other = np.array(pairs).T
    percent = 100 / plain.mean()
    error = stats.sem(other - plain)
    half = stats.t.ppf(0.975, len(pairs) - 1) * error
    mean_ms, found = paired(pairs)
    assert mean_ms == pytest.approx((other - plain).mean(), rel=1e-9, abs=1e-9)
    assert found.mean == pytest.approx(percent * (other - plain).mean(), rel=1e-9, abs=1e-9)
    assert found.half_width == pytest.approx(percent * half, rel=1e-6, abs=1e-6)


def test_one_pair_is_no_certainty():
    """A single pair has an infinite half width, and its difference."""
    _, found = paired([(100.0, 101.0)])
    assert (found.mean, found.half_width) == (1.0, math.inf)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.0, -1.0])
@pytest.mark.parametrize("side", [0, 1])
def test_what_is_no_time_raises(bad, side):
    """On either side of any pair."""
    odd = (bad, 1.0) if side == 0 else (1.0, bad)
    with pytest.raises(ValueError, match="not a positive finite number"):
        paired([(1.0, 1.0), odd])


def test_no_pair_raises():
    """Nothing measured does not read as no difference."""
    with pytest.raises(ValueError, match="at least one pair"):
        paired([])


@pytest.mark.parametrize(("pairs", "text"), [
    ((), "no pairs of blocks of sync_overhead were measured"),
    (((1.0, 1.0), (0.0, 1.0)), "no valid times of sync_overhead were measured: 0.0 ms"),
    (((1.0, math.nan),), "no valid times of sync_overhead were measured: nan ms"),
    (((-1.0, 1.0),), "no valid times of sync_overhead were measured: -1.0 ms"),
])  # fmt: skip
def test_a_difference_without_times_is_broken(pairs, text):
    """Evidence with such pairs is judged, not tripped over, with and without a baseline."""
    found = evidence(differences=(Difference("sync_overhead", pairs),))
    assert OVERHEAD not in values_of(found)
    for baseline in (entry(), None):
        verdict = judge(Question(found, baseline))
        assert (verdict.status, verdict.reason) == (Status.BROKEN, Reason.NOTHING_MEASURED)
        assert verdict.message == text


# A difference against a recording


def overhead(mean_pct, spread_pct=0.0, **changes):
    """Evidence whose steps synced cost so much more: two pairs that lie 2 * spread apart."""
    pairs = ((100.0, 100.0 + mean_pct - spread_pct), (100.0, 100.0 + mean_pct + spread_pct))
    return evidence(differences=(Difference("sync_overhead", pairs),), **changes)


def recorded(mean_pct, half_width=0.1):
    """A recording of that overhead."""
    known = RecordedDifference(mean=mean_pct, half_width=half_width)
    return [recording(differences_pct={OVERHEAD: known})]


@pytest.mark.parametrize(("old", "new", "status", "reason"), [
    (1.0, 1.0, Status.SAME, Reason.WITHIN_LIMIT),
    (1.0, 1.49, Status.SAME, Reason.WITHIN_LIMIT),
    (1.0, 0.51, Status.SAME, Reason.WITHIN_LIMIT),
    (1.0, 1.51, Status.SLOWER, Reason.BEYOND_LIMIT),
    (1.0, 0.49, Status.FASTER, Reason.BEYOND_LIMIT),
    (0.0, 0.4, Status.SAME, Reason.WITHIN_LIMIT),
    (0.0, 0.6, Status.SLOWER, Reason.BEYOND_LIMIT),
    (0.2, -0.2, Status.SAME, Reason.WITHIN_LIMIT),
    (20.0, 20.4, Status.SAME, Reason.WITHIN_LIMIT),
])  # fmt: skip
def test_a_difference_is_judged_in_points(old, new, status, reason):
    """Half a point of a step is the limit, wherever the level lies: also at zero and below."""
    assert DIFFERENCE_LIMIT_PCT == 0.5
    found = compared(OVERHEAD, overhead(new), recorded(old))
    assert (found.status, found.reason) == (status, reason)
    assert (found.old, found.new) == (old, pytest.approx(new))
    assert found.change_pct == pytest.approx(new - old)
    assert found.limit_pct == 0.5


@pytest.mark.parametrize(("half_width", "status"), [(0.49, Status.SAME), (0.51, "noisy")])
@pytest.mark.parametrize("moved", [0.0, 3.0])
def test_a_wide_interval_is_inconclusive(half_width, status, moved):
    """Wider than the limit says nothing, neither same nor slower; t of one degree is 12.706."""
    spread = half_width / float(stats.t.ppf(0.975, 1))
    found = compared(OVERHEAD, overhead(1.0 + moved, spread), recorded(1.0))
    if status == "noisy":
        assert (found.status, found.reason) == (Status.INCONCLUSIVE, Reason.TOO_NOISY)
    else:
        assert found.status is (Status.SLOWER if moved else Status.SAME)
    assert found.noise_pct == pytest.approx(half_width)


def test_a_difference_is_compared_with_the_mean_of_the_recordings():
    """One that is far off raises no alarm for all later runs. One without it is left out."""
    past = [*recorded(0.48), *recorded(0.44), recording(), *recorded(0.91)]
    found = compared(OVERHEAD, overhead(0.4), past)
    assert (found.status, found.old) == (Status.SAME, pytest.approx(0.61))
    assert compared(OVERHEAD, overhead(0.4), recorded(0.91)).status is Status.FASTER


def test_the_difference_in_ms_is_information():
    """The same in ms a step is shown beside it and never judged."""
    found = evidence(differences=(Difference("sync_overhead", ((100.0, 101.0), (100.0, 103.0))),))
    assert values_of(found)["sync_overhead_ms"] == pytest.approx(2.0)
    assert values_of(found)[OVERHEAD] == pytest.approx(2.0)
    was = [recording(information={"sync_overhead_ms": 1.0})]
    shown = compared("sync_overhead_ms", found, was)
    assert (shown.status, shown.gated, shown.old) == (Status.SAME, False, 1.0)


# Counters with their places

LOSS = Site(".item()", "train.py", 10, "step", "loss.item()", "forward")
NORM = Site(".item()", "train.py", 20, "step", "norm.item()", "clip_grad")
LOGGED = Site(".item()", "train.py", 30, "log", "print(loss)", "", 8, "every 100 steps")


FURTHER = structs.replace(LOSS, line=17)  # after an edit above it
GONE = structs.replace(NORM, line=0)  # its line may be another one now
BARE = structs.replace(LOGGED, allowed="")


def times(site, count):
    """The place, so often."""
    return structs.replace(site, count=count)


@pytest.mark.parametrize(("then", "now", "status", "named"), [
    ([LOSS], [FURTHER, NORM], Status.CHANGED, [NORM]),  # the new place alone
    ([times(LOSS, 2)], [times(FURTHER, 5)], Status.CHANGED, [times(FURTHER, 3)]),
    ([LOSS, NORM], [FURTHER], Status.FASTER, [GONE]),
    ([LOSS], [times(NORM, 2)], Status.CHANGED, [times(NORM, 2)]),  # not what fell
    ([LOSS], [NORM], Status.SAME, [NORM]),
    ([LOSS], [LOSS], Status.SAME, []),
    ([], [LOSS, NORM], Status.CHANGED, [LOSS, NORM]),
    # What is allowed has not to be mended, and is new once it is allowed no more.
    ([], [LOGGED, LOSS], Status.CHANGED, [LOSS]),
    ([LOGGED, NORM], [], Status.FASTER, [GONE]),
    ([LOGGED], [BARE], Status.CHANGED, [BARE]),
])  # fmt: skip
def test_the_places_of_a_count_that_moved(then, now, status, named):
    """What rose, or what fell, and by how much: at its line of today, or where it was."""
    old, new = (sum(site.count for site in side if not site.allowed) for side in (then, now))
    past = [recording(counters={SYNCS: old}, sites={SYNCS: then})]
    found = compared(SYNCS, evidence(counts=Counts({SYNCS: new}, sites={SYNCS: tuple(now)})), past)
    assert (found.status, list(found.sites)) == (status, named)


def test_a_recording_without_parts_compares_none():
    """Somebody took them out of the file: as many operators may be other ones."""
    verdict = judge(Question(evidence(), one_recording(detail={})))
    assert (verdict.status, verdict.reason) == (Status.NO_BASELINE, Reason.NOT_RECORDED)
    assert verdict.worst.metric == "operator_calls_per_step"


# Counts of several ranks


def rank(values, unstable=None, **more):
    """What a rank answers."""
    return Counted(counts=Counts(values, unstable or {}, **more))


@PROPERTY
@given(
    st.lists(
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=3),
        min_size=1,
        max_size=4,
    )
)
def test_of_each_metric_the_highest_rank_counts(values):
    """A metric of any rank is there, with the most that a rank counted."""
    counts = counts_of([rank(of_rank) for of_rank in values], 1.0)
    names = {name for of_rank in values for name in of_rank}
    assert counts.values == {
        name: max(of_rank[name] for of_rank in values if name in of_rank) for name in names
    }


def test_parts_are_those_of_the_highest_rank_and_places_those_of_all():
    """Rank 0 logs and rank 1 does something else: what each counted stands beside the most."""
    ranks = []
    for number, (place, calls) in enumerate([(LOSS, {"x": 2, "y": 1}), (NORM, {"x": 4})], 1):
        allowed = structs.replace(place, text="all", allowed="known")
        ranks.append(
            rank(
                {"calls": sum(calls.values()), SYNCS: number, "even": 5},
                detail={"calls": calls},
                sites={SYNCS: (structs.replace(place, count=number), allowed)},
                information={"share": number - 1.0},
            )
        )
    counts = counts_of(ranks, 2.5)
    assert counts.values == {"calls": 4, SYNCS: 2, "even": 5}
    assert counts.by_rank == {"calls": (3, 4), SYNCS: (1, 2)}
    assert counts.detail == {"calls": {"x": 4}}
    counted = [(place.text, place.count) for place in counts.sites[SYNCS] if not place.allowed]
    assert counted == [(LOSS.text, 1), (NORM.text, 2)]
    assert (counts.information, counts.wall_s) == ({"share": 0.0}, 2.5)


def test_a_single_rank_is_not_numbered():
    """With one rank there is no other to tell it from."""
    assert counts_of([rank({}, {"a": "lost"})], 1.0).unstable == {"a": "lost"}
