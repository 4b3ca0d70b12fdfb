"""The order of A/B blocks and the statistics of their pairs, shared by the studies. Pure."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from scipy.special import stdtrit


def mirrored(names: Sequence[str], series: int) -> list[str]:
    """Return the order of a series, reversed in every other one so that drift cancels."""
    return list(names) if series % 2 == 0 else list(reversed(names))


def balanced(names: Sequence[str], series: int) -> list[str]:
    """Return the order of a series in which position cancels too, not only drift.

    Over as many series as names each name takes each place once and follows each other name once:
    the square of E. J. Williams, Experimental designs balanced for the estimation of residual
    effects of treatments, 1949. Raises ValueError for an odd number, which has no such square.
    """
    count = len(names)
    if count % 2:
        raise ValueError(f"{count} names: an even number is needed")
    first = [(at + 1) // 2 if at % 2 else (count - at // 2) % count for at in range(count)]
    return [names[(at + series) % count] for at in first]


def slowest(rank_ms: Sequence[float]) -> float:
    """Return the slowest rank's time, in ms: a step ends with its slowest rank."""
    if not rank_ms:
        raise ValueError("no rank has a time")
    return max(rank_ms)


def half_width(values: Sequence[float]) -> float | None:
    """Return half the 95 % interval of the mean (Student's t), None below two values."""
    if len(values) < 2:
        return None
    return float(stdtrit(len(values) - 1, 0.975)) * stdev(values) / math.sqrt(len(values))


def ratio(pairs_ms: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Return first over second - 1 in percent, by the pairs' log-ratios, with a 95 % interval.

    Raises ValueError without a pair, or for a time that is not positive.
    """
    if not pairs_ms or not all(ms > 0 and math.isfinite(ms) for pair in pairs_ms for ms in pair):
        raise ValueError(f"pairs {pairs_ms!r}: positive finite times are needed")
    logs = [math.log(first / second) for first, second in pairs_ms]
    mean, half = fmean(logs), half_width(logs)
    interval = None if half is None else [_percent(mean - half), _percent(mean + half)]
    return {
        "ratio": math.exp(mean),
        "ratio_minus_1_pct": _percent(mean),
        "interval_95_pct": interval,
        "sd_of_a_pair_pct": None if half is None else 100 * stdev(logs),
        "pairs": len(logs),
    }


def _percent(log: float) -> float:
    return 100 * math.expm1(log)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is text, the others are figures."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def clock_text(seconds: float) -> str:
    """Format seconds as minutes and seconds, like "1:05"."""
    whole = max(0, round(seconds))
    return f"{whole // 60}:{whole % 60:02d}"
