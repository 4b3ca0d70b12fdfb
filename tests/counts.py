"""Counts for evidence that is made up: every counter has one, so that a new one needs no edit."""

from stepguard.core.metrics import METRICS, NUMBERS

ANY_COUNT = 10  # of a counter that no test is about; it has room to fall


def counted(known, device, world_size=1):
    """A count for each counter that a case on ``world_size`` ranks of ``device`` has.

    It is that of ``known`` where it has one. Tokens are no part of it: the workload says them.
    """
    names = [
        name
        for name, metric in METRICS.items()
        if metric.kind == "counter" and metric.exists(device, world_size)
    ]
    names.remove("tokens_per_step")
    # Numbers are no count: made-up steps compute none.
    return {name: known.get(name, 0 if name == NUMBERS else ANY_COUNT) for name in names}
