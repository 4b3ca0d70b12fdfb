"""Kernels against kernels: a small change is found in them, by launches that two H200s recorded.

Each constant is tested just inside and just outside.
"""

import math
from itertools import permutations

import pytest
import recorded_kernels as recorded
from builders import replace
from comparisons import with_margins
from recorded_kernels import as_recorded, compared, edited, profile, steady

from stepguard.core.comparison import Question, from_json
from stepguard.core.evidence import to_json
from stepguard.core.margins import ALPHA, PRIOR, Margins
from stepguard.core.profile import KernelRow, StepIdentity
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.compare_profiles import IDLE_SHARE
from stepguard.judge.judge_pairs import wants_another_pair
from stepguard.judge.kernel_times import POWER_SHARE, times_as_counted
from stepguard.judge.rule_book import judge
from stepguard.judge.time_rules import (
    EQUAL_SHARE,
    KERNEL_MARGINS,
    LARGE_PCT,
    LEAST_PAIRS,
    OVERLAP,
    PROFILED_PAIRS,
    SAME_PAIRS,
    STEP_SDS,
    by_kernels,
    margins_of,
    wants_profiles,
    why_not_judged,
)
from stepguard.report.verdict_text import headline

PLANTED_30, PLANTED_70, SAME_CODE = (1, 4, 5, 8), (2, 6), (3, 7)  # places of pairs
GELU = "triton_poi_fused_gelu_view_9"
GELU_BACKWARD = "triton_poi_fused_gelu_gelu_backward"
BACKWARD = "cudnn_generated_fort_native_sdpa_sm90_flash_bprop"  # the longest kernel
ATTENTION = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop"
PRODUCT = "nvjet_sm90_tst_192x192_64x3_1x2_h_bz_coopB_NTN"
STEP_US = 250e3


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


def said(found):
    """The status by this rule; None if it says nothing."""
    decided = by_kernels(found)
    return decided and decided.status


def with_launch(found, side, number, **changes):
    """The comparison, with another launch."""
    one = getattr(found, side)
    launches = list(one.launches)
    launches[number] = replace(launches[number], **changes)
    return replace(found, **{side: replace(one, launches=tuple(launches))})


def with_profiles(found, changes, sides=("head", "base")):
    """The comparison, with other fields of counted profiles, or what a function makes of them."""
    for side in sides:
        one = getattr(found, side)
        known = one.counts.profile
        other = changes(known) if callable(changes) else replace(known, **changes)
        found = replace(found, **{side: replace(one, counts=replace(one.counts, profile=other))})
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
    decided = by_kernels(found)
    assert decided.low_pct < 0.171 < decided.high_pct < 0.3
    assert decided.p_value <= ALPHA and not wants_another_pair(found)
    verdict = judge(Question(pairs=found))
    assert (verdict.status, verdict.reason) == (Status.SLOWER, Reason.CHANGED_KERNELS)
    assert verdict.worst.limit_pct == 0.025 and GELU in headline(verdict)


def test_a_launch_that_ran_other_kernels_than_counted_decides_nothing():
    """A cold compiler chose another grid for three kernels in the first recorded launch."""
    counted, cold = profile(), profile(recorded.COLD)
    assert times_as_counted(counted, counted) == kernels()
    more = KernelRow("more", "more", "other", "forward", (1.0,) * 6, (1.0,) * 6)
    fewer = replace(counted.kernels[0], calls=(1.0,) * 6)
    for other in (
        cold,
        replace(counted, kernels=(*counted.kernels, more)),
        replace(counted, kernels=(fewer, *counted.kernels[1:])),
        replace(counted, incomplete=1),
        replace(counted, lost_share=0.001),
    ):
        assert times_as_counted(counted, other) == ()
    found = made({GELU: 0.3})
    us = found.head.launches[1].kernels_us
    for side in ("head", "base"):
        for lost in ((), us[:-1], (0.0, *us[1:]), (*us[:-1], math.nan)):
            assert said(with_launch(found, side, 1, kernels_us=lost)) is None


def test_evidence_keeps_the_kernels():
    """And is refused with a time that is none."""
    found = made({GELU: 0.3})
    assert from_json(to_json(found), "x") == found
    bad = with_launch(found, "head", 0, kernels_us=(-1.0,))
    with pytest.raises(ValueError, match="a kernel of -1.0 us"):
        from_json(to_json(bad), "x")


# constants, just inside and just outside


