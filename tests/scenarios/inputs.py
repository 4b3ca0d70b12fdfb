"""Builders of what runs keep: one side beside recordings, and two sides in pairs."""

import math
from datetime import date

import numpy as np
from builders import (
    CASE_ID,
    block_of,
    cpu_evidence,
    entry,
    entry_of,
    evidence,
    launch,
    replace,
    two_rank_evidence,
    with_counts,
)
from kernels import counts_of
from msgspec import UNSET

from stepguard.core.comparison import Comparison, LaunchPair
from stepguard.core.evidence import Difference, Fault
from stepguard.core.metrics import NUMBERS, PEAK
from stepguard.core.profile import Parts, Profile, StepIdentity
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.step_numbers import StepNumbers
from stepguard.storage.baseline_files import WaiverRow

TRACEBACK = """Traceback (most recent call last):
  File "/home/user/repo/model/workloads.py", line 88, in step
    loss = self.model(x, y)
ValueError: planted
"""
LOSS = Site("ValueError", "model/workloads.py", 88, "step", "loss = self.model(x, y)")
FIVE = entry((250.0, 250.1, 249.9, 250.0, 250.0))  # limit: 0.5 %
SYNC = Site(".item()", "model/train.py", 88, "train_step", "loss.item()", "forward")
OPERATORS = "operator_calls_per_step"
DIFFERENCE = "sync_overhead_pct"
TWO_RANKS = two_rank_evidence()
UNSTEADY = replace(launch(), steady="the step time still drifts by 3 %")
NEW, OLD = "f" * 40, "0" * 40
QUIET = (0.0002, -0.0002, 0.0001, -0.0001, 0.0, 0.0)  # of log-ratios; they add up to nothing
NOISY = (0.03, -0.03) * 3
BASE_MS = 250.0
IDENTITY = StepIdentity({"kernels and copies": "a1", "operators": "b2", "settings": "c3"})
EVEN = (BASE_MS * 1e3,) * 6
BUSY = Profile("NVIDIA H200", 1, Parts(EVEN, EVEN, (0.0,) * 6, (0.0,) * 6, (2500.0,) * 6), (), ())
DISTURBED = LaunchPair(launch(260.0), launch(250.0))
SYNCS = "host_syncs_per_step"
ROSE = {"sites": {SYNCS: (SYNC,)}, SYNCS: 11}
FEWER = {"flops_per_step": 75_000_000_000_000}


def at(pct, **changes):
    """A run that is so many percent slower than its recordings."""
    return evidence((250.0 * (1 + pct / 100),) * 3, **changes)


def counting(found, sites=None, detail=None, by_rank=None, **values):
    """Evidence with other counts, and where and of what they are."""
    counts = with_counts(found, **values).counts
    return replace(found,
                   counts=replace(counts, sites=sites or {}, detail=counts.detail | (detail or {}),
                                  by_rank=by_rank or {}))  # fmt: skip


LOSS_ALONE = StepNumbers(listed=[("loss", [[10.98]])])


def computing(found, of=LOSS_ALONE, options=()):
    """Evidence of a step that computes these numbers."""
    values = found.counts.values | {NUMBERS: len(of.listed)}
    detail = found.counts.detail | {NUMBERS: dict(options)}
    return replace(found, counts=replace(found.counts, values=values, detail=detail, numbers=of))


def listing(found, sites=None, **lists):
    """Evidence whose steps differ: the counts of each step, and where those of all of them are."""
    sums = {name: max(steps) if name == PEAK else sum(steps) for name, steps in lists.items()}
    found = counting(found, sites, **sums)
    return replace(found, counts=replace(found.counts, lists=lists))


def calling(calls, sites=()):
    """Evidence of a step that calls these operators."""
    called = {OPERATORS: sum(calls.values())}
    return counting(evidence(), detail={OPERATORS: calls}, sites={OPERATORS: sites}, **called)


