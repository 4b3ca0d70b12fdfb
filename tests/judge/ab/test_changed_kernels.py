"""Kernels against kernels: a small change is found in them, by launches that two H200s recorded.

Each constant is tested just inside and just outside. Launches of one code that are paired anew are
hardly ever SLOWER, whichever kernels are said to differ.
"""

import math
import random
from functools import cache
from itertools import permutations

import numpy as np
import pytest
import recorded_kernels as recorded
from builders import replace
from recorded_kernels import as_recorded, compared, edited, profile, steady
from scipy import optimize, stats

from stepguard.core.comparison import from_json
from stepguard.core.evidence import to_json
from stepguard.core.machine_code import MachineCode
from stepguard.core.margins import ALPHA, MARGINS, PRIOR, Margins
from stepguard.core.profile import KernelRow, StepIdentity
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.compare_profiles import IDLE_SHARE
from stepguard.judge.judge_pairs import judge_ab, wants_another_pair
from stepguard.judge.kernel_times import POWER_SHARE, Matched, times_as_counted
from stepguard.judge.rules import changed_kernels
from stepguard.judge.rules.changed_kernels import (
    EQUAL_SHARE,
    IDLE_LIMIT,
    KERNEL_MARGINS,
    LARGE_PCT,
    LEAST_PAIRS,
    LONE_SDS,
    MOVED_SDS,
    OVERLAP,
    PROFILED_PAIRS,
    bounds_of,
    margins_of,
    rule,
    wants_profiles,
    why_not_judged,
)
from stepguard.judge.sequential_plan import BETA
from stepguard.judge.unchanged_pairs import (
    HOST_SHARE,
    PAIR_SDS,
    RISE_LIMIT,
    UNTIMED_LIMIT,
)
from stepguard.report.verdict_text import headline

PLANTED_30, PLANTED_70, SAME_CODE = (1, 4, 5, 8), (2, 6), (3, 7)  # places of pairs
GELU, NORM = "triton_poi_fused_gelu_view_9", "triton_per_fused__to_copy_add_native_layer_norm_b"
GELU_BACKWARD = "triton_poi_fused_gelu_gelu_backward"
BACKWARD = "cudnn_generated_fort_native_sdpa_sm90_flash_bprop"  # the longest kernel
ATTENTION = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop"
PRODUCT = "nvjet_sm90_tst_192x192_64x3_1x2_h_bz_coopB_NTN"
STEP_US = 250e3
GPUS = sorted({one.gpu for one in recorded.launches("base")})


def kernels(longer_pct=None, counted=None):
    """The us of a launch's kernels, of which these take so much of a step longer, by name."""
    counted, left = counted or profile(), dict(longer_pct or {})
    us = []
    for row in counted.kernels:
        name = next((name for name in left if row.name.startswith(name)), None)
        us.append(row.us[0] + (left.pop(name) / 100 * STEP_US if name else 0.0))
    assert not left
    return tuple(us)


def made(longer_pct=None, pairs=2, edit=(GELU,), step_pct=None, head=None, base=None, **changes):
    """Pairs without any noise. Of HEAD the kernels ``edit`` have another source, and some take
    longer. The step does, too, by as much, or by ``step_pct``. ``head`` and ``base`` are profiles
    of the counting pass.
    """
    longer = longer_pct or {}
    ratio = 1 + (sum(longer.values()) if step_pct is None else step_pct) / 100
    head, base = head or edited(profile(), *edit), base or profile()
    one = (kernels(longer, head), steady(ratio)), (kernels(None, base), steady())
    return compared([one] * pairs, head, base, **changes)


def ignoring(margins_pct, found):
    """The comparison, of a case with these margins."""
    sides = (replace(one, margins_pct=margins_pct) for one in (found.head, found.base))
    return replace(found, **dict(zip(("head", "base"), sides, strict=True)))


def said(found):
    """The status by this rule; None if it says nothing."""
    decided = rule(found)
    return decided and decided.status


def rule_bounds(found):
    """The rule's bounds, whatever it says."""
    kernels = changed_kernels._Kernels.of(found)
    return changed_kernels._figures(found, kernels).bounds


def with_launch(found, side, number, **changes):
    """The comparison, with another launch."""
    one = getattr(found, side)
    launches = list(one.launches)
    launches[number] = replace(launches[number], **changes)
    return replace(found, **{side: replace(one, launches=tuple(launches))})


def with_blocks(found, change, side="head"):
    """The comparison, with other blocks of HEAD's launches: ``change`` of a block's number and
    itself.
    """
    for number, one in enumerate(getattr(found, side).launches):
        blocks = tuple(change(at, block) for at, block in enumerate(one.blocks))
        found = with_launch(found, side, number, blocks=blocks)
    return found


def with_profiles(found, change, sides=("head", "base")):
    """The comparison, with other counted profiles."""
    for side in sides:
        one = getattr(found, side)
        counts = replace(one.counts, profile=change(one.counts.profile))
        found = replace(found, **{side: replace(one, counts=counts)})
    return found


def with_case(found, **changes):
    """The comparison, of a case with other fields."""
    for side in ("head", "base"):
        one = getattr(found, side)
        found = replace(found, **{side: replace(one, case={**one.case, **changes})})
    return found


def with_parts(known, **more_us):
    """The profile, with so many us more of a part: of the step, or of copies, for example."""
    parts = {
        f"{name}_us": tuple(one + us for one in getattr(known.parts, f"{name}_us"))
        for name, us in more_us.items()
    }
    return replace(known, parts=replace(known.parts, **parts))


# what was recorded


@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize("chosen", [*permutations(PLANTED_30, 2)][:6])
def test_a_sixth_of_a_percent_is_found_in_two_pairs(chosen, turn):
    """Of two cards. The steps are within their noise of it, and the verdict names the kernel."""
    found = as_recorded(chosen, turn, steps=(0.3, -0.1))
    decided = rule(found)
    assert decided.status is Status.SLOWER and decided.reason is Reason.CHANGED_KERNELS
    assert decided.low_pct < 0.171 < decided.high_pct < 0.3
    assert decided.p_value <= ALPHA and not wants_another_pair(found)
    verdict = judge_ab(found)
    assert (verdict.status, verdict.worst.limit_pct) == (Status.SLOWER, 0.025)
    assert GELU in headline(verdict)


def test_the_recorded_steps_agree_or_forbid_it():
    """Those of the first two pairs are slower by another 0.5 %, which forbids only the gain."""
    for pairs in (PLANTED_30[:2], PLANTED_30[2:], PLANTED_30):
        assert said(as_recorded(pairs)) is Status.SLOWER
    found = as_recorded(PLANTED_30[:2])
    assert said(replace(found, head=found.base, base=found.head)) is None
    found = as_recorded(PLANTED_70, steps=(0.4, 0.4))
    assert rule(found).low_pct < 0.40 < rule(found).high_pct


def test_it_is_faster_the_other_way_round():
    """The head without the multiply-adds, beside the base that has them."""
    found = as_recorded(PLANTED_30[2:], steps=(0.2, 0.1))
    assert said(replace(found, head=found.base, base=found.head)) is Status.FASTER


def test_the_same_code_is_not_judged_by_kernels():
    """No kernel differs, so none is profiled. If one is said to differ, it takes as long. One that
    scatters by more than is known needs a third pair.
    """
    assert why_not_judged(as_recorded(SAME_CODE)) == "no kernel differs"
    assert said(as_recorded(SAME_CODE)) is None and not wants_profiles(as_recorded(SAME_CODE))
    for edit, status in ((GELU, Status.SAME), (GELU_BACKWARD, None)):
        assert said(as_recorded(SAME_CODE, edit=(edit,), steps=(0.1, -0.1))) is status


