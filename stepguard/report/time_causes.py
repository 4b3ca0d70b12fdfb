"""Why a time moved, in words: the sync or the kernel that explains it, before the time itself."""

from collections.abc import Iterator, Sequence
from os.path import commonprefix

from stepguard.core.explanation import Cause, Kind, Refused, Side, Unlike
from stepguard.core.metrics import (
    BETWEEN_STEPS,
    COLLECTIVES,
    JUDGED_TIME,
    OPERATORS,
    PEAK,
    SETTINGS,
)
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.text import listed
from stepguard.core.verdict import MetricVerdict, Verdict, cause_first
from stepguard.explain.causes import LOST_AT_MOST, lines_of
from stepguard.report.metric_notes import in_function, on_ranks, operator_move
from stepguard.trace.kernel_classes import is_generic, short

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
    """Return "12 launches as before; spills 0 -> 96 B"; empty for a part of the step."""
    return "; ".join(filter(None, (_word(cause, 1), machine_code(cause))))


def machine_code(cause: Cause) -> str:
    """Return how the machine code of two kernels differs, "spills 0 -> 96 B"; else ""."""
    old, new = cause.before.machine_code, cause.after.machine_code
    if not old or not new:
        return ""
    both = [(text, getattr(old, name), getattr(new, name)) for name, text in _MACHINE_CODE.items()]
    return ", ".join(text.format(f"{a:,d} -> {b:,d}") for text, a, b in both if a != b)


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


# A cause is named before the time if it makes up at least NAMED_SHARE of the change. A kernel is
# named in place of a counted wait if it makes up at least MAIN_SHARE.
NAMED_SHARE = 0.25
MAIN_SHARE = 0.5
# Idle time beyond this share of the change is not named as its cause. Each side's profile is of one
# launch: under a profiler, the host of one launch was 15 ms later in a step of 72 ms than that of
# another launch of the same tree. The pairs would have shown such a difference.
MOST_IDLE_SHARE = 1.5
SHOWN, SHOWN_US = 3, 5.0  # causes, and the least of a row: less is +0.00 ms
# Costs that make a step slower by themselves, and whose line the host or the compiler knows.
_LINES = ("graph_breaks", "recompiles")
_WAITS = (
    "host_syncs_per_step",
    "pageable_copies_per_step",
    "device_allocations_per_step",
    COLLECTIVES,
)
# The kernels of a longer step explain them, too.
_MEMORY = (PEAK, BETWEEN_STEPS)
# Time between kernels, and kernels that came and went. A counted wait explains it better.
_UNSURE = (Kind.IDLE, Kind.COPIES, Kind.COMMUNICATION, Kind.MOVED)
_NO_WORK = (Kind.CLOCK, Kind.OVERLAP)


def culprit(verdict: Verdict) -> MetricVerdict | Cause | None:
    """Return what explains the time that decided, or that is beside memory; None if unknown."""
    time = verdict.worst
    if time and time.metric in _MEMORY and time.place is None:
        times = (metric for metric in verdict.metrics if metric.metric == JUDGED_TIME)
        time = next((one for one in times if one.status is not Status.FASTER), None)
    if time is None or verdict.whole or time.metric != JUDGED_TIME or not time.old or not time.new:
        return None
    if time.reason is Reason.KERNELS_MOVED:
        return _main_cause(verdict, 0.0)
    low_pct = time.pairs.decision.low_pct if time.pairs else 0.0
    undecided = time.status is Status.INCONCLUSIVE and low_pct > 0
    if time.status not in (Status.SLOWER, Status.FASTER) and not undecided:
        return None
    change_us = 1e3 * (time.new - time.old)
    cause = _main_cause(verdict, change_us)
    with_it = [m for m in verdict.metrics if m.gated and m.rise * change_us > 0]
    lines = sorted((m for m in with_it if m.metric in _LINES), key=cause_first)
    waits = sorted((m for m in with_it if m.metric in _WAITS), key=cause_first)
    # A changed setting (TF32, threads) is the cause, whatever kernels it changes.
    changed = next(
        (m for m in verdict.metrics if m.gated and m.metric == SETTINGS and m.moved), None
    )
    if changed or lines:
        return changed or lines[0]
    if cause is not None and cause.kind not in _UNSURE:
        main = abs(cause.us) >= MAIN_SHARE * abs(change_us)
        return cause if main or not waits else waits[0]
    if waits or cause:
        return waits[0] if waits else cause
    return None if time.place or change_us <= 0 else _more_operators(verdict)


def _main_cause(verdict: Verdict, change_us: float) -> Cause | None:
    """Return the longest cause in the direction of the change, if it makes up NAMED_SHARE of it. A
    move, whose kernels came and went, is returned if there is no other.
    """
    causes = verdict.explanation.causes if verdict.explanation else ()
    most_idle_us = MOST_IDLE_SHARE * abs(change_us)
    main = [
        cause
        for cause in causes
        if cause.kind not in _NO_WORK
        and (cause.kind is not Kind.IDLE or abs(cause.us) <= most_idle_us)
        and (cause.us > 0) == (change_us >= 0)
        and abs(cause.us) >= NAMED_SHARE * abs(change_us)
    ]
    return min(main, key=lambda cause: cause.kind is Kind.MOVED, default=None)