@pytest.mark.parametrize(("name", "pairs", "edge_pct", "inside", "outside"), [
    (GELU, 1, 0.571, None, Status.SLOWER),  # LARGE_PCT; it needs more of what scatters more
    (PRODUCT, 1, 0.641, None, Status.SLOWER),
    (BACKWARD, 1, 0.785, None, Status.SLOWER),
    (GELU, 2, 0.0864, None, Status.SLOWER),  # the ignore margin
    (GELU, 3, 0.0791, Status.SAME, Status.SLOWER),
    (GELU, 4, 0.0736, Status.SAME, Status.SLOWER),
    (GELU, 2, -0.0874, None, Status.FASTER),
    (GELU, 4, -0.0729, Status.SAME, Status.FASTER),
    (ATTENTION, 2, 0.1435, None, Status.SLOWER),
    (ATTENTION, 2, -0.1376, None, Status.FASTER),
    (ATTENTION, 3, 0.0735, Status.SAME, None),  # the matter margin
    (ATTENTION, 3, -0.0745, Status.SAME, None),
    (ATTENTION, 4, 0.0832, Status.SAME, None),
    (ATTENTION, 4, 0.0919, None, Status.SLOWER),
    (PRODUCT, 3, 0.0635, Status.SAME, None),
    (PRODUCT, 3, 0.1241, None, Status.SLOWER),
])  # fmt: skip
def test_what_a_kernel_may_take_longer(name, pairs, edge_pct, inside, outside):
    """In percent of a step. Its class says how it scatters, so how many pairs tell it from noise.
    Half of it is the step's, which is compared with 0.025 and 0.125 %; one pair's, with 0.25 %.
    """
    assert (KERNEL_MARGINS, LARGE_PCT) == (Margins(0.025, 0.125), 0.25)
    for factor, status in ((0.97, inside), (1.03, outside)):
        found = made({name: factor * edge_pct}, pairs=pairs, edit=(name,))
        assert said(found) is status
        assert wants_another_pair(found) is (status is None and pairs < PROFILED_PAIRS)


@pytest.mark.parametrize(("pairs", "slower", "faster", "same"), [
    (0, None, None, None),
    (1, Status.SLOWER, None, None),
    (2, Status.SLOWER, Status.FASTER, None),
    (3, Status.SLOWER, Status.FASTER, Status.SAME),
    (4, Status.SLOWER, Status.FASTER, Status.SAME),
    (5, None, None, None),
])  # fmt: skip
def test_up_to_four_pairs_decide(pairs, slower, faster, same):
    """One says SLOWER alone, if it is large, and two say no `same`. Of later ones none is profiled:
    the plan has them.
    """
    assert SAME_PAIRS == 3
    for pct, status in ((2.2, slower), (-2.2, faster), (0.0, same)):
        found = made({GELU: pct}, pairs=pairs)
        assert said(found) is status and wants_profiles(found) is (pairs < PROFILED_PAIRS)


@pytest.mark.parametrize("pairs", [1, 2, 3, 4])
@pytest.mark.parametrize(("longer_pct", "sds", "status"), [
    (1.0, -0.99, Status.SLOWER),
    (1.0, -1.01, None),
    (1.0, 3.0, Status.SLOWER),  # even slower
    (-0.5, -0.99, Status.FASTER),
    (-0.5, 0.99, Status.FASTER),
    (-0.5, -1.01, None),
    (-0.5, 1.01, None),
    (0.0, 0.99, Status.SAME),
    (0.0, 1.01, None),
])  # fmt: skip
def test_what_is_left_of_the_steps(pairs, longer_pct, sds, status):
    """The steps take longer by all that the kernels do, or half: within two standard deviations. A
    slowdown may be larger.
    """
    assert (STEP_SDS, POWER_SHARE) == (2.0, 0.5)
    kernels_log = math.log1p(longer_pct / 100)
    least, most = sorted((POWER_SHARE * kernels_log, kernels_log))
    left = sds * STEP_SDS * PRIOR.sd_pct / 100 / math.sqrt(pairs)
    step_pct = 100 * math.expm1(left + (most if sds > 0 else least))
    found = made({GELU: longer_pct}, pairs=pairs, step_pct=step_pct)
    least = {Status.FASTER: LEAST_PAIRS, Status.SAME: SAME_PAIRS}.get(status, 1)
    assert said(found) is (status if pairs >= least else None)


COPIES_US = KERNEL_MARGINS.ignore_pct / 100 * profile().parts.step_us[0]


@pytest.mark.parametrize("side", ["head", "base"])
@pytest.mark.parametrize(("share", "why"), [(0.99, ""), (1.01, "copies differ")])
def test_a_copy_more_or_less_is_left_to_the_plan(side, share, why):
    """A kernel may do a copy's work: it takes longer, and the step does not."""
    copies = with_parts(profile(), exposed_copies=share * COPIES_US).parts
    found = with_profiles(made({GELU: 0.3}), {"parts": copies}, (side,))
    assert why_not_judged(found) == why
    assert said(found) is (None if why else Status.SLOWER)
    assert wants_profiles(found) is (why == "")