@pytest.mark.parametrize(("other", "wanted"), [("a1", False), ("a2", True)])
def test_a_step_that_is_known_to_be_the_same_is_not_profiled(other, wanted):
    """Although launches of a kernel vary in one side's profile; if the steps differ, it is."""

    def varying(known):
        rows = (
            replace(row, calls=(row.calls[0] + 1, *row.calls[1:])) if row.name == GELU else row
            for row in known.kernels
        )
        return replace(known, kernels=tuple(rows))

    found = with_profiles(made({}, edit=()), varying, ("head",))
    for side, name in (("head", other), ("base", "a1")):
        one = getattr(found, side)
        counts = replace(one.counts, identity=StepIdentity({"kernels and copies": name}))
        found = replace(found, **{side: replace(one, counts=counts)})
    assert wants_profiles(found) is wanted
    assert (why_not_judged(found) == "the steps are the same") is not wanted


def test_a_launch_that_ran_other_kernels_than_counted_decides_nothing():
    """A cold compiler chose another grid for three kernels in the first recorded launch."""
    counted, cold = profile(), profile(recorded.COLD)
    assert times_as_counted(counted, counted) == kernels()
    assert times_as_counted(counted, cold) == times_as_counted(cold, counted) == ()
    more = KernelRow("more", "more", "other", "forward", (1.0,) * 6, (1.0,) * 6)
    assert times_as_counted(counted, replace(counted, kernels=(*counted.kernels, more))) == ()
    assert times_as_counted(counted, replace(counted, incomplete=1)) == ()
    assert times_as_counted(counted, replace(counted, lost_share=0.001)) == ()
    fewer = replace(counted.kernels[0], calls=(1.0,) * 6)
    assert times_as_counted(counted, replace(counted, kernels=(fewer, *counted.kernels[1:]))) == ()
    found = made({GELU: 0.3})
    assert said(found) is Status.SLOWER
    for side in ("head", "base"):
        for lost in ((), kernels()[:-1], (0.0, *kernels()[1:]), (*kernels()[:-1], math.nan)):
            assert said(with_launch(found, side, 1, kernels_us=lost)) is None


def test_evidence_keeps_the_kernels():
    """And is refused with a time that is none."""
    found = made({GELU: 0.3})
    assert from_json(to_json(found), "x") == found
    bad = with_launch(found, "head", 0, kernels_us=(-1.0,))
    with pytest.raises(ValueError, match="a kernel of -1.0 us"):
        from_json(to_json(bad), "x")


# what a change may be


@pytest.mark.parametrize(("us", "status"), [(50.0, Status.SAME), (375.0, Status.SLOWER)])
def test_a_kernel_more_counts_with_all_its_time(us, status):
    """0.02 % of a step is ignored, 0.15 % is not."""
    more = KernelRow("triton_poi_fused_clone_99", "triton_poi_fused_clone", "Triton", "forward",
                     (12.0,) * 6, (us,) * 6, code="new")  # fmt: skip
    head = with_parts(profile(), step=us, compute=us)
    head = replace(head, kernels=(*head.kernels, more))
    assert said(made(head=head, step_pct=100 * us / STEP_US)) is status
    gone = made(head=profile(), base=head, step_pct=-100 * us / STEP_US)
    assert said(gone) is (Status.FASTER if status is Status.SLOWER else Status.SAME)


def scattered(known, name):
    """The profile, whose kernel of this name scatters by 8 % between steps."""
    factors = (0.9, 1.1, 0.92, 1.08, 0.95, 1.05)
    rows = tuple(
        replace(row, us=tuple(us * factor for us, factor in zip(row.us, factors, strict=True)))
        if row.name == name
        else row
        for row in known.kernels
    )
    return replace(known, kernels=rows)


@pytest.mark.parametrize(("pairs", "named"), [(LEAST_PAIRS, True), (2 * PROFILED_PAIRS, False)])
def test_the_kernel_that_decided_is_named_however_its_steps_scatter(pairs, named):
    """The profiles of all pairs decided. If another rule decides, the steps of the counted profiles
    have to show the difference.
    """
    head, base = (
        scattered(one, GELU)
        for one in (edited(recorded.longer(profile(), GELU, 0.002 * STEP_US), GELU), profile())
    )
    verdict = judge_ab(made(pairs=pairs, step_pct=0.6, head=head, base=base))
    assert verdict.status is Status.SLOWER
    assert any(cause.what == GELU for cause in verdict.explanation.causes) is named
    assert (f"SLOWER: {GELU[:12]}" in headline(verdict)) is named


def test_a_kernel_that_differs_and_takes_as_long_is_not_named():
    """The counted profiles show it longer, and the profiles of the pairs do not."""
    other = next(row.name for row in profile().kernels if row.name.startswith(GELU_BACKWARD))
    found = made({GELU: 0.3}, edit=(GELU, other), step_pct=0.3)
    found = with_profiles(found, lambda known: scattered(known, other))
    found = with_profiles(found, lambda known: recorded.longer(known, other, 250.0), ("head",))
    verdict = judge_ab(found)
    assert verdict.reason is Reason.CHANGED_KERNELS and verdict.status is Status.SLOWER
    assert other not in [cause.what for cause in verdict.explanation.causes]


def test_a_kernel_that_only_moved_is_same():
    """To another phase: it differs, and takes as long."""
    rows = tuple(
        replace(row, phase="optimizer") if row.name == GELU else row for row in profile().kernels
    )
    assert said(made(head=replace(profile(), kernels=rows))) is Status.SAME


def compiled(known, instructions):
    """The profile, whose gelu has so many instructions; 0: its machine code is not known."""
    code = MachineCode(128, 0, 0, instructions, 0, 0, 0) if instructions else None
    rows = (
        replace(row, machine_code=code) if row.canonical == "triton_poi_fused_gelu_view" else row
        for row in known.kernels
    )
    return replace(known, kernels=tuple(rows))


def test_renumbered_kernels_are_the_same_kernels():
    """One kernel more changes the compiler's number, and so the hash, of all that follow. A kernel
    that was also edited has other machine code, if both sides' is known.
    """
    rows = tuple(
        replace(row, name=f"{row.canonical}_{int(row.name.rpartition('_')[2]) + 1}", code="new")
        if row.kind == "Triton" and row.name.rpartition("_")[2].isdigit()
        else row
        for row in profile().kernels
    )
    found = made({}, edit=(), head=replace(profile(), kernels=rows))
    assert why_not_judged(found) == "no kernel differs"
    known = "no kernel differs"
    for old, new, why in (
        (1280, 1281, ""),
        (1280, 1280, known),
        (0, 1281, known),
        (1280, 0, known),
    ):
        head, base = compiled(replace(profile(), kernels=rows), new), compiled(profile(), old)
        assert why_not_judged(made({}, edit=(), head=head, base=base)) == why


@pytest.mark.parametrize(("step_pct", "status"), [(-0.2, Status.FASTER), (0.2, None)])
def test_faster_kernels_of_a_slower_step_decide_nothing(step_pct, status):
    """The step has to be faster, too."""
    assert said(made({GELU: -0.2}, step_pct=step_pct)) is status


COPIES = {"step": 0.2 * STEP_US / 100, "exposed_copies": 0.2 * STEP_US / 100}


