"""Runs that measured another tree in pairs: counters and failures beside the times."""

import math

from builders import block, launch, replace
from inputs import (
    FEWER,
    LOSS,
    NOISY,
    OPERATORS,
    ROSE,
    SYNC,
    SYNCS,
    TRACEBACK,
    UNSTEADY,
    computing,
    counted_in,
    cpu_pairs,
    failed_side,
    pairs,
    reading,
    two_ranks,
    waiver,
)
from scenario import Files, Run, Scenario

from stepguard.core.evidence import Fault
from stepguard.core.metrics import COPIES, GARBAGE, PEAK, SETTINGS
from stepguard.core.reasons import Reason
from stepguard.core.site import Site


def precision(value):
    """Counts of a step whose workload sets the precision of products."""
    return {"detail": {SETTINGS: {f"get_float32_matmul_precision = {value}": 1}}, SETTINGS: 1}


def projecting(calls):
    """Counts of a step that calls a line's product so often."""
    line = Site("aten.addmm.default", "model/gpt.py", 72, "MLP.forward", "self.c_proj(x)")
    detail = {OPERATORS: {line.what: calls, "aten.add.Tensor": 2400}}
    sites = {OPERATORS: (replace(line, count=calls),)}
    flops = 10**14 + calls * 10**12
    return {"detail": detail, "sites": sites, OPERATORS: 2400 + calls, "flops_per_step": flops}


def with_numbers(found):
    """The pairs, whose steps compute the same numbers."""
    return replace(found, head=computing(found.head), base=computing(found.base))


COPY = Site("blocking copy to the GPU", "model/gpt.py", 88, "loss", "scale.to(total.device)")
COPIED = {"sites": {SYNCS: (COPY,)}, "detail": {COPIES: {"HtoD (Pageable -> Device)": 11}},
          SYNCS: 11, COPIES: 11, "pageable_copies_per_step": 11,
          "copied_bytes_per_step": 14}  # fmt: skip
