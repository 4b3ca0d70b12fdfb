"""Why a time moved, in words: the sync or the kernel that explains it, before the time itself."""

import re
from collections.abc import Iterator

from stepguard.core.explanation import Cause, Kind, Side
from stepguard.core.metrics import COLLECTIVES, JUDGED_TIME, OPERATORS, SETTINGS
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, Verdict, cause_first
from stepguard.report.cause_text import how, named
from stepguard.report.explanation_text import refused_because
from stepguard.report.kernel_names import is_generic
from stepguard.report.notes import on_ranks

# A cause that is named before the time makes up at least this share of what the time moved by; a
# kernel comes before a wait that the source names from the next one on.
NAMED_SHARE = 0.25
MAIN_SHARE = 0.5
# Profiles are of one launch on each side, and under a profiler one launch's host was 15 ms later in
# a step of 72 ms than another's of the same tree. Pairs would have seen it.
MOST_IDLE_SHARE = 1.5
SHOWN = 3
# Costs of which the host or the compiler says the line, and which make a step slower by themselves.
_LINES = ("graph_breaks", "recompiles")
_WAITS = (
    "host_syncs_per_step",
    "pageable_copies_per_step",
    "device_allocations_per_step",
    COLLECTIVES,
)
_BETWEEN = (Kind.IDLE, Kind.COPIES, Kind.COMMUNICATION)  # kernels; a wait says why
_NO_WORK = (Kind.CLOCK, Kind.OVERLAP, Kind.MOVED)
# An operator's name, and in it what that of its kernels has, too, in either pass: aten.addmm has
# aten::mm, aten._scaled_dot_product_efficient_attention has aten::_efficient_attention_backward.
_OPERATOR = re.compile(
    r"\w+(?:\.|::)(?P<name>(?:_scaled_dot_product(?=_)|add(?=mm)|badd(?=bmm))?(?P<common>\w+?)"
    r"(?:_forward|(?:_dense)?_backward(?:_data)?)?)(?:\[.*\])?(?:\.\w+)?"
)


def culprit(verdict: Verdict) -> MetricVerdict | Cause | None:
    """Return what explains the time that decided a verdict, if that is known."""
    time = verdict.worst
    if time is None or verdict.whole or time.metric != JUDGED_TIME or not time.old or not time.new:
        return None
    if time.reason is Reason.KERNELS_MOVED and time.status is Status.SAME:
        return _main_cause(verdict, 0.0)
    low_pct = time.pairs.decision.low_pct if time.pairs else 0.0
    undecided = time.status is Status.INCONCLUSIVE and low_pct > 0
    if time.status not in (Status.SLOWER, Status.FASTER) and not undecided:
        return None
    change_us = 1e3 * (time.new - time.old)
    cause = _main_cause(verdict, change_us)
    with_it = [m for m in verdict.metrics if m.gated and _rise(m) * change_us > 0]
    lines = sorted((m for m in with_it if m.metric in _LINES), key=cause_first)
    waits = sorted((m for m in with_it if m.metric in _WAITS), key=cause_first)
    # A setting that is another one is why, whatever kernels it makes another: TF32, threads.
    changed = next(
        (m for m in verdict.metrics if m.gated and m.metric == SETTINGS and m.moved), None
    )
    if changed or lines:
        return changed or lines[0]
    if cause is not None and cause.kind not in _BETWEEN:
        main = abs(cause.us) >= MAIN_SHARE * abs(change_us)
        return cause if main or not waits else waits[0]
    return waits[0] if waits else cause


def _rise(found: MetricVerdict) -> float:
    return (found.new or 0) - (found.old or 0)


def _main_cause(verdict: Verdict, change_us: float) -> Cause | None:
    """Return the longest cause in the direction of the change, if it is a good part of it."""
    causes = verdict.explanation.causes if verdict.explanation else ()
    most_idle_us = MOST_IDLE_SHARE * abs(change_us)
    of_work = (
        cause
        for cause in causes
        if cause.kind not in _NO_WORK
        and (cause.kind is not Kind.IDLE or abs(cause.us) <= most_idle_us)
    )
    found = next((cause for cause in of_work if (cause.us > 0) == (change_us >= 0)), None)
    return found if found and abs(found.us) >= NAMED_SHARE * abs(change_us) else None


