"""An explanation as text of at most 80 columns: the causes, sorted by their time, and the rest."""

import textwrap
from collections.abc import Iterator

from stepguard.core.explanation import Cause, Explanation
from stepguard.report.time_causes import refused_because, sentence
from stepguard_lab.measured_peaks import Peaks
from stepguard_lab.roofline import position

WIDTH = 80


def lines(explanation: Explanation, most: int = 12, peaks: Peaks | None = None) -> Iterator[str]:
    """Yield the page of an explanation. With ``peaks`` it shows what share of the roofline the
    kernels reach.
    """
    if explanation.refused:
        yield "The two cannot be compared:"
        yield from (f"  {refused_because(refused)}" for refused in explanation.refused)
        return
    share = 100 * explanation.change_us / explanation.before_us
    yield (
        f"step: {_ms(explanation.after_us)} ms against {_ms(explanation.before_us)} ms, "
        f"{_signed(explanation.change_us)} ms ({share:+.2f} %)"
    )
    for name, old, new in explanation.software:
        yield f"note: {name} was {old}, is {new}"
    yield ""
    if not explanation.scatter_known:
        yield "One step on a side does not show how much steps differ: profile several."
        yield "All differences, the largest first:"
    yield from _causes(explanation, most, peaks)
    yield f"explained: {_signed(explanation.explained_us)} of {_signed(explanation.change_us)} ms"
    if explanation.scatter_us:
        parts = [f"{name} {_signed(us)}" for name, us in explanation.scatter_parts if abs(us) > 100]
        within = "within the scatter between steps"
        within = within if explanation.scatter_known else "in differences of at most 1 us each"
        text = f"the other {_signed(explanation.scatter_us)} ms is {within}"
        yield from textwrap.wrap(text + (": " + ", ".join(parts) if parts else ""), WIDTH)
    if explanation.calls:
        changed = ", ".join(
            f"{name} {old:g} -> {new:g}" for name, old, new in explanation.calls[:6]
        )
        yield from textwrap.wrap(f"CUDA calls a step: {changed}", WIDTH)


def _causes(explanation: Explanation, most: int, peaks: Peaks | None) -> Iterator[str]:
    if not explanation.causes:
        yield "No cause is beyond the scatter between steps."
    for cause in explanation.causes[:most]:
        text = sentence(cause) + _when(cause) + _roof(cause, peaks)
        first, *more = textwrap.wrap(text, WIDTH - 13)
        yield f"{_signed(cause.us):>8} ms  {first}"
        yield from (f"{'':13}{line}" for line in more)
    if len(explanation.causes) > most:
        rest = sum(cause.us for cause in explanation.causes[most:])
        yield f"{_signed(rest):>8} ms  {len(explanation.causes) - most} smaller causes"


def _roof(cause: Cause, peaks: Peaks | None) -> str:
    """Return what share of the roofline the kernels reached before and after; "" if unknown."""
    if peaks is None:
        return ""
    usages = [
        position(side.work, side.us / side.calls, peaks) if side.calls else None
        for side in (cause.before, cause.after)
    ]
    before, after = (f"{100 * usage.utilisation:.0f} %" if usage else "?" for usage in usages)
    bound = next((usage.bound for usage in reversed(usages) if usage), "")
    return f"; {before} -> {after} of its roof, {bound}-bound" if bound else ""


def _when(cause: Cause) -> str:
    """Return when the cause begins in the later file, or in the earlier one if only that has it."""
    begin = cause.after.begin_us if cause.after.begin_us is not None else cause.before.begin_us
    return "" if begin is None else f" (at {begin / 1e3:,.3f} ms of the file)"


def _ms(us: float) -> str:
    return f"{us / 1e3:.3f}"


def _signed(us: float) -> str:
    return f"{round(us / 1e3, 3) + 0.0:+.3f}"  # never -0.000