@pytest.mark.parametrize("pairs", [1, 2, 4])
def test_ranks_that_exchange_are_left_to_the_plan(pairs):
    """The exchange may move from beside some kernels to beside others, and the mean over ranks may
    hide what one of them lost. One rank that communicates is judged like several.
    """
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    row = KernelRow(name, name, "communication", "backward", (14.0,) * 6, (9e3,) * 6)
    alone = made({GELU: 1.2}, pairs=pairs)
    exchanging = with_profiles(alone, lambda one: replace(one, kernels=(row, *one.kernels)))
    assert said(alone) is Status.SLOWER
    for found in (with_case(alone, world_size=2), exchanging):
        assert why_not_judged(found) == "ranks exchange"
        assert by_kernels(found) is None and not wants_profiles(found)


IDLE_US, ALL_US = IDLE_SHARE * profile().parts.step_us[0], sum(kernels()) / OVERLAP


@pytest.mark.parametrize("side", ["head", "base"])
@pytest.mark.parametrize(("inside", "outside", "why"), [
    ({"idle_us": 0.99 * IDLE_US}, {"idle_us": 1.01 * IDLE_US}, "a GPU is idle for 3.0 % of a step"),
    ({"compute_us": 1.001 * ALL_US}, {"compute_us": 0.999 * ALL_US}, "kernels overlap"),
    ({}, {"step_us": 0.0, "idle_us": 0.0}, "a profile has no step"),
])  # fmt: skip
def test_the_gpu_bounds_the_step_and_kernels_follow_each_other(side, inside, outside, why):
    """On either side, by the counted profile."""
    assert (IDLE_SHARE, OVERLAP) == (0.03, 1.005)
    found = []
    for parts in (inside, outside):
        us = {name: (each,) * 6 for name, each in parts.items()}
        parts = replace(profile().parts, **us)
        found.append(with_profiles(made({GELU: 0.3}), {"parts": parts}, (side,)))
    assert [why_not_judged(one) for one in found] == ["", why]
    assert [said(one) for one in found] == [Status.SLOWER, None]
    assert [wants_profiles(one) for one in found] == [True, False]


def test_most_of_the_time_must_be_in_equal_kernels():
    """The longest kernels are edited, one after the other, until half of the time is left."""
    rows = sorted(profile().kernels, key=lambda row: -row.us[0])
    total, changed_us = sum(row.us[0] for row in rows), 0.0
    for count in range(1, len(rows)):
        changed_us += rows[count - 1].us[0]
        few = {row.key for row in rows[:count]}
        changed = (
            replace(row, code="edited") if row.key in few else row for row in profile().kernels
        )
        wanted = "" if 1 - changed_us / total >= EQUAL_SHARE else "most kernels differ"
        assert why_not_judged(made(head=replace(profile(), kernels=tuple(changed)))) == wanted
        if wanted:
            break
    assert 5 < count < 20 and EQUAL_SHARE == 0.5
    us = 1.01 * total  # a kernel more that takes most of HEAD's time, or of the base's
    more = KernelRow("slow", "slow", "other", "forward", (1.0,) * 6, (us,) * 6)
    other = with_parts(profile(), step=us, compute=us)
    other = replace(other, kernels=(*other.kernels, more))
    for head, base in ((other, profile()), (profile(), other)):
        assert why_not_judged(made(head=head, base=base)) == "most kernels differ"


@pytest.mark.parametrize(("margins", "used", "status"), [
    ((0.2, 0.5), (0.025, 0.125), Status.SLOWER),
    ((0.1, 0.5), (0.025, 0.125), Status.SLOWER),
    ((0.2, 1.3), (0.025, 0.125), Status.SLOWER),
    ((1.0, 3.0), (1.0, 3.0), Status.SAME),  # its user ignores 1 %
    ((0.02, 0.5), (0.02, 0.5), Status.SLOWER),
])  # fmt: skip
def test_margins_follow_from_the_cases(margins, used, status):
    """What a case ignores passes. A case that ignores more than usual does so here, too; so one
    pair says nothing of what is large elsewhere.
    """
    found = with_margins(made({GELU: 0.3}, pairs=SAME_PAIRS), *margins)
    decided = by_kernels(found)
    assert (margins_of(found, decided), decided.status) == (Margins(*used), status)
    one = said(with_margins(made({GELU: 1.0}, pairs=1), *margins))
    assert one is (Status.SLOWER if status is Status.SLOWER else None)


