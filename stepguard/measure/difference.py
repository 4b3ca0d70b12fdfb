"""Measure by how much two variants of the step differ, such as with and without a sync, within one
launch.
"""

from collections.abc import Callable, Sequence
from functools import partial

from stepguard.core.evidence import Block, Difference
from stepguard.measure.combine_ranks import Answers
from stepguard.measure.running_launch import RunningLaunch
from stepguard.measure.warm_up import Protocol

LIMIT_S = 120.0  # in addition to three times the expected time of the segments
FEW_PAIRS = 4  # of a first series that may be enough; an even number


def measure_difference(
    name: str,
    launch: RunningLaunch,
    pairs_wanted: int,
    enough: Callable[[Difference], bool] | None = None,
) -> Difference:
    """Measure segments of the plain variant (P) and the other one (V) as P V V P, series after
    series, until there are ``pairs_wanted`` pairs. The launch must have warmed up.

    If a case wants no more pairs than one series has, the first series has FEW_PAIRS, and
    ``enough`` is asked whether these are enough. A case that wants more pairs wants to know the
    difference itself, not only that it did not move: then ``enough`` is not asked.

    A series in which the machine was disturbed is repeated. Raises LaunchFailed if that happens
    more often than the protocol's ``retries``.
    """
    words, protocol, step_s = name.replace("_", " "), launch.protocol, launch.warmup.step_s
    steps = max(4, round(protocol.segment_s / step_s))
    if pairs_wanted > protocol.pairs_in_a_series:
        enough = None
    pairs: list[tuple[float, float]] = []
    discarded: list[Block] = []
    while (left := pairs_wanted - len(pairs)) > 0:
        in_a_series = protocol.pairs_in_a_series
        if enough is not None:  # first FEW_PAIRS, then the rest
            in_a_series = min(FEW_PAIRS, left + left % 2)
        lead, order = _order(protocol, in_a_series, not pairs)
        left_s = -(-left // in_a_series) * len(order) * steps * step_s
        launch.show(f"{words}, {len(pairs)} of {pairs_wanted} pairs, {left_s:.0f} s to go")
        measure = partial(_series, launch, order, steps)
        _, ranks = launch.undisturbed(measure, discarded, words)
        pairs += pairs_of(ranks, order, lead)
        difference = Difference(name, tuple(pairs))
        if enough is not None and enough(difference):
            break
    return difference


def _order(protocol: Protocol, pairs: int, first: bool) -> tuple[int, list[int]]:
    """Return how many segments of a series do not count, and the variants of all its segments."""
    # The first segment of a series does not count, since a pause came before it. Before the first
    # series more segments run. The warm-up has pauses and segments have none, so the clocks settle
    # anew: without these segments the first pair was 0.4 to 0.9 % too high.
    lead = protocol.settling_segments if first else 1
    return lead, [0] * lead + [0, 1, 1, 0] * (pairs // 2)


def _series(launch: RunningLaunch, order: Sequence[int], steps: int) -> tuple[Block, Answers]:
    """Run the segments of one series. Return the block that spans them, and the ranks' answers. The
    block only shows whether the machine was disturbed and whether the clocks agree.
    """
    seconds = len(order) * steps * launch.warmup.step_s
    ranks = launch.ask("alternate", limit_s=LIMIT_S + 3 * seconds, order=order, steps=steps)
    wall_ms = tuple(sum(rank.segments_ms) * steps for rank in ranks)
    outside_ms = ranks[0].outside_ms
    return Block(len(order) * steps, wall_ms, wall_ms, (), outside_ms=outside_ms), ranks


def pairs_of(ranks: Answers, order: Sequence[int], lead: int = 1) -> list[tuple[float, float]]:
    """Return (plain, other) step times in ms for each two neighbouring segments, of the slowest
    rank. The segments' ``order`` is 0 1 1 0 ..., after ``lead`` segments that do not count.
    """
    slowest = [max(times) for times in zip(*(rank.segments_ms for rank in ranks), strict=True)]
    pairs = []
    for first in range(lead, len(order), 2):
        times = {order[index]: slowest[index] for index in (first, first + 1)}
        pairs.append((times[0], times[1]))
    return pairs
