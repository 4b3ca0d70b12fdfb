"""Alarms of recordings, and what pairs beside the recording's commit say of them.

A run keeps the pairs beside the evidence, and judge reads both. Where a run measured no pairs, as
the code is the recording's or cannot be had, the call that the run makes is made here.
"""

from builders import block, evidence, launch, replace
from inputs import (
    FIVE,
    NOISY,
    QUIET,
    SYNCS,
    at,
    counted_in,
    counting,
    ended,
    failed_side,
    pairs,
    waiver,
)
from kernels import counts_of, recorded_step, step
from scenario import Files, Run, Scenario

from stepguard.core.reasons import Reason
from stepguard.judge.findings import verdict_of
from stepguard.judge.judge_recordings import screen
from stepguard.judge.rule_book import Answer, settled

GATES = ("step_ms", "flops_per_step")  # what a confirmation measures
SLOWER_KERNEL = counts_of(evidence(), step(1.04, seed=3))
ASKED = recorded_step(250.0)


def beside(pct, scatter=QUIET, head=None, base=None, **changes):
    """Pairs with the recording's own commit: the code is so many percent slower."""
    own = {"gates": GATES, "command": "pytest perf_tests"}
    head, base = own | (head or {}), own | {"commit": "0" * 40} | (base or {})
    return replace(pairs(pct, scatter, head=head, base=base, **changes), against="0" * 40)


def confirmed(screen_pct, found, **changes):
    """A run that is so many percent off its recordings, and the pairs that it then measured."""
    return Run(at(screen_pct, **changes), found, FIVE)


def untimed():
    """Pairs of steps 0 to 9."""
    launches = tuple(launch(250.0, n, blocks=(block(ran=0),)) for n in range(1, 7))
    return beside(0.0, head={"launches": launches}, base={"launches": launches})


def later():
    """A run, 5 % slower, that timed steps 3 to 12."""
    launches = tuple(launch(262.5, n, blocks=(block(262.5, ran=3),)) for n in (1, 2, 3))
    return evidence((), launches=launches, planned_launches=3)


def alone(pct, **answer):
    """The verdict of a run that measured no pairs, with this answer to its alarm."""
    return verdict_of(settled(screen(at(pct), FIVE), Answer(**answer)))


