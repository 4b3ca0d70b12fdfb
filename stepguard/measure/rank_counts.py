"""One set of counts out of every rank's. Pure.

Ranks need not do the same: many log on the first one alone. A count is that of the rank that
counted most; where ranks differ, what each of them counted stands beside it, since a cost that the
others gain would be hidden behind the busiest.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from stepguard.evidence import Counts
from stepguard.site import Site, merge


def counts_of(ranks: Sequence[dict[str, Any]], wall_s: float) -> Counts:
    """One Counts out of every rank's answer to ``count``.

    Values and parts are those of the rank that counted most, places those of all ranks. What is
    unstable on one rank is unstable. Information is rank 0's.
    """
    told = [msgspec.convert(rank, Counts) for rank in ranks]
    unstable: dict[str, str] = {}
    for rank, counts in enumerate(told):
        for name, reason in counts.unstable.items():
            unstable.setdefault(name, f"rank {rank}: {reason}" if len(told) > 1 else reason)
    names = {name: None for counts in told for name in counts.values if name not in unstable}
    each = {name: tuple(counts.values.get(name, 0) for counts in told) for name in names}
    most = {name: told[values.index(max(values))] for name, values in each.items()}
    return Counts(
        values={name: max(values) for name, values in each.items()},
        unstable=unstable,
        detail={name: c.detail[name] for name, c in most.items() if name in c.detail},
        sites={
            name: _everywhere([counts.sites.get(name, ()) for counts in told])
            for name in names
            if any(name in counts.sites for counts in told)
        },
        by_rank={name: values for name, values in each.items() if len({*values}) > 1},
        information=told[0].information,
        wall_s=wall_s,
    )


def _everywhere(places: Iterable[Iterable[Site]]) -> tuple[Site, ...]:
    """Each place as often as on the rank that was there most often; of equals the first tells."""
    found: dict[tuple[str, ...], Site] = {}
    for of_rank in places:
        for place in merge(of_rank):
            if place.key not in found or place.count > found[place.key].count:
                found[place.key] = place
    return tuple(found.values())