def test_longer_kernels_in_place_of_copies_are_no_slowdown():
    """A copy by the card's engine became a kernel: the step takes as long."""
    base = with_parts(profile(), **COPIES)
    assert said(made({GELU: 0.2}, step_pct=0.0)) is Status.SLOWER
    assert said(made({GELU: 0.2}, step_pct=0.0, base=base)) is None
    assert said(made({GELU: 1.0}, step_pct=0.8, base=base)) is Status.SLOWER
    assert said(made(step_pct=-0.2, base=base)) is None  # the copies alone are a gain


def test_shorter_kernels_beside_more_copies_are_no_gain():
    """And kernels that take as long beside more copies are not the same step."""
    head = edited(with_parts(profile(), **COPIES), GELU)
    assert said(made({GELU: -0.2}, step_pct=0.0)) is Status.FASTER
    assert said(made({GELU: -0.2}, step_pct=0.0, head=head)) is None
    assert said(made({GELU: -1.0}, step_pct=-0.8, head=head)) is Status.FASTER
    assert said(made()) is Status.SAME and said(made(head=head)) is None


def test_longer_kernels_beside_others_are_no_slowdown():
    """On another stream they take longer, and the step does not."""
    rows = tuple(
        replace(row, us=tuple(us + 0.2 * STEP_US / 100 for us in row.us), code="edited")
        if row.name == GELU
        else row
        for row in profile().kernels
    )
    beside = replace(profile(), kernels=rows)
    assert why_not_judged(made(head=beside)) == ""
    more = 0.2 * STEP_US / 100
    after = with_parts(beside, step=more, compute=more)
    us = tuple(row.us[0] for row in rows)
    for head, status in ((after, Status.SLOWER), (beside, None)):
        found = compared([((us, steady()), (kernels(), steady()))] * 2, head, profile())
        assert said(found) is status


# constants, just inside and just outside


@pytest.mark.parametrize(("factor", "slower"), [(0.98, True), (1.02, False)])
def test_gaps_that_got_shorter_make_up_for_longer_kernels(factor, slower):
    """Unless a profile of the same code may differ by as much."""
    us = factor * IDLE_LIMIT * profile().parts.step_us[0]
    base = with_parts(profile(), step=us, idle=us)
    found = made({GELU: 0.2}, step_pct=0.1, base=base)
    assert (said(found) is Status.SLOWER) is slower


def known(name, longer_pct=0.0, but=()):
    """How the kernel whose name begins so is known to scatter if it takes so much longer. The
    kernels ``but`` show no pace.
    """
    rows = profile().kernels
    matched = Matched.of(rows, rows)
    times = matched.times(np.array(kernels()), np.array(kernels({name: longer_pct})))
    first = next(row for row in rows if row.name.startswith(name))
    mine = np.array([first in one.rows for one in matched.matches])
    others = np.array([one.rows[0].name not in but for one in matched.matches])
    return times.scatter(mine, others & ~mine, STEP_US)


def edge_pct(of_bounds, pairs, name=GELU):
    """The value of pairs that all have it at which a limit lies, given their bounds. It is what the
    kernel of this name takes longer.
    """
    value_pct = KERNEL_MARGINS.ignore_pct
    for _ in range(5):  # the scatter hardly depends on the value
        found = bounds_of([math.log1p(value_pct / 100)] * pairs, known(name, value_pct))
        value_pct = of_bounds(found)
    return value_pct


@pytest.mark.parametrize(
    ("pct", "step_pct", "paid"),
    [(-0.15, -0.15, False), (-0.5, -0.5, True), (-0.6, -0.1, False), (-0.6, -0.21, True)],
)
def test_a_small_gain_pays_for_no_price(pct, step_pct, paid):
    """One that the step's margin ignores is FASTER, but a graph break more still fails. The gain of
    the kernels is not enough if the steps are not as fast: the break may take up the rest.
    """
    found = made({GELU: pct}, step_pct=step_pct)
    counts = found.head.counts
    breaks = {"graph_breaks": counts.values["graph_breaks"] + 1}
    head = replace(found.head, counts=replace(counts, values=counts.values | breaks))
    assert said(found) is Status.FASTER and judge_ab(found).status is Status.FASTER
    verdict = judge_ab(replace(found, head=head))
    assert verdict.status is (Status.FASTER if paid else Status.CHANGED)


@pytest.mark.parametrize("pairs", [2, 3, 4])
@pytest.mark.parametrize("name", [GELU, ATTENTION, PRODUCT])
@pytest.mark.parametrize(("factor", "slower"), [(1.02, True), (0.98, False)])
def test_a_bound_beyond_what_is_ignored_is_slower(pairs, name, factor, slower):
    """If a stricter one is beyond zero, too. A kernel's class says how it scatters."""
    edge = edge_pct(
        lambda found: 100 * max(
            KERNEL_MARGINS.ignore / POWER_SHARE + found.reach(found.analysis.beta),
            found.reach(found.analysis.alpha),
        ),
        pairs,
        name,
    )  # fmt: skip
    found = made({name: factor * edge}, pairs=pairs, edit=(name,))
    assert (said(found) is Status.SLOWER) is slower


@pytest.mark.parametrize(("pairs", "name"), [(2, GELU), (3, ATTENTION)])
@pytest.mark.parametrize(("factor", "same"), [(0.98, True), (1.02, False)])
def test_bounds_within_what_matters_are_same(pairs, name, factor, same):
    """Both of them. With four pairs they are so close that all beyond is SLOWER, and with three if
    the kernel scatters by as little as GELU.
    """
    edge = edge_pct(
        lambda found: 100 * (KERNEL_MARGINS.matter - found.reach(found.analysis.beta)), pairs, name
    )
    found = made({name: factor * edge}, pairs=pairs, edit=(name,))
    assert (said(found) is Status.SAME) is same


@pytest.mark.parametrize("pairs", range(1, 7))
def test_two_to_four_pairs_decide(pairs):
    """One is not enough here; of later ones none is profiled, and the plan has them."""
    within = LEAST_PAIRS <= pairs <= PROFILED_PAIRS
    assert (LEAST_PAIRS, PROFILED_PAIRS) == (2, 4)
    assert said(made({GELU: 0.3}, pairs=pairs)) is (Status.SLOWER if within else None)
    assert wants_profiles(made({GELU: 0.3}, pairs=pairs)) is (pairs < PROFILED_PAIRS)
    assert wants_another_pair(made({GELU: 0.3}, pairs=pairs)) is (pairs in (1, 5))


# one pair


@pytest.mark.parametrize("name", [GELU, BACKWARD])
@pytest.mark.parametrize(("factor", "enough"), [(1.02, True), (0.98, False)])
def test_one_pair_is_enough_for_a_large_slowdown(name, factor, enough):
    """The low end of the kernels' interval decides, so a kernel that scatters more has to take
    longer by more. Below it another pair with profiles is wanted.
    """
    assert LARGE_PCT == 0.25
    large = math.log1p(LARGE_PCT / 100) / POWER_SHARE
    edge = edge_pct(lambda found: 100 * (large + found.reach(found.analysis.beta)), 1, name)
    found = made({name: factor * edge}, pairs=1, edit=(name,))
    assert (said(found) is Status.SLOWER) is enough
    assert wants_another_pair(found) is not enough and wants_profiles(found)
    verdict = judge_ab(found)
    assert verdict.status is (Status.SLOWER if enough else Status.INCONCLUSIVE)
    assert verdict.reason is (Reason.CHANGED_KERNELS if enough else Reason.UNDECIDED)
    assert not enough or (rule(found).p_value <= ALPHA and rule(found).pairs == 1)