def reading(times, sums=0):
    """Counts of a CPU's step that reads so many numbers of the device, some of them sums."""
    eager = {"aten._local_scalar_dense.default": times, "aten.sum.default": sums}
    eager |= {"aten.mm.default": 24, "aten.add.Tensor": 2376}
    profiled = {"aten::item": times, "aten::_local_scalar_dense": times, "aten::sum": sums}
    both = {OPERATORS: eager, "compiled_operator_calls_per_step": profiled | {"aten::mm": 600}}
    parts = {name: {k: n for k, n in calls.items() if n} for name, calls in both.items()}
    totals = {name: sum(calls.values()) for name, calls in parts.items()}
    site = Site(".item()", "model/train.py", 88, "train_step", "loss.item()", count=times)
    sites = {"sync_candidates_per_step": (site,)}
    return {"detail": parts, "sites": sites, "sync_candidates_per_step": times} | totals


def sync_overhead(pct):
    """A run that gates what a synchronization costs, which is so many percent of a step."""
    pairs = tuple((250.0, 250.0 * (1 + (pct + one) / 100)) for one in (0.1, -0.1, 0.1, -0.1))
    gates = (*evidence().gates, DIFFERENCE)
    return evidence(gates=gates, differences=(Difference("sync_overhead", pairs),))


def syncing(syncs, **changes):
    """Two ranks that wait so often for their GPUs."""
    by_rank = {"host_syncs_per_step": syncs} if syncs[0] != syncs[1] else None
    return counting(TWO_RANKS, by_rank=by_rank, host_syncs_per_step=max(syncs), **changes)


def reduced(sizes):
    """Two ranks that exchange tensors of these sizes."""
    name, calls = "collective_bytes_per_step", "collectives_per_step"
    shapes = {f"all_reduce {size}": 1 for size in sizes}
    return counting(
        TWO_RANKS,
        detail={calls: shapes, name: {f"all_reduce {size}": size for size in sizes}},
        **{name: sum(sizes), calls: len(sizes)},
    )


def recorded_of(found, **changes):
    """A baseline whose recording counted what the evidence did."""
    counts = found.counts
    same = {"detail": counts.detail, "sites": {k: list(v) for k, v in counts.sites.items()}}
    same["numbers"] = counts.numbers or UNSET
    same["lists"] = {k: list(v) for k, v in counts.lists.items()} or UNSET
    if found.world_size > 1:
        same["by_rank"] = {name: list(each) for name, each in counts.by_rank.items()}
    return entry_of(found, **same | changes)


def cpu_baseline(**changes):
    """A baseline of the CPU's case."""
    return entry_of(cpu_evidence(), device_uuid="", driver="", **changes)


def pairs(pct=0.0, scatter=QUIET, made=evidence, head=None, base=None, **changes):
    """HEAD is so many percent slower, in pairs that scatter so; ``head`` and ``base`` change a side
    and ``made`` makes both.
    """
    ratios = [math.log1p(pct / 100) + one for one in scatter]
    sides = []
    for commit, logs in ((NEW, ratios), (OLD, [0.0] * len(ratios))):
        launches = tuple(
            launch(BASE_MS * math.exp(one), number) for number, one in enumerate(logs, start=1)
        )
        sides.append(made(launches=launches, commit=commit, planned_launches=1))
    new, old = sides
    return Comparison("main", replace(new, **head or {}), replace(old, **base or {}), **changes)


def counted_in(found, side="head", **how):
    """The pairs, of which one side counted otherwise; see counting()."""
    return replace(found, **{side: counting(getattr(found, side), **how)})


def profiled(found, head, base):
    """The pairs, with the profiles of both sides."""
    return replace(found, head=counts_of(found.head, head), base=counts_of(found.base, base))


def failed_side(code, message, detail="", site=None):
    """What a side is that failed before its first pair."""
    fault = Fault(Reason(code), message, detail, "first launch, prepare", site)
    return {"faults": (fault,), "launches": (), "counts": None}


def ended(found):
    """The pairs, whose run was ended after them."""
    end = Fault(Reason.UNDECIDED, "ended by SIGTERM after 331 s, 4 s into pair 6: warm-up")
    head, base = (replace(side, faults=(end,)) for side in (found.head, found.base))
    return replace(found, head=head, base=base)


