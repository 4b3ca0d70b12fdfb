"""Counts of what a rank exchanges with others, from the traced steps."""

from stepguard.core.metrics import COLLECTIVE_BYTES, COLLECTIVES
from stepguard.worker.counters.tally import RankStep, StepCounter, Tally


def count_collectives(tally: Tally, counted: RankStep) -> None:
    """Count the traced collectives of this rank, and their bytes."""
    tally.add_parts(COLLECTIVES, [calls.collectives for calls in tally.calls])
    if unsized := {name for calls in tally.calls for name in calls.unsized_collectives}:
        tally.missing(
            f"the trace has no size of {', '.join(sorted(unsized))} (gloo: if messages of several "
            "types have one length); take the metric out of the case's gates, or use another "
            "length",
            COLLECTIVE_BYTES,
        )
        return
    tally.add_parts(COLLECTIVE_BYTES, [calls.collective_bytes for calls in tally.calls])


COUNTER = StepCounter("collectives", (COLLECTIVES, COLLECTIVE_BYTES), count_collectives)