def test_one_pair_of_a_case_among_many_needs_more_proof():
    """Its level is stricter. Kernels that take a fifth of the step scatter by too much for it."""
    head = edited(profile(), "nvjet_sm90_tst_192x192")
    for longer_pct, alpha, status in (
        (1.3, ALPHA, Status.SLOWER), (1.3, ALPHA / 20, None), (1.7, ALPHA / 20, Status.SLOWER),
    ):  # fmt: skip
        assert said(made({PRODUCT: longer_pct}, pairs=1, head=head, alpha=alpha)) is status


@pytest.mark.parametrize("margins", [(0.2, 0.5), (1.0, 3.0)])
def test_one_pair_says_neither_faster_nor_same(margins):
    """However fast the kernels are, and whatever the case ignores. Two pairs say both."""
    for longer_pct, status in ((-2.2, Status.FASTER), (0.0, Status.SAME)):
        for pairs, wanted in ((1, None), (2, status)):
            assert said(ignoring(margins, made({GELU: longer_pct}, pairs=pairs))) is wanted


@pytest.mark.parametrize(("pct", "one", "two"), [
    (1.0, None, Status.SAME), (2.0, None, Status.SAME), (2.3, Status.SLOWER, Status.SLOWER),
])  # fmt: skip
def test_one_pair_ignores_what_the_case_does(pct, one, two):
    """If that is more than a large slowdown."""
    found = [ignoring((1.0, 3.0), made({GELU: pct}, pairs=pairs)) for pairs in (1, 2)]
    assert [*map(said, found)] == [one, two]


@pytest.mark.parametrize(("sds", "status"), [(-0.98, Status.SLOWER), (-1.02, None)])
def test_the_steps_of_one_pair_must_be_nearer(sds, status):
    """Two pairs would allow steps that are less slow."""
    assert LONE_SDS == 1.0
    left = sds * LONE_SDS * PRIOR.sd_pct / 100
    step_pct = 100 * math.expm1(POWER_SHARE * math.log1p(0.01) + left)
    assert said(made({GELU: 1.0}, pairs=1, step_pct=step_pct)) is status
    assert said(made({GELU: 1.0}, step_pct=step_pct)) is Status.SLOWER


@pytest.mark.parametrize(
    ("sd_pct", "first", "most"), [(0.15, 0.025, 0.04), (0.24, 0.11, 0.17), (0.3, 0.17, 0.25)]
)
def test_kernels_that_do_not_slow_the_step_are_seldom_red(sd_pct, first, most):
    """They take 1 % longer, and the step does not. By the steps of the first pair, and by those of
    one to four pairs.
    """
    kernels = math.log1p(0.01)
    draw = np.random.default_rng(1).normal(0.0, sd_pct / 100, (20_000, PROFILED_PAIRS))
    red = []
    for pairs in range(1, PROFILED_PAIRS + 1):
        limit = (LONE_SDS if pairs < LEAST_PAIRS else PAIR_SDS) * PRIOR.sd_pct / 100
        means = draw[:, :pairs].mean(axis=1)
        red.append(means >= POWER_SHARE * kernels - limit / math.sqrt(pairs))
    assert red[0].mean() <= first and np.any(red, axis=0).mean() <= most


@pytest.mark.parametrize("side", ["head", "base"])
def test_a_kernel_that_stalled_in_one_profiled_step_is_not_longer_by_that(side):
    """One of six steps took all the time. A second pair shows whether the next profile has it. A
    stall of the base's kernel makes no difference larger.
    """
    more_us = STEP_US / 100
    for in_one_step, pairs, status in (
        (False, 1, Status.SLOWER), (True, 1, None), (True, 2, Status.SLOWER),
    ):  # fmt: skip
        found = made({GELU: 1.0 if side == "head" else 2.0}, pairs=pairs)
        each = (0.0,) * 5 + (6 * more_us,) if in_one_step else (more_us,) * 6

        def stalled(known, each=each):
            rows = (
                replace(row, us=tuple(a + b for a, b in zip(row.us, each, strict=True)))
                if row.name == GELU
                else row
                for row in known.kernels
            )
            return with_parts(replace(known, kernels=tuple(rows)), step=more_us, compute=more_us)

        found = with_profiles(found, stalled, (side,))
        assert said(found) is (Status.SLOWER if side == "base" else status)


def test_copies_that_one_pair_lacks_make_up_for_longer_kernels():
    """They became kernels, and the step takes less than LARGE_PCT longer."""
    for copied_pct, status in ((0.1, Status.SLOWER), (0.3, None)):
        us = copied_pct * STEP_US / 100
        base = with_parts(profile(), step=us, exposed_copies=us)
        assert said(made({GELU: 1.0}, pairs=1, step_pct=0.7, base=base)) is status


@pytest.mark.parametrize(("last", "slow", "untimed"), [
    (1.05, 1.0, 1.0),  # the last block
    (1.0, 1.05, 1.0),  # an eighth of the steps
    (1.0, 1.0, 1.2),  # a step between the blocks
])  # fmt: skip
def test_slow_steps_of_one_pair_need_a_second_one(last, slow, untimed):
    """They may be another slowdown, which two pairs tell by its name. Alone they would be."""
    for case in ((1.0, 1.0, 1.0), (last, slow, untimed)):
        found = made({GELU: 1.0}, pairs=1)
        for side, (late, some, between) in (("head", case), ("base", (1.0, 1.0, 1.0))):
            (one,) = getattr(found, side).launches
            blocks = tuple(
                replace(
                    recorded.block_of(
                        [ms * (some if n == 3 else 1.0) * (late if at else 1.0)
                         for n, ms in enumerate(block.step_ms)], block.ran),
                    enqueue_ms=1.0,
                ) for at, block in enumerate(one.blocks)
            )  # fmt: skip
            ms = [250.0, 250.0 * between, 250.0, 250.0]
            more = replace(recorded.block_of(ms, 30), enqueue_ms=1.0)
            found = with_launch(found, side, 0, blocks=blocks, untimed=(more,))
        assert said(found) is (Status.SLOWER if case == (1.0, 1.0, 1.0) else None)


def test_most_of_the_time_must_be_in_equal_kernels():
    """The longest kernels are edited, one after the other, until half of the time is left."""
    rows = sorted(profile().kernels, key=lambda row: -row.us[0])
    total, changed_us = sum(row.us[0] for row in rows), 0.0
    for count in range(1, len(rows)):
        changed_us += rows[count - 1].us[0]
        few = {row.key for row in rows[:count]}
        head = replace(
            profile(),
            kernels=tuple(
                replace(row, code="edited") if row.key in few else row for row in profile().kernels
            ),
        )
        wanted = "" if 1 - changed_us / total >= EQUAL_SHARE else "most kernels differ"
        assert why_not_judged(made(head=head)) == wanted
        if wanted:
            break
    assert 5 < count < 20 and EQUAL_SHARE == 0.5


def test_a_kernel_more_that_takes_most_of_the_time_is_left_to_the_plan():
    """Of HEAD's time alone most is in kernels that differ, and the other way round."""
    us = (1.01 * sum(row.us[0] for row in profile().kernels),) * 6
    more = KernelRow("slow", "slow", "other", "forward", (1.0,) * 6, us)
    step_us = tuple(a + b for a, b in zip(profile().parts.step_us, us, strict=True))
    parts = replace(profile().parts, step_us=step_us, compute_us=step_us)
    other = replace(profile(), kernels=(*profile().kernels, more), parts=parts)
    assert why_not_judged(made(head=other)) == "most kernels differ"
    assert why_not_judged(made(head=profile(), base=other)) == "most kernels differ"


