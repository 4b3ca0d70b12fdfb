"""Explain the difference of two profiles: causes in order of their time, whose sum closes.

The step is a sum: kernels that compute, less their overlap, exposed communication, exposed copies,
idle time by cause. Every term has a figure for each step, so a difference is set against how much
the steps of one profile differ from each other. What is not beyond that is no cause; it goes, all
together, into ``Explanation.scatter_us``: causes + scatter = difference, always. With one step on a
side the scatter is not known, and every difference is a cause.
"""

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from stepguard.core.explanation import Cause, Explanation, Kind, Refusal, Refused, Side
from stepguard.core.profile import (
    IdleRow,
    KernelRow,
    Profile,
    Series,
    added,
    by_class,
    grouped,
    less,
    mean,
    merged,
)
from stepguard.core.roofline import Work
from stepguard.explain.match import How, Match, match
from stepguard.explain.pace import Pace
from stepguard.explain.scatter import Scatter, Term, Usual
from stepguard.trace.classes import COMMUNICATION

LOST_AT_MOST = 0.05  # of the launches
COMMON_AT_LEAST = 0.3  # of the time of kernels, by class: below it these are two different programs
_SHARED_PHASES = 0.5  # of the kernels' time; a phase that is new, or gone, leaves the others
_MOVED_SHARE = 0.2  # of what came and went in a phase: a net change below it is a move


def explain(before: Profile, after: Profile) -> Explanation:
    """Return the causes of the difference between two profiles of one workload."""
    if refused := _refusals(before, after):
        return Explanation(refused)
    matches = match(*_comparable(before, after))
    pace = Pace(matches, (before.steps, after.steps))
    terms = [*_kernel_terms(matches, pace), *_other_terms(before, after, matches, pace)]
    classes = list(pace.terms())
    step_us = min(mean(before.parts.step_us), mean(after.parts.step_us))
    scatter = Scatter([term for term, _ in terms] + [term for _, term in classes], step_us)
    causes, rest = _sorted_out(terms, scatter)
    paced, unpaced = _pace_causes(pace, classes, scatter)
    causes = _with_moves(causes) + paced
    rest += unpaced
    return Explanation(
        refused=(),
        before_us=mean(before.parts.step_us),
        after_us=mean(after.parts.step_us),
        causes=tuple(sorted(causes, key=lambda cause: -abs(cause.us))),
        scatter_us=sum(us for _, us in rest),
        scatter_parts=_summed(rest),
        scatter_known=scatter.known,
        calls=_changed_calls(before, after),
        software=_other_software(before, after),
    )


def _refusals(before: Profile, after: Profile) -> tuple[Refused, ...]:
    """Return why two profiles cannot be compared, nothing where they can."""
    both = before, after
    found = []
    if before.gpu and after.gpu and before.gpu != after.gpu:
        found.append(Refused(Refusal.GPU, before.gpu, after.gpu))
    if before.ranks != after.ranks:
        found.append(Refused(Refusal.RANKS, str(before.ranks), str(after.ranks)))
    if any(one.lost_share > LOST_AT_MOST for one in both):
        found.append(Refused(Refusal.LOST, *(f"{100 * one.lost_share:.1f} %" for one in both)))
    if not before.steps or not after.steps:
        found.append(Refused(Refusal.NO_STEPS, str(before.steps), str(after.steps)))
    elif (common := _common(before, after)) < COMMON_AT_LEAST:
        found.append(Refused(Refusal.FOREIGN, f"{100 * common:.0f} %", ""))
    return tuple(found)


def _common(before: Profile, after: Profile) -> float:
    """Return the share of the kernels' time that is of the same classes on both sides."""
    one, other = by_class(before), by_class(after)
    most = max(sum(one.values()), sum(other.values()))
    return sum(min(us, other.get(kind, 0.0)) for kind, us in one.items()) / most if most else 1.0


def _comparable(before: Profile, after: Profile) -> list[Sequence[KernelRow]]:
    """Return the kernels of both sides that compute: without their phases if the two hardly share
    any, since a workload that names none, or others, has not moved its kernels.
    """
    sides: list[Sequence[KernelRow]] = [
        [row for row in one.kernels if row.kind != COMMUNICATION] for one in (before, after)
    ]
    shared = {row.phase for row in sides[0]} & {row.phase for row in sides[1]}
    for side in sides:
        us = sum(mean(row.us) for row in side if row.phase in shared)
        if us < _SHARED_PHASES * sum(mean(row.us) for row in side):
            return [merged(side, phase="") for side in sides]
    return sides