def test_a_case_among_many_needs_more_proof():
    """Its level is stricter. Kernels that take a fifth of the step scatter by too much for it."""
    head = edited(profile(), "nvjet_sm90_tst_192x192")
    for pct, alpha, status in (
        (1.3, ALPHA, Status.SLOWER), (1.3, ALPHA / 20, None), (1.7, ALPHA / 20, Status.SLOWER),
    ):  # fmt: skip
        assert said(made({PRODUCT: pct}, pairs=1, head=head, alpha=alpha)) is status


# what a change may be


@pytest.mark.parametrize(("us", "status"), [(50.0, Status.SAME), (375.0, Status.SLOWER)])
def test_a_kernel_more_counts_with_all_its_time(us, status):
    """0.02 % of a step is ignored, 0.15 % is not. One that only moved to another phase is same."""
    more = KernelRow("triton_poi_fused_clone_99", "triton_poi_fused_clone", "Triton", "forward",
                     (12.0,) * 6, (us,) * 6, code="new")  # fmt: skip
    head = with_parts(profile(), step=us, compute=us)
    head = replace(head, kernels=(*head.kernels, more))
    assert said(made(pairs=SAME_PAIRS, head=head, step_pct=100 * us / STEP_US)) is status
    gone = made(pairs=SAME_PAIRS, head=profile(), base=head, step_pct=-100 * us / STEP_US)
    assert said(gone) is (Status.FASTER if status is Status.SLOWER else Status.SAME)
    rows = (replace(row, phase="x") if row.name == GELU else row for row in profile().kernels)
    moved = made(pairs=SAME_PAIRS, head=replace(profile(), kernels=tuple(rows)))
    assert said(moved) is Status.SAME


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


def test_where_kernels_are_not_judged():
    """Launches one after the other, a CPU, a case whose time is not judged, half a profile."""
    found = made({GELU: 0.3})
    assert wants_profiles(found)
    assert why_not_judged(replace(found, together=False)) and why_not_judged(
        with_case(found, device="cpu")
    )
    assert not wants_profiles(replace(found, head=replace(found.head, gates=("graph_breaks",))))
    for side in ("head", "base"):
        lost = replace(found, **{side: replace(getattr(found, side), counts=None)})
        for one in (lost, with_profiles(found, {"incomplete": 1}, (side,))):
            assert why_not_judged(one) == "a profile is not whole"


# what the verdict says


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
    decided = by_kernels(made({GELU: kernels_pct}, step_pct=step_pct))
    assert decided.estimate_pct == pytest.approx(estimate_pct, abs=0.006)
    assert decided.low_pct < decided.estimate_pct < decided.high_pct


@pytest.mark.parametrize(("pct", "step_pct", "paid"), [
    (-0.15, -0.15, False), (-0.5, -0.5, True), (-0.6, -0.1, False), (-0.6, -0.21, True),
])  # fmt: skip
def test_a_small_gain_pays_for_no_price(pct, step_pct, paid):
    """One that the step's margin ignores is FASTER, but a graph break more still fails. The gain of
    the kernels is not enough if the steps are not as fast: the break may take up the rest.
    """
    found = made({GELU: pct}, step_pct=step_pct)
    counts = found.head.counts
    breaks = {"graph_breaks": counts.values["graph_breaks"] + 1}
    head = replace(found.head, counts=replace(counts, values=counts.values | breaks))
    assert said(found) is Status.FASTER and judge(Question(pairs=found)).status is Status.FASTER
    verdict = judge(Question(pairs=replace(found, head=head)))
    assert verdict.status is (Status.FASTER if paid else Status.CHANGED)


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
    verdict = judge(Question(pairs=made(pairs=pairs, step_pct=0.6, head=head, base=base)))
    assert verdict.status is Status.SLOWER
    assert any(cause.what == GELU for cause in verdict.explanation.causes) is named
    assert (headline(verdict).endswith(GELU)) is named


def test_a_kernel_that_differs_and_takes_as_long_is_not_named():
    """The counted profiles show it longer, and the profiles of the pairs do not."""
    other = next(row.name for row in profile().kernels if row.name.startswith(GELU_BACKWARD))
    found = made({GELU: 0.3}, edit=(GELU, other), step_pct=0.3)
    found = with_profiles(found, lambda known: scattered(known, other))
    found = with_profiles(found, lambda known: recorded.longer(known, other, 250.0), ("head",))
    verdict = judge(Question(pairs=found))
    assert verdict.reason is Reason.CHANGED_KERNELS and verdict.status is Status.SLOWER
    assert other not in [cause.what for cause in verdict.explanation.causes]
