"""Kernels of two profiles are matched: numbers of generated ones, launches that were replaced."""

from stepguard.core.profile import KernelRow
from stepguard.explain.match_kernels import How, match

NORM = "triton_per_fused_add_native_layer_norm"


def row(name, calls=12.0, us=1000.0, grid=(64, 1, 1), kind="Triton", operator="", steps=2):
    """A kernel of a forward pass."""
    canonical = name.rstrip("0123456789").rstrip("_")
    shape = {"grid": grid, "block": (128, 1, 1), "operator": operator}
    return KernelRow(name, canonical, kind, "forward", (calls,) * steps, (us,) * steps, **shape)


def found(before, after):
    """Return how, and the names of both sides, of each match."""
    return {
        (one.how, tuple(r.name for r in one.before), tuple(r.name for r in one.after))
        for one in match(before, after)
    }


def test_files_may_have_other_numbers_of_steps():
    """A generated kernel is itself all the same, and not one of many of its name."""
    before, after = ([row(f"{NORM}_{i}", steps=steps) for i in (3, 4)] for steps in (6, 5))
    assert found(before, after) == {
        (How.SAME, (name,), (name,)) for name in (f"{NORM}_3", f"{NORM}_4")
    }


def test_a_kernel_more_shifts_the_numbers_of_those_behind_it():
    """Each is matched with itself under its new number, by its order and its launches."""
    before = [row(f"{NORM}_{i}", calls, us) for i, calls, us in ((3, 2, 90), (4, 10, 700))]
    before += [row(f"{NORM}_5", 10, 900), row(f"{NORM}_6", 2, 200)]
    after = [row(f"{NORM}_{i}", calls, us) for i, calls, us in ((4, 2, 90), (5, 10, 700))]
    after += [row(f"{NORM}_6", 10, 900), row(f"{NORM}_7", 2, 200), row("triton_poi_fused_clone_3")]
    assert found(before, after) == {
        *((How.RENAMED, (f"{NORM}_{i}",), (f"{NORM}_{i + 1}",)) for i in (3, 4, 5, 6)),
        (How.ALONE, (), ("triton_poi_fused_clone_3",)),
    }


def test_a_kernel_that_the_compiler_launches_otherwise_is_the_same():
    """Another grid for as many launches is another shape; as many launches of a grid is not."""
    before = [row("triton_poi_fused_gelu_8"), row("triton_poi_fused_copy_0", 24)]
    after = [row("triton_poi_fused_gelu_9", grid=(128, 1, 1)), row("triton_poi_fused_copy_1", 48)]
    assert found(before, after) == {
        (How.SHAPE, ("triton_poi_fused_gelu_8",), ("triton_poi_fused_gelu_9",)),
        (How.RENAMED, ("triton_poi_fused_copy_0",), ("triton_poi_fused_copy_1",)),
    }


def test_a_kernel_that_took_over_launches_is_one_replacement():
    """Of a product that another kernel does in a third of its launches nothing is added or gone;
    of several the one counts that lost as much time.
    """
    fast, slow = "nvjet_192x192", "sm90_xmma"
    before = [row(fast, 72, 7200, kind="GEMM", operator="aten::mm"), row(f"{NORM}_1", 36, 99)]
    after = [row(fast, 48, 4800, kind="GEMM", operator="aten::mm"), row(f"{NORM}_2", 12, 33)]
    after.append(row(slow, 24, 9600, kind="GEMM", operator="aten::mm"))
    assert found(before, after) == {
        (How.OPERATOR, (fast,), (slow, fast)),
        (How.RENAMED, (f"{NORM}_1",), (f"{NORM}_2",)),
    }
    merged = [row(f"{NORM}_{i}", calls, us) for i, calls, us in ((1, 24, 1000),)]
    merged += [
        row("triton_poi_fused_copy_0", 24, 500),
        row("triton_per_fused_cast_norm_2", 24, 990),
    ]
    split = [row(f"{NORM}_1", 48, 2000), row("triton_poi_fused_copy_0", 48, 1000)]
    split.append(row("triton_poi_fused_embedding_3", 2, 10))
    assert found(merged, split) == {
        (
            How.CLASS,
            ("triton_per_fused_cast_norm_2", f"{NORM}_1"),
            ("triton_poi_fused_embedding_3", f"{NORM}_1"),
        ),
        (How.RENAMED, ("triton_poi_fused_copy_0",), ("triton_poi_fused_copy_0",)),
    }
