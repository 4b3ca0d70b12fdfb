"""Planted causes are named first, the sum always closes, and scatter between steps is no cause."""

import random

import pytest
from builders import PROPERTY, replace
from hypothesis import given
from hypothesis import strategies as st

from stepguard.core.explanation import Kind, Unlike
from stepguard.core.profile import (
    OTHERS,
    IdleRow,
    KernelRow,
    Parts,
    Profile,
    Work,
    added,
    bounded,
    over_ranks,
)
from stepguard.explain.causes import explain
from stepguard.explain.match_kernels import How, match
from stepguard.trace.kernel_classes import usual_classes

ANONYMOUS = "void at::native::(anonymous namespace)::"
STEPS = 3
# class, phase, kernels, launches of each a step, us of each launch
WORKLOAD = (("GEMM", "forward", 6, 24, 150.0), ("GEMM", "backward", 8, 24, 180.0),
            ("Triton", "forward", 6, 12, 60.0), ("Triton", "backward", 6, 12, 70.0),
            ("attention", "forward", 1, 12, 450.0), ("attention", "backward", 2, 12, 500.0),
            ("optimizer", "optimizer", 6, 4, 40.0))  # fmt: skip


def row(name, kind, phase, calls, us, **more):
    """A row that launches ``calls`` kernels of ``us`` in every step."""
    numbers = (float(calls),) * STEPS
    return KernelRow(
        name, more.pop("canonical", name), kind, phase, numbers, (calls * us,) * STEPS, **more
    )


def rows():
    """The kernels of the workload."""
    return [
        row(f"{kind}_{phase}_{i}", kind, phase, calls, us * (1 + i / 9), operator=f"aten::{kind}")
        for kind, phase, count, calls, us in WORKLOAD
        for i in range(count)
    ]


def profile(kernels=None, idle=(), seed=1, pace=1.0, communication=900.0, **more):
    """A profile whose classes wander by 1.5 % from step to step, and whose kernels by 0.3 %."""
    rng = random.Random(seed)
    kernels = rows() if kernels is None else kernels
    kinds = sorted({one.kind for one in kernels})
    wander = {kind: [pace * rng.gauss(1, 0.015) for _ in range(STEPS)] for kind in kinds}
    noisy = [
        replace(
            one,
            us=tuple(us * wander[one.kind][i] * rng.gauss(1, 0.003) for i, us in enumerate(one.us)),
        )
        for one in kernels
    ]
    gaps = [IdleRow("between kernels", "", "", (900.0,) * STEPS, (1200.0, 1210.0, 1190.0)), *idle]
    compute = added([one.us for one in noisy])
    waits = added([one.us for one in gaps])
    exchange = tuple(communication * rng.gauss(1, 0.1) for _ in range(STEPS))
    copies = (300.0,) * STEPS
    parts = Parts(added([compute, exchange, copies, waits]), compute, exchange, copies, waits)
    return Profile("NVIDIA H200", 1, parts, tuple(noisy), tuple(gaps), **more)


def first_step(found, steps=1):
    """The profile with its first step, or steps, alone."""
    cut = lambda one: replace(  # noqa: E731
        one, **{key: getattr(one, key)[:steps] for key in one.__dataclass_fields__
                if key in ("calls", "us", "count") or key.endswith("_us") and key != "begin_us"}
    )  # fmt: skip
    kernels, idle = (tuple(map(cut, rows)) for rows in (found.kernels, found.idle))
    return replace(found, parts=cut(found.parts), kernels=kernels, idle=idle)


