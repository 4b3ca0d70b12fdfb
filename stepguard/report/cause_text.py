"""A cause in words: what it is, what makes its time, and figures. Also why two profiles are not
compared.
"""

from collections.abc import Iterator, Sequence
from os.path import commonprefix

from stepguard.core.explanation import Cause, Kind, Refused, Side, Unlike
from stepguard.core.text import listed
from stepguard.explain.causes import LOST_AT_MOST
from stepguard.trace.kernel_classes import short

# By kind: what a cause is, what makes its time, and what only the full sentence adds.
_WORDS = {
    Kind.IDLE: ("GPU idle, {idle}", "{calls} gaps", ""),
    Kind.CALLS: ("{what}", "{calls} launches", ""),
    Kind.TIME: ("{what}", "{launched} as before", "{each}"),
    Kind.SHAPE: ("{what}", "{new:g} launches, another shape", "{shapes}"),
    Kind.REPLACED: ("{come} {part}for {before}", "{calls} launches", ""),
    Kind.ADDED: ("{what}", "{new:g} launches, new", ""),
    Kind.REMOVED: ("{what}", "{old:g} launches, gone", ""),
    Kind.MOVED: ("{before} moved to {come}", "{calls} launches", ""),
    Kind.CLOCK: ("the clock ({classes})", "by one ratio", "{times}"),
}
_MACHINE_CODE = {
    "registers": "registers {}",
    "spill_bytes": "spills {} B",
    "shared_bytes": "shared memory {} B",
    "instructions": "instructions {}",
    "fp64": "fp64 instructions {}",
    "tensor_core": "tensor core instructions {}",
    "atomic": "atomic instructions {}",
}
_PART = ("{what}", "", "{ms}")  # a part of the step that is no kernel
_FRONT, _BEHIND = 12, 21  # characters of a name before and from where it differs from another
_REFUSED = {
    Unlike.GPU: "different GPUs: {before} and {after}",
    Unlike.RANKS: "different numbers of ranks: {before} and {after}",
    Unlike.LOST: f"launches without a record of the GPU, at most {100 * LOST_AT_MOST:.0f} % are "
    "allowed: {before} and {after}; profile fewer steps",
    Unlike.NO_STEPS: "no complete step to compare: {before} and {after}",
    Unlike.FOREIGN: "different programs: {before} of the kernels' time is of the same classes",
}


def named(cause: Cause) -> str:
    """Return what a cause is: a kernel's name, or "GPU idle, sync: cudaStreamSynchronize"."""
    return _word(cause, 0)


def how(cause: Cause) -> str:
    """Return what makes a cause's time: "12 launches as before; spills 0 -> 96 B"; empty for a
    part of the step.
    """
    return "; ".join(filter(None, (_word(cause, 1), machine_code(cause))))


def machine_code(cause: Cause) -> str:
    """Return the figures in which the machine code of two kernels differs, "spills 0 -> 96 B"; ""
    if it is not known that there are any.
    """
    return ", ".join(_machine_code(cause))


def _machine_code(cause: Cause) -> Iterator[str]:
    old, new = cause.before.machine_code, cause.after.machine_code
    if not old or not new:
        return
    for figure, text in _MACHINE_CODE.items():
        before, after = getattr(old, figure), getattr(new, figure)
        if before != after:
            yield text.format(f"{before:,d} -> {after:,d}")


def sentence(cause: Cause) -> str:
    """Return a cause in full: what it is, what makes its time, its figures and its place."""
    where = place(cause)
    return what(cause) + (f" in {where}" if where else "")


def what(cause: Cause) -> str:
    """Return what a cause is, what makes its time, and its figures."""
    return ", ".join(filter(None, (named(cause), how(cause), _word(cause, 2))))


def place(cause: Cause) -> str:
    """Return the phase and the place of a cause; "" if neither is known."""
    return ", ".join(filter(None, (cause.phase, cause.place)))


def refused_because(refused: Refused) -> str:
    """Return the sentence of a reason not to compare."""
    return _REFUSED[refused.reason].format(before=refused.before, after=refused.after)


def _word(cause: Cause, column: int) -> str:
    before, after = cause.before, cause.after
    old, new = before.calls, after.calls
    # If the longest kernel is still the same, only the added kernels are named. If none was added,
    # those that are gone are named.
    stays = before.names[:1] == after.names[:1]
    come = [name for name in after.names if stays and name not in before.names]
    went = [name for name in before.names if stays and not come and name not in after.names]
    old_names, new_names = went or before.names, come or after.names
    old_name, new_name = _apart((*old_names, "")[0], (*new_names, "")[0])
    idle = (*after.names, *before.names, cause.what)[0]
    each = [f"{side.us / side.calls:,.1f}" for side in (before, after) if side.calls]
    times = f"{after.us / before.us:.3f} times as long" if before.us else ""
    return _WORDS.get(cause.kind, _PART)[column].format(
        what=short(cause.what, 44),
        idle=cause.what if cause.what == idle else f"{idle}: {cause.what}",
        before=_listed(old_name, old_names),
        part="in part " if come else "",
        come=_listed(new_name, new_names),
        classes=", ".join(after.names),
        old=old,
        new=new,
        calls=f"{old:g} -> {new:g}" if old != new else f"{new:g}",
        launched=f"{new:g} launches" if new else "launched",
        each=f"{' -> '.join(each)} us a launch" if len(each) == 2 else times,
        shapes=f"{_shape(before)} -> {_shape(after)}",
        times=times,
        ms=f"{before.us / 1e3:.3f} -> {after.us / 1e3:.3f} ms",
    )


def _apart(old: str, new: str) -> tuple[str, str]:
    """Return two kernels' names, short, and so that different names are different texts."""
    shown = short(old), short(new)
    if old == new or shown[0] != shown[1]:
        return shown
    whole = [short(name, len(name)) for name in (old, new)]
    if whole[0] == whole[1]:  # their template arguments differ
        return shown[0], f"another form of {shown[0]}"
    begin = max(0, len(commonprefix(whole)) - 2)
    apart = [f"{name[:_FRONT]}...{short(name[begin:], _BEHIND)}" for name in whole]
    return apart[0], apart[1]


def _listed(first: str, kernels: Sequence[str]) -> str:
    """Return the first of some kernels, which is the longest, and how many more there are."""
    return listed([first, *kernels[1:]]) if kernels else "nothing"


def _shape(side: Side) -> str:
    return "x".join(map(str, side.shapes[0])) if side.shapes else "?"
