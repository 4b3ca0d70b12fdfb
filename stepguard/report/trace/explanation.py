"""An explanation as text, at most 80 columns: the causes in order of their time, and the rest."""

import textwrap
from collections.abc import Iterator

from stepguard.explain.comparable import LOST_AT_MOST
from stepguard.explanation import Cause, Explanation, Kind, Refusal, Refused, Side
from stepguard.report.trace.page import short
from stepguard.roofline import Peaks, position

WIDTH = 80
_REFUSED = {
    Refusal.GPU: "different GPUs: {before} and {after}",
    Refusal.RANKS: "different numbers of ranks: {before} and {after}",
    Refusal.LOST: f"launches without a record of the GPU, at most {100 * LOST_AT_MOST:.0f} % are "
    "allowed: {before} and {after}; profile fewer steps",
    Refusal.NO_STEPS: "no complete step to compare: {before} and {after}",
    Refusal.FOREIGN: "different programs: {before} of the kernels' time is of the same classes",
}


def lines(found: Explanation, most: int = 12, peaks: Peaks | None = None) -> Iterator[str]:
    """Yield the page of an explanation; with ``peaks`` where kernels are under the roof."""
    if found.refused:
        yield "The two cannot be compared:"
        yield from (f"  {refused_because(one)}" for one in found.refused)
        return
    share = 100 * found.change_us / found.before_us
    yield (
        f"step: {_ms(found.after_us)} ms against {_ms(found.before_us)} ms, "
        f"{_signed(found.change_us)} ms ({share:+.2f} %)"
    )
    for name, old, new in found.software:
        yield f"note: {name} was {old}, is {new}"
    yield ""
    yield from _causes(found, most, peaks)
    yield f"explained: {_signed(found.explained_us)} of {_signed(found.change_us)} ms"
    if found.scatter_us:
        parts = [f"{name} {_signed(us)}" for name, us in found.scatter_parts if abs(us) > 100]
        text = (
            f"the other {_signed(found.scatter_us)} ms is within what the steps of one file differ"
        )
        yield from textwrap.wrap(text + (": " + ", ".join(parts) if parts else ""), WIDTH)
    if found.calls:
        changed = ", ".join(f"{name} {old:g} -> {new:g}" for name, old, new in found.calls[:6])
        yield from textwrap.wrap(f"CUDA calls a step: {changed}", WIDTH)


def _causes(found: Explanation, most: int, peaks: Peaks | None) -> Iterator[str]:
    if not found.causes:
        yield "No cause is beyond the scatter between steps."
    for cause in found.causes[:most]:
        first, *more = textwrap.wrap(
            sentence(cause) + _when(cause) + _roof(cause, peaks), WIDTH - 13
        )
        yield f"{_signed(cause.us):>8} ms  {first}"
        yield from (f"{'':13}{line}" for line in more)
    if len(found.causes) > most:
        rest = sum(cause.us for cause in found.causes[most:])
        yield f"{_signed(rest):>8} ms  {len(found.causes) - most} smaller causes"


def _roof(cause: Cause, peaks: Peaks | None) -> str:
    """Return how near to the roof the kernels were and are, as far as both are known."""
    if peaks is None:
        return ""
    found = [
        position(side.work, side.us / side.calls, peaks) if side.calls else None
        for side in (cause.before, cause.after)
    ]
    before, after = (f"{100 * one.utilisation:.0f} %" if one else "?" for one in found)
    bound = next((one.bound for one in reversed(found) if one), "")
    return f"; {before} -> {after} of its roof, {bound}-bound" if bound else ""


def refused_because(one: Refused) -> str:
    """Return the sentence of a reason not to compare."""
    return _REFUSED[one.reason].format(before=one.before, after=one.after)


def sentence(cause: Cause) -> str:
    """Return a cause in words: what, how often and where."""
    place = ", ".join(part for part in (cause.phase, cause.place) if part)
    return _what(cause) + (f" in {place}" if place else "")


def _what(cause: Cause) -> str:
    before, after = cause.before, cause.after
    match cause.kind:
        case Kind.IDLE:
            return _idle(cause)
        case Kind.CALLS:
            return f"{short(cause.what, 48)}: {before.calls:g} -> {after.calls:g} launches"
        case Kind.TIME if before.calls and after.calls:
            old, new = before.us / before.calls, after.us / after.calls
            each = f"{old:,.1f} -> {new:,.1f} us a launch"
            return f"{short(cause.what, 48)}: {each}, {after.calls:g} launches"
        case Kind.TIME:
            return f"{cause.what}: {_times(before, after)} as long, launched as before"
        case Kind.SHAPE:
            shapes = f"{_shape(before)} -> {_shape(after)}"
            return f"{short(cause.what, 48)}: other launch shape, {shapes}"
        case Kind.REPLACED:
            return f"{_names(before)} replaced by {_names(after)}"
        case Kind.ADDED:
            return f"new: {short(cause.what, 48)}, {after.calls:g} launches"
        case Kind.REMOVED:
            return f"gone: {short(cause.what, 48)}, {before.calls:g} launches"
        case Kind.MOVED:
            return f"moved: {_names(before)} to {_names(after)}"
        case Kind.CLOCK:
            kinds = ", ".join(after.names)
            return f"the clock: {kinds} take {_times(before, after)} as long, by one ratio"
        case _:
            return f"{cause.what}: {_ms(before.us)} -> {_ms(after.us)} ms"


def _idle(cause: Cause) -> str:
    before, after = cause.before, cause.after
    why = (after.names or before.names)[0]
    what = why if cause.what == why else f"{why}: {cause.what}"
    return f"GPU idle, {what}, {before.calls:g} -> {after.calls:g} gaps"


def _times(before: Side, after: Side) -> str:
    return f"{after.us / before.us:.3f} times" if before.us else "new, not times"


def _shape(side: Side) -> str:
    return "x".join(map(str, side.shapes[0])) if side.shapes else "?"


def _names(side: Side) -> str:
    """Return the longest kernel of a side, and how many more there are."""
    if not side.names:
        return "nothing"
    more = f" and {len(side.names) - 1} more" if len(side.names) > 1 else ""
    return f"{short(side.names[0], 48)}{more} ({side.calls:g} launches)"


def _when(cause: Cause) -> str:
    """Return where to look in the file that has the cause."""
    begin = cause.after.begin_us if cause.after.begin_us is not None else cause.before.begin_us
    return "" if begin is None else f" (at {begin / 1e3:,.3f} ms of the file)"


def _ms(us: float) -> str:
    return f"{us / 1e3:.3f}"


def _signed(us: float) -> str:
    return f"{us / 1e3:+.3f}"
