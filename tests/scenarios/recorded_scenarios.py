"""Runs that are compared with recordings, and that nothing confirmed."""

import math
from dataclasses import replace

import numpy as np
from builders import (
    CASE,
    FINGERPRINT,
    KNOWN_COUNTS,
    block,
    block_of,
    cpu_evidence,
    entry,
    entry_of,
    epoch,
    evidence,
    launch,
    one_recording,
    recording,
    two_rank_evidence,
    with_counts,
)
from kernels import counts_of, recorded_step, step
from scenario import Files, Run, Scenario

from stepguard.evidence import Counts, Difference
from stepguard.recording import RecordedDifference
from stepguard.site import Site

FIVE = entry((250.0, 250.1, 249.9, 250.0, 250.0))  # limit: 0.5 %
SYNC = Site(".item()", "model/train.py", 88, "train_step", "loss.item()", "forward")
OPERATORS = "operator_calls_per_step"
DIFFERENCE = "sync_overhead_pct"
TWO_RANKS = two_rank_evidence()
ALIKE = {"by_rank": {}}  # of a recording whose ranks count the same


def at(pct, **changes):
    """A run that is so many percent slower than its recordings."""
    return evidence((250.0 * (1 + pct / 100),) * 3, **changes)


def counting(found, sites=None, detail=None, by_rank=None, **values):
    """Evidence with other counts, and where and of what they are."""
    counts = with_counts(found, **values).counts
    return replace(
        found,
        counts=replace(
            counts,
            sites=sites or {},
            detail=counts.detail | (detail or {}),
            by_rank=by_rank or {},
        ),
    )


def calling(calls, sites=()):
    """Evidence of a step that calls these operators."""
    called = {OPERATORS: sum(calls.values())}
    return counting(evidence(), detail={OPERATORS: calls}, sites={OPERATORS: sites}, **called)


def uneven(late=0.0, every=0.0):
    """Three launches whose steps scatter by 1 %: slower from step 150 on, or every 16 steps."""
    draw, made = np.random.default_rng(5), []
    for number in (1, 2, 3):
        blocks = []
        for begin in (110, 156, 202):
            steps = np.arange(begin, begin + 46)
            logs = 0.01 * draw.standard_normal(46) + late * (steps >= 150)
            logs += every * (steps % 16 == 5)
            blocks.append(block_of([43.0 * math.exp(one) for one in logs], begin))
        made.append(launch(index=number, blocks=tuple(blocks)))
    return evidence((), launches=tuple(made), planned_launches=3, floor_flops_per_step=0.0)


def sync_overhead(pct):
    """A run that gates what a synchronization costs, which is so many percent of a step."""
    pairs = tuple((250.0, 250.0 * (1 + (pct + one) / 100)) for one in (0.1, -0.1, 0.1, -0.1))
    gates = (*evidence().gates, DIFFERENCE)
    return evidence(gates=gates, differences=(Difference("sync_overhead", pairs),))


def two_ranks(syncs, **changes):
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
    if found.world_size > 1:
        same["by_rank"] = {name: list(each) for name, each in counts.by_rank.items()}
    return entry_of(found, **same | changes)


def on_cpu(**changes):
    """A baseline of the CPU's case."""
    return entry_of(cpu_evidence(), device_uuid="", driver="", **changes)


