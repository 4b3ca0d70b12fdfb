"""Runs whose counters are compared with recordings."""

from builders import cpu_evidence, evidence, replace
from inputs import (
    FIVE,
    OPERATORS,
    SYNC,
    SYNCS,
    TWO_RANKS,
    at,
    calling,
    computing,
    counting,
    cpu_baseline,
    listing,
    reading,
    recorded_of,
    reduced,
    syncing,
)
from scenario import Files, Run, Scenario

from stepguard.core.metrics import BETWEEN_STEPS, FLOPS, FP64, GARBAGE
from stepguard.core.site import Site

PEAK = "peak_allocated_bytes"


def at_peak(billions):
    """A line that made so many 10^9 B of those that are alive at the peak."""
    place = ("model/gpt.py", 44, "forward", "x = F.gelu(x)", "forward")
    return Site("aten.gelu", *place, count=billions * 10**9)


def after_steps(number):
    """Counts of the steps after this number of them."""
    return replace(evidence(), counts=replace(evidence().counts, after_steps=number))


def activating(name):
    """A line of the model that calls this operator twelve times a step."""
    text = f"x = F.{name}(x)" if name != "mm" else "x = x @ w"
    what = f"aten.{name}.default"
    return (Site(what, "model/gpt.py", 44, "forward", text, count=12),)


def exchanging(calls):
    """Two ranks that reduce so often a step."""
    reduce = "_c10d_functional.all_reduce.default"
    found = reduced((10**6,) * calls)
    lines = tuple(
        Site(reduce, "model/ddp.py", 9 + one, "step", f"all_reduce({one})") for one in range(calls)
    )
    return counting(
        found,
        sites={OPERATORS: lines},
        detail=found.counts.detail | {OPERATORS: {reduce: calls, "aten.add.Tensor": 2400 - calls}},
        **{"collectives_per_step": calls, "collective_bytes_per_step": calls * 10**6},
    )


def scaling(text, instructions):
    """A step with a kernel of two lines, which has so many instructions of fp64. The second line is
    this one.
    """
    gelu = Site("aten.gelu.default", "model/gpt.py", 44, "forward", "x = F.gelu(x)", count=12)
    scale = Site("aten.mul.Tensor", "model/gpt.py", 45, "forward", text, count=12)
    kernel = "triton_poi_fused_gelu_mul"
    lines = tuple(replace(site, what=kernel, count=1) for site in (gelu, scale))
    return counting(
        evidence(),
        sites={OPERATORS: (gelu, scale)} | ({FP64: lines} if instructions else {}),
        detail={FP64: {f"{kernel}_5": instructions} if instructions else {}},
        fp64_kernels=int(instructions > 0),
    )


def untied(updates, **how):
    """Two ranks whose optimizer multiplies so often, and that hold so many bytes between steps."""
    mul = "aten.mul_.Tensor"
    line = Site(mul, "train.py", 9, "step", "optimizer.step()", "optimizer", count=updates)
    detail = {OPERATORS: {mul: updates, "aten.add.Tensor": 2400}}
    return counting(TWO_RANKS, {OPERATORS: (line,)}, detail, **{OPERATORS: 2400 + updates} | how)


PRODUCT = Site("aten.mm.default", "model/gpt.py", 72, "MLP.forward", "x @ self.more", count=2)
SLICE = Site("aten.slice.Tensor", "model/gpt.py", 30, "MLP.forward", "x = x[:n]")


def working(calls, line, **how):
    """A step of these operators, and where one of them is called."""
    detail = {OPERATORS: {"aten.add.Tensor": 2400} | calls}
    total = sum(detail[OPERATORS].values())
    return counting(cpu_evidence(), {OPERATORS: (line,)}, detail, **{OPERATORS: total} | how)


def raising(overload):
    """A line of the model that raises to a power."""
    name = f"aten.pow.{overload}"
    line = Site(name, "model/gpt.py", 44, "forward", "x = x ** n", count=12)
    return calling({name: 12, "aten.add.Tensor": 2388}, (line,))


def waiting(*sites, made=None, **how):
    """Evidence of a step that waits at these lines, of which allowed ones do not count."""
    count = sum(site.count for site in sites if not site.allowed)
    return counting(made or evidence(), {SYNCS: sites}, **{SYNCS: count} | how)