HIGHER = {PEAK: 46 * 10**9}
CHANGED = Fault(Reason.TREE_CHANGED, "model/gpt.py was written")
PAIRED_WORK = (
    Scenario("pairs-more-bytes-exchanged", "As fast, and it exchanges more: no time pays for that.",
             "CHANGED", "WORK_MOVED",
             Run(pairs=counted_in(pairs(made=two_ranks), collective_bytes_per_step=20))),
    Scenario("pairs-wait",
             "A pageable copy to the GPU that is waited for. The counts' one pair is enough.",
             "CHANGED", "COUNTER_ROSE", Run(pairs=counted_in(pairs(scatter=(0.003,)), **COPIED))),
    Scenario("pairs-wait-without-a-pair", "The same, before there was a pair.",
             "CHANGED", "COUNTER_ROSE", Run(pairs=counted_in(pairs(scatter=()), **COPIED))),
    Scenario("pairs-wait-of-two-ranks", "Rank 1 waits once more for its GPU.",
             "CHANGED", "COUNTER_ROSE",
             Run(pairs=counted_in(pairs(scatter=(0.003,), made=two_ranks),
                                  by_rank={SYNCS: (10, 11)}, **ROSE))),
    Scenario("pairs-waste-in-a-faster-step",
             "2 % faster, and each step leaves garbage: no time pays for that.",
             "CHANGED", "COUNTER_ROSE", Run(pairs=counted_in(pairs(-2.0), **{GARBAGE: 18}))),
    Scenario("pairs-waived-wait",
             "Six pairs that see no difference: the wait is waived, so the time was asked.",
             "CHANGED", "COUNTER_ROSE",
             Run(pairs=counted_in(pairs(), **ROSE), waivers=(waiver(SYNCS, value=11),))),
    Scenario("pairs-settings", "The workload multiplies in another precision. One pair is enough.",
             "CHANGED", "WORK_MOVED",
             Run(pairs=counted_in(counted_in(pairs(-2.0, (0.0,)), "base", **precision("high")),
                                  **precision("medium")))),
    Scenario("pairs-price-rose",
             "As fast as the other revision, and its peak is 1 GB higher. One pair is enough.",
             "CHANGED", "COUNTER_ROSE", Run(pairs=counted_in(pairs(scatter=(0.0,)), **HIGHER))),
    Scenario("pairs-price-paid-for", "Its peak is higher, and the step is 2 % faster.",
             "FASTER", "BEYOND_MARGIN", Run(pairs=counted_in(pairs(-2.0), **HIGHER))),
    Scenario("pairs-price-rose-undecided",
             "Its peak is higher, and pairs that began faster do not decide.",
             "CHANGED", "COUNTER_ROSE",
             Run(pairs=counted_in(pairs(1.0, NOISY[::-1], out_of_time=True), **HIGHER))),
    Scenario("pairs-amount-rose", "As fast, and it fills memory once more: the time decides.",
             "same", "WITHIN_MARGINS", Run(pairs=counted_in(pairs(), memsets_per_step=11))),
    Scenario("pairs-cost-fell", "As fast, with half the launches: no gain.",
             "same", "WITHIN_MARGINS", Run(pairs=counted_in(pairs(), launches_per_step=500))),
    Scenario("pairs-other-operators",
             "Other operators of as many FLOPs, and as fast: the time decides.",
             "same", "WITHIN_MARGINS",
             Run(pairs=counted_in(
                     pairs(), detail={OPERATORS: {"aten.mm.default": 25, "aten.add.Tensor": 2376}},
                     operator_calls_per_step=2401))),
    Scenario("pairs-other-flops", "A third of the FLOPs is gone: no times are compared.",
             "CHANGED", "WORK_MOVED", Run(pairs=counted_in(pairs(-30.0), **FEWER))),
    Scenario("pairs-other-tokens", "Half the tokens a step: no times are compared.",
             "CHANGED", "WORK_MOVED", Run(pairs=pairs(-50.0, head={"tokens_per_step": 65_536}))),
    Scenario("pairs-base-lacks", "The other revision has no such factory.",
             "NOT COMPARABLE", "BASE_LACKS",
             Run(pairs=pairs(head={"launches": ()},
                             base=failed_side("BAD_WORKLOAD",
                                              "model.workloads has no train_step")))),
    Scenario("pairs-head-raised", "HEAD's step raised.",
             "BROKEN", "RAISED",
             Run(pairs=pairs(head=failed_side("RAISED", "ValueError: planted", TRACEBACK, LOSS),
                             base={"launches": ()}))),
    Scenario("pairs-base-killed",
             "A rank of the other revision was killed: that says nothing of either.",
             "BROKEN", "KILLED",
             Run(pairs=pairs(head={"launches": ()},
                             base=failed_side("KILLED", "rank 0 was killed by SIGKILL")))),
    Scenario("pairs-foreign-process", "Another process came onto the GPU.",
             "UNFIT", "FOREIGN_PROCESS",
             Run(pairs=pairs(2.0,
                             head={"faults": (Fault(Reason.FOREIGN_PROCESS, "process 4711"),)}))),
    Scenario("pairs-tree-changed", "A file was written meanwhile: pairs may be of other code.",
             "BROKEN", "TREE_CHANGED", Run(pairs=pairs(head={"faults": (CHANGED,)}))),
    Scenario("pairs-unequal-sides", "A launch of one side is not there.",
             "BROKEN", "NOTHING_MEASURED",
             Run(pairs=pairs(base={"launches": pairs().base.launches[:5]}))),
    Scenario("pairs-not-steady", "The other revision never gets steady.",
             "INCONCLUSIVE", "NOT_STEADY",
             Run(pairs=pairs(scatter=(0.0,), base={"launches": (UNSTEADY,)}))),
    Scenario("pairs-work-unknown", "The other revision's FLOPs were not counted.",
             "BROKEN", "NOTHING_MEASURED",
             Run(pairs=replace(pairs(), head=replace(pairs().head, gates=("step_ms",)),
                               base=replace(
                                   pairs().base, gates=("step_ms",),
                                   counts=replace(
                                       pairs().base.counts, values={"launches_per_step": 1000},
                                       unstable={"flops_per_step": "steps differ: 1, 2"}))))),
    Scenario("pairs-clocks-disagree", "The events of a block end before its wall clock.",
             "BROKEN", "CLOCKS_DISAGREE",
             Run(pairs=pairs(scatter=(0.0,),
                             head={"launches": (launch(blocks=(block(events_ms=(2375.0,)),)),)}))),
    Scenario("pairs-time-not-gated", "A case that gates counters alone: the time is shown.",
             "same", "EQUAL",
             Run(pairs=pairs(2.0, head={"gates": ("flops_per_step", SYNCS)},
                             base={"gates": ("flops_per_step", SYNCS)}))),
    Scenario("cpu-ungated-time-same", "Two pairs on a CPU show no slowdown.",
             "same", "NO_SLOWDOWN", Run(pairs=cpu_pairs([-0.15, 0.05]))),
    Scenario("cpu-several-times", "Seven times the step, on a CPU: three pairs are enough.",
             "SLOWER", "BEYOND_MARGIN",
             Run(pairs=cpu_pairs([math.log(7) + one for one in (0.2, -0.1, 0.05)]))),
    Scenario("cpu-pairs-waits-fell",
             "On a CPU two .item() are gone, in pairs, with the operators that read the numbers.",
             "FASTER", "COUNTER_FELL",
             Run(pairs=with_numbers(counted_in(counted_in(cpu_pairs([-0.15, 0.05]), **reading(2)),
                                               side="base", **reading(4))))),
    Scenario("cpu-ungated-time-slower", "Three times the step, on a CPU.",
             "SLOWER", "BEYOND_MARGIN",
             Run(pairs=cpu_pairs([math.log(3) + one for one in (0.1, -0.1, 0.05, -0.05, 0.1,
                                                                -0.1)]))),
    Scenario("cpu-ungated-time-cost-rose", "On a CPU no time pays for a sync candidate.",
             "CHANGED", "COUNTER_ROSE",
             Run(pairs=counted_in(cpu_pairs([-0.7] * 6),
                                  sites={"sync_candidates_per_step": (SYNC,)},
                                  sync_candidates_per_step=11))),
    Scenario("cpu-pairs-as-a-run-kept-them",
             "A run's own file of pairs on a CPU: a sync that was added.",
             "CHANGED", "COUNTER_ROSE", Files("cpu-pairs")),
    Scenario("pairs-flops-of-one-rank",
             "As many FLOPs on the busiest rank, and fewer on the other one.",
             "CHANGED", "WORK_MOVED",
             Run(pairs=counted_in(pairs(made=two_ranks),
                                  by_rank={"flops_per_step": (112_000_000_000_000,
                                                              14_000_000_000_000)}))),
    Scenario("pairs-not-steady-but-a-cost-rose",
             "HEAD recompiles for ever: that is why it is not steady, and it decides.",
             "CHANGED", "COUNTER_ROSE",
             Run(pairs=counted_in(pairs(scatter=(0.0,), head={"launches": (UNSTEADY,)}),
                                  recompiles=18))),
    Scenario("pairs-generated-kernel",
             "The compiler makes a kernel more, and the step is as fast: the time decides.",
             "same", "WITHIN_MARGINS", Run(pairs=counted_in(pairs(), generated_kernels=81))),
    Scenario("pairs-base-raised", "The other revision's step raises: it cannot run the case.",
             "NOT COMPARABLE", "BASE_LACKS",
             Run(pairs=pairs(head={"launches": ()},
                             base=failed_side("RAISED", "ValueError: planted")))),
    Scenario("pairs-other-flops-and-their-line",
             "Six products more at a line, which is named before the FLOPs that they make.",
             "CHANGED", "WORK_MOVED",
             Run(pairs=counted_in(counted_in(pairs(), "base", **projecting(6)), **projecting(12)))),
)  # fmt: skip


