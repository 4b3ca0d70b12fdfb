"""Differences as figures: from segments to pairs."""

from types import SimpleNamespace

from stepguard.core.replies import TimedSegments
from stepguard.measure.driver import measure_difference, pairs_of
from stepguard.measure.warm_up import Protocol

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


def segments_of(ms, outside_ms=0.0):
    """A rank's answer."""
    return TimedSegments(began_ns=0, ended_ns=1, segments_ms=ms, outside_ms=outside_ms)


def test_segments_become_pairs_of_the_slowest():
    """Order 0, 0 1 1 0: the first never counts."""
    order = [0, 0, 1, 1, 0]
    ranks = [segments_of([99.0, 10, 13, 14, 12]), segments_of([99.0, 8, 15, 13, 16])]
    assert pairs_of(ranks, order) == [(10, 15), (16, 14)]


def test_series_follow_each_other():
    """Two series of two pairs: four pairs."""
    lengths, levels = [], iter((10.0, 20.0))

    def ask(command, limit_s, steps, order):
        level, segments = next(levels), len(order)
        lengths.append(segments)
        outside_ms = (level + 1) * segments * steps
        return [segments_of([level + rank] * segments, outside_ms) for rank in (0, 1)]

    found = measure_difference(launch(ask), 4)
    assert lengths == [3 + 4, 1 + 4]  # the machine settles before the first series alone
    assert found.pairs_ms == ((11, 11),) * 2 + ((21, 21),) * 2
