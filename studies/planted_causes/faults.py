"""Faults to plant into the training step, and what has to be named as the first cause of each.

A fault is a replacement in one file of ``model/``. What has to be named is data: the kind of a
cause with the class, name and phase of its kernels, or a counter; and the line, where one is named.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepguard.explanation import Cause, Kind
from stepguard.profile import Profile, Series, added, mean
from stepguard.site import Site
from stepguard.trace.classes import usual_classes
from stepguard.verdict import MetricVerdict

GPT, WORKLOADS = "model/gpt.py", "model/workloads.py"
OTHER_WORK = (Kind.SHAPE, Kind.REPLACED, Kind.CALLS, Kind.ADDED)
PASSES = ("forward", "backward")
CLOCK_SLOWER = 1.25
_NOISE = 0.003  # log, between steps, of a kernel at one clock


@dataclass(frozen=True)
class Cause1:
    """What the first cause may be: a part of the step's time."""

    kinds: tuple[Kind, ...]
    classes: tuple[str, ...] = ()  # of a kernel of either side; empty: no kernel is asked for
    phases: tuple[str, ...] = ()
    kernel: str = ""  # pattern of the name of a kernel that came or became slower
    gone: str = ""  # class of the longest kernel that was there before
    most_calls: float = 1e9  # a step, of what came
    not_type: str = ""  # that what came may not multiply in

    def fits(self, first: Cause) -> bool:
        """Tell whether it is such a cause."""
        kernels = usual_classes().kernel
        names = (*first.after.names, *first.before.names)
        old = first.before.names[:1]
        return (
            first.kind in self.kinds
            and (not self.classes or bool({kernels(one) for one in names} & {*self.classes}))
            and (not self.phases or first.phase.rpartition("/")[2] in self.phases)
            and bool(re.search(self.kernel, " ".join(first.after.names)))
            and (not self.gone or [kernels(one) for one in old] == [self.gone])
            and first.after.calls <= self.most_calls
            and (not self.not_type or first.after.work.dtype != self.not_type)
        )


@dataclass(frozen=True)
class Counter1:
    """What the first cause may be: a counter that moved."""

    metrics: tuple[str, ...]
    part: str = ""  # pattern of a part that moved
    line: bool = False  # the planted line has to be named

    def fits(self, first: MetricVerdict) -> bool:
        """Tell whether it is such a counter."""
        parts = " ".join(part.name for part in first.moved)
        return first.metric in self.metrics and bool(re.search(self.part, parts))


@dataclass(frozen=True)
class Fault:
    """One fault, or none: then nothing may be named."""

    path: str = ""
    edits: tuple[tuple[str, str], ...] = ()
    right: tuple[Cause1 | Counter1, ...] = ()
    on_cpu: tuple[Counter1, ...] = ()  # empty: its counters there do not tell it
    gpus: int = 1
    compiled: bool = False  # a fault of the compiler's graph

    def plant(self, tree: Path) -> range:
        """Make the edits; return the lines of the last. Raises ValueError where one is not made."""
        lines = range(0)
        for old, new in self.edits:
            target = tree / self.path
            text = target.read_text()
            if text.count(old) != 1:
                raise ValueError(f"{target}: not once there: {old!r}")
            first = text[: text.index(old)].count("\n") + 1
            lines = range(first, first + new.count("\n") + 1)
            target.write_text(text.replace(old, new))
        return lines

    def is_right(
        self, first: Cause | MetricVerdict | None, site: Site | None, lines: Sequence[int]
    ) -> bool:
        """Tell whether ``first``, with the line that is named, if any, is this fault."""
        if first is None:
            return not self.right
        if site is not None and site.file and site.file != self.path:
            return False
        return any(_fits(one, first, site, lines) for one in (*self.right, *self.on_cpu))


def _fits(
    one: Cause1 | Counter1,
    first: Cause | MetricVerdict,
    site: Site | None,
    lines: Sequence[int],
) -> bool:
    if isinstance(one, Cause1):
        return isinstance(first, Cause) and one.fits(first)
    if isinstance(first, Cause) or not one.fits(first):
        return False
    return not one.line or (site is not None and site.line in lines)


def slower_clock(base: Profile) -> Profile:
    """Return the profile as a clock slower by CLOCK_SLOWER would have made it: each kernel takes
    longer as far as it follows the others from step to step, which is how a power cap moves them;
    those that move memory do not. Each step is longer by the sum.
    """
    logs = {id(row): [math.log(us / mean(row.us)) for us in row.us] for row in base.kernels}
    total = sum(mean(row.us) for row in base.kernels)
    pace = [
        sum(mean(row.us) * logs[id(row)][step] for row in base.kernels) / total
        for step in range(base.steps)
    ]
    spread = sum(one * one for one in pace)
    kernels = []
    for row in base.kernels:
        both = sum(one * its for one, its in zip(pace, logs[id(row)], strict=True))
        follows = min(1.0, max(0.0, (both + _NOISE**2) / (spread + _NOISE**2)))
        kernels.append(replace(row, us=tuple(us * CLOCK_SLOWER**follows for us in row.us)))
    sums = (added([row.us for row in side]) for side in (base.kernels, kernels))
    more = [after - before for before, after in zip(*sums, strict=True)]
    parts = replace(
        base.parts,
        step_us=_plus(base.parts.step_us, more),
        compute_us=_plus(base.parts.compute_us, more),
    )
    return replace(base, kernels=tuple(kernels), parts=parts)


