"""Runs that measured another tree in pairs with HEAD: what the times say."""

from builders import replace
from comparisons import with_margins
from inputs import (
    BUSY,
    DISTURBED,
    IDENTITY,
    NOISY,
    OPERATORS,
    QUIET,
    ROSE,
    counted_in,
    pairs,
    profiled,
    two_ranks,
    unchanged,
    with_ranks,
    within,
)
from kernels import NORM, attending, counts_of, step
from recorded_kernels import as_recorded, compared, edited, longer, profile, steady
from scenario import Files, Run, Scenario

from stepguard.core.metrics import PEAK, SPILLS
from stepguard.core.profile import MachineCode, StepIdentity, added
from stepguard.core.site import Site
from stepguard.judge.pair_statistics import level_of

CLONED = "aten.clone.default"
ATTENTION = "aten._scaled_dot_product_efficient_attention"
ORIGIN = f"backward of {ATTENTION}, model/gpt.py:61 in Attention.forward"
STARTED = "model/train.py", 88, "step", "loss.backward()", "backward"
ATTENTIONS = (
    Site(f"{ATTENTION}.default", "model/gpt.py", 61, "Attention.forward", "sdpa(q, k, v)"),
    Site(f"{ATTENTION}_backward.default", *STARTED, via=ORIGIN),
)
CLONE = (Site(CLONED, "model/gpt.py", 70, "forward", "x.clone()", count=12),)


def six_of(**counts):
    """Six pairs of steps that are the same, of which HEAD's counts differ so."""
    found = pairs()
    base = counts_of(found.base, BUSY, identity=IDENTITY)
    head = replace(found.head, counts=replace(base.counts, **counts))
    return replace(found, head=head, base=base)


def each_slower(profile):
    """The profile, with each kernel slower by another share."""
    rows = tuple(
        replace(row, us=tuple(us * (1.01 + 0.03 * (i % 5)) for us in row.us), code=f"m{i}")
        for i, row in enumerate(profile.kernels)
    )
    busy = added([row.us for row in rows])
    parts = replace(profile.parts, step_us=added([busy, profile.parts.idle_us]), compute_us=busy)
    return replace(profile, kernels=rows, parts=parts)


def edited_gelu(pct, step_pct, **changes):
    """One pair, in which HEAD's edited gelu takes so much of a step longer, and its step does."""
    name, base = "triton_poi_fused_gelu_view_9", profile()
    head = longer(edited(base, name), name, 2500.0 * pct)
    us = (tuple(row.us[0] for row in one.kernels) for one in (head, base))
    blocks = steady(1 + step_pct / 100), steady()
    return compared([tuple(zip(us, blocks, strict=True))], head, base, **changes)


