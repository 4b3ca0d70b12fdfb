"""The step that the counting pass counts, and the collected counts.

A count that differs between two steps is unstable. It is never averaged.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from stepguard.core.metrics import METRICS
from stepguard.core.profile import Profile, StepIdentity
from stepguard.core.reason_sentences import STEPS_DIFFER
from stepguard.core.site import Site, added
from stepguard.core.text import listed
from stepguard.worker.block_timer import Step
from stepguard.worker.count.tensor_devices import Placement
from stepguard.worker.rank_position import Phases

ACTIVE_STEPS = 2  # a count is accepted if so many steps agree
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

    def run_period(self) -> None:
        """Run PERIOD steps."""
        for _ in range(PERIOD):
            self.step()


Differs = tuple[str, int, int]  # how steps differ; the index of one with less, of one with more


@dataclass
class Tally:
    """Collects the fields of evidence.Counts."""

    values: dict[str, int] = field(default_factory=dict)
    unstable: dict[str, str] = field(default_factory=dict)
    detail: dict[str, dict[str, int]] = field(default_factory=dict)
    sites: dict[str, tuple[Site, ...]] = field(default_factory=dict)
    callers: dict[str, dict[str, int]] = field(default_factory=dict)
    information: dict[str, float] = field(default_factory=dict)
    profile: Profile | None = None
    profile_problem: str = ""
    identity: StepIdentity | None = None

    def add(
        self,
        metric: str,
        seen: Sequence[int],
        detail: Mapping[str, int] | None = None,
        sites: Sequence[Iterable[Site]] = (),
    ) -> None:
        """Take the value if all of ``seen`` agree, with the first of ``sites``. Otherwise the count
        is unstable: note what was seen, and the sites that the largest count has and the smallest
        lacks.
        """
        self._take(metric, seen[0], _differ(seen), detail, sites)

    def add_parts(
        self,
        metric: str,
        by_step: Sequence[Mapping[str, int]],
        sites: Sequence[Iterable[Site]] = (),
    ) -> None:
        """Add the sum of each step's parts, with the first step's parts as detail. If parts are
        judged, steps with equal sums must also agree in their parts; otherwise chance would choose
        the parts that are compared.
        """
        seen = [sum(parts.values()) for parts in by_step]
        differs = _differ(seen)
        if differs:
            text, less, more = differs
            named = _moved(by_step[less], by_step[more])
            differs = f"{text} ({named})", less, more
        elif METRICS[metric].parts:
            differs = _differ_in_parts(by_step)
        self._take(metric, seen[0], differs, by_step[0], sites)

    def _take(
        self,
        metric: str,
        value: int,
        differs: Differs | None,
        detail: Mapping[str, int] | None,
        sites: Sequence[Iterable[Site]],
    ) -> None:
        if differs is None:
            self.values[metric] = value
            where = tuple(next(iter(sites), ()))
        else:
            text, less, more = differs
            self.unstable[metric] = f"{STEPS_DIFFER}{text}"
            more_sites = added(sites[less], sites[more]) if sites else ()
            where = tuple(site for site in more_sites if not site.allowed)
        if detail is not None:
            self.detail[metric] = dict(sorted(detail.items()))
        if where:
            self.sites[metric] = where

    def missing(self, reason: str, *metrics: str) -> None:
        """Note why none of these metrics could be counted."""
        self.unstable |= dict.fromkeys(metrics, reason)

    def as_dict(self) -> dict[str, Any]:
        """Return what a rank sends, in plain types."""
        sent: dict[str, Any] = msgspec.to_builtins(self)
        return sent


def _differ(seen: Sequence[int]) -> Differs | None:
    if len(set(seen)) == 1:
        return None
    values = ", ".join(str(value) for value in seen)
    return f": {values}", seen.index(min(seen)), seen.index(max(seen))


def _differ_in_parts(by_step: Sequence[Mapping[str, int]]) -> Differs | None:
    for number, parts in enumerate(by_step):
        if named := _moved(by_step[0], parts):
            return f" in {named}", 0, number
    return None


def _moved(one: Mapping[str, int], other: Mapping[str, int]) -> str:
    """Return the parts whose counts differ between two steps, "aten.add.Tensor and 2 more"."""
    names = sorted(one.keys() | other.keys())
    return listed([name for name in names if one.get(name, 0) != other.get(name, 0)], 2)
