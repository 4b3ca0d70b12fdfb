"""Runs that measured another revision's tree in pairs with HEAD's."""

import math

import numpy as np
from builders import block, block_of, cpu_evidence, evidence, launch, replace, two_rank_evidence
from fault_scenarios import LOSS, TRACEBACK
from kernels import counts_of, step
from recorded_scenarios import OPERATORS, SYNC, UNSTEADY, counting
from scenario import Files, Run, Scenario

from stepguard.ab_margins import MARGINS_PCT, Margins
from stepguard.comparison import Comparison, LaunchPair
from stepguard.evidence import Fault
from stepguard.expectation import Expectation
from stepguard.identity import StepIdentity
from stepguard.judge.ab.decision import judge_ab, without_false_discoveries
from stepguard.judge.ab.expectations import expect
from stepguard.profile import Parts, Profile
from stepguard.reasons import Reason

NEW, OLD = "f" * 40, "0" * 40
QUIET = (0.0002, -0.0002, 0.0001, -0.0001, 0.0, 0.0)  # of log-ratios; they add up to nothing
NOISY = (0.03, -0.03) * 3
BASE_MS = 250.0


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


def failed(code, message, detail="", site=None):
    """What a side is that failed before its first pair."""
    fault = Fault(Reason(code), message, detail, "counting launch, prepare", site)
    return {"faults": (fault,), "launches": (), "counts": None}


def two_ranks(**changes):
    """Evidence of two ranks, whose blocks have a clock each."""
    found = two_rank_evidence(**changes)
    return replace(found, launches=tuple(map(_on_both, found.launches)))


def _on_both(one):
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


def on_cpu(ratios, **changes):
    """Pairs of a case on a CPU that gates no time; log-ratios."""
    found = pairs(0.0, ratios, cpu_evidence, margins=Margins(*MARGINS_PCT["cpu"]), glance=True)
    sides = {
        name: replace(
            getattr(found, name),
            gates=("step_ms", *cpu_evidence().gates),
            floor_flops_per_step=0.0,
        )
        for name in ("head", "base")
    }
    return replace(found, **sides, **changes)


def series(draw, late=0.0, every=0.0):
    """A launch whose steps scatter by 1.5 %: slower from step 150 on, or every 16 steps."""
    blocks = []
    for steps in (np.arange(46, 93), np.arange(273, 320)):
        logs = 0.015 * draw.standard_normal(len(steps)) + late * (steps >= 150)
        logs += every * (steps % 16 == 5)
        blocks.append(block_of([43.0 * math.exp(one) for one in logs], int(steps[0])))
    return tuple(blocks)


def within(both=None, **head):
    """Two pairs whose steps slow down within HEAD's launches, or within ``both`` sides'."""
    draw, sides = np.random.default_rng(7), ([], [])
    for number in (1, 2):
        for side, how in zip(sides, (both or head, both or {}), strict=True):
            side.append(launch(index=number, blocks=series(draw, **how)))
    new, old = (
        evidence((), launches=tuple(one), commit=commit, planned_launches=1, floor_flops_per_step=0)
        for one, commit in zip(sides, (NEW, OLD), strict=True)
    )
    return Comparison("main", new, old)


IDENTITY = StepIdentity({"kernels and copies": "a1", "operators": "b2", "settings": "c3"})
EVEN = (BASE_MS * 1e3,) * 6
BUSY = Profile("NVIDIA H200", 1, Parts(EVEN, EVEN, (0.0,) * 6, (0.0,) * 6, (2500.0,) * 6), (), ())


def unchanged(pct=0.0, **changes):
    """One pair of steps that are known to be the same, of which HEAD's takes so much longer."""
    found = pairs(pct, (0.0,), files=("model/gpt.py",), **changes)
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


def expected(found, *names):
    """The verdict on pairs of a range, a commit of which declares that these metrics get worse."""
    said = "a larger vocabulary", NEW, "A. Author"
    declared = [Expectation(found.head.case_id, name, *said) for name in names]
    return expect(judge_ab(found), declared)


def one_of_many():
    """The verdict on a slowdown that its pairs prove at 0.1 %, of a run of sixty cases."""
    found = judge_ab(pairs(0.55, (0.0012, -0.0012) * 3))
    others = [replace(judge_ab(pairs()), p_value=1.0)] * 59
    (taken_back,) = without_false_discoveries([found, *others])
    return taken_back


