"""Explain the difference of two profiles: causes, sorted by their time, that add up to it.

A step is a sum: kernels that compute, less their overlap, exposed communication, exposed copies,
and idle time by cause. A term within the scatter of the steps of one profile (scatter.py) is no
cause; the sum of such terms is ``Explanation.scatter_us``.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from stepguard.core.explanation import Cause, Explanation, Kind, Refused, Side, Unlike
from stepguard.core.profile import (
    IdleRow,
    KernelRow,
    MachineCode,
    Profile,
    Series,
    Work,
    added,
    by_class,
    grouped,
    less,
    mean,
    merged,
)
from stepguard.core.site import Site
from stepguard.explain.match_kernels import How, Match, match, rows_of
from stepguard.explain.scatter import PACE, PART, Pace, Scatter, Term
from stepguard.trace.kernel_classes import operator_in

LOST_AT_MOST = 0.05  # share of the launches
# Least share of the kernels' time in classes of both sides; with less, the programs are different.
COMMON_AT_LEAST = 0.3
# Phases are compared if kernels in phases of both sides take this share of the time on each side.
# If a single phase came or went, they usually do.
_SHARED_PHASES = 0.5
_MOVED_SHARE = 0.2  # of the time that came and went in a phase; a net change up to it is a move


def explain(
    before: Profile,
    after: Profile,
    judged: Collection[Match] = (),
    operators: Sequence[Site] = (),
) -> Explanation:
    """Return the causes of the difference between two profiles of one workload, or why the profiles
    cannot be compared. Kernels that were ``judged`` to make the difference are causes, even if
    their time is within the scatter between the steps of these two profiles. Lines of causes are
    those of the ``operators`` that the step of ``after`` calls.
    """
    if refused := _refusals(before, after):
        return Explanation(refused)
    matches = match(*_comparable(before, after))
    pace = Pace(matches, (before.steps, after.steps))
    terms = [*_kernel_terms(matches, pace, judged), *_other_terms(before, after, matches, pace)]
    paces = list(_pace_terms(pace))
    step_us = min(mean(before.parts.step_us), mean(after.parts.step_us))
    scatter = Scatter([term for term, _ in terms + paces], step_us)
    causes, rest = _sorted_out(terms, scatter)
    paced, unpaced = _sorted_out(paces, scatter)
    causes = _with_moves(causes) + _with_clock(paced, pace)
    causes = [_with_line(cause, operators) for cause in causes]
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
        other_machine_code=tuple(_other_machine_code(terms, scatter)) or UNSET,
    )


def _with_line(cause: Cause, operators: Sequence[Site]) -> Cause:
    """Return a cause with the line of the operator that launches its kernels, if it is one line."""
    mine = [site for site in operators if operator_in(cause.place, site.what)]
    names = {operator_in(cause.place, site.what) for site in mine}
    origins = {_origin(site) for site in mine} - {""}
    if not cause.after.calls or len(names) != 1 or len(origins) != 1:
        return cause
    line = next((site for site in mine if site.phase != "backward"), None)
    if line is None:
        place, _, function = origins.pop().partition(" in ")
        file, _, number = place.rpartition(":")
        line = Site(mine[0].what, file, int(number), function)
    return replace(cause, line=line)


def _origin(site: Site) -> str:
    """Return the line that calls an operator, in a backward pass that of the forward operator:
    "model/gpt.py:88 in MLP.forward". It is the library's line if a library calls the operator, and
    empty if it is unknown.
    """
    if site.phase == "backward":
        return (site.via or "").partition(", ")[2]
    return site.via or f"{site.place} in {site.function}"


def lines_of(place: str, operators: Iterable[Site]) -> list[Site]:
    """Return the lines of the operator that launches the kernels of a ``place``: of several
    operators the first. The line that starts a pass comes only if no other line is known.
    """
    matching = [
        (site, common)
        for site in operators
        if site.file and (common := operator_in(place, site.what))
    ]
    sites = [site for site, common in matching if common == matching[0][1]]
    return [site for site in sites if not site.phase] or sites


def _refusals(before: Profile, after: Profile) -> tuple[Refused, ...]:
    both = before, after
    refused = []
    if before.gpu and after.gpu and before.gpu != after.gpu:
        refused.append(Refused(Unlike.GPU, before.gpu, after.gpu))
    if before.ranks != after.ranks:
        refused.append(Refused(Unlike.RANKS, str(before.ranks), str(after.ranks)))
    if any(profile.lost_share > LOST_AT_MOST for profile in both):
        shares = (f"{100 * profile.lost_share:.1f} %" for profile in both)
        refused.append(Refused(Unlike.LOST, *shares))
    if not before.steps or not after.steps:
        refused.append(Refused(Unlike.NO_STEPS, str(before.steps), str(after.steps)))
    elif (common := _common(before, after)) < COMMON_AT_LEAST:
        refused.append(Refused(Unlike.FOREIGN, f"{100 * common:.0f} %", ""))
    return tuple(refused)


def _common(before: Profile, after: Profile) -> float:
    """Return the share of the kernels' time in classes that both sides have."""
    old, new = by_class(before), by_class(after)
    whole, now_whole = sum(old.values()), sum(new.values())
    if not (whole and now_whole):
        return float(whole == now_whole)
    return sum(min(us / whole, new.get(kind, 0.0) / now_whole) for kind, us in old.items())


