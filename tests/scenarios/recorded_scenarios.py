"""Runs whose times are compared with recordings, and that nothing confirmed."""

from builders import (
    CASE,
    FINGERPRINT,
    entry,
    epoch,
    evidence,
    one_recording,
    recording,
    replace,
    two_rank_evidence,
)
from inputs import DIFFERENCE, FIVE, TWO_RANKS, at, recorded_of, sync_overhead
from kernels import counts_of, recorded_step, step
from scenario import Files, Run, Scenario

from stepguard.core.evidence import Difference
from stepguard.core.recording import RecordedDifference

RECORDED = (
    Scenario("recordings-same", "A step as fast as its five recordings, with equal counters.",
             "same", "WITHIN_LIMIT", Run(at(0.0), baseline=FIVE)),
    Scenario("recordings-same-within-limit",
             "0.69 % slower: just within 0.7 %, the limit on a recorded card.",
             "same", "WITHIN_LIMIT", Run(at(0.69), baseline=FIVE)),
    Scenario("recordings-alarm-unconfirmed",
             "0.71 % slower and no pairs: an alarm that nothing confirmed.",
             "INCONCLUSIVE", "UNCONFIRMED", Run(at(0.71), baseline=FIVE)),
    Scenario("recordings-gain-unconfirmed", "2 % faster and no pairs: no gain is claimed.",
             "same", "UNCONFIRMED", Run(at(-2.0), baseline=FIVE)),
    Scenario("recordings-of-another-card",
             "1.99 % slower than another card of the kind: just within 2 %.",
             "same", "WITHIN_LIMIT", Run(at(1.99), baseline=one_recording(device_uuid="GPU-5678"))),
    Scenario("recordings-beyond-other-cards",
             "2.01 % slower than another card of the kind: an alarm.",
             "INCONCLUSIVE", "UNCONFIRMED",
             Run(at(2.01), baseline=one_recording(device_uuid="GPU-5678"))),
    Scenario("recordings-one-launch",
             "1 % slower than another card of the kind: one launch was enough, none followed.",
             "same", "WITHIN_LIMIT",
             Run(evidence((252.5,), planned_launches=1),
                 baseline=one_recording(device_uuid="GPU-5678"))),
    Scenario("recordings-last-epoch-alone",
             "As fast as an older level, which a change left: 4.2 % faster than today's.",
             "same", "UNCONFIRMED",
             Run(at(0.0), baseline=entry(epochs=[epoch(), epoch((261.0,), reason="slower loss")]))),
    Scenario("recordings-kernel-moved",
             "The step is within its limit, and one of its kernels takes 4 % longer: an alarm.",
             "INCONCLUSIVE", "KERNELS_MOVED",
             Run(counts_of(evidence(), step(1.04, seed=3)), baseline=recorded_step(250.0))),
    Scenario("difference-rose", "What a synchronization costs rose from 1 to 3 % of a step.",
             "SLOWER", "BEYOND_LIMIT",
             Run(sync_overhead(3.0),
                 baseline=one_recording(differences_pct={DIFFERENCE: RecordedDifference(
                                                             mean=1.0, half_width=0.1)}))),
    Scenario("difference-too-noisy",
             "What a synchronization costs is known to more than half a percent of a step only.",
             "INCONCLUSIVE", "TOO_NOISY",
             Run(replace(sync_overhead(1.0),
                         differences=(Difference("sync_overhead",
                                                 ((250.0, 251.0), (250.0, 254.0))),)),
                 baseline=one_recording(differences_pct={DIFFERENCE: RecordedDifference(
                                                             mean=1.0, half_width=0.1)}))),
    Scenario("real-recording-slower",
             "3 % slower than a recording of an H200, with a sync more: the cost decides.",
             "CHANGED", "COUNTER_ROSE", Files("gpu-recorded")),
    Scenario("not-recorded", "No baseline has the case.",
             "NO BASELINE", "NOT_RECORDED", Run(evidence())),
    Scenario("metric-not-recorded", "The recording is older than one of the counters.",
             "NO BASELINE", "NOT_RECORDED",
             Run(evidence(),
                 baseline=one_recording(
                     counters={
                         k: v for k, v in recording().counters.items() if k != "recompiles"}))),
    Scenario("other-software", "Recorded under an older torch.",
             "NOT COMPARABLE", "OTHER_CONDITIONS",
             Run(evidence(fingerprint=replace(FINGERPRINT, torch="2.12.0+cu130")), baseline=FIVE)),
    Scenario("other-parameters", "The case's batch was edited.",
             "NOT COMPARABLE", "OTHER_CONDITIONS",
             Run(evidence(case=CASE | {"params": CASE["params"] | {"batch": 32}}), baseline=FIVE)),
    Scenario("other-tokens", "The workload itself reads another number of tokens.",
             "NOT COMPARABLE", "WORK_MOVED", Run(evidence(tokens_per_step=65_536), baseline=FIVE)),
    Scenario("two-ranks-slower", "5 % slower, on two ranks.",
             "INCONCLUSIVE", "UNCONFIRMED",
             Run(two_rank_evidence(launches=at(5.0).launches), baseline=recorded_of(TWO_RANKS))),
)  # fmt: skip
