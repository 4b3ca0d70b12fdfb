"""Exposed communication and rank skew as figures: from segments to metrics, notes and lines."""

import math
from types import SimpleNamespace

import pytest
from builders import compared, evidence, recording, two_rank_evidence, values_of

from stepguard.core.evidence import Difference
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.verdict import Verdict
from stepguard.judge.judge_recordings import judge
from stepguard.measure.differences import measure_difference, pairs_of, plain_by_rank
from stepguard.measure.launch_durations import Protocol
from stepguard.report.metric_notes import note
from stepguard.report.verdict_text import evidence_lines

PAIRS = ((250.0, 260.0), (252.0, 262.0))
ALONE = (250.0, 245.0, 251.0, 248.0)
EXPOSED = Difference("exposed_comm", PAIRS, ALONE)
PROTOCOL = Protocol(0, 0, 0, 0, blocks=1, block_s=1, segment_s=1.0, pairs_in_a_series=2)


def launch(ask):
    """A launch that has warmed up, whose ranks answer by ``ask``, undisturbed."""
    return SimpleNamespace(
        ask=ask,
        protocol=PROTOCOL,
        warmup=SimpleNamespace(step_s=0.1),
        show=lambda text: None,
        undisturbed=lambda measure, discarded, during: measure(),
    )


def test_segments_become_pairs_of_the_slowest_and_means_of_each_rank():
    """Order 0, 0 1 1 0: the first never counts; each rank's plain mean is its own."""
    order = [0, 0, 1, 1, 0]
    ranks = [{"segments_ms": [99.0, 10, 13, 14, 12]}, {"segments_ms": [99.0, 8, 15, 13, 16]}]
    assert pairs_of(ranks, order) == [(10, 15), (16, 14)]
    assert plain_by_rank(ranks, order) == [11, 12]


def test_segments_of_a_longer_lead_never_count():
    """Three that settle the machine, whatever they read, leave pairs and means as they were."""
    order = [0, 0, 0, 0, 1, 1, 0]
    ranks = [{"segments_ms": [99.0, 1.0, 50.0, 10, 13, 14, 12]}]
    assert pairs_of(ranks, order, 3) == [(10, 13), (12, 14)]
    assert plain_by_rank(ranks, order, 3) == [11]


def test_the_variants_are_asked_for_by_name_and_series_are_averaged():
    """Two series of two pairs: four pairs, and each rank's mean over both."""
    asked, lengths, levels = [], [], iter((10.0, 20.0))

    def ask(command, limit_s, steps, order, variants):
        asked.append((command, variants))
        level, segments = next(levels), len(order)
        lengths.append(segments)
        told = {"began_ns": 0, "ended_ns": 1, "outside_ms": (level + 1) * segments * steps}
        return [told | {"segments_ms": [level + rank] * segments} for rank in (0, 1)]

    found = measure_difference("exposed_comm", launch(ask), 4)
    assert asked == [("alternate", ["no_gradient_sync", "pipelined"])] * 2
    assert lengths == [3 + 4, 1 + 4]  # the machine settles before the first series alone
    assert found.pairs_ms == ((11, 11),) * 2 + ((21, 21),) * 2
    assert found.plain_by_rank_ms == (15, 16)


def test_the_wait_of_the_faster_rank_is_no_exchange():
    """6 and 9 ms of work and 3 ms of exchange: 3 ms on the slowest rank's 9, and half as long again
    on rank 1. With exchange both ranks take 12.
    """
    alone = (6.0, 9.0)

    def ask(command, steps, **arguments):
        told = {"began_ns": 0, "ended_ns": 1, "outside_ms": (9.0 * 5 + 12.0 * 2) * steps}
        return [told | {"segments_ms": [ms] * 4 + [12.0, 12.0, ms]} for ms in alone]

    found = measure_difference("exposed_comm", launch(ask), 2)
    values = values_of(two_rank_evidence(differences=(found,)))
    assert values["exposed_comm_ms"] == pytest.approx(3)
    assert values["exposed_comm_pct"] == pytest.approx(100 * 3 / 9)
    assert values["rank_skew_pct"] == pytest.approx(50)
    assert (
        note(compared("rank_skew_pct", two_rank_evidence(differences=(found,)), [recording()]))
        == "rank 1 takes 9.00 ms alone, rank 0 6.00 ms"
    )


def test_what_exchange_adds_has_a_plus():
    """Steps as they are less steps without exchange; skew is the slowest over the fastest."""
    values = values_of(two_rank_evidence(differences=(EXPOSED,)))
    assert values["exposed_comm_ms"] == pytest.approx(10)
    assert values["exposed_comm_pct"] == pytest.approx(100 * 10 / 251)
    assert values["rank_skew_pct"] == pytest.approx(100 * (251 / 245 - 1))


def test_sync_overhead_says_nothing_of_ranks():
    """Its plain steps wait for each other, so their times by rank are no skew."""
    found = values_of(evidence(differences=(Difference("sync_overhead", PAIRS, ALONE),)))
    assert "rank_skew_pct" not in found


def test_the_straggler_is_named_in_a_note_and_a_line():
    """The slowest rank and the fastest, with their own times; never judged."""
    found = compared("rank_skew_pct", two_rank_evidence(differences=(EXPOSED,)), [recording()])
    words = "rank 2 takes 251.00 ms alone, rank 1 245.00 ms"
    assert (found.status, found.gated, note(found)) == (Status.SAME, False, words)
    lines = evidence_lines(Verdict("c", Status.SLOWER, Reason.BEYOND_LIMIT, metrics=(found,)))
    assert f"  rank_skew_pct 2.45: {words}" in lines


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_rank_without_a_time_is_broken(bad):
    """A skew of such a time would be a crash or nonsense."""
    odd = Difference("exposed_comm", PAIRS, (250.0, bad))
    verdict = judge(two_rank_evidence(differences=(odd,)), None)
    assert (verdict.status, verdict.reason) == (Status.BROKEN, Reason.NOTHING_MEASURED)