def two_ranks(**changes):
    """Evidence of two ranks, whose blocks have a clock each."""
    found = two_rank_evidence(**changes)
    return replace(found, launches=tuple(map(on_both, found.launches)))


def on_both(one):
    both = tuple(replace(b, wall_ms=b.wall_ms * 2, events_ms=b.events_ms * 2) for b in one.blocks)
    return replace(one, blocks=both)


def own_time(us):
    """The parts of a rank that computes for so long of each of six steps, and then waits."""
    none = (0.0,) * 6
    return Parts((250e3,) * 6, (us,) * 6, (250e3 - us,) * 6, none, none)


def with_ranks(found, head_us, base_us):
    """The pairs, with the parts of each rank."""
    sides = {}
    for side, each in (("head", head_us), ("base", base_us)):
        parts = tuple(map(own_time, each))
        one = Profile("NVIDIA H200", 2, parts[0], (), ())
        sides[side] = counts_of(getattr(found, side), one, parts_by_rank=parts)
    return replace(found, **sides)


def cpu_pairs(ratios, **changes):
    """Pairs of a case on a CPU that gates no time; log-ratios."""
    found = pairs(0.0, ratios, cpu_evidence)
    sides = {
        name: replace(
            getattr(found, name),
            floor_flops_per_step=0.0,
        )
        for name in ("head", "base")
    }
    return replace(found, **sides, **changes)


def series(draw, late=0.0, every=0.0, grows=0.0):
    """A launch whose steps scatter by 1.5 %: slower from step 150 on, each 16th, or ever more."""
    blocks = []
    for steps in (np.arange(46, 93), np.arange(273, 320)):
        logs = 0.015 * draw.standard_normal(len(steps)) + late * (steps >= 150)
        logs += every * (steps % 16 == 5) + grows * steps / 320
        blocks.append(block_of([43.0 * math.exp(one) for one in logs], int(steps[0])))
    return tuple(blocks)


def within(both=None, count=2, **head):
    """Two pairs whose steps slow down within HEAD's launches, or within ``both`` sides'."""
    draw, sides = np.random.default_rng(7), ([], [])
    for number in range(1, count + 1):
        for side, how in zip(sides, (both or head, both or {}), strict=True):
            side.append(launch(index=number, blocks=series(draw, **how)))
    new, old = (
        evidence((), launches=tuple(one), commit=commit, planned_launches=1, floor_flops_per_step=0)
        for one, commit in zip(sides, (NEW, OLD), strict=True)
    )
    return Comparison("main", new, old)


def unchanged(pct=0.0, **changes):
    """One pair of steps that are known to be the same, of which HEAD's takes so much longer."""
    found = pairs(pct, (0.0,), **changes)
    sides = {}
    for number, name in enumerate(("head", "base")):
        side = counts_of(getattr(found, name), BUSY, identity=IDENTITY)
        draw = np.random.default_rng(number).normal(0, 0.005, (2, 16))
        scale = BASE_MS * (1 + (pct / 100 if name == "head" else 0.0))
        blocks = tuple(
            replace(
                block_of([float(ms) for ms in scale * np.exp(one - one.mean())], ran),
                enqueue_ms=0.5 * BASE_MS,
            )
            for one, ran in zip(draw, (20, 40), strict=True)
        )
        sides[name] = replace(side, launches=(launch(index=1, blocks=blocks),))
    return replace(found, **sides)


def failed(code, message, detail="", during="launch 1, block 2", site=None):
    """Evidence of a run that ended so."""
    return evidence((), planned_launches=3, faults=(Fault(code, message, detail, during, site),))


def waiver(metric="step_ms", expires=date(2026, 12, 31), **size):
    """A waiver of a metric up to a size."""
    said = {"reason": "until the fused loss is in", "who": "A. Author"}
    return WaiverRow(case=CASE_ID, metric=metric, expires=expires, **said, **size)
