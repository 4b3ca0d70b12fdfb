"""Kernels that differ are told from equal ones, and the pace of the equal ones is taken out."""

import math

import numpy as np
import pytest
from builders import replace

from stepguard.core.profile import KernelRow, MachineCode, Work
from stepguard.explain.match_kernels import How, Match
from stepguard.judge import kernel_times
from stepguard.judge.kernel_times import LEAST_SHARE, Matched

STEP_US, STEPS = 270_000.0, 6
GELU = "triton_poi_fused_gelu_view"
NORM = "triton_per_fused_norm_10"
# Name, class, launches and share of a step in percent: about those of the 124M step.
STEP = (("nvjet_NNN", "GEMM", 98, 18.0), ("nvjet_TNN", "GEMM", 96, 12.6),
        ("sdpa_bprop", "attention", 24, 8.8), ("sdpa_fprop", "attention", 24, 3.1),
        (f"{GELU}_9", "Triton", 24, 2.6), (NORM, "Triton", 46, 4.7),
        ("triton_red_fused_loss_11", "Triton", 2, 3.6))  # fmt: skip


def kernel(name, kind, calls, us, code="c", grid=(8, 1, 1)):
    """A kernel that takes so many us in each step."""
    canonical = name.rstrip("0123456789").rstrip("_") if kind == "Triton" else name
    series = (float(calls),) * STEPS, (float(us),) * STEPS
    code = code if kind == "Triton" else ""
    return KernelRow(name, canonical, kind, "forward", *series, grid, (128, 1, 1), code=code)


def step(paces=None, longer=None):
    """The kernels of a step: classes at a pace, and names that take so many us longer."""
    paces, longer = paces or {}, longer or {}
    return tuple(
        kernel(name, kind, calls, share / 100 * STEP_US * paces.get(kind, 1) + longer.get(name, 0))
        for name, kind, calls, share in STEP
    )


def longer_pct(base, head, *names):
    """What the kernels of these names take longer, in percent of a step; of none, those that
    differ.
    """
    matched = Matched.of(base, head)
    times = matched.times(*(np.array([row.us[0] for row in side]) for side in (base, head)))
    named = [any(row.name in names for row in one.rows) for one in matched.matches]
    mine = np.array(named) if names else matched.changed
    return 100 * float(times.longer_us(mine, ~mine)) / STEP_US


@pytest.mark.parametrize("paces", [{}, {"GEMM": 1.03, "Triton": 0.99}, {"attention": 0.9}])
def test_a_difference_is_the_kernels_own(paces):
    """In percent of a step, whatever the pace of HEAD's classes is."""
    slow = step(paces, {NORM: paces.get("Triton", 1) * 0.002 * STEP_US})
    assert longer_pct(step(), step(paces), NORM) == pytest.approx(0.0, abs=1e-9)
    assert longer_pct(step(), slow, NORM) == pytest.approx(0.2, abs=1e-9)


def test_a_class_without_equal_kernels_has_the_pace_of_all():
    """Of attention nothing is left that did not change: everything else shows the pace."""
    paces = dict.fromkeys(("GEMM", "attention", "Triton"), 1.02)
    both = "sdpa_bprop", "sdpa_fprop"
    assert longer_pct(step(), step(paces), *both) == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(ValueError, match="no pace"):
        longer_pct(step(), step(), *(row[0] for row in STEP))


@pytest.mark.parametrize(("factor", "own"), [(1.01, True), (0.99, False)])
def test_a_class_has_a_pace_of_its_own_if_it_has_enough_time(factor, own):
    """LEAST_SHARE of all kernels' time: otherwise all equal kernels show it."""
    others = sum(row[3] for row in STEP if row[1] != "attention") / 100 * STEP_US
    rest = others + kernel("sdpa_bprop", "attention", 24, 20_000.0).us[0]
    few = factor * LEAST_SHARE / (1 - factor * LEAST_SHARE) * rest

    def side(pace):
        most = [row for row in step() if row.kind != "attention"]
        attention = kernel("sdpa_bprop", "attention", 24, pace * 20_000.0)
        return (*most, attention, kernel("sdpa_fprop", "attention", 24, pace * few))

    found = longer_pct(side(1.0), side(1.1), "sdpa_bprop")
    assert (found == pytest.approx(0.0, abs=1e-9)) is own


@pytest.mark.parametrize(("head", "differs"), [
    ((GELU + "_9", "Triton", 24, 100.0), ""),
    ((GELU + "_10", "Triton", 24, 200.0, "renumbered"), ""),
    ((GELU + "_9", "Triton", 24, 100.0, "edited"), "code"),
    ((GELU + "_9", "Triton", 22, 100.0), "launches 24 -> 22"),
    ((GELU + "_9", "Triton", 24, 100.0, "c", (9, 1, 1)), "shape"),
])  # fmt: skip
def test_what_counts_as_another_kernel(head, differs):
    """The compiler's number does not, and time alone does not."""
    base = kernel(GELU + "_9", "Triton", 24, 100.0)
    assert Matched.of((base,), (kernel(*head),)).differs == (differs,)