def other_torch(found, old="2.13.0", **packages):
    """The pairs, whose other side ran under an interpreter with this torch; ``packages`` are those
    that only HEAD has.
    """
    head, base = (replace(side, commit=found.head.commit) for side in (found.head, found.base))
    head = replace(head, fingerprint=replace(head.fingerprint, libraries=packages))
    base = replace(base, fingerprint=replace(base.fingerprint, torch=old))
    python = "/opt/old/bin/python"
    return replace(found, against=f"this tree under {python}", python=python, head=head, base=base)


SAME_TORCH = {"old": pairs().head.fingerprint.torch}
PAIRED_ENVIRONMENTS = (
    Scenario("environments-other-operators",
             "On a CPU another torch calls more operators: they explain, and nothing is slower.",
             "same", "NO_SLOWDOWN",
             Run(pairs=counted_in(other_torch(cpu_pairs((0.05,)), "2.8.0"), **{OPERATORS: 2500}))),
    Scenario("environments-other-work",
             "Another torch counts other FLOPs and has other settings. The time decides.",
             "SLOWER", "BEYOND_MARGIN",
             Run(pairs=counted_in(other_torch(pairs(2.0), "2.8.0"), **precision("high"),
                                  flops_per_step=10**14))),
    Scenario("environments-a-package", "One package is another one, and the step is as fast.",
             "same", "WITHIN_MARGINS",
             Run(pairs=other_torch(pairs(), **SAME_TORCH, **{"flash-attn": "2.9.0"}))),
    Scenario("environments-wait",
             "Another torch waits once more for the GPU. No time pays for that.",
             "CHANGED", "COUNTER_ROSE",
             Run(pairs=counted_in(other_torch(pairs(scatter=()), "2.8.0"), **ROSE))),
    Scenario("environments-price-rose", "As fast under another torch, and its peak is 1 GB higher.",
             "CHANGED", "COUNTER_ROSE",
             Run(pairs=counted_in(other_torch(pairs(scatter=(0.0,)), "2.8.0"), **HIGHER))),
    Scenario("environments-tokens", "It trains other tokens: no torch does that.",
             "CHANGED", "WORK_MOVED",
             Run(pairs=other_torch(pairs(head={"tokens_per_step": 1000}), "2.8.0"))),
    Scenario("environments-nothing-differs",
             "No version differs, so nothing explains other operators.",
             "CHANGED", "WORK_MOVED",
             Run(pairs=counted_in(other_torch(cpu_pairs((0.05,)),
                                              cpu_pairs((0.0,)).head.fingerprint.torch),
                                  **{OPERATORS: 2500}))),
)  # fmt: skip