def _side(rows: Sequence[KernelRow]) -> Side:
    ordered = sorted(rows, key=lambda row: -mean(row.us))
    return Side(
        names=tuple(dict.fromkeys(row.name for row in ordered)),
        calls=sum(mean(row.calls) for row in rows),
        us=sum(mean(row.us) for row in rows),
        shapes=tuple(dict.fromkeys(row.grid for row in ordered)),
        begin_us=min((row.begin_us for row in rows), default=None),
        work=_work(ordered),
    )


def _work(rows: Sequence[KernelRow]) -> Work:
    """Return the mean work of a launch, nothing where it is not known of all, or of two types."""
    calls = sum(mean(row.calls) for row in rows)
    types = {row.work.dtype for row in rows if row.work.flops}
    if not calls or len(types) > 1 or any(row.work == Work() for row in rows):
        return Work()
    flops = sum(row.work.flops * mean(row.calls) for row in rows) / calls
    moved = sum(row.work.bytes * mean(row.calls) for row in rows) / calls
    return Work(flops, moved, next(iter(types), ""))


def _kernel_terms(matches: Sequence[Match], pace: Pace) -> Iterator[tuple[Term, Cause]]:
    """Yield the terms of each match, at its class's pace, with the cause that each would be."""
    for one in matches:
        kind = one.rows[0].kind
        steady = pace.steady(one)
        row = max(one.rows, key=lambda row: mean(row.us))
        # Of what came: where it is launched is what there is to change.
        known = {row.name for row in one.before}
        came = [row for row in one.after if row.name not in known] or one.rows
        longest = max(came, key=lambda row: mean(row.us))
        place = next((row.source for row in came if row.source), longest.operator)
        sides = _side(one.before), _side(one.after)
        calls = sides[0].calls, sides[1].calls
        codes = [{row.code for row in rows} for rows in (one.before, one.after)]
        cause = Cause(_kind_of(one), 0.0, row.name, row.phase, place, *sides, codes[0] != codes[1])
        same_work = one.how in (How.SAME, How.RENAMED)
        if not same_work:
            yield Term(kind, *steady, certain=True), cause
            continue
        if abs(calls[1] - calls[0]) < 1e-6:
            found = Kind.SHAPE if one.other_work else Kind.TIME
            yield Term(kind, *steady, unsure_us=pace.unsure_us(one)), replace(cause, kind=found)
            continue
        # d = (n1 - n0) t0 + n1 (t1 - t0): more calls, then slower calls.
        each_us = mean(steady[0]) / calls[0] if calls[0] else 0.0
        as_many = tuple(n * each_us for n in added([row.calls for row in one.after]))
        between = replace(sides[1], us=each_us * calls[1])
        yield (
            Term(kind, steady[0], as_many, certain=True),
            replace(cause, kind=Kind.CALLS, after=between),
        )
        slower = less(steady[1], as_many)
        yield (
            Term(kind, (0.0,) * len(steady[0]), slower, size=sides[1].us),
            replace(cause, kind=Kind.TIME, before=between),
        )


def _kind_of(one: Match) -> Kind:
    """Return what a match that is not the same work is."""
    if not one.before:
        return Kind.ADDED
    if not one.after:
        return Kind.REMOVED
    return {How.SHAPE: Kind.SHAPE, How.MOVED: Kind.MOVED}.get(one.how, Kind.REPLACED)


def _other_terms(
    before: Profile, after: Profile, matches: Sequence[Match], pace: Pace
) -> Iterator[tuple[Term, Cause]]:
    """Yield what is not a kernel that computes; with those it adds up to the step."""
    one, other = before.parts, after.parts
    exposed = one.exposed_communication_us, other.exposed_communication_us
    yield _part(Kind.COMMUNICATION, *exposed)
    yield _part(Kind.COPIES, one.exposed_copies_us, other.exposed_copies_us)
    sums = pace.sums(matches)
    overlap = less(one.compute_us, sums[0]), less(other.compute_us, sums[1])
    yield _part(Kind.OVERLAP, *overlap, size=mean(one.compute_us))
    yield from _idle_terms(before, after)


def _part(kind: Kind, before: Series, after: Series, size: float = 0.0) -> tuple[Term, Cause]:
    sides = Side((), 0.0, mean(before)), Side((), 0.0, mean(after))
    cause = Cause(kind, 0.0, str(kind), "", "", *sides)
    # The overlap is a difference of sums of kernels, and scatters as little as they do.
    usual = Usual.PACE if kind == Kind.OVERLAP else Usual.PART
    return Term(str(kind), before, after, usual, size=size), cause