@pytest.mark.parametrize("alone", [(True, True), (True, False), (False, True)])
def test_of_one_step_every_difference_is_a_cause(alone):
    """How much steps differ is not known, so nothing is called scatter: 50 ms come first."""
    late = IdleRow("host late", "", "forward", (1.0,) * STEPS, (50_000.0,) * STEPS)
    sides = profile(), profile(idle=[late], seed=2)
    before, after = (first_step(s) if one else s for s, one in zip(sides, alone, strict=True))
    found = explain(before, after)
    assert not found.scatter_known and explain(*sides).scatter_known
    first = found.causes[0]
    assert (first.kind, first.what, first.us) == (Kind.IDLE, "host late", 50_000)
    assert found.explained_us + found.scatter_us == pytest.approx(found.change_us)
    assert abs(found.scatter_us) <= len(found.scatter_parts) * 60  # of at most 1 us each
    assert found.causes == tuple(sorted(found.causes, key=lambda one: -abs(one.us)))


@pytest.mark.parametrize("seed", [2, 3, 4])
def test_of_two_steps_half_a_step_is_a_cause(seed):
    """Waits of 2 ms in a step of 4, which scatter by a quarter of it: all steps of one side wait
    longer than any of the other, and by a good part of the step. A smaller one is still scatter.
    """
    kernels = [row("gemm", "GEMM", "forward", 10, 150.0)]

    def side(seed, *waits):
        late = IdleRow("host late", "", "forward", (1.0,) * STEPS, (*waits, 0.0))
        return first_step(profile(kernels, idle=[late], seed=seed, communication=0.0), steps=2)

    before, after = side(1, 500.0, 900.0), side(seed, 2400.0, 3100.0)
    for sides, us in (((before, after), 2050), ((after, before), -2050)):
        first = explain(*sides).causes[0]
        assert (first.kind, first.what, first.us) == (Kind.IDLE, "host late", us)
    overlapping = side(seed, 800.0, 4700.0)
    assert explain(before, overlapping).causes == ()
    assert explain(before, side(seed, 910.0, 1500.0)).causes == ()


def without(*names):
    """The workload's kernels but these."""
    left = [one for one in rows() if one.name not in names]
    assert len(left) == len(rows()) - len(names)
    return left


def changed(name, **fields):
    """The workload with one kernel changed."""
    return [replace(one, **fields) if one.name == name else one for one in rows()]


