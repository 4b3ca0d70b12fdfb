"""The step that the counting pass counts, what counts it, and the collected counts.

A count is the list of what each counted step has. It is never averaged.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from msgspec.structs import replace

from stepguard.core.evidence import Counts
from stepguard.core.metrics import METRICS, PEAK
from stepguard.core.profile import Profile, StepIdentity
from stepguard.core.site import Site, merge
from stepguard.core.step_numbers import StepNumbers
from stepguard.trace.host_steps import StepCalls
from stepguard.worker.block_timer import Step
from stepguard.worker.counters.tensor_devices import Placement
from stepguard.worker.rank_position import Phases

ACTIVE_STEPS = 2  # of which most counts are taken
PERIOD = 2  # steps until a step repeats itself, if two buffers alternate
# For what grows from step to step. Whole periods, so that alternating buffers are no growth.
LEAK_STEPS = ACTIVE_STEPS * PERIOD


@dataclass(frozen=True)
class RankStep:
    """A rank's step, and where it runs."""

    step: Step
    device: torch.device
    phases: Phases = field(default_factory=Phases)  # the phases that the step enters
    world_size: int = 1
    any_rank: Callable[[bool], bool] = bool  # returns on all ranks whether a value is true on any
    frozen: int = 0  # key of what gc.freeze() hid before the workload came: no tensor; 0: nothing
    placement: Placement = field(default_factory=Placement)  # it saw the workload being built
    settings: Mapping[str, object] = field(default_factory=dict)  # before the workload was imported
    in_group: bool = False  # a process group, in which even one rank may be

    def has(self, metric: str) -> bool:
        """Tell whether such a step has the metric."""
        return METRICS[metric].exists(self.device.type, self.world_size, self.in_group)

    def run_period(self) -> None:
        """Run PERIOD steps."""
        for _ in range(PERIOD):
            self.step()


@dataclass
class Tally:
    """Collects the fields of evidence.Counts."""

    values: dict[str, int] = field(default_factory=dict)
    lists: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unstable: dict[str, str] = field(default_factory=dict)
    detail: dict[str, dict[str, int]] = field(default_factory=dict)
    sites: dict[str, tuple[Site, ...]] = field(default_factory=dict)
    callers: dict[str, dict[str, int]] = field(default_factory=dict)
    information: dict[str, float] = field(default_factory=dict)
    profile: Profile | None = None
    profile_problem: str = ""
    after_steps: int | None = None
    identity: StepIdentity | None = None
    numbers: StepNumbers | None = None
    calls: list[StepCalls] = field(default_factory=list)  # of the traced steps

    def add(
        self,
        metric: str,
        seen: Sequence[int],
        detail: Mapping[str, int] | None = None,
        sites: Sequence[Iterable[Site]] = (),
    ) -> None:
        """Take the count of each step, with the sites of each step. If steps differ, the value is
        that of all of them together, with all their sites. Of peaks it is the largest.
        """
        self._take(metric, seen, len(set(seen)) > 1, detail, sites)

    def add_parts(
        self,
        metric: str,
        by_step: Sequence[Mapping[str, int]],
        sites: Sequence[Iterable[Site]] = (),
    ) -> None:
        """Add the sums of each step's parts, with the parts as detail; judged parts may differ."""
        seen = [sum(parts.values()) for parts in by_step]
        other_parts = METRICS[metric].parts and any(parts != by_step[0] for parts in by_step)
        differ = other_parts or len(set(seen)) > 1
        parts = sum(map(Counter, by_step), Counter()) if differ else by_step[0]
        self._take(metric, seen, differ, parts, sites)

    def _take(
        self,
        metric: str,
        seen: Sequence[int],
        differ: bool,
        detail: Mapping[str, int] | None,
        sites: Sequence[Iterable[Site]],
    ) -> None:
        where = tuple(next(iter(sites), ()))
        if differ:
            self.lists[metric] = tuple(seen)
            where = merge(site for of_step in sites for site in of_step)
        self.values[metric] = sum(seen) if differ and metric != PEAK else max(seen)
        if detail is not None:
            self.detail[metric] = dict(sorted(detail.items()))
        if where:
            self.sites[metric] = where

    def missing(self, reason: str, *metrics: str) -> None:
        """Note why none of these metrics could be counted."""
        self.unstable |= dict.fromkeys(metrics, reason)

    def counts(self) -> Counts:
        """Return what a rank answers."""
        known = {name: value for name, value in vars(self).items() if name != "calls"}
        return Counts(**known)


def per_step(sites: Iterable[Site]) -> list[Site]:
    """Return the sites of LEAK_STEPS steps, counts a step rounded up, the largest first."""
    each = [replace(site, count=-(-site.count // LEAK_STEPS)) for site in merge(sites)]
    return sorted(each, key=lambda site: -site.count)


Count = Callable[[Tally, RankStep], None]


@dataclass(frozen=True)
class StepCounter:
    """What one file of this folder counts."""

    shown: str  # while it counts
    metrics: tuple[str, ...]  # rows of core/metrics.py, all counted in the same part of the pass
    count: Count  # runs the steps that it needs, and adds their counts
    # Adds the lines of what was counted, or looks at them again. It comes after all counts, without
    # the compiler.
    locate: Count | None = None

    @property
    def eager(self) -> bool:
        """Tell whether it counts in the second part of the pass."""
        return METRICS[self.metrics[0]].eager