@pytest.mark.parametrize(("share", "why"), [(0.999, ""), (1.001, "kernels overlap")])
def test_kernels_that_overlap_are_not_judged(share, why):
    """Their times add up to more than the time in which the GPU computes."""

    def computing(known):
        us = sum(row.us[0] for row in known.kernels) / (share * OVERLAP)
        return replace(known, parts=replace(known.parts, compute_us=(us,) * 6))

    assert why_not_judged(with_profiles(made({GELU: 0.3}), computing)) == why


@pytest.mark.parametrize("side", ["head", "base"])
@pytest.mark.parametrize(("factor", "bound"), [(0.99, True), (1.01, False)])
def test_the_gpu_must_bound_the_step(side, factor, bound):
    """On both sides, by the counted profile."""

    def idle(known):
        us = tuple(factor * IDLE_SHARE * step for step in known.parts.step_us)
        return replace(known, parts=replace(known.parts, idle_us=us))

    found = with_profiles(made({GELU: 0.3}), idle, (side,))
    shorter = "kernels overlap"  # with less idle time than was recorded they would
    assert (why_not_judged(found) in ("", shorter)) is bound
    assert said(found) in ((Status.SLOWER, None) if bound else (None,))


def limit_pct(name, pairs):
    """What this kernel may take longer or shorter, in percent of a step, and not have moved."""
    limit = 0.0
    for _ in range(5):
        limit = MOVED_SDS * known(name, limit, but=(GELU,)).sd_pct / math.sqrt(pairs)
    return limit