SYNC = IdleRow("sync", "cudaStreamSynchronize", "model.py(7): step", (1.0,) * STEPS, (600.0,) * 3)
COPY = IdleRow("sync", "cudaMemcpyAsync", "aten::copy_", (2.0,) * STEPS, (900.0,) * STEPS)
# what is planted -> the later side, the first cause's kind, a word of what or of its names
PLANTED = {
    "math attention": (
        lambda: profile([
            *without("attention_forward_0"),
            row("softmax_warp_forward", "softmax", "forward", 12, 700, operator="aten::attention"),
            row("gemm_qk", "GEMM", "forward", 12, 400, operator="aten::attention"),
        ]),
        Kind.REPLACED, "softmax_warp_forward",
    ),
    "math attention, compiled": (
        lambda: profile([
            *without("attention_forward_0", "Triton_forward_0"),
            row("triton_per_fused_softmax_7", "Triton", "forward", 12, 700),
            row("triton_poi_fused_view_8", "Triton", "forward", 12, 62),
            row("gemm_qk", "GEMM", "forward", 24, 300, operator="aten::bmm"),
        ]),
        Kind.REPLACED, "triton_per_fused_softmax_7",
    ),
    "fp32 products": (
        lambda: profile([one for one in rows() if one.kind != "GEMM"] + [
            row(f"sgemm_{one.name}", "GEMM", one.phase, one.calls[0], 2 * one.us[0] / one.calls[0],
                operator=one.operator)
            for one in rows() if one.kind == "GEMM"
        ]),
        Kind.REPLACED, "sgemm_GEMM",
    ),
    "unfused optimizer": (
        lambda: profile([one for one in rows() if one.kind != "optimizer"] + [
            row(f"pointwise_{i}", "optimizer", "optimizer", 148, 8) for i in range(6)
        ]),
        Kind.REPLACED, "pointwise",
    ),
    "a clone in every block": (
        lambda: profile([*rows(), row("copy_kernel", "elementwise", "forward", 12, 80)]),
        Kind.ADDED, "copy_kernel",
    ),
    "attention gone from the forward pass": (
        lambda: profile(without("attention_forward_0")), Kind.REMOVED, "attention_forward_0",
    ),
    "a graph break": (
        lambda: profile([*without("Triton_forward_0"), *(
            row(f"triton_poi_fused_part_{i}", "Triton", "forward", 12, 50) for i in range(3)
        )]),
        Kind.REPLACED, "triton_poi_fused_part",
    ),
    "a sync": (lambda: profile(idle=[SYNC]), Kind.IDLE, "cudaStreamSynchronize"),
    "a pageable copy": (lambda: profile(idle=[COPY]), Kind.IDLE, "cudaMemcpyAsync"),
    "small buckets": (
        lambda: profile(communication=4000.0), Kind.COMMUNICATION, "exposed communication",
    ),
    "another activation": (
        lambda: profile([*without("Triton_forward_5"),
                         row("triton_poi_fused_erf_1", "Triton", "forward", 12, 160)]),
        Kind.REPLACED, "triton_poi_fused_erf_1",
    ),
    "a changed shape": (
        lambda: profile(changed("GEMM_backward_3", grid=(2, 67, 1), us=(9000.0,) * STEPS)),
        Kind.SHAPE, "GEMM_backward_3",
    ),
    "more launches": (
        lambda: profile(changed("GEMM_forward_1", calls=(36.0,) * 3, us=(6000.0,) * STEPS)),
        Kind.CALLS, "GEMM_forward_1",
    ),
    "slower launches": (
        lambda: profile(changed("GEMM_forward_1", us=(4600.0,) * STEPS)),
        Kind.TIME, "GEMM_forward_1",
    ),
    "a slower clock": (lambda: profile(pace=1.09), Kind.CLOCK, "clock"),
}  # fmt: skip


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_what_is_planted_comes_first(planted, seed):
    """Against another profile of the same steps, which scatter by more than most of these cost."""
    make, kind, word = PLANTED[planted]
    before, after = profile(seed=seed + 10), make()
    found = explain(before, after)
    first = found.causes[0]
    assert first.kind == kind
    assert any(word in name for name in (first.what, *first.after.names))
    assert found.explained_us + found.scatter_us == pytest.approx(found.change_us)
    others = [cause for cause in found.causes[1:] if abs(cause.us) > abs(first.us) / 10]
    assert {cause.kind for cause in others} <= {kind}


@pytest.mark.parametrize("seed", range(20))
def test_scatter_is_no_cause(seed):
    """Two profiles of one program: steps differ by per cents, and nothing is blamed. The parts of
    the scatter add up to it.
    """
    found = explain(profile(seed=seed), profile(seed=seed + 100))
    assert found.causes == ()
    assert found.scatter_us == pytest.approx(found.change_us)
    assert sum(us for _, us in found.scatter_parts) == pytest.approx(found.scatter_us)


SERIES = st.tuples(*[st.floats(0, 1e4)] * 2)
ROW = st.builds(KernelRow, name=st.sampled_from("abc"), canonical=st.just("x"),
                kind=st.sampled_from(["GEMM", "Triton", "communication"]),
                phase=st.sampled_from(["", "forward"]),
                calls=st.tuples(*[st.integers(0, 9).map(float)] * 2), us=SERIES,
                operator=st.sampled_from(["", "aten::mm"]))  # fmt: skip
GAP = st.builds(
    IdleRow, st.sampled_from(["sync", "host late"]), st.sampled_from("xy"), st.just(""),
    SERIES, SERIES,
)  # fmt: skip


