"""Runs that were measured whole, and cannot be believed or decided."""

from builders import KNOWN_COUNTS, block, evidence, launch
from inputs import DIFFERENCE, FIVE, SYNC, SYNCS, UNSTEADY, counting
from scenario import Run, Scenario

from stepguard.core.evidence import Counts, Difference


def of_launch(**changes):
    """Evidence of one launch, with some of its fields changed."""
    return evidence((), launches=(launch(**changes),), planned_launches=1)


COPIES_UNKNOWN = {k: v for k, v in evidence().counts.values.items() if k != "copies_per_step"}

UNSOUND = (
    Scenario("not-steady", "The warm-up's time ended before the step time stood still.",
             "INCONCLUSIVE", "NOT_STEADY",
             Run(evidence((), launches=(UNSTEADY,), planned_launches=3), baseline=FIVE)),
    Scenario("not-steady-but-a-cost-rose",
             "It recompiles for ever: that is why it is not steady, and it decides.",
             "CHANGED", "COUNTER_ROSE",
             Run(counting(evidence((), launches=(UNSTEADY,), planned_launches=3),
                          recompiles=KNOWN_COUNTS.get("recompiles", 10) + 8), baseline=FIVE)),
    Scenario("count-unstable", "Two steps counted differently.",
             "INCONCLUSIVE", "COUNT_UNSTABLE",
             Run(evidence(counts=Counts(
                              COPIES_UNKNOWN,
                              {"copies_per_step": "steps differ: 4, 5; in another launch: 5, 6"},
                              evidence().counts.detail)), baseline=FIVE)),
    Scenario("count-unstable-but-a-cost-rose",
             "What rose decides. Nothing accepts or waives it while another count is undecided.",
             "CHANGED", "COUNTER_ROSE",
             Run(evidence(counts=Counts(
                              COPIES_UNKNOWN | {"host_syncs_per_step": 11},
                              {"copies_per_step": "steps differ: 4, 5; in another launch: 5, 6"},
                              evidence().counts.detail)), baseline=FIVE)),
    Scenario("nothing-measured", "No launch, and no fault that says why.",
             "BROKEN", "NOTHING_MEASURED", Run(evidence((), planned_launches=3), baseline=FIVE)),
    Scenario("too-few-launches", "Two of three launches.",
             "BROKEN", "NOTHING_MEASURED",
             Run(evidence((250.0, 250.0), planned_launches=3), baseline=FIVE)),
    Scenario("metric-missing", "A gated counter was not counted.",
             "BROKEN", "NOTHING_MEASURED",
             Run(evidence(counts=Counts(COPIES_UNKNOWN)), baseline=FIVE)),
    Scenario("faster-than-physics", "50 ms a step, where the GPU's peak allows no less than 100.",
             "BROKEN", "CLOCKS_DISAGREE", Run(evidence((50.0,) * 3), baseline=FIVE)),
    Scenario("clocks-disagree", "A block's events end 5 % before its wall clock.",
             "BROKEN", "CLOCKS_DISAGREE",
             Run(evidence((),
                          launches=(launch(), launch(blocks=(block(), block(events_ms=(2375.0,))))),
                          planned_launches=2), baseline=FIVE)),
    Scenario("launch-without-a-block", "A launch that timed nothing.",
             "BROKEN", "NOTHING_MEASURED", Run(of_launch(blocks=()), baseline=FIVE)),
    Scenario("block-without-times", "A block of ten steps with the times of nine.",
             "BROKEN", "NOTHING_MEASURED",
             Run(of_launch(blocks=(block(step_ms=(250.0,) * 9),)), baseline=FIVE)),
    Scenario("block-of-no-time", "A clock that stood still.",
             "BROKEN", "NOTHING_MEASURED", Run(of_launch(blocks=(block(0.0),)), baseline=FIVE)),
    Scenario("difference-without-pairs",
             "A gated difference of which no pair of blocks was measured.",
             "BROKEN", "NOTHING_MEASURED",
             Run(evidence(gates=(*evidence().gates, DIFFERENCE),
                          differences=(Difference("sync_overhead", ()),)), baseline=FIVE)),
    Scenario("host-clock-disagrees", "The ranks' clock says 2.5 s, and the host's 5 s.",
             "BROKEN", "CLOCKS_DISAGREE",
             Run(of_launch(blocks=(block(outside_ms=5000.0),)), baseline=FIVE)),
    Scenario("clocks-disagree-again-and-again",
             "Two blocks were measured again since their events ended early.",
             "BROKEN", "CLOCKS_DISAGREE",
             Run(of_launch(discarded=(block(events_ms=(2375.0,)),) * 2), baseline=FIVE)),
    Scenario("count-unstable-and-its-line", "Steps differ in their syncs, and where.",
             "INCONCLUSIVE", "COUNT_UNSTABLE",
             Run(evidence(counts=Counts(
                              {k: v for k, v in evidence().counts.values.items() if k != SYNCS},
                              {SYNCS: "steps differ: 0, 1; in another launch: 1, 0"},
                              evidence().counts.detail, {SYNCS: (SYNC,)})), baseline=FIVE)),
)  # fmt: skip