OWN = "the recording's own commit, 000000000000"
CONFIRMED = (
    Scenario("ended-while-confirmed-slower",
             "5 % off, and the run was ended while pairs were measured: no verdict.",
             "INCONCLUSIVE", "UNDECIDED", confirmed(5.0, ended(beside(2.0, QUIET[:3])))),
    Scenario("ended-while-confirmed-faster",
             "5 % faster, and the run was ended while pairs were measured: no pass.",
             "INCONCLUSIVE", "UNDECIDED", confirmed(-5.0, ended(beside(-2.0, QUIET[:3])))),
    Scenario("confirmed-slower", "5 % off, and the code is 2 % slower.",
             "SLOWER", "BEYOND_LIMIT", confirmed(5.0, beside(2.0))),
    Scenario("confirmed-faster", "5 % faster, and the code is.",
             "FASTER", "BEYOND_LIMIT", confirmed(-5.0, beside(-2.0))),
    Scenario("confirmed-reversed",
             "5 % faster than recorded, and the code is slower than the recording's.",
             "SLOWER", "BEYOND_MARGIN", confirmed(-5.0, beside(2.0))),
    Scenario("confirmed-machine",
             "5 % off, and the recording's code is as slow here: not the code.",
             "same", "WITHIN_MARGINS", confirmed(5.0, beside(0.0))),
    Scenario("confirmed-machine-faster", "5 % faster, and the recording's code is, too.",
             "same", "WITHIN_MARGINS", confirmed(-5.0, beside(0.0))),
    Scenario("confirmed-too-far", "30 % off, and the recording's code is, too: the pairs judge.",
             "same", "WITHIN_MARGINS", confirmed(30.0, beside(0.0))),
    Scenario("confirmed-machine-and-a-waived-wait",
             "The machine changed, and it waits once more for the GPU, which is waived.",
             "CHANGED", "COUNTER_ROSE",
             Run(counting(at(5.0), **{SYNCS: 11}), beside(0.0), FIVE, (waiver(SYNCS, value=11),))),
    Scenario(
        "unconfirmed-since-it-waits",
        "5 % off, and it waits once more for the GPU: that decides, and no pairs are measured.",
        "CHANGED", "COUNTER_ROSE", Run(counting(at(5.0), **{SYNCS: 11}), baseline=FIVE)),
    Scenario("unconfirmed-undecided", "2 % off, and the pairs do not decide.",
             "INCONCLUSIVE", "UNCONFIRMED", confirmed(2.0, beside(0.3, NOISY, out_of_time=True))),
    Scenario("unconfirmed-other-commit",
             "As slow as another commit, which may have been slow already.",
             "INCONCLUSIVE", "UNCONFIRMED", confirmed(5.0, beside(0.0, base={"commit": "b" * 40}))),
    Scenario("unconfirmed-base-failed", "The recording's commit cannot run the case.",
             "INCONCLUSIVE", "UNCONFIRMED",
             confirmed(5.0,
                       beside(0.0, head={"launches": ()},
                              base=failed_side("BAD_WORKLOAD", "no factory")))),
    Scenario("unconfirmed-time-not-judged", "Pairs that judged no time.",
             "INCONCLUSIVE", "UNCONFIRMED",
             confirmed(5.0, beside(0.0, head={"gates": GATES[1:]}, base={"gates": GATES[1:]}))),
    Scenario("faster-at-other-work", "Half the time, and a third of the FLOPs is gone: CHANGED.",
             "CHANGED", "WORK_MOVED",
             confirmed(-50.0,
                       counted_in(beside(-50.0), "base", flops_per_step=75_000_000_000_000))),
    Scenario("kernel-moved-step-same", "A kernel takes longer, and the pairs see no slower step.",
             "same", "WITHIN_MARGINS", Run(SLOWER_KERNEL, beside(0.0), ASKED)),
    Scenario("kernel-moved-slower", "A kernel takes longer, and by pairs the step is slower.",
             "SLOWER", "BEYOND_MARGIN", Run(SLOWER_KERNEL, beside(2.0), ASKED)),
    Scenario("kernel-moved-leans-to-slower",
             "A kernel takes longer, and the one pair that there was is slower: nobody knows.",
             "INCONCLUSIVE", "KERNELS_MOVED",
             Run(SLOWER_KERNEL, beside(2.0, (0.0,), out_of_time=True), ASKED)),
    Scenario("kernel-moved-undecided", "A kernel takes longer, and the pairs do not decide.",
             "INCONCLUSIVE", "KERNELS_MOVED",
             Run(SLOWER_KERNEL, beside(0.3, NOISY, out_of_time=True), ASKED)),
    Scenario(
        "confirmed-as-a-run-kept-it",
        "Files of a run, of its pairs and of its baseline: a kernel moved, the step is slower.",
        "SLOWER", "BEYOND_MARGIN", Files("gpu-confirmed")),
    Scenario("machine-without-pairs",
             "HEAD is the recording's own commit: only the machine can differ.",
             "same", "UNCONFIRMED", lambda: alone(5.0, commit=OWN, same_code=True)),
    Scenario("unconfirmed-no-tree", "The recording's commit is not in this clone.",
             "INCONCLUSIVE", "UNCONFIRMED", lambda: alone(2.0, failed="no commit 000000000000")),
    Scenario("unconfirmed-tree-changed",
             "Files changed while it was measured: nobody knows what code that was.",
             "INCONCLUSIVE", "UNCONFIRMED", lambda: alone(5.0, failed=Reason.TREE_CHANGED.phrase)),
    Scenario("confirmed-and-waived",
             "5 % off, the code is 2 % slower, and 6 % are waived: no pairs are asked.",
             "SLOWER", "BEYOND_LIMIT", Run(at(5.0), beside(2.0), FIVE, (waiver(limit_pct=6.0),))),
)  # fmt: skip