@st.composite
def profiles(draw):
    """Any profile whose identity closes."""
    kernels = draw(st.lists(ROW, max_size=8, unique_by=lambda row: (row.name, row.phase)))
    idle = draw(st.lists(GAP, max_size=3, unique_by=lambda row: (row.cause, row.call)))
    exchange, copies, compute = draw(SERIES), draw(SERIES), draw(SERIES)
    waits = added([row.us for row in idle]) if idle else (0.0, 0.0)
    parts = Parts(added([compute, exchange, copies, waits]), compute, exchange, copies, waits)
    return Profile("", 1, parts, tuple(kernels), tuple(idle))


@given(profiles(), profiles())
@PROPERTY
def test_the_sum_closes_and_every_row_is_in_one_match(before, after):
    """Causes and scatter are the difference, whatever the profiles hold; or they are refused.
    Nothing counts twice, nothing is forgotten.
    """
    found = explain(before, after)
    if not found.refused:
        assert found.change_us == pytest.approx(
            sum(after.parts.step_us) / 2 - sum(before.parts.step_us) / 2
        )
        assert found.explained_us + found.scatter_us == pytest.approx(found.change_us, abs=1e-4)
    found = match(before.kernels, after.kernels)
    for side, rows_of_side in (("before", before.kernels), ("after", after.kernels)):
        matched = [row for one in found for row in getattr(one, side)]
        assert sorted(map(id, matched)) == sorted(map(id, rows_of_side))
    assert all(one.how == How.ALONE or (one.before and one.after) for one in found)


@pytest.mark.parametrize(("factor", "kinds"), [(1.0, []), (1.5, [Kind.TIME])])
def test_a_kernel_with_another_number_is_compared_with_itself(factor, kinds):
    """The compiler numbers its kernels anew. The number alone is no cause, and a kernel that got
    slower is slower, not replaced.
    """
    us = 12 * 65.0

    def side(number, longer, seed):
        gelu = row(f"triton_poi_gelu_{number}", "Triton", "forward", 12, us * longer / 12,
                   canonical="triton_poi_gelu")  # fmt: skip
        return profile([*rows(), gelu], seed=seed)

    found = explain(side(3, 1.0, seed=1), side(4, factor, seed=7))
    assert [cause.kind for cause in found.causes] == kinds
    assert all(cause.what == "triton_poi_gelu_4" for cause in found.causes)


@pytest.mark.parametrize(("gone", "kinds"), [(11, [Kind.MOVED]), (10, [Kind.CALLS] * 2)])
def test_what_nearly_cancels_is_moved(gone, kinds):
    """16 launches came and 11 went: the net change is 19 % of both, at most 20 % is a move. With
    10 that went it is 23 %: two causes.
    """
    moved = {"GEMM_forward_1": 16, "GEMM_forward_2": -gone}

    def side(seed, more):
        kernels = [
            replace(one, calls=(24.0 + more * moved[one.name],) * STEPS,
                    us=(170.0 * (24 + more * moved[one.name]),) * STEPS)
            if one.name in moved else one
            for one in rows()
        ]  # fmt: skip
        return profile(kernels, seed=seed)

    causes = explain(side(1, 0), side(5, 1)).causes
    assert [cause.kind for cause in causes] == kinds
    for cause in causes:  # its figures have its sign
        assert cause.after.us - cause.before.us == pytest.approx(cause.us, rel=0.1)


def test_a_kernel_in_another_phase_is_moved():
    """It is neither gone here nor added there."""
    elsewhere = changed("Triton_forward_2", phase="backward")
    (other,) = [one for one in match(rows(), elsewhere) if one.how != How.SAME]
    assert (other.how, other.after[0].name) == (How.MOVED, "Triton_forward_2")


def test_a_replacement_is_at_the_operator_that_came():
    """Of a kernel that some launches still have; the one that they had is the longer one."""
    name = "attention_forward_0"
    (old,) = (one for one in rows() if one.name == name)
    fewer = replace(old, calls=(10.0,) * STEPS, us=tuple(us * 10 / 12 for us in old.us))
    fmha = row("fmha_cutlassF", "attention", "forward", 2, 2000, operator="aten::_efficient")
    (cause,) = explain(profile(), profile([*without(name), fewer, fmha], seed=7)).causes
    assert (cause.kind, cause.what, cause.place) == (Kind.REPLACED, name, "aten::_efficient")