def moved(cause: Cause, verdict: Verdict) -> tuple[str, Site | None]:
    """Return "6.5 -> 10.1 ms (+3.6), forward model/gpt.py:72: triton_poi_fused_gelu_5" and the
    line; if that is unknown, that of operators that the step calls more often.
    """
    site = site_of(cause, verdict)
    where = _where(cause), on_ranks(_ranks(site, verdict))
    at = f" {site.place}" if site else ""
    more = _more_operators(verdict) if site is None and cause.us > 0 else None
    if more and more.place:
        site, at = more.place, f", beside {in_function(operator_move(more), more.place)}"
    text = ", ".join(filter(None, (_figures(cause.before, cause.after), *where)))
    return f"{text}{at}: {named(cause)}", site


def _more_operators(verdict: Verdict) -> MetricVerdict | None:
    """Return the operators that moved, if the first line of them calls more; else None."""
    found = _operators(verdict)
    return found if found and found.gated and found.place and found.place.count > 0 else None


def _operators(verdict: Verdict) -> MetricVerdict | None:
    return next((metric for metric in verdict.metrics if metric.metric == OPERATORS), None)


def _ranks(site: Site | None, verdict: Verdict) -> tuple[int, ...]:
    """Return the ranks that call a site's operators more or less, or the one that got slower."""
    operators = _operators(verdict)
    if site and operators and operators.ranks:
        return operators.ranks
    return (verdict.straggler.rank,) if verdict.straggler else ()


def site_of(cause: Cause, verdict: Verdict) -> Site | None:
    """Return the line of the operator that a kernel runs: of the only function that calls it more
    or less often than before, or else the only line that calls it. A kernel of the backward pass
    gets the line of the forward operator, not the line that starts the pass.
    """
    operators = _operators(verdict)
    # An operator that is called less often does not explain a slower kernel.
    moved = (s for s in (operators.sites if operators else ()) if s.count > 0 or cause.us < 0)
    lines = lines_of(cause.place, moved)
    one_function = len({(site.file, site.function) for site in lines}) == 1
    return lines[0] if one_function else cause.line or None


def _where(cause: Cause) -> str:
    """Return phase and place, without an operator that the kernel's name tells."""
    is_needed = cause.kind is Kind.IDLE or "." in cause.place or is_generic(cause.what)
    place = cause.place if is_needed else ""
    return ", ".join(filter(None, (cause.phase, place)))


def _figures(before: Side, after: Side) -> str:
    old, new = before.us / 1e3, after.us / 1e3
    digits = 1 if abs(new - old) >= 1 else 2 if abs(new - old) >= 0.1 else 3
    return f"{old:.{digits}f} -> {new:.{digits}f} ms ({new - old:+.{digits}f})"


def lines(verdict: Verdict) -> Iterator[str]:
    """Yield the first causes and the straggler; if all is `same`, other machine code alone."""
    explanation = verdict.explanation
    if other := explanation and explanation.other_machine_code:
        changed = [f"{named(cause)}, {machine_code(cause)}" for cause in other]
        yield f"other machine code in the same time: {'; '.join(changed[:SHOWN])}" + (
            f"; {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        )
    if verdict.status is Status.SAME and verdict.reason is not Reason.KERNELS_MOVED:
        return
    if straggler := verdict.straggler:
        old_ms, new_ms = straggler.old_ms, straggler.new_ms
        yield (
            f"rank {straggler.rank} takes {old_ms:.2f} -> {new_ms:.2f} ms without waiting for "
            f"others ({100 * (new_ms / old_ms - 1):+.2f} %, of the others none more than "
            f"{straggler.others_pct:+.2f} %)"
        )
    if explanation is None:
        return
    if explanation.refused:
        yield f"the profiles cannot be compared: {refused_because(explanation.refused[0])}"
        return
    if explanation.causes:
        yield f"the profiled steps differ by {explanation.change_us / 1e3:+.2f} ms:"
        shown = [cause for cause in explanation.causes[:SHOWN] if abs(cause.us) >= SHOWN_US]
        yield from (f"  {line(cause)}" for cause in shown)
        cut_us = sum(cause.us for cause in explanation.causes[len(shown) :])
        smaller_us = cut_us + explanation.smaller_us
        if abs(smaller_us) >= SHOWN_US:
            rest = len(explanation.causes) + explanation.smaller - len(shown)
            yield f"  {smaller_us / 1e3:+.2f} ms: {rest} smaller causes"
        known = explanation.scatter_known
        scatter = "within the scatter of steps" if known else "at most 1 us each"
        if abs(explanation.scatter_us) >= SHOWN_US:
            yield f"  {explanation.scatter_us / 1e3:+.2f} ms: not explained, {scatter}"


def line(cause: Cause) -> str:
    """Return "+3.60 ms: gelu_5 6.5 -> 10.1 ms a step (12 launches as before), forward"."""
    old, new = cause.before.us / 1e3, cause.after.us / 1e3
    makes = f" ({how(cause)})" if how(cause) else ""
    text = f"{cause.us / 1e3:+.2f} ms: {named(cause)} {old:.2f} -> {new:.2f} ms a step{makes}"
    at = cause.line.place if cause.line else ""
    return ", ".join(filter(None, (text, _where(cause), at)))