def _comparable(before: Profile, after: Profile) -> list[Sequence[KernelRow]]:
    """Return the computing kernels of each side; without phases if hardly any is shared."""
    sides: list[Sequence[KernelRow]] = [rows_of(before), rows_of(after)]
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
        machine_code=_machine_code(ordered),
    )


def _machine_code(rows: Sequence[KernelRow]) -> MachineCode | UnsetType:
    """Return the machine code of the only kernel; unset if there are several, or it is unknown."""
    codes = {row.machine_code for row in rows}
    return (codes.pop() if len(codes) == 1 else None) or UNSET


def _work(rows: Sequence[KernelRow]) -> Work:
    """Return the mean work of a launch; none if it is unknown for some, or of two types."""
    calls = sum(mean(row.calls) for row in rows)
    types = {row.work.dtype for row in rows if row.work.flops}
    if not calls or len(types) > 1 or any(row.work == Work() for row in rows):
        return Work()
    flops = sum(row.work.flops * mean(row.calls) for row in rows) / calls
    moved = sum(row.work.bytes * mean(row.calls) for row in rows) / calls
    return Work(flops, moved, next(iter(types), ""))


def _kernel_terms(
    matches: Sequence[Match], pace: Pace, judged: Collection[Match]
) -> Iterator[tuple[Term, Cause]]:
    """Yield the terms of each match at the pace of its class, each with its cause."""
    for matched in matches:
        kind = matched.rows[0].kind
        steady = pace.steady(matched)
        before, after = _side(matched.before), _side(matched.after)
        same_work = matched.how in (How.SAME, How.RENAMED)
        if not same_work:
            term = Term(kind, *steady, certain=True)
            yield term, _cause_of(matched, _kind_of(matched), term, before, after)
            continue
        if abs(after.calls - before.calls) < 1e-6:
            unsure_us = pace.unsure_us(matched)
            term = Term(kind, *steady, certain=matched in judged, unsure_us=unsure_us)
            how = Kind.SHAPE if matched.other_work else Kind.TIME
            yield term, _cause_of(matched, how, term, before, after)
            continue
        # n calls of t us: n1 t1 - n0 t0 = (n1 - n0) t0 + n1 (t1 - t0), more calls and slower calls.
        each_us = mean(steady[0]) / before.calls if before.calls else 0.0
        as_many = tuple(n * each_us for n in added([row.calls for row in matched.after]))
        between = replace(after, us=each_us * after.calls)
        term = Term(kind, steady[0], as_many, certain=True)
        yield term, _cause_of(matched, Kind.CALLS, term, before, between)
        slower = less(steady[1], as_many)
        term = Term(kind, (0.0,) * len(steady[0]), slower, size=after.us)
        yield term, _cause_of(matched, Kind.TIME, term, between, after)


def _cause_of(matched: Match, kind: Kind, term: Term, before: Side, after: Side) -> Cause:
    row = max(matched.rows, key=lambda row: mean(row.us))
    # The place is that of a new kernel if there is one, since the reader can change that line.
    known = {row.name for row in matched.before}
    came = [row for row in matched.after if row.name not in known] or matched.rows
    longest = max(came, key=lambda row: mean(row.us))
    place = next((row.source for row in came if row.source), longest.operator)
    return Cause(kind, term.change_us, row.name, row.phase, place, before, after)


def _kind_of(matched: Match) -> Kind:
    if not matched.before:
        return Kind.ADDED
    if not matched.after:
        return Kind.REMOVED
    return {How.SHAPE: Kind.SHAPE, How.MOVED: Kind.MOVED}.get(matched.how, Kind.REPLACED)


def _other_terms(
    before: Profile, after: Profile, matches: Sequence[Match], pace: Pace
) -> Iterator[tuple[Term, Cause]]:
    """Yield the terms of all but the computing kernels: they complete the step."""
    old, new = before.parts, after.parts
    exposed = old.exposed_communication_us, new.exposed_communication_us
    yield _part(Kind.COMMUNICATION, *exposed)
    yield _part(Kind.COPIES, old.exposed_copies_us, new.exposed_copies_us)
    sums = pace.sums(matches)
    overlap = less(old.compute_us, sums[0]), less(new.compute_us, sums[1])
    yield _part(Kind.OVERLAP, *overlap, size=mean(old.compute_us))
    yield from _idle_terms(before, after)


def _part(kind: Kind, before: Series, after: Series, size: float = 0.0) -> tuple[Term, Cause]:
    sides = Side((), 0.0, mean(before)), Side((), 0.0, mean(after))
    # The overlap is a difference between sums of kernels, so it scatters as little as kernels do.
    usual = PACE if kind == Kind.OVERLAP else PART
    term = Term(str(kind), before, after, usual, size=size)
    return term, Cause(kind, term.change_us, str(kind), "", "", *sides)


