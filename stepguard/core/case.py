"""Cases: a case is one workload that is guarded.

A case has a workload with its parameters or arguments, a device, a number of ranks, and the metrics
that it gates. A workload is a script, a factory or a loop:

    Case("b12", "train.py", args=("--batch_size=12",))                # a script, as it is
    Case("124m", "model.workloads:train_step", {"size": "124m"})      # makes an object with step()
    Case("fit", "my_training:fit", {"width": 2}, loop=Loop(every=10)) # runs a whole loop

The id is the key of the baseline: ``train[b12]``, ``train_step[124m]``, ``fit[fit]``. It depends
neither on the order of the cases nor on a folder.
"""

import hashlib
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepguard.core import former
from stepguard.core.device import CPU, DEVICES, GPU, is_gpu
from stepguard.core.margins import MARGINS_PCT, Margins
from stepguard.core.metrics import GATEABLE, METRICS, default_gates

Scalar = str | int | float | bool | None
MOST_RANKS = 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WORKLOAD = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_SCRIPT = re.compile(r"([^\0-\x1f:/\\]+/)*[A-Za-z0-9_][A-Za-z0-9._-]*\.py")
_AS_MODULE = re.compile(r"-m ([A-Za-z_]\w*)(\.[A-Za-z_]\w*)*")  # as in python -m a.b
_STEP_AT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
BY_OPTIMIZER = "optimizer"
TOKENS = "tokens_per_step"