UNSTEADY = replace(launch(), steady="the step time still drifts by 3 %")
RECORDED = (
    Scenario(
        "recordings-same",
        "A step as fast as its five recordings, with equal counters.",
        "same",
        "WITHIN_LIMIT",
        Run(at(0.0), baseline=FIVE),
    ),
    Scenario(
        "recordings-same-within-limit",
        "0.4 % slower than recordings whose limit is 0.5 %.",
        "same",
        "WITHIN_LIMIT",
        Run(at(0.4), baseline=FIVE),
    ),
    Scenario(
        "recordings-slower-beyond-machines",
        "5 % slower and no pairs: beyond the 4 % that one card differs by, so it fails.",
        "SLOWER",
        "BEYOND_LIMIT",
        Run(at(5.0), baseline=FIVE),
    ),
    Scenario(
        "recordings-faster-beyond-machines",
        "5 % faster and no pairs: a gain to accept.",
        "FASTER",
        "BEYOND_LIMIT",
        Run(at(-5.0), baseline=FIVE),
    ),
    Scenario(
        "recordings-alarm-unconfirmed",
        "2 % slower and no pairs: an alarm that nothing confirmed.",
        "INCONCLUSIVE",
        "UNCONFIRMED",
        Run(at(2.0), baseline=FIVE),
    ),
    Scenario(
        "recordings-gain-unconfirmed",
        "2 % faster and no pairs: no gain is claimed.",
        "same",
        "WITHIN_LEVEL",
        Run(at(-2.0), baseline=FIVE),
    ),
    Scenario(
        "recordings-drifting-level",
        "Each recording was a little slower than the one before: their spread widens the limit.",
        "same",
        "WITHIN_LIMIT",
        Run(at(0.7), baseline=entry((250.0, 250.4, 250.8, 251.2))),
    ),
    Scenario(
        "recordings-of-another-card",
        "2 % slower than another card of the kind: within what cards differ by.",
        "same",
        "WITHIN_LIMIT",
        Run(at(2.0), baseline=one_recording(device_uuid="GPU-5678")),
    ),
    Scenario(
        "recordings-last-epoch-alone",
        "As fast as an older level, which an accepted change left: 4.2 % faster than today's.",
        "FASTER",
        "BEYOND_LIMIT",
        Run(at(0.0), baseline=entry(epochs=[epoch(), epoch((261.0,), reason="slower loss")])),
    ),
    Scenario(
        "recordings-too-noisy",
        "Launches of 240, 250 and 260 ms tell nothing to half a percent.",
        "INCONCLUSIVE",
        "TOO_NOISY",
        Run(evidence((240.0, 260.0, 250.0)), baseline=FIVE),
    ),
    Scenario(
        "recordings-kernel-moved",
        "The step is within its limit, and one of its kernels takes 4 % longer.",
        "same",
        "KERNELS_MOVED",
        Run(counts_of(evidence(), step(1.04, seed=3)), baseline=recorded_step(250.0)),
    ),
    Scenario(
        "late-slowdown-against-recordings",
        "12 % slower from step 150 on: a notice, since recordings know no single steps.",
        "same",
        "LATE_SLOWDOWN",
        Run(uneven(late=0.12), baseline=entry((48.5,))),
    ),
    Scenario(
        "periodic-slowdown-against-recordings",
        "Every sixteenth step takes twice as long: a notice.",
        "same",
        "PERIODIC_SLOWDOWN",
        Run(uneven(every=0.7), baseline=entry((45.7,))),
    ),
    Scenario(
        "difference-rose",
        "What a synchronization costs rose from 1 to 3 % of a step.",
        "SLOWER",
        "BEYOND_LIMIT",
        Run(
            sync_overhead(3.0),
            baseline=one_recording(
                differences_pct={DIFFERENCE: RecordedDifference(mean=1.0, half_width=0.1)}
            ),
        ),
    ),
    Scenario(
        "cost-rose",
        "A new .item() in the step, with its line.",
        "CHANGED",
        "COUNTER_ROSE",
        Run(
            counting(evidence(), sites={"host_syncs_per_step": (SYNC,)}, host_syncs_per_step=1),
            baseline=recorded_of(counting(evidence(), host_syncs_per_step=0)),
        ),
    ),
    Scenario(
        "cost-rose-within-slack",
        "1 % more launches than the newest recording, of 2 % that are no news.",
        "same",
        "WITHIN_LIMIT",
        Run(counting(evidence(), launches_per_step=1010), baseline=FIVE),
    ),
    Scenario(
        "cost-fell",
        "Half the launches: a gain to accept.",
        "FASTER",
        "COUNTER_FELL",
        Run(counting(evidence(), launches_per_step=500), baseline=FIVE),
    ),
    Scenario(
        "peak-memory-rose",
        "5 GB more at the peak.",
        "CHANGED",
        "COUNTER_ROSE",
        Run(counting(evidence(), peak_allocated_bytes=50_000_000_000), baseline=FIVE),
    ),
    Scenario(
        "operators-moved",
        "A product more and four copies, at their lines.",
        "CHANGED",
        "WORK_MOVED",
        Run(
            calling(
                {"aten.mm.default": 25, "aten.add.Tensor": 2376, "aten.clone.default": 4},
                (
                    Site("aten.mm.default", "model/gpt.py", 71, "forward", "x @ self.w", count=1),
                    Site("aten.clone.default", "model/gpt.py", 70, "forward", "x.clone()", count=4),
                ),
            ),
            baseline=recorded_of(
                calling(
                    {"aten.mm.default": 24, "aten.add.Tensor": 2376},
                    (Site("aten.add.Tensor", "model/gpt.py", 9, "forward", "x + y", count=2376),),
                )
            ),
        ),
    ),
    Scenario(
        "operators-exchanged",
        "As many calls as before, of other operators: CHANGED, and no improvement.",
        "CHANGED",
        "WORK_MOVED",
        Run(
            calling({"aten.mm.default": 23, "aten.bmm.default": 1, "aten.add.Tensor": 2376}),
            baseline=FIVE,
        ),
    ),
    Scenario(
        "operators-views-alone",
        "Ten views more in 2,400 calls: as much work as before.",
        "same",
        "WITHIN_LIMIT",
        Run(
            calling({"aten.mm.default": 24, "aten.add.Tensor": 2376, "aten.view.default": 10}),
            baseline=FIVE,
        ),
    ),
    Scenario(
        "less-work",
        "A third of the FLOPs is gone: fast, and not the same step.",
        "CHANGED",
        "WORK_MOVED",
        Run(counting(at(-30.0), flops_per_step=75_000_000_000_000), baseline=FIVE),
    ),
    Scenario(
        "one-rank-rose",
        "The busiest rank waits as often as before, and the other one now does, too.",
        "CHANGED",
        "COUNTER_ROSE",
        Run(
            counting(TWO_RANKS, host_syncs_per_step=2),
            baseline=recorded_of(
                counting(
                    TWO_RANKS,
                    by_rank={"host_syncs_per_step": (2, 1)},
                    host_syncs_per_step=2,
                )
            ),
        ),
    ),
    Scenario(
        "two-ranks-same",
        "Two ranks as recorded, one of which logs.",
        "same",
        "WITHIN_LIMIT",
        Run(two_ranks((2, 1)), baseline=recorded_of(two_ranks((2, 1)))),
    ),
    Scenario(
        "collectives-moved",
        "One exchange of 4 MB became four of 1 MB.",
        "CHANGED",
        "COUNTER_ROSE",
        Run(
            reduced((10**6, 10**6 + 1, 10**6 + 2, 10**6 - 3)),
            baseline=recorded_of(reduced((4 * 10**6,))),
        ),
    ),
    Scenario(
        "more-bytes-exchanged",
        "As many collectives, of twice the bytes.",
        "CHANGED",
        "WORK_MOVED",
        Run(reduced((8 * 10**6,)), baseline=recorded_of(reduced((4 * 10**6,)))),
    ),
    Scenario(
        "cpu-same",
        "On a CPU counters alone decide, and all are equal.",
        "same",
        "EQUAL",
        Run(cpu_evidence(), baseline=on_cpu()),
    ),
    Scenario(
        "cpu-sync-candidate",
        "On a CPU a call that would wait on a GPU, with its line.",
        "CHANGED",
        "COUNTER_ROSE",
        Run(
            counting(
                cpu_evidence(),
                sites={"sync_candidates_per_step": (SYNC,)},
                sync_candidates_per_step=11,
            ),
            baseline=on_cpu(),
        ),
    ),
    Scenario(
        "cpu-as-a-run-kept-it",
        "A run's own files of a case on a CPU: a sync that was added, and its operators.",
        "CHANGED",
        "COUNTER_ROSE",
        Files("cpu-changed"),
    ),
    Scenario(
        "two-cpu-ranks-as-a-run-kept-it",
        "A run's own files of two ranks on a CPU: a sync that was added, on each.",
        "CHANGED",
        "COUNTER_ROSE",
        Files("cpu-two-ranks"),
    ),
    Scenario(
        "real-recording-slower",
        "3 % slower than a recording of an H200, with a sync more: the cost decides.",
        "CHANGED",
        "COUNTER_ROSE",
        Files("gpu-recorded"),
    ),
    Scenario(
        "not-recorded",
        "No baseline has the case.",
        "NO BASELINE",
        "NOT_RECORDED",
        Run(evidence()),
    ),
    Scenario(
        "metric-not-recorded",
        "The recording is older than one of the counters.",
        "NO BASELINE",
        "METRIC_NOT_RECORDED",
        Run(
            evidence(),
            baseline=one_recording(
                counters={k: v for k, v in recording().counters.items() if k != "recompiles"}
            ),
        ),
    ),
    Scenario(
        "other-software",
        "Recorded under an older torch.",
        "NOT COMPARABLE",
        "OTHER_SOFTWARE",
        Run(evidence(fingerprint=replace(FINGERPRINT, torch="2.12.0+cu130")), baseline=FIVE),
    ),
    Scenario(
        "other-parameters",
        "The case's batch was edited.",
        "NOT COMPARABLE",
        "OTHER_PARAMETERS",
        Run(
            evidence(case=CASE | {"params": CASE["params"] | {"batch": 32}}),
            baseline=FIVE,
        ),
    ),
    Scenario(
        "other-tokens",
        "The workload itself reads another number of tokens.",
        "NOT COMPARABLE",
        "WORK_MOVED",
        Run(evidence(tokens_per_step=65_536), baseline=FIVE),
    ),
    Scenario(
        "not-steady",
        "The warm-up's time ended before the step time stood still.",
        "INCONCLUSIVE",
        "NOT_STEADY",
        Run(evidence((), launches=(UNSTEADY,), planned_launches=3), baseline=FIVE),
    ),
    Scenario(
        "not-steady-but-a-cost-rose",
        "It recompiles for ever: that is why it is not steady, and it decides.",
        "CHANGED",
        "COUNTER_ROSE",
        Run(
            counting(
                evidence((), launches=(UNSTEADY,), planned_launches=3),
                recompiles=KNOWN_COUNTS.get("recompiles", 10) + 8,
            ),
            baseline=FIVE,
        ),
    ),
    Scenario(
        "count-unstable",
        "Two steps counted differently.",
        "INCONCLUSIVE",
        "COUNT_UNSTABLE",
        Run(
            evidence(
                counts=Counts(
                    {k: v for k, v in evidence().counts.values.items() if k != "copies_per_step"},
                    {"copies_per_step": "steps differ: 4, 5"},
                    evidence().counts.detail,
                )
            ),
            baseline=FIVE,
        ),
    ),
    Scenario(
        "nothing-measured",
        "No launch, and no fault that says why.",
        "BROKEN",
        "NOTHING_MEASURED",
        Run(evidence((), planned_launches=3), baseline=FIVE),
    ),
    Scenario(
        "too-few-launches",
        "Two of three launches.",
        "BROKEN",
        "NOTHING_MEASURED",
        Run(evidence((250.0, 250.0), planned_launches=3), baseline=FIVE),
    ),
    Scenario(
        "metric-missing",
        "A gated counter was not counted.",
        "BROKEN",
        "METRIC_MISSING",
        Run(
            evidence(
                counts=Counts(
                    {k: v for k, v in evidence().counts.values.items() if k != "copies_per_step"}
                )
            ),
            baseline=FIVE,
        ),
    ),
    Scenario(
        "faster-than-physics",
        "50 ms a step, where the GPU's peak allows no less than 100.",
        "BROKEN",
        "FASTER_THAN_PHYSICS",
        Run(evidence((50.0,) * 3), baseline=FIVE),
    ),
    Scenario(
        "clocks-disagree",
        "A block's events end 5 % before its wall clock.",
        "BROKEN",
        "CLOCKS_DISAGREE",
        Run(
            evidence(
                (),
                launches=(launch(), launch(blocks=(block(), block(events_ms=(2375.0,))))),
                planned_launches=2,
            ),
            baseline=FIVE,
        ),
    ),
    Scenario(
        "contradiction",
        "The step without its exchange takes longer than with it.",
        "BROKEN",
        "CONTRADICTION",
        Run(
            two_rank_evidence(
                gates=(*TWO_RANKS.gates, "exposed_comm_pct"),
                differences=(Difference("exposed_comm", ((250.0, 240.0), (250.0, 240.2))),),
            ),
            baseline=recorded_of(TWO_RANKS),
        ),
    ),
)