PAIRED = (
    Scenario("pairs-slower", "Six pairs of a step that is 2 % slower.",
             "SLOWER", "BEYOND_MARGIN", Run(pairs=pairs(2.0))),
    Scenario("pairs-faster", "Six pairs of a step that is 2 % faster.",
             "FASTER", "BEYOND_MARGIN", Run(pairs=pairs(-2.0))),
    Scenario("pairs-same", "Six pairs of a step that is as fast.",
             "same", "WITHIN_MARGINS", Run(pairs=pairs())),
    Scenario("pairs-undecided", "Pairs that scatter by 3 %, and the time is up.",
             "INCONCLUSIVE", "UNDECIDED", Run(pairs=pairs(1.0, NOISY, out_of_time=True))),
    Scenario("pairs-too-few", "Four pairs of 2 %, which no profile explains.",
             "INCONCLUSIVE", "UNDECIDED", Run(pairs=pairs(2.0, QUIET[:4]))),
    Scenario("pairs-last-analysis",
             "Twenty-four pairs between the margins: the plan is at its end.",
             "INCONCLUSIVE", "UNDECIDED", Run(pairs=pairs(0.5, (0.008, -0.008) * 12))),
    Scenario("pairs-beyond-hope",
             "Six pairs that scatter by 3 %: the rest of the plan would not decide.",
             "INCONCLUSIVE", "UNDECIDED", Run(pairs=pairs(1.0, NOISY))),
    Scenario("pairs-disturbed",
             "`same` by six pairs, and slower with the four that were disturbed: no pass.",
             "INCONCLUSIVE", "UNDECIDED",
             Run(pairs=pairs(again=(DISTURBED,) * 4, out_of_time=True))),
    Scenario("pairs-one-after-the-other",
             "Both trees do not fit on the GPU together: a launch after the other.",
             "SLOWER", "BEYOND_MARGIN", Run(pairs=pairs(2.0, together=False))),
    Scenario("pairs-margins-of-the-case", "2 % slower in a case whose own margins are 1 and 5 %.",
             "SLOWER", "BEYOND_MARGIN", Run(pairs=with_margins(pairs(2.0), 1.0, 5.0))),
    Scenario("pairs-kernel-named", "Six pairs of 2 %, and the kernel that takes longer.",
             "SLOWER", "BEYOND_MARGIN",
             Run(pairs=profiled(pairs(2.0), step(1.085, seed=2), step()))),
    Scenario(
        "pairs-changed-kernel-longer",
        "Two recorded pairs: a Triton kernel takes 0.17 % of the step longer. No step shows it.",
        "SLOWER", "CHANGED_KERNELS", Run(pairs=as_recorded([5, 8]))),
    Scenario("pairs-changed-kernel-much-longer",
             "One pair, in which a Triton kernel takes 1 % of the step longer, and the step 0.9 %.",
             "SLOWER", "CHANGED_KERNELS", Run(pairs=edited_gelu(1.0, 0.9))),
    Scenario("pairs-changed-kernel-and-a-wait",
             "The same, and it waits once more for the GPU: that decides before the time.",
             "CHANGED", "COUNTER_ROSE", Run(pairs=counted_in(edited_gelu(1.0, 0.9), **ROSE))),
    Scenario(
        "pairs-changed-kernel-one-pair",
        "One pair, in which it takes 0.5 % longer, and the time is up: too little for one pair.",
        "INCONCLUSIVE", "UNDECIDED", Run(pairs=edited_gelu(0.5, 0.5, out_of_time=True))),
    Scenario(
        "pairs-changed-kernel-as-long",
        "Recorded pairs of the same code, one of them twice, as if gelu's kernel had been edited.",
        "same", "CHANGED_KERNELS",
        Run(pairs=as_recorded([3, 7, 3], 0, (0.1, -0.1, 0.1), ("triton_poi_fused_gelu_view",)))),
    Scenario("pairs-identical-step", "One pair of steps that are the same, kernel for kernel.",
             "same", "IDENTICAL_STEP", Run(pairs=unchanged())),
    Scenario(
        "pairs-identical-kernels-slower",
        "One pair of steps that are the same, and HEAD's takes 2 % longer: more pairs are wanted.",
        "INCONCLUSIVE", "UNDECIDED", Run(pairs=unchanged(2.0, out_of_time=True))),
    Scenario("pairs-of-two-ranks", "Two ranks, 2 % slower, since rank 1 computes for longer.",
             "SLOWER", "BEYOND_MARGIN",
             Run(pairs=with_ranks(pairs(2.0, made=two_ranks), (230e3, 240e3), (230e3, 235e3)))),
    Scenario("pairs-late-slowdown", "Six pairs in which HEAD is 12 % slower from step 150 on.",
             "SLOWER", "BEYOND_MARGIN", Run(pairs=within(late=0.12, count=6))),
    Scenario("pairs-periodic-slowdown",
             "HEAD takes twice as long every sixteenth step, which counts 25 % more.",
             "SLOWER", "BEYOND_MARGIN", Run(pairs=within(every=0.66, count=24))),
    Scenario("pairs-growing-slowdown", "Six pairs in which HEAD's steps take longer and longer.",
             "SLOWER", "BEYOND_MARGIN", Run(pairs=within(grows=0.6, count=6))),
    Scenario("gpu-pairs-as-a-run-kept-them",
             "A file of one pair of steps that are the same, kernel for kernel.",
             "same", "IDENTICAL_STEP", Files("gpu-pairs-identical")),
    Scenario("pairs-among-many", "SLOWER in a run of one case, and not at the level of sixty.",
             "INCONCLUSIVE", "UNDECIDED",
             Run(pairs=pairs(0.55, (0.0012, -0.0012) * 3, alpha=level_of(60)))),
    Scenario(
        "pairs-other-settings",
        "Six pairs that see no difference: the steps' settings differ, so that one was not enough.",
        "same", "WITHIN_MARGINS",
        Run(pairs=six_of(identity=StepIdentity(IDENTITY.parts | {"settings": "d4"})))),
    Scenario("pairs-idle-gpu", "Six pairs of steps that are the same, and that the host bounds.",
             "same", "WITHIN_MARGINS",
             Run(pairs=six_of(profile=replace(BUSY,
                                              parts=replace(BUSY.parts, idle_us=(25e3,) * 6))))),
    Scenario("pairs-peak-of-a-phase",
             "One pair of the same kernels, with 4 B more at the peak of one phase.",
             "same", "IDENTICAL_STEP",
             Run(pairs=counted_in(counted_in(unchanged(), "base",
                                             detail={PEAK: {"forward": 45 * 10**9,
                                                            "optimizer": 1000}}),
                                  detail={PEAK: {"forward": 45 * 10**9, "optimizer": 1004}}))),
    Scenario("pairs-of-two-kinds-of-gpu",
             "The profiles are of two kinds of GPU: nothing is explained by them.",
             "SLOWER", "BEYOND_MARGIN",
             Run(pairs=profiled(pairs(2.0), replace(step(seed=2), gpu="NVIDIA H100"), step()))),
    Scenario(
        "pairs-many-causes",
        "All kernels take longer, each by more or less: the first causes, and the sum of the rest.",
        "SLOWER", "BEYOND_MARGIN",
        Run(pairs=profiled(pairs(2.0), each_slower(step(seed=2)), step()))),
    Scenario("pairs-kernel-spills",
             "A kernel is slower: other code, whose registers do not fit any more.",
             "SLOWER", "BEYOND_MARGIN",
             Run(pairs=profiled(counted_in(counted_in(pairs(2.0), "base", spill_bytes=0),
                                           sites={SPILLS: (Site(NORM, count=96),)},
                                           detail={SPILLS: {f"{NORM}_0": 96}}, spill_bytes=96),
                                step(1.08, code="b2",
                                     machine_code=MachineCode(255, 96, 0, 1400, 0, 0, 0)),
                                step(machine_code=MachineCode(128, 0, 0, 1280, 0, 0, 0))))),
    Scenario("pairs-one-instruction-more",
             "No time shows one instruction more in a kernel. The text names it.",
             "same", "WITHIN_MARGINS",
             Run(pairs=profiled(pairs(0.0),
                                step(code="b2", machine_code=MachineCode(128, 0, 0, 1281, 0, 0, 0)),
                                step(machine_code=MachineCode(128, 0, 0, 1280, 0, 0, 0))))),
    Scenario("pairs-kernel-and-its-line",
             "A kernel that is new, and the line of the operator that it does.",
             "SLOWER", "BEYOND_MARGIN",
             Run(pairs=counted_in(
                     profiled(pairs(2.0), step(more_us=5000.0), step()), sites={OPERATORS: CLONE},
                     detail={OPERATORS: {"aten.mm.default": 24, "aten.add.Tensor": 2376,
                                         CLONED: 12}}, operator_calls_per_step=2412))),
    Scenario(
        "pairs-kernel-of-a-library-and-its-line",
        "A library's backward kernel takes longer, and no operator moved: the one line that calls "
        "its forward operator.",
        "SLOWER",
        "BEYOND_MARGIN",
        Run(
            pairs=counted_in(
                profiled(pairs(2.0), attending(2.0), attending()), sites={OPERATORS: ATTENTIONS}
            )
        ),
    ),
)  # fmt: skip
