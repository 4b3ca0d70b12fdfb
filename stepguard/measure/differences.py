"""Two ways to run the same step, in turns: what the one costs more than the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from stepguard.evidence import Block, Difference
from stepguard.measure.blocks import Annotate, Ask, keep
from stepguard.measure.warmup import Protocol

LIMIT_S = 120.0  # beyond three times what the segments should take


@dataclass(frozen=True)
class Variants:
    """The two ways that a difference compares, by the names that a worker has for them."""

    words: str  # what a person reads while it is measured
    plain: str
    other: str
    diverges: bool = False  # one way spoils the state: it needs a launch of its own


DIFFERENCES = {
    "sync_overhead": Variants("sync overhead", "pipelined", "synced"),
    "exposed_comm": Variants(
        "exposed communication", "no_gradient_sync", "pipelined", diverges=True
    ),
}


def measure_difference(
    name: str,
    ask: Ask,
    protocol: Protocol,
    step_s: float,
    pairs_wanted: int,
    annotate: Annotate,
    progress: Callable[[str], None],
) -> Difference:
    """Segments of the plain (P) and the other way (S), P S S P, series after series, until there
    are enough pairs.

    ``annotate`` says whether the machine was fit meanwhile; a series that was not is measured
    again. Raises Tainted after ``protocol.retries`` of those.
    """
    ways = DIFFERENCES[name]
    steps = max(4, round(protocol.segment_s / step_s))
    series = [0, 1, 1, 0] * (protocol.pairs_in_a_series // 2)
    pairs: list[tuple[float, float]] = []
    plain_ms: list[list[float]] = []  # by rank, of each series
    discarded: list[Block] = []
    while len(pairs) < pairs_wanted:
        # The first segment only takes up the pause before the command; a load without pauses,
        # which the warm-up is not, has to settle first: the first pair read 0.4 to 0.9 % too much.
        lead = 1 if pairs else protocol.settling_segments
        order = [0] * lead + series
        seconds = len(order) * steps * step_s
        left = -(-(pairs_wanted - len(pairs)) // protocol.pairs_in_a_series)
        done = f"{len(pairs)} of {pairs_wanted} pairs, {left * seconds:.0f} s to go"
        progress(f"{ways.words}, {done}")
        arguments = {"variants": [ways.plain, ways.other], "order": order, "steps": steps}
        ranks = ask("alternate", limit_s=LIMIT_S + 3 * seconds, **arguments)
        whole = Block(len(order) * steps, (seconds * 1e3,), (seconds * 1e3,), ())
        if keep(annotate(whole, ranks), discarded, protocol.retries):
            pairs += pairs_of(ranks, order, lead)
            plain_ms.append(plain_by_rank(ranks, order, lead))
    return Difference(name, tuple(pairs), tuple(map(fmean, zip(*plain_ms, strict=True))))


def pairs_of(
    ranks: Sequence[dict[str, Any]], order: Sequence[int], lead: int = 1
) -> list[tuple[float, float]]:
    """(plain, other) step times of the slowest rank, of neighbours in the order 0 1 1 0 ... that
    follows ``lead`` segments which do not count.
    """
    slowest = [max(times) for times in zip(*(rank["segments_ms"] for rank in ranks), strict=True)]
    pairs = []
    for first in range(lead, len(order), 2):
        both = {order[index]: slowest[index] for index in (first, first + 1)}
        pairs.append((both[0], both[1]))
    return pairs


def plain_by_rank(
    ranks: Sequence[dict[str, Any]], order: Sequence[int], lead: int = 1
) -> list[float]:
    """Mean step time of the plain way on each rank, less the ``lead`` segments."""
    chosen = [index for index, way in enumerate(order) if way == 0 and index >= lead]
    return [fmean(rank["segments_ms"][index] for index in chosen) for rank in ranks]