def _plus(us: Series, more: Sequence[float]) -> Series:
    return tuple(a + b for a, b in zip(us, more, strict=True))


_MLP = '        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))\n'
_FP32 = (
    "        with torch.autocast(x.device.type, enabled=False):\n"
    '            return self.c_proj(F.gelu(self.c_fc(x.float()), approximate="tanh"))\n'
)
_LOSS = "            loss = self._forward(*self._loader.next()) / count\n"
_OPERATORS = ("operator_calls_per_step",)
NOTHING, CLOCK = "nothing", "a slower clock"  # the second is made of what the first has measured

FAULTS = {
    NOTHING: Fault(),
    CLOCK: Fault(right=(Cause1((Kind.CLOCK,)),)),
    "math attention": Fault(
        GPT,
        (('"default": None,  #', '"default": SDPBackend.MATH,  #'),),
        (Cause1((Kind.REPLACED,), phases=PASSES, gone="attention"),),
        (Counter1(_OPERATORS, part="attention"),),
    ),
    "fp32 products": Fault(
        GPT,
        ((_MLP, _FP32),),
        (Cause1((Kind.REPLACED,), ("GEMM",), PASSES, not_type="bf16"),),
    ),
    "an unfused optimizer": Fault(
        WORKLOADS,
        (("betas=(0.9, 0.95), fused=True)", "betas=(0.9, 0.95))"),),
        (Cause1(OTHER_WORK, ("optimizer",), ("optimizer",)),),
    ),
    "an extra clone per block": Fault(
        GPT,
        (("_product_attention(query, key,", "_product_attention(query.clone(), key,"),),
        (Cause1((Kind.ADDED, Kind.REPLACED), phases=("forward",), kernel="clone"),),
        (Counter1(_OPERATORS, part=r"\.clone", line=True),),
    ),
    "a graph break": Fault(
        GPT,
        (
            (
                "        x = self.ln_f(",
                "        torch._dynamo.graph_break()\n        x = self.ln_f(",
            ),
        ),
        (Counter1(("graph_breaks",), line=True),),
        (Counter1(("graph_breaks",), line=True),),
        compiled=True,
    ),
    "a sync": Fault(
        WORKLOADS,
        ((_LOSS, f"{_LOSS}            self.last_loss = loss.item()\n"),),
        (Counter1(("host_syncs_per_step",), line=True),),
        (Counter1(("sync_candidates_per_step",), line=True),),
    ),
    "a pageable copy": Fault(
        "model/data/loader.py",
        (('pin_memory=self._device.type == "cuda"', "pin_memory=False"),),
        (Counter1(("pageable_copies_per_step",)),),
    ),
    "another activation": Fault(
        GPT,
        (('F.gelu(self.c_fc(x), approximate="tanh")', "F.mish(self.c_fc(x))"),),
        (Cause1((Kind.REPLACED, Kind.ADDED), ("Triton", "elementwise"), PASSES, "mish"),),
        (Counter1(_OPERATORS, part=r"\.(gelu|mish)", line=False),),
    ),
    "a changed GEMM shape": Fault(
        GPT,
        (
            (
                "nn.Linear(config.n_embd, 4 * config.n_embd",
                "nn.Linear(config.n_embd, 5 * config.n_embd",
            ),
            (
                "nn.Linear(4 * config.n_embd, config.n_embd",
                "nn.Linear(5 * config.n_embd, config.n_embd",
            ),
        ),
        (Cause1(OTHER_WORK, ("GEMM",), PASSES),),
    ),
    "an unpadded vocabulary": Fault(
        "model/config.py",
        (("vocab_size: int = 50304", "vocab_size: int = 50257"),),
        (  # the output layer: one product of a micro-step's forward pass, two of its backward pass
            Cause1(OTHER_WORK, ("GEMM",), PASSES, most_calls=6),
            Cause1((*OTHER_WORK, Kind.TIME), ("Triton",), PASSES, kernel="softmax|constant_pad"),
        ),
    ),
    "small buckets": Fault(
        WORKLOADS,
        (("DdpSettings(\n        bucket_cap_mb,", "DdpSettings(\n        1,"),),
        (
            Cause1((Kind.COMMUNICATION,)),
            Counter1(("collectives_per_step",)),
        ),
        gpus=2,
    ),
}
