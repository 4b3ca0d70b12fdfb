"""Counts of the traced calls of a GPU's API: launches, copies and memsets."""

from collections import Counter

from stepguard.core.metrics import COPIES
from stepguard.worker.counters.profiled_steps import TRIES
from stepguard.worker.counters.tally import RankStep, StepCounter, Tally


def count_device_calls(tally: Tally, counted: RankStep) -> None:
    """Count launches_per_step, memsets_per_step and the copies with their bytes. Keep the share of
    the time in CUDA calls that the host waits.
    """
    steps = tally.calls
    if api_us := sum(calls.api_us for calls in steps):
        share = 100 * sum(calls.sync_us for calls in steps) / api_us
        tally.information["sync_api_share_pct"] = share
    tally.add_parts("launches_per_step", [calls.launches for calls in steps])
    tally.add("memsets_per_step", [calls.memsets for calls in steps])
    copies: dict[str, list[Counter[str]]] = {
        COPIES: [calls.copies for calls in steps],
        "copied_bytes_per_step": [calls.copy_bytes for calls in steps],
        "pageable_copies_per_step": [
            Counter({name: n for name, n in calls.copies.items() if "Pageable" in name})
            for calls in steps
        ],
    }
    if lost := sum(calls.lost_copies for calls in steps):
        reason = f"copies without the GPU's record, also after {TRIES} profiles: {lost}"
        tally.missing(reason, *copies)
        return
    for metric, by_step in copies.items():
        tally.add_parts(metric, by_step)


COUNTER = StepCounter(
    "device calls",
    (
        "launches_per_step",
        "memsets_per_step",
        COPIES,
        "copied_bytes_per_step",
        "pageable_copies_per_step",
    ),
    count_device_calls,
)
