"""What a calibration found, for a person: the pairs as a picture, the noise, what it allows."""

import math
from collections.abc import Iterator

from stepguard.judge.noise import Noise, Plan, plans_by_block, plans_by_pairs
from stepguard.judge.sequential_plan import MIN_PAIRS
from stepguard.judge.terms import widened
from stepguard.margins import Margins
from stepguard.measure.calibrate import Calibration
from stepguard.report.live import clock

HALF = 24  # columns of the picture on either side of zero
CLOSE_SHARE = 0.1  # a plan that finds by so little less is no better one
WILD = 2.0  # a pair without which the spread is so many times smaller is pointed out


def lines(found: Calibration, budget_s: float, own: Margins) -> Iterator[str]:
    """The report; ``budget_s`` is what a case's pairs had, ``own`` are the case's own margins."""
    noise, head = found.noise, found.comparison.head
    device = head.fingerprint.device_name if head.fingerprint else ""
    yield f"{head.case_id} on {device}: {noise.pairs} pairs of {head.commit[:12]} with itself"
    yield from picture([100 * d for d in found.comparison.log_ratios()])
    yield from _noise(noise, found.pair_s)
    margins = widened(found.entry.sd_pct, found.entry.degrees, own)
    plans = plans_by_pairs(noise, found.pair_s, margins)
    yield from _margins(margins, own, plans[-1].smallest_detectable_pct)
    yield from _by_pairs(plans)
    yield from _by_block(plans_by_block(noise, found.pair_s, budget_s, margins), budget_s, noise)


def picture(ratios_pct: list[float]) -> Iterator[str]:
    """Every pair's d in percent as a dot beside zero, to scale."""
    largest = max(map(abs, ratios_pct)) or 1.0
    for number, d in enumerate(ratios_pct, start=1):
        row = [" "] * (2 * HALF + 1)
        row[HALF] = "|"
        row[HALF + round(HALF * d / largest)] = "*"
        yield f"  {number:2d} {d:+8.3f} %  {''.join(row).rstrip()}"


def _noise(noise: Noise, pair_s: float) -> Iterator[str]:
    low, high = noise.mean_pct - noise.mean_half_pct, noise.mean_pct + noise.mean_half_pct
    for name, value, note in (
        ("pair sd", noise.sd_pct, f"95 %: {noise.sd_low_pct:.3f} to {noise.sd_high_pct:.3f} %"),
        ("sd between launches", noise.launch_sd_pct, "of one side, the run's drift included"),
        ("  that no block mends", noise.own_sd_pct, "a launch's own, less drift and blocks"),
        ("sd of a block", noise.block_sd_pct, f"of {noise.block_s:.1f} s, drift taken out"),
        ("drift", noise.drift_pct, "of both sides, from the first pair to the last"),
        ("mean difference", noise.mean_pct, f"95 %: {low:+.3f} to {high:+.3f} %; the truth is 0"),
    ):
        yield f"{name:<22}{value:8.3f} %  {note}"
    yield f"{'a pair takes':<22}{pair_s:8.1f} s"
    if noise.sd_pct > WILD * noise.without_wildest_pct:
        yield (
            f"pair {noise.wildest} alone makes most of this, without it the pair sd is "
            f"{noise.without_wildest_pct:.3f} %; if the machine was disturbed then, calibrate again"
        )


def _margins(margins: Margins, own: Margins, finds_pct: float) -> Iterator[str]:
    shown = f"margins {margins.ignore_pct:g} and {margins.matter_pct:g} %"
    if margins != own:
        shown += f", wider than the case's {own.ignore_pct:g} and {own.matter_pct:g} %"
    if finds_pct <= margins.matter_pct:
        yield f"{shown}: this noise can be decided by them"
    else:
        yield f"{shown}: this noise cannot be decided by them, expect INCONCLUSIVE"


def _by_pairs(plans: list[Plan]) -> Iterator[str]:
    yield _row("pairs", [str(plan.pairs) for plan in plans])
    yield _row("they take", [clock(plan.seconds) for plan in plans])
    yield _row("smallest detectable", [_found(plan) for plan in plans])


def _by_block(plans: list[Plan], budget_s: float, noise: Noise) -> Iterator[str]:
    if not plans:
        yield f"in {clock(budget_s)} min no {MIN_PAIRS} pairs: give a case more time"
        return
    yield f"in {clock(budget_s)} min a case, by the length of a block (its noise being white):"
    yield _row("block", [f"{plan.block_s:.1f} s" for plan in plans])
    yield _row("pairs that fit", [str(plan.pairs) for plan in plans])
    yield _row("pair sd", [f"{plan.sd_pct:.3f} %" for plan in plans])
    yield _row("smallest detectable", [_found(plan) for plan in plans])
    best = min(plans, key=lambda plan: plan.smallest_detectable_pct)
    now = next((p.smallest_detectable_pct for p in plans if p.block_s == noise.block_s), math.inf)
    if best.smallest_detectable_pct > (1 - CLOSE_SHARE) * now:
        yield "no other length finds one that is a tenth smaller"
    else:
        constant = "TURNS in stepguard/measure/ab.py"
        yield f"blocks of {best.block_s:.1f} s would find smaller ones: {constant}"


def _found(plan: Plan) -> str:
    return f"{plan.smallest_detectable_pct:.2f} %"


def _row(name: str, cells: list[str]) -> str:
    return f"  {name:<20}" + "".join(f"{cell:>9}" for cell in cells)
