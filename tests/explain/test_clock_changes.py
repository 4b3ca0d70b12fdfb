"""Kernels at a card's power cap: what follows its clock is compared at one pace, phase by phase."""

import math
import random

import pytest
from builders import replace

from stepguard.core.explanation import Kind
from stepguard.core.profile import KernelRow, Parts, Profile, added
from stepguard.explain.causes import explain
from stepguard.explain.match_kernels import match
from stepguard.explain.scatter import Pace

STEPS = 6
# class, phase, us a step, how far it follows the clock, its own scatter: as on an H200
KERNELS = [*(("GEMM", "forward", us, 1.0, 0.003) for us in (21000, 14000, 11000, 6000)),
           ("attention", "forward", 8300, 1.0, 0.003), ("Triton", "forward", 6700, 0.9, 0.003),
           *(("Triton", "forward", us, 0.0, 0.001) for us in (2600, 1900, 1700, 1400)),
           *(("GEMM", "backward", us, 1.0, 0.003) for us in (34000, 22000, 12000, 11000, 8700)),
           ("attention", "backward", 23000, 1.0, 0.004),
           *(("Triton", "backward", us, 0.3, 0.003) for us in (9200, 8300)),
           *(("Triton", "backward", us, 0.0, 0.001) for us in (3300, 3200, 2400)),
           ("optimizer", "optimizer", 950, 0.5, 0.005)]  # fmt: skip
GELU, FLASH, COPY = 5, 15, 18


def profile(seed, slower=None, factor=1.0, clock=1.0):
    """Six steps whose phases run 2.5 % faster and slower; one kernel ``factor`` times as long."""
    rng = random.Random(seed)
    phases = {phase for _, phase, *_ in KERNELS}
    pace = {p: [clock * rng.gauss(1, 0.025) for _ in range(STEPS)] for p in sorted(phases)}
    rows = []
    for number, (kind, phase, us, follows, own) in enumerate(KERNELS):
        longer = factor if number == slower else 1.0
        times = [us * longer * x**follows * rng.gauss(1, own) for x in pace[phase]]
        name = f"kernel_{number}"
        calls = (12.0,) * STEPS
        rows.append(KernelRow(name, name, kind, phase, calls, tuple(times), (number, 1, 1)))
    compute, none = added([row.us for row in rows]), (0.0,) * STEPS
    return Profile("NVIDIA H200", 1, Parts(compute, compute, none, none, none), tuple(rows), ())


@pytest.mark.parametrize(
    ("kernel", "factor"), [(GELU, 1.03), (FLASH, 1.03), (0, 1.02), (COPY, 1.01)]
)
def test_a_kernel_is_found_that_is_lost_in_the_step(kernel, factor):
    """Of 0.01 to 0.3 % of a step whose means differ by a per cent; alone, and with its time."""
    planted = KERNELS[kernel][2] * (factor - 1)
    found = [explain(profile(s), profile(s + 50, kernel, factor)).causes for s in range(20)]
    alone = [causes[0] for causes in found if [c.what for c in causes] == [f"kernel_{kernel}"]]
    assert len(alone) >= 18 and all(cause.kind is Kind.TIME for cause in alone)
    assert sum(cause.us for cause in alone) / len(alone) == pytest.approx(planted, rel=0.15)


@pytest.mark.parametrize(("triton_us", "pace_pct"), [(29, 0.0), (31, 2.0)])
def test_a_class_counts_for_the_pace_from_three_percent_of_a_phase(triton_us, pace_pct):
    """GEMMs keep their time, attention takes 4 % longer and Triton 2 %. Three classes have Triton's
    pace, the median. If Triton is under 3 % of the phase, the largest class gives the pace.
    """
    shares = [("GEMM", 700 / 3, 0.0)] * 3 + [("attention", (300 - triton_us) / 2, 0.04)] * 2
    shares.append(("Triton", triton_us, 0.02))

    def side(after):
        return [
            KernelRow(f"kernel_{i}", f"kernel_{i}", kind, "forward", (1.0,) * STEPS,
                      tuple(us * math.exp(after * longer + 0.02 * (-1) ** n) for n in range(STEPS)))
            for i, (kind, us, longer) in enumerate(shares)
        ]  # fmt: skip

    pace = Pace(match(side(0), side(1)), (STEPS, STEPS))
    assert 100 * (pace.ratio("GEMM") - 1) == pytest.approx(pace_pct, abs=0.1)


def test_a_pace_that_hardly_moves_tells_little():
    """Kernels that cannot be seen to follow it are not blamed for a clock that differs between the
    sides: how far each follows is uncertain then.
    """
    calm = profile(1)
    level = [
        replace(row, us=tuple([sum(row.us) / STEPS * (1 + 1e-4 * i) for i in range(STEPS)]))
        for row in calm.kernels
    ]
    slower = [
        replace(row, us=tuple(us * (1.02 if KERNELS[i][3] else 1.0) for us in row.us))
        for i, row in enumerate(level)
    ]
    before, after = (replace(calm, kernels=tuple(rows)) for rows in (level, slower))
    assert {cause.kind for cause in explain(before, after).causes} <= {Kind.CLOCK, Kind.TIME}
    assert not [c for c in explain(before, after).causes if c.what.startswith("kernel_")]