def _idle_terms(before: Profile, after: Profile) -> Iterator[tuple[Term, Cause]]:
    keyed = [{(row.cause, row.call, row.place): row for row in one.idle} for one in (before, after)]
    for key in dict.fromkeys([*keyed[0], *keyed[1]]):
        old, new = (side.get(key) for side in keyed)
        cause, call, place = key
        term = Term(
            f"idle: {cause}",
            old.us if old else (0.0,) * before.steps,
            new.us if new else (0.0,) * after.steps,
            Usual.PART,
        )
        sides = _idle_side(old), _idle_side(new)
        yield term, Cause(Kind.IDLE, 0.0, call or cause, "", place, *sides)


def _idle_side(row: IdleRow | None) -> Side:
    if row is None:
        return Side((), 0.0, 0.0)
    return Side((row.cause,), mean(row.count), mean(row.us), begin_us=row.begin_us)


def _sorted_out(
    terms: Sequence[tuple[Term, Cause]], scatter: Scatter
) -> tuple[list[Cause], list[tuple[str, float]]]:
    """Return the causes, and part and time of each term that is within the scatter."""
    causes, rest = [], []
    for term, cause in terms:
        if scatter.beyond(term):
            causes.append(replace(cause, us=term.change_us))
        else:
            rest.append((term.part, term.change_us))
    return causes, rest


def _pace_causes(
    pace: Pace, classes: Sequence[tuple[str, Term]], scatter: Scatter
) -> tuple[list[Cause], list[tuple[str, float]]]:
    """Return by how much whole classes got slower: the clock, if several did by one ratio."""
    found = [(kind, term) for kind, term in classes if scatter.beyond(term)]
    rest = [(term.part, term.change_us) for _, term in classes if not scatter.beyond(term)]
    if not found:
        return [], rest
    sides = {kind: [Side((kind,), 0.0, us) for us in pace.class_us(kind)] for kind, _ in found}
    if pace.is_clock([kind for kind, _ in found]):
        names = tuple(kind for kind, _ in found)
        us = [sum(side[i].us for side in sides.values()) for i in (0, 1)]
        clock = Cause(
            Kind.CLOCK, sum(term.change_us for _, term in found), "clock", "", "",
            Side(names, 0.0, us[0]), Side(names, 0.0, us[1]),
        )  # fmt: skip
        return [clock], rest
    return [
        Cause(
            Kind.TIME, term.change_us, f"all {kind} kernels", "", "", sides[kind][0], sides[kind][1]
        )
        for kind, term in found
    ], rest


def _with_moves(causes: list[Cause]) -> list[Cause]:
    """Return the causes; what came and went in one phase, and nearly cancels, becomes one move."""
    structural = (Kind.REPLACED, Kind.ADDED, Kind.REMOVED, Kind.CALLS, Kind.SHAPE)
    kept = [cause for cause in causes if cause.kind not in structural]
    moved = [cause for cause in causes if cause.kind in structural]
    for phase, mine in grouped(moved, lambda cause: cause.phase).items():
        net, gross = sum(one.us for one in mine), sum(abs(one.us) for one in mine)
        if len(mine) < 2 or abs(net) > _MOVED_SHARE * gross:
            kept += mine
            continue
        came = max(mine, key=lambda one: one.us)
        gone = min(mine, key=lambda one: one.us)
        kept.append(Cause(Kind.MOVED, net, came.what, phase, came.place, gone.before, came.after))
    return kept


def _summed(rest: Sequence[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    parts: dict[str, float] = {}
    for part, us in rest:
        parts[part] = parts.get(part, 0.0) + us
    return tuple(sorted(parts.items(), key=lambda item: -abs(item[1])))


def _changed_calls(before: Profile, after: Profile) -> tuple[tuple[str, float, float], ...]:
    """Return the work calls whose number changed; polling calls vary from step to step."""
    zeros: Series = (0.0,)
    found = []
    for name in sorted(before.calls.keys() | after.calls.keys()):
        old, new = before.calls.get(name, zeros), after.calls.get(name, zeros)
        steady = len(set(old)) == 1 and len(set(new)) == 1
        if steady and old[0] != new[0]:
            found.append((name, old[0], new[0]))
    return tuple(sorted(found, key=lambda item: -abs(item[2] - item[1])))


def _other_software(before: Profile, after: Profile) -> tuple[tuple[str, str, str], ...]:
    one, other = dict(before.software), dict(after.software)
    both = sorted(one.keys() & other.keys())
    return tuple((name, one[name], other[name]) for name in both if one[name] != other[name])