def of_both(steps):
    """Evidence of two launches that disagree: the count of each of their steps, most first."""
    found = counting(evidence(), **{SYNCS: steps[0]})
    return replace(found, counts=replace(found.counts, of_both={SYNCS: steps}, launches=2))


MARKED = replace(SYNC, text=f"{SYNC.text}  # stepguard: allow sync: a log", allowed="a log")
OTHER_WAIT = replace(SYNC, text="self.log(loss.item())")
TWO_WAITS = replace(OTHER_WAIT, count=2)

COUNTED = (
    Scenario("cost-rose", "A new .item() in the step, with its line.",
             "CHANGED", "COUNTER_ROSE",
             Run(counting(evidence(), sites={"host_syncs_per_step": (SYNC,)},
                          host_syncs_per_step=1),
                 baseline=recorded_of(counting(evidence(), host_syncs_per_step=0)))),
    Scenario("cost-rose-within-slack",
             "1 % more launches than the newest recording, of 2 % that are no news.",
             "same", "WITHIN_LIMIT",
             Run(counting(evidence(), launches_per_step=1010), baseline=FIVE)),
    Scenario("cost-fell", "Half the launches: a gain to accept.",
             "FASTER", "COUNTER_FELL",
             Run(counting(evidence(), launches_per_step=500), baseline=FIVE)),
    Scenario("peak-memory-rose", "5 GB more at the peak.",
             "CHANGED", "COUNTER_ROSE",
             Run(counting(evidence(), peak_allocated_bytes=50_000_000_000), baseline=FIVE)),
    Scenario("operators-moved", "A product more and four copies, at their lines.",
             "CHANGED", "WORK_MOVED",
             Run(calling({"aten.mm.default": 25, "aten.add.Tensor": 2376, "aten.clone.default": 4},
                         (Site("aten.mm.default", "model/gpt.py", 71, "forward", "x @ self.w",
                               count=1),
                          Site("aten.clone.default", "model/gpt.py", 70, "forward", "x.clone()",
                               count=4))),
                 baseline=recorded_of(calling({"aten.mm.default": 24, "aten.add.Tensor": 2376},
                                              (Site("aten.add.Tensor", "model/gpt.py", 9, "forward",
                                                    "x + y", count=2376),))))),
    Scenario("operators-exchanged",
             "As many calls as before, of other operators: CHANGED, and no improvement.",
             "CHANGED", "WORK_MOVED",
             Run(calling({"aten.mm.default": 23, "aten.bmm.default": 1, "aten.add.Tensor": 2376}),
                 baseline=FIVE)),
    Scenario("operators-views-alone", "Ten views more in 2,400 calls: as much work as before.",
             "same", "WITHIN_LIMIT",
             Run(calling({"aten.mm.default": 24, "aten.add.Tensor": 2376, "aten.view.default": 10}),
                 baseline=FIVE)),
    Scenario("less-work", "A third of the FLOPs is gone: fast, and not the same step.",
             "CHANGED", "WORK_MOVED",
             Run(counting(at(-30.0), flops_per_step=75_000_000_000_000), baseline=FIVE)),
    Scenario("steps-differ-as-recorded",
             "A step does more in every second step, as it did when it was recorded.",
             "same", "WITHIN_LIMIT",
             Run(listing(evidence(), launches_per_step=(1000, 1500)),
                 baseline=recorded_of(listing(evidence(), launches_per_step=(1000, 1500))))),
    Scenario("steps-differ-by-more",
             "Every second step does more than when it was recorded: the sums are compared.",
             "CHANGED", "COUNTER_ROSE",
             Run(listing(evidence(), launches_per_step=(1000, 1600)),
                 baseline=recorded_of(listing(evidence(), launches_per_step=(1000, 1500))))),
    Scenario("steps-differ-now",
             "Every second step waits twice at a line that waited once in each step.",
             "CHANGED", "COUNTER_ROSE",
             Run(listing(evidence(), {SYNCS: (replace(SYNC, count=3),)}, **{SYNCS: (1, 2)}),
                 baseline=recorded_of(counting(evidence(), {SYNCS: (SYNC,)}, **{SYNCS: 1})))),
    Scenario("steps-differed-in-the-recording",
             "Every second step waited twice. Now each step waits once.",
             "FASTER", "COUNTER_FELL",
             Run(counting(evidence(), {SYNCS: (SYNC,)}, **{SYNCS: 1}),
                 baseline=recorded_of(listing(evidence(), {SYNCS: (replace(SYNC, count=3),)},
                                              **{SYNCS: (1, 2)})))),
    Scenario("most-steps-count-as-recorded",
             "Launches disagree: eight of fifty steps wait more often.",
             "same", "WITHIN_LIMIT", Run(of_both((10,) * 42 + (11,) * 7 + (12,)), baseline=FIVE)),
    Scenario("most-steps-count-more",
             "Launches disagree: a wait more, which five of fifty steps lack.",
             "CHANGED", "COUNTER_ROSE", Run(of_both((11,) * 45 + (10,) * 5), baseline=FIVE)),
    Scenario("one-ranks-steps-differ", "Every second step of rank 1 waits, which was no step's.",
             "CHANGED", "COUNTER_ROSE",
             Run(replace(TWO_RANKS,
                         counts=replace(listing(TWO_RANKS, **{SYNCS: (0, 1)}).counts,
                                        by_rank={SYNCS: (0, 1)})),
                 baseline=recorded_of(counting(TWO_RANKS, **{SYNCS: 0})))),
    Scenario("peak-of-steps-that-differ", "Of peaks the largest counts, not the sum.",
             "CHANGED", "COUNTER_ROSE",
             Run(listing(evidence(), **{PEAK: (45_000_000_000, 50_000_000_000)}),
                 baseline=recorded_of(evidence()))),
    Scenario("labels-of-an-older-recording",
             "A recording from before labels were no operators: it is read without them.",
             "same", "WITHIN_LIMIT",
             Run(calling({"aten.mm.default": 24, "aten.add.Tensor": 2376}),
                 baseline=recorded_of(calling(
                                          {"aten.mm.default": 24, "aten.add.Tensor": 2376,
                                           "profiler._record_function_enter_new.default": 1,
                                           "profiler._record_function_exit._RecordFunction": 1})))),
    Scenario("counted-after-other-steps",
             "Other steps of the loop were counted when it was recorded.",
             "NOT COMPARABLE", "OTHER_CONDITIONS",
             Run(after_steps(5), baseline=recorded_of(evidence(), counted_after_steps=4))),
    Scenario("counted-after-unknown-steps", "A recording from before that was noted is compared.",
             "same", "WITHIN_LIMIT", Run(after_steps(5), baseline=recorded_of(evidence()))),
    Scenario("one-rank-rose",
             "The busiest rank waits as often as before, and the other one now does, too.",
             "CHANGED", "COUNTER_ROSE",
             Run(counting(TWO_RANKS, host_syncs_per_step=2),
                 baseline=recorded_of(counting(TWO_RANKS, by_rank={"host_syncs_per_step": (2, 1)},
                                               host_syncs_per_step=2)))),
    Scenario("two-ranks-same", "Two ranks as recorded, one of which logs.",
             "same", "WITHIN_LIMIT", Run(syncing((2, 1)), baseline=recorded_of(syncing((2, 1))))),
    Scenario("collectives-moved", "One exchange of 4 MB became four of 1 MB.",
             "CHANGED", "COUNTER_ROSE",
             Run(reduced((10**6, 10**6 + 1, 10**6 + 2, 10**6 - 3)),
                 baseline=recorded_of(reduced((4 * 10**6,))))),
    Scenario("more-bytes-exchanged", "As many collectives, of twice the bytes.",
             "CHANGED", "WORK_MOVED",
             Run(reduced((8 * 10**6,)), baseline=recorded_of(reduced((4 * 10**6,))))),
    Scenario("cpu-same", "On a CPU counters alone decide, and all are equal.",
             "same", "EQUAL", Run(cpu_evidence(), baseline=cpu_baseline())),
    Scenario("cpu-sync-candidate", "On a CPU a call that would wait on a GPU, with its line.",
             "CHANGED", "COUNTER_ROSE",
             Run(counting(cpu_evidence(), sites={"sync_candidates_per_step": (SYNC,)},
                          sync_candidates_per_step=11), baseline=cpu_baseline())),
    Scenario("cpu-as-a-run-kept-it",
             "A run's own files of a case on a CPU: a sync that was added, and its operators.",
             "CHANGED", "COUNTER_ROSE", Files("cpu-changed")),
    Scenario("two-cpu-ranks-as-a-run-kept-it",
             "A run's own files of two ranks on a CPU: a sync that was added, on each.",
             "CHANGED", "COUNTER_ROSE", Files("cpu-two-ranks")),
    Scenario("cpu-waits-fell",
             "On a CPU two .item() are gone, with the operators that read the numbers.",
             "FASTER", "COUNTER_FELL",
             Run(computing(counting(cpu_evidence(), **reading(2))),
                 baseline=recorded_of(computing(counting(cpu_evidence(), **reading(4))),
                                      device_uuid="", driver=""))),
    Scenario("mark-at-a-wait", "A line that was counted got a comment that allows it: no gain.",
             "same", "WITHIN_LIMIT", Run(waiting(MARKED), baseline=recorded_of(waiting(SYNC)))),
    Scenario("mark-at-a-wait-hides-no-other",
             "A line that was counted got a mark, and another line waits now.",
             "CHANGED", "COUNTER_ROSE",
             Run(waiting(MARKED, replace(SYNC, text="print(loss.tolist())")),
                 baseline=recorded_of(waiting(SYNC)))),
    Scenario("mark-at-a-wait-of-one-rank",
             "Of two lines that wait the one that only rank 0 runs got a mark.",
             "same", "WITHIN_LIMIT",
             Run(waiting(MARKED, OTHER_WAIT, made=TWO_RANKS),
                 baseline=recorded_of(waiting(SYNC, OTHER_WAIT, made=TWO_RANKS,
                                              by_rank={SYNCS: (2, 1)})))),
    Scenario("mark-at-a-wait-of-a-rank-that-waits-less",
             "The line that got a mark is the only one of rank 0; rank 1 waits twice, as before.",
             "same", "WITHIN_LIMIT",
             Run(waiting(MARKED, TWO_WAITS, made=TWO_RANKS, by_rank={SYNCS: (0, 2)}),
                 baseline=recorded_of(waiting(SYNC, TWO_WAITS, made=TWO_RANKS,
                                              by_rank={SYNCS: (1, 2)}, **{SYNCS: 2})))),
    Scenario("mark-that-is-recorded",
             "A mark that a recording has, too, takes nothing from the line's other call.",
             "same", "WITHIN_LIMIT",
             Run(waiting(MARKED, SYNC), baseline=recorded_of(waiting(MARKED, SYNC)))),
    Scenario("cpu-wait-and-work-fell",
             "A .item() is gone, and the sum that it read: that is less work.",
             "CHANGED", "WORK_MOVED",
             Run(counting(cpu_evidence(), **reading(1, sums=1)),
                 baseline=recorded_of(counting(cpu_evidence(), **reading(2, sums=2)),
                                      device_uuid="", driver=""))),
    Scenario("one-rank-fell", "One of two ranks waits less often.",
             "FASTER", "COUNTER_FELL", Run(syncing((2, 1)), baseline=recorded_of(syncing((2, 2))))),
    Scenario("other-parts-of-unlike-ranks",
             "As many products on the busiest rank, of other operators; its neighbour has fewer.",
             "CHANGED", "WORK_MOVED",
             Run(counting(TWO_RANKS,
                          detail={OPERATORS: {"aten.bmm.default": 24, "aten.add.Tensor": 2376}},
                          by_rank={OPERATORS: (2400, 2390)}),
                 baseline=recorded_of(counting(TWO_RANKS, by_rank={OPERATORS: (2400, 2390)})))),
    Scenario("peak-memory-and-its-line",
             "More at the peak: a removed no_grad() keeps what a line of two callers makes.",
             "CHANGED", "COUNTER_ROSE",
             Run(counting(evidence(), sites={PEAK: (at_peak(15),)}, **{PEAK: 50_000_000_000}),
                 baseline=recorded_of(counting(evidence(), sites={PEAK: (at_peak(10),)})))),
    Scenario("bytes-kept-between-steps", "A list that grows keeps 4 MiB more of each step.",
             "CHANGED", "COUNTER_ROSE",
             Run(counting(evidence(),
                          sites={"leaked_bytes_per_step": (Site("aten.mm", "train.py", 9, "step",
                                                                "kept.append(y)", count=4 << 20),)},
                          leaked_bytes_per_step=4 << 20),
                 baseline=recorded_of(counting(evidence(), leaked_bytes_per_step=0)))),
    Scenario("casts-of-an-older-recording",
             "A recording from before casts had types: as many casts are as many.",
             "same", "WITHIN_LIMIT",
             Run(calling({"aten._to_copy[bfloat16].default": 24, "aten.add.Tensor": 2376}),
                 baseline=recorded_of(calling({"aten._to_copy.default": 24,
                                               "aten.add.Tensor": 2376})))),
    Scenario("operators-replaced-at-a-line",
             "One line calls another activation: it is named for the one that it replaces.",
             "CHANGED", "WORK_MOVED",
             Run(calling({"aten.silu.default": 12, "aten.add.Tensor": 2388}, activating("silu")),
                 baseline=recorded_of(calling({"aten.gelu.default": 12, "aten.add.Tensor": 2388},
                                              activating("gelu"))))),
    Scenario("operators-replaced-by-a-view",
             "A line makes its tensor from numbers of the host: it is named, not what is gone.",
             "CHANGED", "WORK_MOVED",
             Run(calling({"aten.lift_fresh.default": 12, "aten.add.Tensor": 2388},
                         activating("lift_fresh")),
                 baseline=recorded_of(calling({"aten.arange.default": 12, "aten.add.Tensor": 2388},
                                              activating("arange"))))),
    Scenario("more-work-and-its-garbage",
             "A line more calls a product, a view less is called, and a cycle is left: the work.",
             "CHANGED", "WORK_MOVED",
             Run(working({PRODUCT.what: 2}, PRODUCT, **{GARBAGE: 18, FLOPS: 12 * 10**13}),
                 baseline=recorded_of(working({SLICE.what: 1}, SLICE,
                                              **{GARBAGE: 0, FLOPS: 10**14})))),
    Scenario("operators-fell", "A line that is gone called twelve products.",
             "CHANGED", "WORK_MOVED",
             Run(calling({"aten.add.Tensor": 2376}, activating("silu")[:0]),
                 baseline=recorded_of(calling({"aten.mm.default": 12, "aten.add.Tensor": 2376},
                                              activating("mm"))))),
    Scenario("collectives-and-their-line", "Another all_reduce, at its line.",
             "CHANGED", "COUNTER_ROSE", Run(exchanging(2), baseline=recorded_of(exchanging(1)))),
    Scenario("kernel-in-double",
             "A kernel computes in fp64. Of its two lines one is new, and that one is named.",
             "CHANGED", "COUNTER_ROSE",
             Run(scaling("return x * self.scale.item()", 324),
                 baseline=recorded_of(scaling("return x * self.scale", 0)))),
    Scenario(
        "kernel-in-double-of-unknown-line",
        "A kernel computes in fp64, and no line of its operators changed: the kernel is named.",
        "CHANGED", "COUNTER_ROSE",
        Run(scaling("return x * self.scale", 324),
            baseline=recorded_of(scaling("return x * self.scale", 0)))),
    Scenario("graph-break", "A graph break, with what the compiler says of it.",
             "CHANGED", "COUNTER_ROSE",
             Run(counting(evidence(),
                          sites={"graph_breaks": (Site("graph break: Tensor.item()", "gpt.py", 71,
                                                       "forward", "if x.sum():"),)},
                          graph_breaks=1),
                 baseline=recorded_of(counting(evidence(), graph_breaks=0)))),
    Scenario("more-parameters",
             "Weights of rank 1 that are no longer tied: more to update, by no line's call.",
             "CHANGED", "COUNTER_ROSE",
             Run(untied(2, by_rank={BETWEEN_STEPS: (20 << 20, 32 << 20)},
                        **{BETWEEN_STEPS: 32 << 20}),
                 baseline=recorded_of(untied(1, **{BETWEEN_STEPS: 20 << 20})))),
    Scenario("operators-of-another-overload",
             "A square became a tensor's powers: the overload alone tells them apart.",
             "CHANGED", "WORK_MOVED",
             Run(raising("Tensor_Tensor"), baseline=recorded_of(raising("Tensor_Scalar")))),
)  # fmt: skip