def _idle_terms(before: Profile, after: Profile) -> Iterator[tuple[Term, Cause]]:
    both = before.idle, after.idle
    keyed = [{(row.cause, row.call, row.place): row for row in rows} for rows in both]
    for key in dict.fromkeys([*keyed[0], *keyed[1]]):
        old, new = (side.get(key) for side in keyed)
        cause, call, place = key
        term = Term(
            f"idle: {cause}",
            old.us if old else (0.0,) * before.steps,
            new.us if new else (0.0,) * after.steps,
            PART,
        )
        sides = _idle_side(old), _idle_side(new)
        yield term, Cause(Kind.IDLE, term.change_us, call or cause, "", place, *sides)


def _idle_side(row: IdleRow | None) -> Side:
    if row is None:
        return Side((), 0.0, 0.0)
    return Side((row.cause,), mean(row.count), mean(row.us), begin_us=row.begin_us)


def _sorted_out(
    terms: Sequence[tuple[Term, Cause]], scatter: Scatter
) -> tuple[list[Cause], list[tuple[str, float]]]:
    """Return the causes, and the part and time of each term that is within the scatter."""
    causes, rest = [], []
    for term, cause in terms:
        if scatter.beyond(term):
            causes.append(cause)
        else:
            rest.append((term.part, term.change_us))
    return causes, rest


def _other_machine_code(terms: Sequence[tuple[Term, Cause]], scatter: Scatter) -> Iterator[Cause]:
    """Yield the kernels with other machine code whose time is within the scatter."""
    for term, cause in terms:
        old, new = cause.before.machine_code, cause.after.machine_code
        if old and new and old != new and not scatter.beyond(term):
            yield cause


def _pace_terms(pace: Pace) -> Iterator[tuple[Term, Cause]]:
    """Yield the term of each class's pace, with a cause: all kernels of the class."""
    for kind, term in pace.terms():
        before, after = (Side((kind,), 0.0, us) for us in pace.class_us(kind))
        what = f"all {kind} kernels"
        yield term, Cause(Kind.TIME, term.change_us, what, "", "", before, after)


def _with_clock(paced: list[Cause], pace: Pace) -> list[Cause]:
    """Return the causes of classes whose pace changed; if by one ratio, they are one, the clock."""
    kinds = tuple(kind for cause in paced for kind in cause.after.names)
    if not pace.is_clock(kinds):
        return paced
    before, after = (
        Side(kinds, 0.0, sum(side.us for side in sides))
        for sides in ([cause.before for cause in paced], [cause.after for cause in paced])
    )
    return [Cause(Kind.CLOCK, sum(cause.us for cause in paced), "clock", "", "", before, after)]


def _with_moves(causes: list[Cause]) -> list[Cause]:
    """Return the causes. Kernels that came and went in one phase become one: a move."""
    structural = (Kind.REPLACED, Kind.ADDED, Kind.REMOVED, Kind.CALLS, Kind.SHAPE)
    kept = [cause for cause in causes if cause.kind not in structural]
    moved = [cause for cause in causes if cause.kind in structural]
    for phase, mine in grouped(moved, lambda cause: cause.phase).items():
        net, gross = sum(cause.us for cause in mine), sum(abs(cause.us) for cause in mine)
        if len(mine) < 2 or abs(net) > _MOVED_SHARE * gross:
            kept += mine
            continue
        came = max(mine, key=lambda cause: cause.us)
        gone = min(mine, key=lambda cause: cause.us)
        sides = (
            _together(gone.before, [c.before for c in mine]),
            _together(came.after, [c.after for c in mine]),
        )
        kept.append(Cause(Kind.MOVED, net, came.what, phase, came.place, *sides))
    return kept


def _together(main: Side, sides: Sequence[Side]) -> Side:
    """Return a side with the figures of all sides. The names of the main cause come first."""
    names = tuple(dict.fromkeys([*main.names, *(name for side in sides for name in side.names)]))
    calls, us = sum(side.calls for side in sides), sum(side.us for side in sides)
    return replace(main, names=names, calls=calls, us=us, work=Work(), machine_code=UNSET)


def _summed(rest: Sequence[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    parts: dict[str, float] = {}
    for part, us in rest:
        parts[part] = parts.get(part, 0.0) + us
    return tuple(sorted(parts.items(), key=lambda item: -abs(item[1])))


def _changed_calls(before: Profile, after: Profile) -> tuple[tuple[str, float, float], ...]:
    """Return the CUDA calls whose steady number changed: name, old and new number."""
    zeros: Series = (0.0,)
    changed = []
    for name in sorted(before.calls.keys() | after.calls.keys()):
        old, new = before.calls.get(name, zeros), after.calls.get(name, zeros)
        steady = len(set(old)) == 1 and len(set(new)) == 1
        if steady and old[0] != new[0]:
            changed.append((name, old[0], new[0]))
    return tuple(sorted(changed, key=lambda item: -abs(item[2] - item[1])))


def _other_software(before: Profile, after: Profile) -> tuple[tuple[str, str, str], ...]:
    old, new = dict(before.software), dict(after.software)
    both = sorted(old.keys() & new.keys())
    return tuple((name, old[name], new[name]) for name in both if old[name] != new[name])
