"""What waivers of baselines/waivers.json do to a verdict; the day is 2026-11-25."""

from datetime import date

from builders import evidence
from inputs import (
    FIVE,
    NOISY,
    OPERATORS,
    ROSE,
    SYNCS,
    UNSTEADY,
    at,
    calling,
    counted_in,
    counting,
    ended,
    failed,
    pairs,
    waiver,
)
from scenario import Run, Scenario


def waived(found, *waivers):
    """A run beside recordings, with waivers."""
    return Run(found, baseline=FIVE, waivers=waivers)


UNSTEADY_STEP = evidence((), launches=(UNSTEADY,), planned_launches=3)
MORE_CALLS = calling({"aten.mm.default": 25, "aten.add.Tensor": 2376})
WAIVED = (
    Scenario("waived-time", "5 % slower, and 6 % are waived.",
             "SLOWER", "BEYOND_LIMIT", waived(at(5.0), waiver(limit_pct=6.0))),
    Scenario("waived-cost", "A sync more, up to the value that is waived.",
             "CHANGED", "COUNTER_ROSE", waived(counting(at(0.0), **ROSE), waiver(SYNCS, value=11))),
    Scenario("waived-work", "A product more, exactly as many as are waived.",
             "CHANGED", "WORK_MOVED", waived(MORE_CALLS, waiver(OPERATORS, value=2401))),
    Scenario("waived-in-pairs", "2 % slower than the other revision, and 3 % are waived.",
             "SLOWER", "BEYOND_MARGIN", Run(pairs=pairs(2.0), waivers=(waiver(limit_pct=3.0),))),
    Scenario("waived-one-of-two", "The slowdown is waived, and the cost that rose is not.",
             "CHANGED", "COUNTER_ROSE", waived(counting(at(5.0), **ROSE), waiver(limit_pct=6.0))),
    Scenario("waiver-exceeded-time", "5 % slower, and 3 % are waived.",
             "INCONCLUSIVE", "UNCONFIRMED", waived(at(5.0), waiver(limit_pct=3.0))),
    Scenario("waiver-exceeded-in-pairs", "2 % slower than the other revision, and 1 % is waived.",
             "SLOWER", "BEYOND_MARGIN",
             Run(pairs=counted_in(pairs(2.0)), waivers=(waiver(limit_pct=1.0),))),
    Scenario("waiver-exceeded-cost", "A sync more than is waived.",
             "CHANGED", "COUNTER_ROSE",
             waived(counting(at(0.0), **{SYNCS: 13}), waiver(SYNCS, value=12))),
    Scenario("waiver-of-other-work", "A product more, and another number is waived.",
             "CHANGED", "WORK_MOVED", waived(MORE_CALLS, waiver(OPERATORS, value=2500))),
    Scenario("waiver-expired", "Its last day was yesterday.",
             "INCONCLUSIVE", "UNCONFIRMED",
             waived(at(5.0), waiver(limit_pct=6.0, expires=date(2026, 11, 24)))),
    Scenario("waiver-too-wide", "A million syncs are no limit beside ten.",
             "CHANGED", "COUNTER_ROSE",
             waived(counting(at(0.0), **ROSE), waiver(SYNCS, value=1_000_000))),
    Scenario(
        "waivers-without-effect",
        "One of a time that does not fail, and one of a difference that the case does not gate.",
        "same", "WITHIN_LIMIT",
        waived(at(0.0), waiver(limit_pct=6.0), waiver("sync_overhead_pct", limit_pct=1.0))),
    Scenario("waiver-of-an-alarm", "2 % slower, unconfirmed, and 6 % are waived.",
             "SLOWER", "BEYOND_LIMIT", waived(at(2.0), waiver(limit_pct=6.0))),
    Scenario("waiver-of-what-failed", "A waiver excuses no run that raised.",
             "BROKEN", "RAISED",
             waived(failed("RAISED", "ValueError: planted"), waiver(limit_pct=6.0))),
    Scenario("waived-cost-but-not-steady",
             "A sync more, which is waived: what is left is a time that never got steady.",
             "INCONCLUSIVE", "NOT_STEADY",
             waived(counting(UNSTEADY_STEP, **ROSE), waiver(SYNCS, value=11))),
    Scenario("waived-one-cost-but-not-steady",
             "A sync more, which is waived, and a graph break more, which decides.",
             "CHANGED", "COUNTER_ROSE",
             waived(counting(UNSTEADY_STEP, **ROSE, graph_breaks=3), waiver(SYNCS, value=11))),
    Scenario("waived-cost-of-a-run-that-was-ended",
             "A sync more, which is waived, in pairs that were ended before they decided.",
             "INCONCLUSIVE", "UNDECIDED",
             Run(pairs=ended(counted_in(pairs(0.5, NOISY), **ROSE)),
                 waivers=(waiver(SYNCS, value=11),))),
    Scenario("waiver-on-its-last-day", "It ends today, and applies today.",
             "CHANGED", "COUNTER_ROSE",
             waived(counting(at(0.0), **{SYNCS: 11}),
                    waiver(SYNCS, value=11, expires=date(2026, 11, 25)))),
    Scenario("waivers-without-effect-in-pairs",
             "Neither is stale: beside the recordings it may still be needed.",
             "same", "WITHIN_MARGINS",
             Run(pairs=pairs(),
                 waivers=(waiver(limit_pct=6.0), waiver("sync_overhead_pct", limit_pct=1.0)))),
    Scenario("waiver-of-other-operators",
             "As many calls as before, of other operators: no total covers them.",
             "CHANGED", "WORK_MOVED",
             waived(calling({"aten.mm.default": 25, "aten.add.Tensor": 2375}),
                    waiver(OPERATORS, value=2400))),
)  # fmt: skip
