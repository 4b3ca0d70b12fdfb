"""Cases: a case is one workload that is guarded.

A case names a workload factory and its parameters, says on what and on how many ranks it runs, and
which metrics it gates. Its id is the key of its baseline, so it holds no order, path or object:

    Case("124m-bf16", "model.workloads:train_step", {"size": "124m", "batch": 64}).id
    -> "train_step[124m-bf16]"
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepguard.core.device import CPU, DEVICES, GPU, is_gpu
from stepguard.core.margins import MARGINS_PCT, Margins
from stepguard.core.metrics import GATEABLE, METRICS, default_gates

Scalar = str | int | float | bool | None
MOST_RANKS = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WORKLOAD = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True)
class Case:
    """One guarded workload. Raises ValueError, naming the field, for anything malformed."""

    name: str  # what distinguishes it from the factory's other cases, "124m-bf16"
    workload: str  # the factory, "package.module:function"
    params: Mapping[str, Scalar] = field(default_factory=dict)  # what the factory is called with
    device: str = GPU  # one of DEVICES
    world_size: int = 1  # ranks, one per GPU
    # Timed launches at the least; a launch is the unit of evidence. More follow where it is close.
    launches: int = 2
    gates: tuple[str, ...] = ()  # metrics that decide; empty means the device's default
    extended: bool = False  # left out of the core suite
    margins_pct: tuple[float, ...] = ()  # of the judge, ignore and matter; empty: the device's
    difference_pairs: int = 6  # of segments, for each difference that is gated
    time_limit_s: float = 900.0  # for one launch, its compilation included

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"Case.name {self.name!r}: use letters, digits, '.', '_' and '-'")
        if not _WORKLOAD.fullmatch(self.workload):
            raise ValueError(f"Case.workload {self.workload!r}: write 'package.module:factory'")
        if self.device not in DEVICES:
            raise ValueError(f"Case.device {self.device!r}: {GPU!r} or {CPU!r}")
        if self.world_size < 1:
            raise ValueError(f"Case.world_size {self.world_size}: at least 1")
        if self.launches < 1 or (self.launches < 2 and is_gpu(self.device)):
            raise ValueError(f"Case.launches {self.launches}: at least 2 on a GPU, 1 on a CPU")
        if self.difference_pairs < 2:
            raise ValueError(f"Case.difference_pairs {self.difference_pairs}: at least 2")
        if not self.time_limit_s > 0:  # NaN neither
            raise ValueError(f"Case.time_limit_s {self.time_limit_s}: a positive number of seconds")
        for key, value in self.params.items():
            # NaN and infinities are no JSON; NaN alone differs from itself.
            if not isinstance(value, Scalar) or value in (math.inf, -math.inf) or value != value:
                raise ValueError(f"Case.params[{key!r}] {value!r}: only JSON scalars")
        # The class is frozen; params are copied, since a dict of the caller's may change later.
        object.__setattr__(self, "gates", self._checked_gates())
        object.__setattr__(self, "margins_pct", self._checked_margins())
        object.__setattr__(self, "params", dict(self.params))

    def _checked_gates(self) -> tuple[str, ...]:
        if isinstance(self.gates, str):
            raise ValueError(f"Case.gates {self.gates!r}: write a tuple, ({self.gates!r},)")
        gates = tuple(self.gates) or default_gates(self.device, self.world_size)
        for gate in gates:
            if gate not in GATEABLE:
                known = ", ".join(GATEABLE)
                raise ValueError(f"Case.gates {gate!r}: no such metric to gate; known: {known}")
            if not METRICS[gate].exists(self.device, self.world_size):
                raise ValueError(
                    f"Case.gates {gate!r}: only {METRICS[gate].scope.value} has this metric; "
                    f"{self.id} has world_size {self.world_size} and device {self.device!r}"
                )
        return gates

    def _checked_margins(self) -> tuple[float, ...]:
        margins = MARGINS_PCT[self.device] if self.margins_pct == () else self.margins_pct
        try:
            if isinstance(margins, str):
                raise TypeError
            ignore, matter = map(float, margins)
            Margins(ignore, matter)
        except (TypeError, ValueError):
            raise ValueError(
                f"Case.margins_pct {self.margins_pct!r}: two percentages, 0 <= ignore < matter"
            ) from None
        return ignore, matter

    @property
    def margins(self) -> Margins:
        """Return the slowdown that counts as nothing, and the one that must not be missed."""
        return Margins(*self.margins_pct)

    @property
    def id(self) -> str:
        """Return the key of the case's baseline: ``factory[name]``."""
        return f"{self.workload.rpartition(':')[2]}[{self.name}]"

    @property
    def slug(self) -> str:
        """Return the id as a file name."""
        return self.id.removesuffix("]").replace("[", "-")

    def as_dict(self) -> dict[str, Any]:
        """Return what the case's figures depend on, as JSON: what a baseline must match."""
        # Launches, gates and margins are left out: they change how it is judged, not what runs.
        return {
            "workload": self.workload,
            "params": dict(sorted(self.params.items())),
            "device": self.device,
            "world_size": self.world_size,
        }


def from_dict(
    found: Mapping[str, Any], gates: tuple[str, ...] = (), margins_pct: tuple[float, ...] = ()
) -> Case:
    """Return the case that as_dict() described, in a file of whatever origin and without its name;
    "nodes" may say on how many its ranks were. Raises ValueError for anything else.
    """
    known = {key: value for key, value in found.items() if key != "nodes"}
    needed = {"workload", "params", "device", "world_size"}
    if known.keys() != needed:
        raise ValueError(f"a case has {', '.join(sorted(needed))}, not {', '.join(sorted(known))}")
    for key, most in (("world_size", MOST_RANKS), ("nodes", found["world_size"])):
        if key in found and not (type(found[key]) is int and 1 <= found[key] <= most):
            raise ValueError(f"{key} {found[key]!r}: a number from 1 to {most!r} is needed")
    try:
        # How many launches there were the evidence itself says.
        return Case("x", **known, gates=gates, margins_pct=margins_pct, launches=2)
    except (AttributeError, TypeError) as error:  # a key holds something else
        raise ValueError(f"no case: {error}") from None
