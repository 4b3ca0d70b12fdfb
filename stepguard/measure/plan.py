"""Which launches a case is measured by, and what each of them is for."""

from dataclasses import dataclass

from stepguard.case import Case
from stepguard.device import is_gpu
from stepguard.measure.differences import DIFFERENCES
from stepguard.metrics import METRICS


@dataclass(frozen=True)
class PlannedLaunch:
    """One launch of the plan: whether it times blocks, counts, and which differences it takes."""

    label: str
    timed: bool
    count: bool
    compare: tuple[str, ...] = ()
    alone: bool = False  # one rank of the case, timed beside the case's launches and not among them


def planned_launches(case: Case) -> list[PlannedLaunch]:
    """The launches of a case, in order.

    On a GPU the counting pass has a launch of its own, first, which also fills the compile caches;
    a case that gates no counter needs none. Ways to run the step take turns there before anything
    is counted. A way that leaves the ranks' replicas different has a launch of its own. On a CPU,
    where times decide nothing, the first timed launch counts too, after its blocks.

    One rank alone comes last. It leaves the other cards idle, and they cool: what is gated is
    measured before, on cards in the state that the recordings were made in. Its own card is as warm
    as it was in the case's last launch.
    """
    own_launch = is_gpu(case.device)
    counted = any(METRICS[name].kind == "counter" for name in case.gates)
    asked = [name for name in DIFFERENCES if f"{name}_pct" in case.gates]
    compared = tuple(name for name in asked if not DIFFERENCES[name].diverges)
    legs = []
    if own_launch and (counted or compared):
        legs.append(PlannedLaunch("counting launch", False, counted, compared))
    for name in (name for name in asked if DIFFERENCES[name].diverges):
        legs.append(PlannedLaunch(f"{DIFFERENCES[name].words} launch", False, False, (name,)))
    for index in range(case.launches):
        legs.append(
            PlannedLaunch(f"launch {index + 1}", True, counted and not own_launch and index == 0)
        )
    if case.world_size > 1:
        legs.append(PlannedLaunch("one-rank launch", True, False, alone=True))
    return legs