def moved(cause: Cause, verdict: Verdict) -> list[str]:
    """Return "triton_poi_fused_gelu_5 6.5 -> 10.1 ms (+3.6), forward" in ever fewer words; with a
    line and with the ranks that it is of where these are known. Times are of a step, over all
    launches, on average over ranks.
    """
    text = f"{named(cause)} {_figures(cause.before, cause.after)}"
    site = site_of(cause, verdict)
    where = ", ".join(filter(None, (_where(cause), on_ranks(_ranks(site, verdict)))))
    found = [f"{text}, {where}", text] if where else [text]
    return [f"{found[0]} {site.place}", *found] if site else found


def _operators(verdict: Verdict) -> MetricVerdict | None:
    return next((one for one in verdict.metrics if one.metric == OPERATORS), None)


def _ranks(site: Site | None, verdict: Verdict) -> tuple[int, ...]:
    """Return the ranks that call the operators at a site more or less often, or the one that got
    slower against itself; empty where all did.
    """
    operators = _operators(verdict)
    if site and operators and operators.ranks:
        return operators.ranks
    return (verdict.straggler.rank,) if verdict.straggler else ()


def site_of(cause: Cause, verdict: Verdict) -> Site | None:
    """Return the line of an operator that a kernel does and that one function alone calls more or
    less often than before. Of a kernel of the backward pass it is the forward operator's, not the
    one that starts the pass.
    """
    operators = _operators(verdict)
    # What fell is no reason why something got slower.
    found = [
        (site, common)
        for site in (operators.sites if operators else ())
        if site.file and (site.count > 0 or cause.us < 0) and (common := _run(cause.place, site))
    ]
    sites = [site for site, common in found if common == found[0][1]]
    lines = [site for site in sites if not site.phase] or sites
    return lines[0] if len({(site.file, site.function) for site in lines}) == 1 else None


def _run(place: str, site: Site) -> str:
    """Return the operator at a site, without its pass, if a kernel launched at a place does it,
    else "". The compiler names its kernels after their operators.
    """
    launches, called = _OPERATOR.fullmatch(place), _OPERATOR.fullmatch(site.what)
    if not called:
        return ""
    same = called["common"] == launches["common"] if launches else f"_{called['name']}_" in place
    return called["common"] if same else ""


def _where(cause: Cause) -> str:
    """Return the phase and the place, unless that is an operator which the kernel's name says."""
    is_needed = cause.kind is Kind.IDLE or "." in cause.place or is_generic(cause.what)
    place = cause.place if is_needed else ""
    return ", ".join(filter(None, (cause.phase, place)))


def _figures(before: Side, after: Side) -> str:
    old, new = before.us / 1e3, after.us / 1e3
    digits = 1 if abs(new - old) >= 1 else 2 if abs(new - old) >= 0.1 else 3
    return f"{old:.{digits}f} -> {new:.{digits}f} ms ({new - old:+.{digits}f})"


def lines(verdict: Verdict) -> Iterator[str]:
    """Yield the first causes and the straggler, a line each; nothing where all is `same`."""
    if verdict.status is Status.SAME and verdict.reason is not Reason.KERNELS_MOVED:
        return
    if one := verdict.straggler:
        yield (
            f"rank {one.rank} takes {one.old_ms:.2f} -> {one.new_ms:.2f} ms without waiting for "
            f"others ({100 * (one.new_ms / one.old_ms - 1):+.2f} %, of the others none more than "
            f"{one.others_pct:+.2f} %)"
        )
    found = verdict.explanation
    if found is None:
        return
    if found.refused:
        yield f"the profiles cannot be compared: {refused_because(found.refused[0])}"
        return
    if found.causes:
        yield f"the profiled steps differ by {found.change_us / 1e3:+.2f} ms:"
        yield from (f"  {line(cause)}" for cause in found.causes[:SHOWN])
        if (rest := len(found.causes) + found.smaller - SHOWN) > 0:
            smaller_us = sum(cause.us for cause in found.causes[SHOWN:]) + found.smaller_us
            yield f"  {smaller_us / 1e3:+.2f} ms: {rest} smaller causes"
        scatter = "within the scatter of steps" if found.scatter_known else "at most 1 us each"
        yield f"  {found.scatter_us / 1e3:+.2f} ms: not explained, {scatter}"


def line(cause: Cause) -> str:
    """Return "+3.60 ms: gelu_5 6.5 -> 10.1 ms a step (12 launches, each slower), forward"."""
    old, new = cause.before.us / 1e3, cause.after.us / 1e3
    makes = f" ({how(cause)})" if how(cause) else ""
    text = f"{cause.us / 1e3:+.2f} ms: {named(cause)} {old:.2f} -> {new:.2f} ms a step{makes}"
    return ", ".join(filter(None, (text, _where(cause))))
