"""The report of a calibration: the pairs as a picture, their noise, what it allows to find."""

from collections.abc import Iterator, Sequence

from stepguard.core.sentences import margins_text
from stepguard.core.text import short_hash
from stepguard.judge.ab.calibration import (
    CalibratedCase,
    PairPool,
    pair_noise,
    widened,
)
from stepguard.judge.ab.pairs import smallest_detectable_pct
from stepguard.judge.ab.sequential_plan import MOST_PAIRS

HALF = 24  # columns of the picture on either side of zero


def lines(pairs: PairPool, entry: CalibratedCase) -> Iterator[str]:
    """Yield the report of pairs and of the calibration that they make, a line at a time."""
    noise, head, prior = pair_noise(pairs.ratios_pct), pairs.newest.head, entry.prior
    own = pairs.newest.case_margins
    device = head.fingerprint.device_name if head.fingerprint else ""
    commit = short_hash(head.commit)
    yield f"{head.case_id} on {device}: {noise.pairs} pairs of {commit} with itself"
    yield from picture(pairs.ratios_pct)
    yield (
        f"pair sd          {noise.sd_pct:7.3f} %  "
        f"95 %: {noise.sd_low_pct:.3f} to {noise.sd_high_pct:.3f} %"
    )
    mean, half = noise.mean_pct, noise.mean_half_width_pct
    interval = f"95 %: {mean - half:+.3f} to {mean + half:+.3f} %; the truth is 0"
    yield f"mean difference  {mean:7.3f} %  {interval}"
    margins = widened(prior, own)
    smallest = smallest_detectable_pct(MOST_PAIRS, prior.sd_pct, margins, prior)
    yield (
        f"smallest detectable slowdown {smallest:.2f} % within {MOST_PAIRS} pairs, "
        f"{entry.seconds_a_pair:.1f} s each, with its share of the counting"
    )
    shown = margins_text(margins)
    if margins != own:
        shown += f", wider than the case's {own.ignore_pct:g} and {own.matter_pct:g} %"
    decides = smallest <= margins.matter_pct
    yield shown + (
        ": they can decide at this noise"
        if decides
        else ": they cannot decide at this noise, expect INCONCLUSIVE"
    )


def picture(ratios_pct: Sequence[float]) -> Iterator[str]:
    """Yield each pair's difference in percent as a dot beside zero, to scale."""
    largest = max(map(abs, ratios_pct)) or 1.0
    for number, d in enumerate(ratios_pct, start=1):
        row = [" "] * (2 * HALF + 1)
        row[HALF] = "|"
        row[HALF + round(HALF * d / largest)] = "*"
        yield f"  {number:2d} {d:+8.3f} %  {''.join(row).rstrip()}"