@dataclass(frozen=True)
class Loop:
    """Which part of a loop is one step. Raises ValueError that names the field if one is malformed.

    ``step_at``: by default a step ends when all optimizers have stepped, or where the loop calls
    ``stepguard.step()``. With ``module:qualname`` it ends after each call of that function.
    """

    step_at: str = BY_OPTIMIZER
    every: int = 1  # so many steps of the loop count as one: 10 if every tenth step is logged
    tokens_per_step: int = 0  # of one rank; 0 if unknown: then no table shows tokens
    torchrun: bool = False  # one rank, too, finds torchrun's variables and makes a process group

    def __post_init__(self) -> None:
        if self.step_at != BY_OPTIMIZER and not _STEP_AT.fullmatch(self.step_at):
            raise ValueError(
                f"Loop.step_at {self.step_at!r}: {BY_OPTIMIZER!r} or 'package.module:function'"
            )
        for name, least in (("every", 1), ("tokens_per_step", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"Loop.{name} {value!r}: a number from {least} is needed")
        if type(self.torchrun) is not bool:
            raise ValueError(f"Loop.torchrun {self.torchrun!r}: True or False")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that must equal those of the baseline."""
        given = {"tokens_per_step": self.tokens_per_step, "torchrun": self.torchrun}
        return {"step_at": self.step_at, "every": self.every} | {
            name: value for name, value in given.items() if value
        }


@dataclass(frozen=True)
class Case:
    """One guarded workload. Raises ValueError that names the field if one is malformed."""

    name: str  # distinguishes the cases of one workload, "124m-bf16"
    workload: (
        str  # the factory or loop, "package.module:function", or the script: "train.py", "-m a.b"
    )
    params: Mapping[str, Scalar] = field(default_factory=dict)  # arguments of the function
    device: str = GPU  # one of DEVICES
    world_size: int = 1  # ranks, one per GPU
    # Timed launches. Fewer are measured if these show that nothing moved.
    launches: int = 2
    gates: tuple[str, ...] = ()  # metrics that decide; empty for the device's usual ones
    extended: bool = False  # left out of the core suite
    margins_pct: tuple[float, ...] = ()  # ignore and matter margin; empty for the device's
    difference_pairs: int = 6  # pairs of segments for each gated difference
    time_limit_s: float = 900.0  # for one launch, with its compilation
    args: tuple[str, ...] = ()  # of a script
    loop: Loop | None = None  # which part of a script, or of a loop, is one step
    # Files and folders that git ignores and the workload reads, by their path from pytest's root.
    # Another revision's tree, which has only what git tracks, gets links to them.
    data: tuple[str, ...] = ()
    # Metrics that ``gates`` named and that no case can gate any more.
    former_gates: tuple[str, ...] = field(default=(), init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"Case.name {self.name!r}: use letters, digits, '.', '_' and '-'")
        self._check_workload()
        if self.device not in DEVICES:
            raise ValueError(f"Case.device {self.device!r}: {GPU!r} or {CPU!r}")
        if self.world_size < 1:
            raise ValueError(f"Case.world_size {self.world_size}: at least 1")
        if self.launches < 1 or (self.launches < 2 and is_gpu(self.device)):
            raise ValueError(f"Case.launches {self.launches}: at least 2 on a GPU, 1 on a CPU")
        if self.difference_pairs < 2:
            raise ValueError(f"Case.difference_pairs {self.difference_pairs}: at least 2")
        if not self.time_limit_s > 0:  # written this way so that NaN is refused, too
            raise ValueError(f"Case.time_limit_s {self.time_limit_s}: a positive number of seconds")
        for key, value in self.params.items():
            # JSON has no NaN and no infinity. Only NaN differs from itself.
            if not isinstance(value, Scalar) or value in (math.inf, -math.inf) or value != value:
                raise ValueError(f"Case.params[{key!r}] {value!r}: only JSON scalars")
        if isinstance(self.data, str) or not all(map(_is_relative, self.data)):
            raise ValueError(f"Case.data {self.data!r}: a tuple of relative paths, ('data',)")
        # The class is frozen. params are copied, since the caller may change its dict later.
        if isinstance(self.gates, str):
            raise ValueError(f"Case.gates {self.gates!r}: write a tuple, ({self.gates!r},)")
        object.__setattr__(self, "former_gates", former.gates_of(self.gates))
        object.__setattr__(self, "gates", self._checked_gates())
        object.__setattr__(self, "margins_pct", self._checked_margins())
        object.__setattr__(self, "params", dict(self.params))
        object.__setattr__(self, "data", tuple(self.data))

    def _check_workload(self) -> None:
        script = bool(_SCRIPT.fullmatch(self.workload)) and ".." not in self.workload.split("/")
        script = script or bool(_AS_MODULE.fullmatch(self.workload))
        if not script and not _WORKLOAD.fullmatch(self.workload):
            raise ValueError(
                f"Case.workload {self.workload!r}: write 'package.module:function', or a script's "
                "path in the project, 'train.py', or '-m package.module'"
            )
        if isinstance(self.args, str) or not all(isinstance(arg, str) for arg in self.args):
            raise ValueError(f"Case.args {self.args!r}: write a tuple of texts, ('--steps=50',)")
        if script and self.params:
            raise ValueError(f"Case.params {dict(self.params)!r}: a script has args")
        if not script and self.args:
            raise ValueError(f"Case.args {self.args!r}: only a script has args")
        if self.loop is not None and not isinstance(self.loop, Loop):
            raise ValueError(f"Case.loop {self.loop!r}: write Loop(...)")
        object.__setattr__(self, "args", tuple(self.args))
        object.__setattr__(self, "loop", self.loop or (Loop() if script else None))

    def _checked_gates(self) -> tuple[str, ...]:
        untold = self.loop is not None and not self.loop.tokens_per_step
        where = self.device, self.world_size, self.needs_torchrun
        gates = tuple(gate for gate in self.gates if gate not in self.former_gates)
        if untold and TOKENS in gates:
            raise ValueError(f"Case.gates {TOKENS!r}: say how many, loop=Loop({TOKENS}=...)")
        for gate in gates:
            if gate not in GATEABLE:
                known = ", ".join(GATEABLE)
                raise ValueError(f"Case.gates {gate!r}: no such metric to gate; known: {known}")
            if not METRICS[gate].exists(*where):
                raise ValueError(
                    f"Case.gates {gate!r}: only {METRICS[gate].scope} has this metric; "
                    f"{self.id} has world_size {self.world_size} and device {self.device!r}"
                )
        return gates or tuple(g for g in default_gates(*where) if not (untold and g == TOKENS))

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
    def is_script(self) -> bool:
        """Tell whether the workload is a script."""
        return ":" not in self.workload

    @property
    def needs_torchrun(self) -> bool:
        """Tell whether the workload finds torchrun's variables: of several ranks it always does."""
        return self.world_size > 1 or (self.loop is not None and self.loop.torchrun)

    @property
    def function(self) -> str:
        """Return the name of the factory or the loop; of a script its name without the suffix."""
        if self.is_script:
            if self.workload.startswith("-m "):
                return self.workload.removeprefix("-m ").rpartition(".")[2]
            return self.workload.removesuffix(".py").rpartition("/")[2]
        return self.workload.rpartition(":")[2]

    @property
    def module(self) -> str:
        """Return the module of the factory or the loop; empty for a script."""
        return "" if self.is_script else self.workload.partition(":")[0]

    @property
    def id(self) -> str:
        """Return the key of the case's baseline: ``function[name]``."""
        return f"{self.function}[{self.name}]"

    @property
    def slug(self) -> str:
        """Return a file name that no other id has, not even where a file system ignores case."""
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", self.id).strip("-")
        return f"{readable[:60]}-{hashlib.sha256(self.id.encode()).hexdigest()[:12]}"

    def as_dict(self) -> dict[str, Any]:
        """Return all that the case's figures depend on, as JSON. It must equal the baseline's."""
        # Launches, gates and margins are left out: they change the judgement, not what runs. So is
        # data: its path may change, and what is in it has no name.
        parameters = {
            "workload": self.workload,
            "params": dict(sorted(self.params.items())),
            "device": self.device,
            "world_size": self.world_size,
        }
        arguments = {"args": shlex.join(self.args)} if self.args else {}
        return parameters | arguments | (self.loop.as_dict() if self.loop else {})


def _is_relative(path: object) -> bool:
    if not isinstance(path, str) or "\0" in path:
        return False
    return path.strip("/.") != "" and not path.startswith("/")


_OF_A_LOOP = ("step_at", "every", "tokens_per_step", "torchrun")


def says_tokens(parameters: Mapping[str, object]) -> bool:
    """Tell whether a step's tokens are known: a factory says them, a loop need not."""
    return TOKENS in parameters or "step_at" not in parameters


def from_dict(
    parameters: Mapping[str, Any],
    gates: tuple[str, ...] = (),
    margins_pct: tuple[float, ...] = (),
    name: str = "x",
) -> Case:
    """Return the case that as_dict() described, which does not say its name. ``parameters`` may
    come from a file that anybody wrote, and may have "nodes", the number of nodes. Raises
    ValueError for anything else.
    """
    apart = ("nodes", "args", *_OF_A_LOOP)
    known = {key: value for key, value in parameters.items() if key not in apart}
    needed = {"workload", "params", "device", "world_size"}
    if known.keys() != needed:
        raise ValueError(f"a case has {', '.join(sorted(needed))}, not {', '.join(sorted(known))}")
    for key, most in (("world_size", MOST_RANKS), ("nodes", parameters["world_size"])):
        number = parameters.get(key, 1)
        if type(number) is not int or not 1 <= number <= most:
            raise ValueError(f"{key} {number!r}: a number from 1 to {most!r} is needed")
    try:
        # The number of launches is in the evidence itself.
        args = tuple(shlex.split(parameters.get("args", "")))
        of_loop = {key: parameters[key] for key in _OF_A_LOOP if key in parameters}
        loop = Loop(**of_loop) if of_loop else None
        return Case(
            name, **known, gates=gates, margins_pct=margins_pct, launches=2, args=args, loop=loop
        )
    except (AttributeError, TypeError) as error:  # a key holds a value of another type
        raise ValueError(f"no case: {error}") from None