@pytest.mark.parametrize(("old", "new", "differs"), [
    (1280, 1281, "code"), (1280, 1280, ""), (0, 1281, ""), (1280, 0, ""),
])  # fmt: skip
def test_a_renumbered_kernel_is_known_by_its_machine_code(old, new, differs):
    """One kernel more changes the compiler's number, and so the hash, of all that follow. 0: the
    number of instructions is not known.
    """
    base, head = (
        replace(
            kernel(f"{GELU}_{number}", "Triton", 24, 100.0, f"numbered {number}"),
            machine_code=MachineCode(128, 0, 0, count, 0, 0, 0) if count else None,
        )
        for number, count in ((9, old), (10, new))
    )
    assert Matched.of((base,), (head,)).differs == (differs,)


def test_other_work_is_another_kernel():
    """Its grid does not show it: a product's kernel may stay on its multiprocessors."""
    base, head = (replace(step()[0], work=Work(flops)) for flops in (1e9, 2e9))
    assert Matched.of((base,), (head,)).differs == ("work",)


def test_a_count_that_varies_is_not_the_same_kernel():
    """From step to step of one profile, though the means of both sides agree."""
    base = kernel("sync", "elementwise", 2, 5.0)
    varying = replace(base, calls=(2, 2, 3, 2, 1, 2))
    assert Matched.of((base,), (varying,)).differs == ("launches vary",)


def scatter(base_us, head_us, mine):
    """The known scatter of some of two products and two Triton kernels, in percent of 100 ms."""
    rows = step()[:2] + step()[4:6]
    matched = Matched.of(rows, rows)
    times = matched.times(np.array(base_us), np.array(head_us))
    chosen = [row for row, its in zip(rows, mine, strict=True) if its]
    mine = np.array([one.before[0] in chosen for one in matched.matches])
    return times.scatter(mine, ~mine, 100_000.0).sd_pct


def test_the_known_scatter_grows_with_the_kernels_and_with_those_that_show_the_pace():
    """Squares add up: a floor, each kernel that differs, and the pace as far as it counts."""
    us = [5_000.0, 1_000.0, 3_000.0, 4_000.0]
    alone = scatter(us, us, [True, False, False, False])
    assert alone == pytest.approx(math.hypot(0.004, 0.007 * math.hypot(5.0, 5.0)))
    longer = [1_000.0, 1_000.0, 3_000.0, 4_000.0]
    assert scatter(us, longer, [True, False, False, False]) == pytest.approx(alone)
    assert scatter(longer, us, [True, False, False, False]) == pytest.approx(alone)
    both = scatter(us, us, [True, False, True, False])
    triton_pct = 0.006 * math.hypot(3.0, 3.0)
    assert both == pytest.approx(math.hypot(0.004, 0.007 * math.hypot(5.0, 5.0), triton_pct))
    shown = 0.006 * math.hypot(3.0, 4.0) / 7.0  # by both Triton kernels, if no product is equal
    class_pct = math.hypot(0.007 * math.hypot(5.0, 1.0), 6.0 * shown)
    assert scatter(us, us, [True, True, False, False]) == pytest.approx(
        math.hypot(0.004, class_pct)
    )


def test_launches_in_the_mean_of_three_ranks_are_equal_in_any_order():
    """They are summed in the order of the kernels' times, and rounded."""
    calls = (1.0, 4 / 3, 4 / 3)
    rows = [kernel("triton_one_9", "Triton", each, us) for us, each in enumerate(calls, start=1)]
    rows = [replace(row, grid=(at,)) for at, row in enumerate(rows)]
    assert sum(calls) != sum(reversed(calls))
    both = Match(How.SAME, tuple(rows), tuple(reversed(rows)))
    assert kernel_times._difference(both) == ""
    more = Match(How.SAME, tuple(rows), (*rows[:2], replace(rows[2], calls=(5 / 3,))))
    assert kernel_times._difference(more).startswith("launches")


@pytest.mark.parametrize(("kind", "share"), [
    ("Triton", 0.006),
    ("GEMM", 0.007),
    ("attention", 0.007),
    ("reduction", 0.011),
    ("other", 0.011),
    ("a user's", 0.011),
])  # fmt: skip
def test_each_class_scatters_by_its_share(kind, share):
    """A class that was not measured scatters as reductions do."""
    rows = tuple(kernel(name, kind, 1, 5_000.0) for name in ("one", "other"))
    times = Matched.of(rows, rows).times(*(np.full(2, 5_000.0),) * 2)
    mine = np.array([True, False])
    known = times.scatter(mine, ~mine, 100_000.0)
    assert known.sd_pct == pytest.approx(math.hypot(0.004, share * math.hypot(5.0, 5.0)))
    assert known.degrees == 8.0