@pytest.mark.parametrize(("flops", "kind"), [(1e9, Kind.TIME), (1.25e9, Kind.SHAPE)])
def test_a_launch_of_more_work_is_another_shape(flops, kind):
    """And none of the slower ones, where the grid is what it was."""
    name = "GEMM_forward_1"
    before = changed(name, work=Work(1e9))
    us = next(row.us for row in rows() if row.name == name)
    slower = changed(name, work=Work(flops), us=tuple(1.25 * one for one in us))
    (cause,) = explain(profile(before), profile(slower, seed=7)).causes
    assert (cause.kind, cause.what) == (kind, name)


def test_more_and_slower_launches_are_two_causes():
    """Twice as many, each a quarter longer: the figures of each differ by what it makes."""
    name = "GEMM_forward_1"
    (one,) = (row for row in rows() if row.name == name)
    more = tuple(2 * calls for calls in one.calls)
    after = changed(name, calls=more, us=tuple(2.5 * us for us in one.us))
    causes = explain(profile(), profile(after)).causes
    assert [(cause.kind, cause.what) for cause in causes] == [
        (Kind.CALLS, name),
        (Kind.TIME, name),
    ]
    for cause in causes:
        assert cause.after.us - cause.before.us == pytest.approx(cause.us, rel=0.05)


def test_a_profile_that_knows_no_products_beside_one_that_does():
    """As a kept one, or of a file without shapes: the same kernels, and nothing got slower."""
    whole = [one for one in rows() if one.kind == "GEMM"]
    split = [
        replace(one, calls=(12.0,) * STEPS, us=tuple(part * us for us in one.us), work=Work(part))
        for one in whole
        for part in (0.25, 0.75)
    ]
    for before, after in ((whole, split), (split, whole)):
        assert not explain(profile(before), profile(after, seed=7)).causes


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("triton_poi_fused_gelu_view_9", "triton_poi_fused_gelu_view_10", True),
        ("triton_poi_fused_9", "triton_poi_fused_10", True),  # of no operator that it knows
        ("triton_poi_fused_9", "triton_poi_fused_view_9", False),
        ("nvjet_sm90_tst_256x128_64x4_h_NNT", "nvjet_sm90_tst_192x192_64x3_h_NTN", True),
        ("nvjet_sm90_tst_256x128_64x4_h_NNT", "nvjet_sm90_sss_256x128_64x4_h_NNT", False),
        (f"{ANONYMOUS}multi_tensor_apply_kernel<L<4>, FusedAdamMathFunctor<float>>(L<4>)",
         f"{ANONYMOUS}multi_tensor_apply_kernel<L<2>, LpNormFunctor<float>>(L<2>)", False),
        (f"{ANONYMOUS}softmax_warp_forward<float, 8>(float*)",
         f"{ANONYMOUS}softmax_warp_forward<float, 9>(float*)", True),
        (f"{ANONYMOUS}softmax_warp_forward<float>(float*)",
         f"{ANONYMOUS}indexing_backward_kernel<float>(float*)", False),
    ],
)  # fmt: skip
def test_another_build_of_a_kernel_is_told_from_another_kernel(one, other, same):
    """Numbers, tiles and arguments differ from build to build; operators, data types and functors
    are other work.
    """
    canonical = usual_classes().canonical_name
    assert (canonical(one) == canonical(other)) is same


@pytest.mark.parametrize("seed", range(5))
def test_a_side_without_phases_has_moved_nothing(seed):
    """Nor one that calls them otherwise: what else changed is still the cause."""
    bare = [replace(one, phase="") for one in rows()]
    other = [replace(one, phase=f"mine/{one.phase}") for one in rows()]
    for kernels in (bare, other):
        found = explain(profile(), profile(kernels, seed=seed + 2))
        assert found.causes == ()
        assert found.scatter_us == pytest.approx(found.change_us)
    slower = [
        replace(one, us=tuple(2 * us for us in one.us)) if one.name == "GEMM_forward_1" else one
        for one in bare
    ]
    (cause, *_) = explain(profile(), profile(slower, seed=seed + 2)).causes
    assert (cause.kind, cause.what) == (Kind.TIME, "GEMM_forward_1")


