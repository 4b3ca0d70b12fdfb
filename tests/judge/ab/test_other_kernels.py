"""Four pairs are enough where the profiles say which other kernels make the time."""

import math

import numpy as np
import pytest
from builders import evidence, replace

from stepguard.core.comparison import Comparison
from stepguard.core.margins import MARGINS
from stepguard.core.profile import KernelRow, Parts, Profile, added
from stepguard.core.status import Status
from stepguard.judge.judge_pairs import judge_ab, wants_another_pair
from stepguard.judge.pair_statistics import bounds
from stepguard.judge.sequential_plan import EXPLAINED_PAIRS

STEPS = 6
SPREAD = (0.0004, -0.0004, 0.0003, -0.0003, 0.0004, -0.0004)


def kernel(name, us, calls=24.0, **more):
    """A generated kernel of a forward pass that takes so long a step."""
    canonical = name.rstrip("0123456789").rstrip("_")
    return KernelRow(name, canonical, "Triton", "forward", (calls,) * STEPS, (us,) * STEPS, **more)


GELU = kernel("triton_poi_fused_gelu_5", 6500.0, code="a1")
MORE = kernel("triton_poi_fused_clone_6", 5000.0, code="c3")
OTHERS = [kernel(f"triton_red_fused_norm_{i}", 30_000.0, code=f"n{i}") for i in range(8)]


def slower(row, us=5000.0, **more):
    """The kernel taking so much longer."""
    return replace(row, us=tuple(one + us for one in row.us), **more)


def compared(pct, head, pairs=4):
    """So many pairs of a step of 250 ms that changed by ``pct``, with HEAD's kernels besides."""
    sides = []
    for rows, ratio in ((head, 1 + pct / 100), ([GELU], 1.0)):
        kernels = (*OTHERS, *rows)
        busy, idle = added([row.us for row in kernels]), (3500.0,) * STEPS
        parts = Parts(added([busy, idle]), busy, (0.0,) * STEPS, (0.0,) * STEPS, idle)
        times = [250.0 * ratio * math.exp(one) for one in SPREAD[:pairs]]
        side = evidence(tuple(times) if ratio != 1 else (250.0,) * pairs, planned_launches=1)
        counts = replace(side.counts, profile=Profile("NVIDIA H200", 1, parts, kernels, ()))
        sides.append(replace(side, gates=("step_ms",), counts=counts))
    return Comparison("main", *sides)


@pytest.mark.parametrize(
    ("pct", "head", "status"),
    [
        (2.0, [GELU, MORE], Status.SLOWER),
        (2.0, [slower(GELU, code="b2")], Status.SLOWER),
        (-2.0, [slower(GELU, -5000.0, code="b2")], Status.FASTER),
        (2.0, [slower(GELU)], Status.INCONCLUSIVE),  # as two modes of a launch are
        (2.0, [GELU], Status.INCONCLUSIVE),
        (-2.0, [GELU, MORE], Status.INCONCLUSIVE),
        (8.0, [GELU, MORE], Status.INCONCLUSIVE),  # a quarter of it
        (0.8, [GELU, MORE], Status.INCONCLUSIVE),  # more than twice as much
    ],
)
def test_what_other_kernels_explain_needs_four_pairs(pct, head, status):
    """By their sum, with its sign, about as much as the pairs say; else there are six."""
    found = compared(pct, head)
    assert judge_ab(found).status is status
    assert wants_another_pair(found) is (status is Status.INCONCLUSIVE)
    assert judge_ab(compared(pct, head, pairs=6)).status in (Status.SLOWER, Status.FASTER)


def test_two_pairs_are_never_enough():
    """However large the change, and whatever explains it."""
    assert wants_another_pair(compared(20.0, [GELU, slower(MORE, 45_000.0)], pairs=2))


@pytest.mark.parametrize(
    ("pct", "sd_pct", "share"),
    [(1.0, 0.2, 0.69), (2.0, 0.2, 0.88), (1.0, 0.27, 0.43), (2.0, 0.27, 0.62)],
)
def test_how_many_slowdowns_four_pairs_decide(pct, sd_pct, share):
    """Of simulated normal pairs, within three standard errors of studies/judge_power."""
    draw = np.random.default_rng(1).normal(math.log1p(pct / 100), sd_pct / 100, (2000, 4))
    found = [bounds(d, fewest=EXPLAINED_PAIRS).status(MARGINS) for d in draw.tolist()]
    decided = found.count(Status.SLOWER) / len(found)
    assert decided == pytest.approx(
        share, abs=3 * (share * (1 - share) / len(found)) ** 0.5 + 0.005
    )