@pytest.mark.parametrize("pairs", [2, 3])
@pytest.mark.parametrize(("factor", "moved"), [(0.97, False), (1.03, True)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_an_equal_kernel_that_moved_forbids_a_gain(pairs, factor, moved, sign):
    """The change may reach further than the kernels that differ. The step need not show it."""
    moves = {NORM: sign * factor * limit_pct(NORM, pairs)}
    for pct, status in ((-0.3, Status.FASTER), (0.0, Status.SAME)):
        found = made({GELU: pct} | moves, pairs=pairs, step_pct=pct)
        assert said(found) is (None if moved else status)


@pytest.mark.parametrize(("pairs", "pct"), [(1, 0.8), (2, 0.3), (3, 0.3)])
@pytest.mark.parametrize(
    ("moved_pct", "status"), [(-0.15, Status.SLOWER), (-0.8, None), (0.15, None)]
)
def test_an_equal_kernel_that_got_shorter_allows_slower(pairs, pct, moved_pct, status):
    """Its time counts. If it got longer, nobody knows which kernels show the pace."""
    assert abs(moved_pct) > limit_pct(NORM, pairs)
    found = made({GELU: pct, NORM: moved_pct}, pairs=pairs, step_pct=pct)
    assert said(found) is status
    assert said(made({NORM: moved_pct}, pairs=pairs, step_pct=pct)) is None


def paced(found, factor, chosen):
    """The comparison, in which some of HEAD's kernels take so many times as long, in each pair."""
    rows = found.head.counted.profile.kernels
    for number, one in enumerate(found.head.launches):
        us = zip(rows, one.kernels_us, strict=True)
        us = tuple(us * (factor if chosen(row) else 1.0) for row, us in us)
        found = with_launch(found, "head", number, kernels_us=us)
    return found


@pytest.mark.parametrize("factor", [1.01, 1.02, 1.03, 1.04])
def test_a_class_that_runs_slower_as_a_whole_is_no_slowdown(factor):
    """The kernel that differs keeps the pace of its class. The steps take as long as before."""
    attention = paced(made({}, 4, (BACKWARD,)), factor, lambda row: row.kind == "attention")
    assert said(attention) is not Status.SLOWER
    some = (GELU, GELU_BACKWARD, NORM)
    triton = paced(made({}, 4, (GELU,)), factor, lambda row: row.name.startswith(some))
    assert said(triton) is not Status.SLOWER


def test_an_equal_kernel_without_others_may_have_moved():
    """Nothing shows its pace. Two equal kernels show each other's."""
    longest = sorted(profile().kernels, key=lambda row: -row.us[0])
    for equal, status in ((1, None), (2, Status.SLOWER)):
        rows = (*longest[1 : 1 + equal], *(row for row in longest if row.name == GELU))
        few = replace(profile(), kernels=rows)
        assert said(made({GELU: 1.0}, head=edited(few, GELU), base=few)) is status


def test_a_launch_without_its_pair_does_not_count():
    """A run that was ended in a pair leaves one."""
    found = made({GELU: 0.3})
    more = replace(found.base, launches=(*found.base.launches, found.base.launches[0]))
    assert rule(replace(found, base=more)) == rule(found)


@pytest.mark.parametrize("pairs", [2, 3, 4])
@pytest.mark.parametrize(("longer_pct", "sds", "status"), [
    (0.3, -0.99, Status.SLOWER),
    (0.3, -1.01, None),
    (0.3, 3.0, Status.SLOWER),  # even slower
    (-0.5, -0.99, Status.FASTER),
    (-0.5, 0.99, Status.FASTER),
    (-0.5, -1.01, None),
    (-0.5, 1.01, None),
])  # fmt: skip
def test_what_is_left_of_the_steps(pairs, longer_pct, sds, status):
    """The steps take longer by all that the kernels do, or half: within two standard deviations. A
    slowdown may be larger.
    """
    kernels = math.log1p(longer_pct / 100)
    least, most = sorted((POWER_SHARE * kernels, kernels))
    left = sds * PAIR_SDS * PRIOR.sd_pct / 100 / math.sqrt(pairs)
    step_pct = 100 * math.expm1(left + (most if sds > 0 else least))
    assert said(made({GELU: longer_pct}, pairs=pairs, step_pct=step_pct)) is status


@pytest.mark.parametrize(("kernels_pct", "step_pct", "estimate_pct"), [
    (0.2, 0.3, 0.156),  # hardly more than the middle: the steps are not precise enough
    (1.0, 0.75, 0.75),
    (1.0, 0.6, 0.673),
    (1.0, 1.25, 1.0),
    (1.0, 3.0, 3.0),  # no kernel shows the rest
    (-1.0, -0.6, -0.673),
])  # fmt: skip
def test_the_change_lies_in_the_range_of_the_kernels(kernels_pct, step_pct, estimate_pct):
    """At a power cap a step gives back up to half of what a kernel takes longer. Steps that are
    even slower say by themselves how much.
    """
    decided = rule(made({GELU: kernels_pct}, step_pct=step_pct))
    assert decided.estimate_pct == pytest.approx(estimate_pct, abs=0.006)
    assert decided.low_pct < decided.estimate_pct < decided.high_pct
    near, far = sorted((decided.low_pct, decided.high_pct), key=abs)
    assert abs(near) < 0.5 * abs(kernels_pct) and abs(kernels_pct) < abs(far)


def test_a_case_among_many_needs_more_proof():
    """Its level is stricter, as in the plan."""
    found = made({GELU: 0.11})
    assert said(found) is Status.SLOWER
    assert said(replace(found, alpha=ALPHA / 20)) is not Status.SLOWER


# vetoes, one by one


def slower_block(number, factor):
    """A change of blocks: one of them takes so much longer."""

    def change(at, block):
        if at != number:
            return block
        times = {name: tuple(factor * ms for ms in getattr(block, name))
                 for name in ("wall_ms", "events_ms", "step_ms")}  # fmt: skip
        return replace(block, **times)

    return change


def test_a_host_that_is_hardly_ahead_forbids_it():
    """In any launch of either side."""
    for factor, status in ((0.99, Status.SLOWER), (1.01, None)):

        def behind(at, block, share=factor * HOST_SHARE):
            return replace(block, enqueue_ms=share * block.mean_ms)

        for side in ("head", "base"):
            for found in (made({GELU: 0.3}), made({GELU: 1.0}, pairs=1)):
                assert said(with_blocks(found, behind, side)) is status


def test_a_last_block_that_is_slower_forbids_a_gain():
    """Though the mean is as the kernels say. A slowdown stays one."""
    for longer_pct, factor, status in (
        (-0.3, 0.3, Status.FASTER), (-0.3, 1.01, None), (0.3, 1.01, Status.SLOWER),
    ):  # fmt: skip
        rise = factor * RISE_LIMIT / 2
        found = with_blocks(made({GELU: longer_pct}), slower_block(0, math.exp(-rise)))
        assert said(with_blocks(found, slower_block(1, math.exp(rise)))) is status


def test_some_slower_steps_forbid_a_gain():
    """An eighth of them, by 3 %, and the others faster."""

    def tailed(at, block):
        steps = [ms * (1.03 if n == 3 else 1 - 0.03 / 7) for n, ms in enumerate(block.step_ms)]
        return replace(block, step_ms=tuple(steps))

    assert said(with_blocks(made({GELU: -0.3}), tailed)) is None
    assert said(with_blocks(made({GELU: 0.3}), tailed)) is Status.SLOWER


def test_a_slower_step_between_the_blocks_forbids_a_gain():
    """No block times it."""
    for slower, status in ((0.9, Status.FASTER), (1.1, None)):
        found = made({GELU: -0.3})
        for side in ("head", "base"):
            for number, one in enumerate(getattr(found, side).launches):
                ms = [one.blocks[0].step_ms[0]] * 4
                if side == "head":
                    ms[2] *= math.exp(slower * UNTIMED_LIMIT)
                untimed = (replace(recorded.block_of(ms, 30), enqueue_ms=1.0),)
                found = with_launch(found, side, number, untimed=untimed)
        assert said(found) is status


def test_a_pair_out_of_line_forbids_a_gain():
    """Its blocks differ within a side."""
    for longer_pct, status in ((-0.3, None), (0.3, Status.SLOWER)):
        found = made({GELU: longer_pct})
        for side in ("head", "base"):
            found = with_blocks(found, slower_block(1, 1.03), side)
        assert said(found) is status


@pytest.mark.parametrize(
    "changes",
    [
        {"together": False},
        {"files": None},
        {"again": (recorded.LaunchPair(recorded.launch(), recorded.launch()),)},
    ],
)
def test_pairs_of_another_kind_are_left_to_the_plan(changes):
    """One launch after the other, an alarm of recordings, a disturbed pair: no profile either."""
    found = made({GELU: 0.3}, **changes)
    assert said(found) is None and not wants_profiles(found)


def test_a_case_on_a_cpu_is_left_to_the_plan():
    """Its profiles are of no GPU."""
    assert why_not_judged(with_case(made({GELU: 0.3}), device="cpu"))


# several ranks


def of_ranks(found, counted_us=9e3, launches_us=(5e3, 50e3), calls=14.0):
    """The comparison, as one of two ranks whose gradients are exchanged beside kernels that
    compute. The exchange takes ``counted_us`` in the profiles, and so long in the launches of HEAD
    and of the base. HEAD's has so many ``calls``.
    """
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    for side, launch_us, each in zip(("head", "base"), launches_us, (calls, 14.0), strict=True):
        times = (each,) * 6, (counted_us,) * 6
        row = KernelRow(name, name, "communication", "backward", *times)
        one = getattr(found, side)
        for number, its in enumerate(one.launches):
            found = with_launch(found, side, number, kernels_us=(launch_us, *its.kernels_us))
        kernels = (row, *one.counts.profile.kernels)
        found = with_profiles(
            found, lambda known, kernels=kernels: replace(known, kernels=kernels), (side,)
        )
    return with_case(found, world_size=2)


@pytest.mark.parametrize("pairs", [1, 2])
def test_several_ranks_are_judged_by_the_kernels_that_compute(pairs):
    """How long an exchange waits for other ranks says nothing of the kernels beside it."""
    found = made({GELU: 1.2}, pairs=pairs)
    alone, of_two = rule(found), rule(of_ranks(found))
    assert (alone.status, of_two.status) == (Status.SLOWER,) * 2
    assert of_two.estimate_pct == pytest.approx(alone.estimate_pct)
    assert of_two.low_pct < alone.low_pct  # the kernels beside an exchange scatter more
    assert wants_profiles(of_ranks(found))


def test_the_verdict_of_several_ranks_names_the_kernel():
    """As that of one rank does."""
    found = as_recorded(PLANTED_70, steps=(0.9, 0.8))
    names = [row.name for row in found.head.counts.profile.kernels]
    at = names.index("triton_poi_fused_gelu_view_12")
    for number, one in enumerate(found.head.launches):
        us = list(one.kernels_us)
        us[at] += 0.8 * STEP_US / 100
        found = with_launch(found, "head", number, kernels_us=tuple(us))
    text = headline(judge_ab(of_ranks(found)))
    assert text == headline(judge_ab(found)) and "SLOWER" in text and GELU in text


@pytest.mark.parametrize("pairs", [1, 2, 4])
@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_ranks_that_exchange_are_slower_only_by_much(pairs, factor):
    """If the interval begins beyond LARGE_PCT, in one pair as in four. An exchange that moves from
    beside some kernels to beside others makes these longer by a few tenths of a percent.
    """

    def beyond(pct):
        low = rule_bounds(of_ranks(made({GELU: pct}, pairs=pairs))).low
        return low - math.log1p(LARGE_PCT / 100)

    exact = optimize.brentq(beyond, 0.3, 3.0)
    found = of_ranks(made({GELU: factor * exact}, pairs=pairs))
    assert said(found) is (Status.SLOWER if factor > 1 else None)


def test_of_several_ranks_kernels_say_no_gain():
    """In their mean the gain of one rank may hide the loss of another one."""
    for longer, of_one_rank in (({GELU: -0.9}, Status.FASTER), ({}, Status.SAME)):
        found = made(longer)
        assert said(found) is of_one_rank and said(of_ranks(found)) is None


def test_one_rank_with_an_exchange_is_judged_as_several():
    """Whatever it communicates with."""
    for longer in (-0.9, 0.0, 0.3, 1.2):
        found = of_ranks(made({GELU: longer}))
        assert rule(with_case(found, world_size=1)) == rule(found)
        assert said(found) is (Status.SLOWER if longer > 1 else None)


def test_kernels_that_take_over_an_exchange_from_others_are_no_slowdown():
    """The exchange slows down what runs beside it. It moves from products to the kernel that
    differs: the step takes as long.
    """
    products = [row.name for row in profile().kernels if row.kind == "GEMM" and "NTN" in row.name]
    for pct in (0.1, 0.2, 0.3, 0.5, 0.8):
        for pairs in (1, 2, 3, 4):
            moved = {GELU: pct} | {name: -pct / len(products) for name in products}
            assert said(of_ranks(made(moved, pairs=pairs, step_pct=0.0))) is None


def test_a_slack_that_no_profile_shows_exactly_is_no_slowdown():
    """Of one of two ranks the kernels get longer, which waited for the other one before. What is
    left of the wait differs from profile to profile.
    """
    for pct, error_pct in ((0.1, 0.3), (0.2, 0.3), (0.4, 0.3), (0.6, 0.3), (1.0, 0.3)):
        wait = (pct - error_pct) * STEP_US / 100
        base = with_parts(profile(), step=wait, exposed_communication=wait)
        found = of_ranks(made({GELU: pct}, base=base, step_pct=0.0))
        assert said(found) is None


def test_an_exchange_that_differs_is_left_to_the_plan():
    """Another number of buckets also moves the kernels that run beside them."""
    found = made({GELU: 0.9})
    assert why_not_judged(of_ranks(found)) == ""
    assert why_not_judged(of_ranks(found, calls=13.0)) == "communication differs"


def test_longer_kernels_in_place_of_a_wait_are_no_slowdown():
    """They run while the exchange, which no kernel hid before, is still under way."""
    wait = {"step": STEP_US / 100, "exposed_communication": STEP_US / 100}
    for base, status in ((profile(), Status.SLOWER), (with_parts(profile(), **wait), None)):
        found = of_ranks(made({GELU: 1.2}, step_pct=0.6, base=base))
        assert why_not_judged(found) == "" and said(found) is status


def test_a_launch_of_ranks_that_lost_its_profile_decides_nothing():
    """The times of all counted kernels are needed, also of those that communicate."""
    found = of_ranks(made({GELU: 1.2}))
    assert said(found) is Status.SLOWER
    short = found.head.launches[1].kernels_us[1:]
    assert said(with_launch(found, "head", 1, kernels_us=short)) is None


def test_a_profile_that_is_not_whole_is_not_judged():
    """Of either side; and without counts nothing is known."""
    for side in ("head", "base"):
        found = with_profiles(
            made({GELU: 0.3}), lambda known: replace(known, incomplete=1), (side,)
        )
        assert why_not_judged(found) == "a profile is not whole"
        lost = replace(getattr(found, side), counts=None)
        assert why_not_judged(replace(found, **{side: lost})) == "a profile is not whole"


def test_a_profile_without_a_step_is_not_judged():
    """As a file may have it. Nothing is divided by its time."""
    for step_us in ((), (0.0,) * 6):

        def cut(known, step_us=step_us):
            return replace(known, parts=replace(known.parts, step_us=step_us, idle_us=step_us))

        found = with_profiles(made({GELU: 0.3}), cut, ("base",))
        assert why_not_judged(found) == "a profile has no step"
        by_rank = replace(found.base.counts, parts_by_rank=(profile().parts,) * 2)
        of_ranks_whole = replace(found, base=replace(found.base, counts=by_rank))
        assert why_not_judged(of_ranks_whole) == "a profile has no step"


def test_a_kernel_that_stalled_in_a_profile_decides_nothing():
    """For longer than a step, on either side, in one pair or in all."""
    at = next(n for n, row in enumerate(profile().kernels) if row.name == GELU)
    stalled = tuple(us + 8 * STEP_US * (n == at) for n, us in enumerate(kernels()))
    for side in ("head", "base"):
        one = with_launch(made(), side, 0, kernels_us=stalled)
        assert said(one) is said(with_launch(one, side, 1, kernels_us=stalled)) is None


def test_a_case_without_a_judged_time_is_not_profiled():
    """There is nothing to decide."""
    found = made({GELU: 0.3})
    assert wants_profiles(found)
    assert not wants_profiles(replace(found, head=replace(found.head, gates=("graph_breaks",))))


# margins


@pytest.mark.parametrize(
    ("wanted", "margins"),
    [
        ((0.2, 0.5), (0.025, 0.125)),
        ((0.1, 0.5), (0.025, 0.125)),
        ((0.2, 1.3), (0.025, 0.125)),
        ((1.0, 3.0), (1.0, 3.0)),  # its user ignores 1 %
        ((0.02, 0.5), (0.02, 0.5)),
    ],
)
def test_margins_follow_from_the_cases(wanted, margins):
    """What a case ignores passes. A case that ignores more than usual does so here, too."""
    found = ignoring(wanted, made({GELU: 0.3}))
    decided = rule(found)
    assert margins_of(found, decided) == Margins(*margins)
    assert decided.status is (Status.SAME if wanted[0] == 1.0 else Status.SLOWER)


@pytest.mark.parametrize("pairs", [2, 3, 4])
@pytest.mark.parametrize(("factor", "status"), [(0.98, Status.SAME), (1.02, None)])
def test_a_gain_and_same_exclude_a_slowdown(pairs, factor, status):
    """The steps' own bound lies within the matter margin, whatever the kernels explain. Each of
    three analyses has a third of BETA.
    """
    sd, degrees = PRIOR.moderated(0.0, pairs)
    reach = stats.t.ppf(1 - BETA / 3, degrees) * sd / math.sqrt(pairs)
    usual = PAIR_SDS * PRIOR.sd_pct / 100 / math.sqrt(pairs)
    for kernels_pct in (0.0, 0.04, -0.04, -0.2):
        explained = math.log1p(kernels_pct / 100)
        most = max(explained, POWER_SHARE * explained)
        step = factor * min(MARGINS.matter - reach, most + usual)
        found = made({GELU: kernels_pct}, pairs=pairs, step_pct=100 * math.expm1(step))
        gain = status and Status.FASTER
        assert said(found) is (gain if kernels_pct == -0.2 else status)
    assert said(made(pairs=pairs, step_pct=-0.19)) is Status.SAME  # a gain is no such slowdown


@pytest.mark.parametrize("scatter_pct", [0.0, 0.3])
def test_a_gain_of_kernels_is_none_if_the_steps_scatter(scatter_pct):
    """Their mean is that of the kernels, but a slowdown of the matter margin is not excluded."""
    found = made({GELU: -0.15})
    for number, sign in enumerate((-1, 1)):
        ms = 250.0 * math.exp((-0.15 + sign * 2 * scatter_pct) / 100)
        blocks = tuple(
            replace(recorded.block_of([ms] * 8, ran), enqueue_ms=1.0) for ran in (20, 40)
        )
        found = with_launch(found, "head", number, blocks=blocks)
    assert said(found) is (None if scatter_pct else Status.FASTER)


def test_same_takes_as_many_pairs_as_an_unchanged_step():
    """If the matter margin is narrower, two pairs do not exclude what no kernel shows."""
    for matter, statuses in ((0.3, {2: None, 4: Status.SAME}), (0.5, {2: Status.SAME})):
        for pairs, status in statuses.items():
            assert said(ignoring((0.1, matter), made(pairs=pairs))) is status


# error rates


def series(turn, gpu):
    """The kernels' us of the launches of the base's code on a card."""
    of_code = [
        one
        for side in ("head", "base")
        for one in recorded.launches(side)
        if (one.step, one.gpu) == (recorded.BASE, gpu)
    ]
    return np.array([one.kernels_us[turn] for one in of_code])


@pytest.fixture(scope="module")
def rates():
    """What kernels take longer in one to three pairs of launches of one code that share no launch,
    with how that is known to scatter. A kernel is said to differ, or a random set of them. By
    number of pairs.
    """
    draw = random.Random(45)
    rows, found = profile().kernels, {1: [], 2: [], 3: []}
    matched = Matched.of(rows, rows)
    count = len(matched.matches)
    for turn in (0, 1):
        for us in (series(turn, gpu) for gpu in GPUS):
            order = [*permutations(range(len(us)), 2)]
            at = {both: place for place, both in enumerate(order)}
            base, head = (us[[both[side] for both in order]] for side in (0, 1))
            times = matched.times(base, head)
            for _ in range(120):
                chosen = draw.sample(range(count), draw.choice((1, 1, 1, 2, 3, 5, 10)))
                mine = np.isin(np.arange(count), chosen)
                longer = times.longer_us(mine, ~mine) / STEP_US
                its = times.scatter(mine, ~mine, STEP_US)
                for pairs in found:
                    if len(us) < 2 * pairs:
                        continue
                    for _ in range(10):
                        drawn = draw.sample(range(len(us)), 2 * pairs)
                        places = [at[one] for one in zip(drawn[::2], drawn[1::2], strict=True)]
                        values = longer[places].tolist()
                        found[pairs].append((values, its))
    return found


def shares(verdicts, more_pct=0.0):
    """The share of each status, if the kernels took so much of a step longer."""
    counted = [
        bounds_of([value + more_pct / 100 for value in values], its).status(KERNEL_MARGINS)
        for values, its in verdicts
    ]
    return {status: counted.count(status) / len(counted) for status in set(counted)}


def test_kernels_that_take_as_long_are_hardly_ever_slower(rates):
    """Not one in a thousand of several thousand verdicts on launches of the same code."""
    assert [len(verdicts) for verdicts in rates.values()] == [4800, 4800, 2400]
    for verdicts in rates.values():
        found = shares(verdicts)
        assert found.get(Status.SLOWER, 0.0) <= ALPHA >= found.get(Status.FASTER, 0.0)
        assert found.get(Status.SAME, 0.0) > 0.75 or verdicts is rates[1]
    assert shares(rates[1]) == {Status.INCONCLUSIVE: 1.0}


def test_a_large_slowdown_is_beyond_any_drift(rates):
    """Of single pairs of the same code. Most intervals begin below zero."""
    lows = [bounds_of(values, its).low for values, its in rates[1]]
    assert 3 * max(lows) < math.log1p(LARGE_PCT / 100)
    assert np.mean(np.array(lows) > 0.0) < 0.01


@pytest.mark.parametrize(
    ("pct", "pairs", "least"), [(0.2, 2, 0.85), (0.2, 3, 0.9), (0.3, 2, 0.9), (0.8, 1, 0.9)]
)
def test_a_longer_kernel_is_found_among_them(rates, pct, pairs, least):
    """Of the sets that are not much of the step."""
    small = [(values, its) for values, its in rates[pairs] if its.sd_pct < 0.05]
    assert len(small) > 0.7 * len(rates[pairs])
    assert shares(small, pct)[Status.SLOWER] > least


def test_kernels_that_scatter_twice_as_much_err_hardly_more_often(rates):
    """Than the level allows. The recorded kernels are judged as if half of it were known."""
    for verdicts in rates.values():
        found = shares([(values, replace(its, sd_pct=its.sd_pct / 2)) for values, its in verdicts])
        assert found.get(Status.SLOWER, 0.0) <= ALPHA >= found.get(Status.FASTER, 0.0)


@pytest.mark.parametrize(("turn", "farthest"), [(0, (2.9, 3.0)), (1, (5.0, 5.1))])
def test_an_equal_kernel_hardly_ever_seems_to_have_moved(turn, farthest):
    """By the first profile of any four launches of one code on a card, none has. By the second, one
    of the loss's kernels has in a few, since it was 2 % off in one launch: then the plan decides.
    """
    rows, far = profile().kernels, []
    matched = Matched.of(rows, rows)
    for us in (series(turn, gpu) for gpu in GPUS):
        order = [*permutations(range(len(us)), 2)]
        times = matched.times(*(us[[both[side] for both in order]] for side in (0, 1)))
        at = {both: place for place, both in enumerate(order)}
        pairs = [(at[a, b], at[c, d]) for a, b, c, d in permutations(range(len(us)), 4)]
        sds = []
        for mine in np.eye(len(matched.matches), dtype=bool):
            longer_pct = 100 * times.longer_us(mine, ~mine) / STEP_US
            known_pct = times.scatter(mine, ~mine, STEP_US).sd_pct
            sds.append(abs(longer_pct[np.array(pairs)].mean(axis=1)) / known_pct * math.sqrt(2))
        far.extend(np.max(sds, axis=0))
    assert farthest[0] < max(far) < farthest[1]
    assert np.mean(np.array(far) > MOVED_SDS) < 0.02 * turn + 1e-9


@pytest.mark.parametrize(("sd_pct", "ratio", "most"), [
    (None, 1.0, 1e-5), (None, 1.5, 1e-5), (None, 2.0, 1e-4), (None, 2.5, 0.001),
    (0.15, 0.3, 1e-5), (0.15, 1.0, 1e-5), (0.15, 1.5, 1e-4), (0.15, 2.0, 0.0014),
    (0.15, 2.5, 0.007),
])  # fmt: skip
def test_a_scatter_that_is_not_as_known_errs_as_stated(sd_pct, ratio, most):
    """All four analyses together, integrated over the sample variance of normal pairs: of GELU, and
    of kernels that are half of the step.
    """
    its, total = known(GELU), 0.0
    its = replace(its, sd_pct=sd_pct or its.sd_pct)
    sd = ratio * its.sd_pct / 100
    for pairs in range(1, PROFILED_PAIRS + 1):
        points = stats.chi2.ppf((np.arange(100) + 0.5) / 100, pairs - 1) if pairs > 1 else [0.0]
        found = [
            red_from(its, math.sqrt(sd**2 * point / max(pairs - 1, 1)), pairs) for point in points
        ]
        total += stats.norm.sf(np.array(found) * math.sqrt(pairs) / sd).mean()
    assert total <= most


def red_from(its, sample_sd, pairs):
    """The mean of pairs that scatter so from which on they are SLOWER: by bounds_of() itself."""
    low, high = 0.0, 0.1
    shape = np.resize([1.0, -1.0], pairs)
    shape -= shape.mean()
    if pairs > 1:
        shape *= sample_sd / shape.std(ddof=1)
    while high - low > 1e-6:
        middle = (low + high) / 2
        status = bounds_of([middle + one for one in shape], its).status(KERNEL_MARGINS)
        low, high = (low, middle) if status is Status.SLOWER else (middle, high)
    return high


@cache
def means_and_reaches(sd_pct):
    """The means of two, three and four pairs that are slower by the matter margin, in percent, and
    how far their bounds are: 20,000 of each.
    """
    draw = np.random.default_rng(1).normal(MARGINS.matter_pct, sd_pct, (20_000, PROFILED_PAIRS))
    looks, found = range(LEAST_PAIRS, PROFILED_PAIRS + 1), []
    for pairs in looks:
        variances = draw[:, :pairs].var(axis=1, ddof=1) / 1e4
        used, degrees = PRIOR.moderated(variances, pairs, np.maximum)
        reach = 100 * stats.t.ppf(1 - BETA / len(looks), degrees) * used / math.sqrt(pairs)
        found.append((pairs, draw[:, :pairs].mean(axis=1), reach))
    return found


@pytest.mark.parametrize(
    ("sd_pct", "most"),
    [(0.1, 0.002), (0.2, 0.03), (0.3, 0.06), (0.5, 0.08), (0.7, 0.08), (1.0, 0.06), (2.0, 0.05)],
)
@pytest.mark.parametrize("kernels_pct", [0.0, -0.2, -0.6, -2.0])
def test_a_slower_step_passes_seldom(kernels_pct, sd_pct, most):
    """One that is slower by the matter margin, whatever its kernels gain, after two, three or four
    pairs: these must look as the kernels say.
    """
    passed = False
    for pairs, means, reach in means_and_reaches(sd_pct):
        limit = PAIR_SDS * PRIOR.sd_pct / math.sqrt(pairs)
        usual = (kernels_pct - limit <= means) & (means <= POWER_SHARE * kernels_pct + limit)
        passed = passed | usual & (means + reach < MARGINS.matter_pct)
    assert passed.mean() <= most