def test_one_class_alone_is_not_the_clock():
    """A clock moves several: of one class that slows the class is the cause."""
    only_gemm = [
        replace(one, us=tuple(us * 1.2 for us in one.us)) if one.kind == "GEMM" else one
        for one in rows()
    ]
    before, after = profile(), profile(only_gemm, seed=3)
    assert explain(before, after).causes[0].what == "all GEMM kernels"


@pytest.mark.parametrize("change, reason", [
    ({"gpu": "NVIDIA H100"}, Unlike.GPU),
    ({"ranks": 4}, Unlike.RANKS),
    ({"lost_share": 0.06}, Unlike.LOST),
    ({"parts": Parts((), (), (), (), ()), "kernels": (), "idle": ()}, Unlike.NO_STEPS),
    ({"kernels": (row("x", "other", "", 1, 1e5),)}, Unlike.FOREIGN),
])  # fmt: skip
def test_what_cannot_be_compared_is_refused(change, reason):
    """First of all, with its reason; no cause is named."""
    found = explain(profile(), replace(profile(seed=2), **change))
    assert [one.reason for one in found.refused] == [reason]
    assert found.causes == ()


def test_the_same_program_on_a_slower_gpu_is_compared():
    """Its kernels take the same shares of a step."""
    slower = [replace(one, us=tuple(us * 4 for us in one.us)) for one in rows()]
    assert not explain(profile(), profile(slower, seed=3)).refused


def test_calls_and_software_that_changed_are_said():
    """Counts are exact evidence; those that vary from step to step are none."""
    calls = {"cudaDeviceSynchronize": (1.0,) * 3, "cudaEventQuery": (3.0, 4.0, 5.0)}
    after = profile(seed=2, calls=calls, software=(("cuda", "13"),))
    found = explain(profile(software=(("cuda", "12"),)), after)
    assert found.calls == (("cudaDeviceSynchronize", 0.0, 1.0),)
    assert found.software == (("cuda", "12", "13"),)


@given(st.integers(0, 40), st.integers(0, 40))
@PROPERTY
def test_a_bounded_profile_has_all_time(most, again):
    """Each class in each phase has the time that it had, and a kernel that is named stands alone;
    bounded twice it is as bounded once, by the smaller number.
    """
    whole = profile(rows())
    found = bounded(whole, most)
    for one in (found, bounded(found, again)):
        for kind, phase in {(row.kind, row.phase) for row in whole.kernels}:
            alike = [
                sum(sum(row.us) for row in side.kernels if (row.kind, row.phase) == (kind, phase))
                for side in (whole, one)
            ]
            assert alike[1] == pytest.approx(alike[0])
    named = {row.name for row in found.kernels if not row.name.startswith(OTHERS)}
    assert len(named) == min(most, len(whole.kernels))
    smallest = min(whole.kernels, key=lambda row: sum(row.us))
    assert smallest in bounded(whole, 0, {smallest.key}).kernels


def test_the_mean_over_ranks():
    """Step by step; what one rank lacks counts as nothing there."""
    one = profile(idle=[SYNC])
    both = over_ranks([one, replace(one, idle=one.idle[:1], kernels=one.kernels[1:])])
    assert [row.us for row in both.idle] == [one.idle[0].us, (300.0,) * 3]
    assert both.kernels[0].us == tuple(us / 2 for us in one.kernels[0].us)
    assert both.parts == one.parts
    # A step that any rank left out is one that is not known whole.
    assert over_ranks([one, replace(one, incomplete=3)]).incomplete == 3