SYNCS = "host_syncs_per_step"
ROSE = {"sites": {SYNCS: (SYNC,)}, SYNCS: 11}
FEWER = {"flops_per_step": 75_000_000_000_000}
DISTURBED = LaunchPair(launch(260.0), launch(250.0))
PAIRED = (
    Scenario(
        "pairs-slower",
        "Six pairs of a step that is 2 % slower.",
        "SLOWER",
        "BEYOND_MARGIN",
        Run(pairs=pairs(2.0)),
    ),
    Scenario(
        "pairs-faster",
        "Six pairs of a step that is 2 % faster.",
        "FASTER",
        "BEYOND_MARGIN",
        Run(pairs=pairs(-2.0)),
    ),
    Scenario(
        "pairs-same",
        "Six pairs of a step that is as fast.",
        "same",
        "WITHIN_MARGINS",
        Run(pairs=pairs()),
    ),
    Scenario(
        "pairs-undecided",
        "Pairs that scatter by 3 %, and the time is up.",
        "INCONCLUSIVE",
        "UNDECIDED",
        Run(pairs=pairs(1.0, NOISY, out_of_time=True)),
    ),
    Scenario(
        "pairs-too-few",
        "Four pairs of 2 %, which no profile explains.",
        "INCONCLUSIVE",
        "UNDECIDED",
        Run(pairs=pairs(2.0, QUIET[:4])),
    ),
    Scenario(
        "pairs-last-analysis",
        "Twenty-four pairs between the margins: the plan is at its end.",
        "INCONCLUSIVE",
        "UNDECIDED",
        Run(pairs=pairs(0.5, (0.008, -0.008) * 12)),
    ),
    Scenario(
        "pairs-disturbed",
        "`same` by six pairs, and slower with the four that were disturbed: no pass.",
        "INCONCLUSIVE",
        "UNDECIDED",
        Run(pairs=pairs(again=(DISTURBED,) * 4, out_of_time=True)),
    ),
    Scenario(
        "pairs-one-after-the-other",
        "Both trees do not fit on the GPU together: a launch after the other.",
        "SLOWER",
        "BEYOND_MARGIN",
        Run(pairs=pairs(2.0, together=False)),
    ),
    Scenario(
        "pairs-margins-of-the-case",
        "2 % slower in a case whose own margins are 1 and 5 %.",
        "SLOWER",
        "BEYOND_MARGIN",
        Run(pairs=pairs(2.0, margins=Margins(1.0, 5.0), case_margins=Margins(1.0, 5.0))),
    ),
    Scenario(
        "pairs-explained-four",
        "Four pairs of 2 %, which another kernel explains.",
        "SLOWER",
        "BEYOND_MARGIN",
        Run(pairs=profiled(pairs(2.0, QUIET[:4]), step(more_us=5000.0), step())),
    ),
    Scenario(
        "pairs-kernel-named",
        "Six pairs of 2 %, and the kernel that takes longer.",
        "SLOWER",
        "BEYOND_MARGIN",
        Run(pairs=profiled(pairs(2.0), step(1.085, seed=2), step())),
    ),
    Scenario(
        "pairs-identical-step",
        "One pair of steps that are the same, kernel for kernel.",
        "same",
        "IDENTICAL_STEP",
        Run(pairs=unchanged()),
    ),
    Scenario(
        "pairs-identical-kernels-slower",
        "One pair of steps that are the same, and HEAD's takes 2 % longer: more pairs are wanted.",
        "INCONCLUSIVE",
        "UNDECIDED",
        Run(pairs=unchanged(2.0, out_of_time=True)),
    ),
    Scenario(
        "pairs-of-two-ranks",
        "Two ranks, 2 % slower, since rank 1 computes for longer.",
        "SLOWER",
        "BEYOND_MARGIN",
        Run(pairs=with_ranks(pairs(2.0, made=two_ranks), (230e3, 240e3), (230e3, 235e3))),
    ),
    Scenario(
        "pairs-more-bytes-exchanged",
        "As fast, and it exchanges more: no time pays for that.",
        "CHANGED",
        "WORK_MOVED",
        Run(pairs=counted_in(pairs(made=two_ranks), collective_bytes_per_step=20)),
    ),
    Scenario(
        "pairs-late-slowdown",
        "Two pairs in which HEAD alone is 12 % slower from step 150 on.",
        "SLOWER",
        "LATE_SLOWDOWN",
        Run(pairs=within(late=0.12)),
    ),
    Scenario(
        "pairs-periodic-slowdown",
        "Two pairs in which HEAD alone takes twice as long every sixteenth step.",
        "SLOWER",
        "PERIODIC_SLOWDOWN",
        Run(pairs=within(every=0.66)),
    ),
    Scenario(
        "pairs-late-on-both-sides",
        "Both trees are slower from step 150 on: HEAD did not do it.",
        "INCONCLUSIVE",
        "UNDECIDED",
        Run(pairs=within(both={"late": 0.12})),
    ),
    Scenario(
        "pairs-cost-rose",
        "As fast as the other revision, and it waits once more for the GPU.",
        "CHANGED",
        "COUNTER_ROSE",
        Run(pairs=counted_in(pairs(), **ROSE)),
    ),
    Scenario(
        "pairs-cost-paid-for",
        "A cost rose, and the step is 2 % faster.",
        "FASTER",
        "BEYOND_MARGIN",
        Run(pairs=counted_in(pairs(-2.0), **ROSE)),
    ),
    Scenario(
        "pairs-cost-rose-undecided",
        "A cost rose and the pairs do not decide.",
        "CHANGED",
        "COUNTER_ROSE",
        Run(pairs=counted_in(pairs(1.0, NOISY, out_of_time=True), **ROSE)),
    ),
    Scenario(
        "pairs-cost-fell",
        "As fast, with half the launches.",
        "FASTER",
        "COUNTER_FELL",
        Run(pairs=counted_in(pairs(), launches_per_step=500)),
    ),
    Scenario(
        "pairs-other-operators",
        "Other operators of as many FLOPs, and as fast: the time decides.",
        "same",
        "WITHIN_MARGINS",
        Run(
            pairs=counted_in(
                pairs(),
                detail={OPERATORS: {"aten.mm.default": 25, "aten.add.Tensor": 2376}},
                operator_calls_per_step=2401,
            )
        ),
    ),
    Scenario(
        "pairs-other-flops",
        "A third of the FLOPs is gone: no times are compared.",
        "CHANGED",
        "WORK_MOVED",
        Run(pairs=counted_in(pairs(-30.0), **FEWER)),
    ),
    Scenario(
        "pairs-other-tokens",
        "Half the tokens a step: no times are compared.",
        "CHANGED",
        "WORK_MOVED",
        Run(pairs=pairs(-50.0, head={"tokens_per_step": 65_536})),
    ),
    Scenario(
        "pairs-base-lacks",
        "The other revision has no such factory.",
        "NOT COMPARABLE",
        "BASE_LACKS",
        Run(
            pairs=pairs(
                head={"launches": ()},
                base=failed("BAD_WORKLOAD", "model.workloads has no train_step"),
            )
        ),
    ),
    Scenario(
        "pairs-head-raised",
        "HEAD's step raised.",
        "BROKEN",
        "RAISED",
        Run(
            pairs=pairs(
                head=failed("RAISED", "ValueError: planted", TRACEBACK, LOSS),
                base={"launches": ()},
            )
        ),
    ),
    Scenario(
        "pairs-base-killed",
        "A rank of the other revision was killed: that says nothing of either.",
        "BROKEN",
        "KILLED",
        Run(
            pairs=pairs(
                head={"launches": ()}, base=failed("KILLED", "rank 0 was killed by SIGKILL")
            )
        ),
    ),
    Scenario(
        "pairs-foreign-process",
        "Another process came onto the GPU.",
        "UNFIT",
        "FOREIGN_PROCESS",
        Run(pairs=pairs(2.0, head={"faults": (Fault(Reason.FOREIGN_PROCESS, "process 4711"),)})),
    ),
    Scenario(
        "pairs-tree-changed",
        "A file was written meanwhile: pairs may be of other code.",
        "BROKEN",
        "TREE_CHANGED",
        Run(
            pairs=pairs(head={"faults": (Fault(Reason.TREE_CHANGED, "model/gpt.py was written"),)})
        ),
    ),
    Scenario(
        "pairs-unequal-sides",
        "A launch of one side is not there.",
        "BROKEN",
        "NOTHING_MEASURED",
        Run(pairs=pairs(base={"launches": pairs().base.launches[:5]})),
    ),
    Scenario(
        "pairs-not-steady",
        "The other revision never gets steady.",
        "INCONCLUSIVE",
        "NOT_STEADY",
        Run(pairs=pairs(scatter=(0.0,), base={"launches": (UNSTEADY,)})),
    ),
    Scenario(
        "pairs-work-unknown",
        "The other revision's FLOPs were not counted.",
        "BROKEN",
        "METRIC_MISSING",
        Run(
            pairs=replace(
                pairs(),
                head=replace(pairs().head, gates=("step_ms",)),
                base=replace(
                    pairs().base,
                    gates=("step_ms",),
                    counts=replace(
                        pairs().base.counts,
                        values={"launches_per_step": 1000},
                        unstable={"flops_per_step": "steps differ: 1, 2"},
                    ),
                ),
            )
        ),
    ),
    Scenario(
        "pairs-clocks-disagree",
        "The events of a block end before its wall clock.",
        "BROKEN",
        "CLOCKS_DISAGREE",
        Run(
            pairs=pairs(
                scatter=(0.0,), head={"launches": (launch(blocks=(block(events_ms=(2375.0,)),)),)}
            )
        ),
    ),
    Scenario(
        "pairs-time-not-gated",
        "A case that gates counters alone: the time is shown.",
        "same",
        "EQUAL",
        Run(
            pairs=pairs(
                2.0,
                head={"gates": ("flops_per_step", SYNCS)},
                base={"gates": ("flops_per_step", SYNCS)},
            )
        ),
    ),
    Scenario(
        "cpu-glance-same",
        "Two pairs on a CPU show no slowdown.",
        "same",
        "NO_SLOWDOWN",
        Run(pairs=on_cpu([-0.2, 0.1])),
    ),
    Scenario(
        "cpu-glance-in-doubt",
        "Eight pairs on a busy CPU are slower on average, and not beyond doubt.",
        "same",
        "MAYBE_SLOWER",
        Run(pairs=on_cpu([0.3, -0.1] * 4)),
    ),
    Scenario(
        "cpu-glance-too-few",
        "The time was up after a pair on a CPU.",
        "INCONCLUSIVE",
        "UNDECIDED",
        Run(pairs=on_cpu([0.07], out_of_time=True)),
    ),
    Scenario(
        "cpu-glance-slower",
        "Three times the step, on a CPU.",
        "SLOWER",
        "BEYOND_MARGIN",
        Run(pairs=on_cpu([math.log(3) + one for one in (0.1, -0.1, 0.05, -0.05, 0.1, -0.1)])),
    ),
    Scenario(
        "cpu-glance-cost-rose",
        "On a CPU no time pays for a sync candidate.",
        "CHANGED",
        "COUNTER_ROSE",
        Run(
            pairs=counted_in(
                on_cpu([-0.7] * 6),
                sites={"sync_candidates_per_step": (SYNC,)},
                sync_candidates_per_step=11,
            )
        ),
    ),
    Scenario(
        "cpu-pairs-as-a-run-kept-them",
        "A run's own file of pairs on a CPU: a sync that was added.",
        "CHANGED",
        "COUNTER_ROSE",
        Files("cpu-pairs"),
    ),
    Scenario(
        "gpu-pairs-as-a-run-kept-them",
        "A file of one pair of steps that are the same, kernel for kernel.",
        "same",
        "IDENTICAL_STEP",
        Files("gpu-pairs-identical"),
    ),
    # The trailers of the range are read by a run, from git: judge has only the pairs.
    Scenario(
        "expected-slowdown",
        "2 % slower, as a commit of the range declares.",
        "same",
        "EXPECTED",
        lambda: expected(pairs(2.0), "step_ms"),
    ),
    Scenario(
        "expected-one-of-two",
        "A slowdown is declared, and a cost rose that is not.",
        "CHANGED",
        "COUNTER_ROSE",
        lambda: expected(counted_in(pairs(2.0), **ROSE), "step_ms"),
    ),
    Scenario(
        "expected-not-needed",
        "A slowdown is declared that there is not, and one of a metric that is not gated.",
        "same",
        "WITHIN_MARGINS",
        lambda: expected(pairs(), "step_ms", "exposed_comm_pct"),
    ),
    Scenario(
        "expected-not-applied",
        "A declared slowdown excuses no step that raised.",
        "BROKEN",
        "RAISED",
        lambda: expected(
            pairs(head=failed("RAISED", "ValueError: planted"), base={"launches": ()}), "step_ms"
        ),
    ),
    # What a run takes back depends on all its cases, once it is over: judge has one at a time.
    Scenario(
        "pairs-not-proven",
        "SLOWER by its own pairs, and not among sixty cases of its run.",
        "INCONCLUSIVE",
        "UNPROVEN",
        one_of_many,
    ),
)
