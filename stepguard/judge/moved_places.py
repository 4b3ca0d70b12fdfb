"""Find which parts of a counter moved, and where: operators, calls, lines of source. Pure.

A headline names the first place. Lines that the change touched come first: if an unchanged line
calls more, its cause is another line. In both groups the highest count comes first. A line was
touched if the other side has no line of that text in that function. If a function is unchanged and
called more often, the caller that calls it more often is named, too: the nearest line that is new,
else the nearest one.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache

from msgspec import UNSET
from msgspec.structs import replace

from stepguard.core.evidence import Counts
from stepguard.core.metrics import BETWEEN_STEPS, COLLECTIVES, OF_KERNELS, OPERATORS, PYTHON_LINES
from stepguard.core.profile import summed
from stepguard.core.recording import Recording
from stepguard.core.site import Site, added, merge
from stepguard.core.verdict import PartMove

# Kinds of operators, causes first: products (0), all other operators (1), operators that autograd
# adds (2), backward operators (3), views (4).
_OTHER_KIND = 1
_PRODUCT = re.compile(r"attention|convolution|mm(\.|$)")
_KINDS = {
    0: _PRODUCT,
    2: re.compile(r"[.:](add|clone|copy|fill|mul|ones_like|sum|zeros_like)_?(\.|$)"),
    3: re.compile(r"backward"),
    4: re.compile(
        r"[.:](_unsafe_view|alias|as_strided|detach|empty\w*|expand|lift_fresh|permute|reshape|"
        r"select|slice|split|squeeze|t|transpose|unbind|unsqueeze|view)(\.|$)"
    ),
}
# Operators that compute nothing. If one of them copies, the copy is an operator of its own. If a
# view keeps memory alive, other counters count its bytes. Only torch's own operators are views:
# another library's permute or split may compute.
_VIEW = re.compile(
    r"^aten(\.|::)(_reshape_alias|_unsafe_view|as_strided|chunk|detach|expand|expand_as|"
    r"flatten|movedim|narrow|permute|reshape|select|slice|split|split_with_sizes|squeeze|t|"
    r"transpose|unbind|unflatten|unsqueeze|view|view_as)$"
)
# Operators whose overloads all compute the same. Overloads of other operators may do other work,
# for example sort stably, or round.
_ALIKE = re.compile(r"^aten\.(add|arange|eq|full|ge|gt|le|lt|mean|mul|ne|sub|sum)_?$")
_COLLECTIVE = re.compile(r"^_?c10d")
_LINE_NUMBER = re.compile(r":\d+(?=\): )")  # in a caller, "Block.forward (gpt.py:152): text"
_UNTYPED = "aten._to_copy.default"
_CAST = re.compile(r"(?<=_to_copy)\[\w+\]")  # the type that the cast makes
_WIDEST = {"[float64]": 0, "[float32]": 1}  # other types come after them
VIEWS_PCT = 2.0  # of the operator calls; more views than that cost the host time
# Python is named as the cause of a slower step only if the step runs at least so many lines more,
# and at least this share of its lines more. Refactorings add fewer.
LEAST_LINES = 100
LEAST_LINES_SHARE = 0.1
# Of a site: the caller that calls its function more often, "Block.forward (gpt.py:152)", and
# whether its line is new.
NewCaller = Callable[[Site], tuple[str, bool]]


def where_moved(
    metric: str, now: Recording, past: Recording, moved: Sequence[PartMove], rise: int
) -> tuple[Site, ...]:
    """Return the places that explain why a count moved by ``rise``."""
    new_caller = _new_callers(now, past)
    if metric == OPERATORS:
        sites = _moved_operators(moved, now, past, new_caller)
    elif metric == COLLECTIVES:
        sites = _moved_collectives(now, past, rise < 0, new_caller)
    else:
        sites = _moved_sites(metric, now, past, rise < 0)
    return _with_callers(sites, past, new_caller)


def moved_parts(metric: str, now: Recording, past: Recording) -> tuple[PartMove, ...]:
    """Return the parts of a counter that moved, causes first."""
    new, old = now.detail.get(metric, {}), past.detail.get(metric, {})
    if not old and past.counters.get(metric):  # the recorded parts are unknown
        return ()
    # Old recordings of a GPU have no types in the names of casts. Then types are ignored: on a GPU
    # the time shows the cost of another cast. On a CPU only the name shows it.
    if past.device_uuid and _UNTYPED in old and not any(_CAST.search(name) for name in old):
        new = summed((_CAST.sub("", name), count) for name, count in new.items())
    moves = [
        PartMove(name, old.get(name, 0), new.get(name, 0))
        for name in sorted(old.keys() | new.keys())
        if old.get(name, 0) != new.get(name, 0)
    ]
    return tuple(sorted(moves, key=_distance_from_cause))


def computes_as_much(moved: Sequence[PartMove], calls: int) -> bool:
    """Tell whether only overloads or views moved, and views by VIEWS_PCT at most."""
    changes = summed((_work_of(part.name), part.new - part.old) for part in moved)
    views = all(is_view(name) for name, change in changes.items() if change)
    return bool(moved) and views and abs(changes.total()) <= VIEWS_PCT / 100 * calls


def _work_of(operator: str) -> str:
    """Return the operator, without its overload if all of them compute the same."""
    bare = packet(operator)
    return bare if is_view(bare) or _ALIKE.search(bare) else operator


def is_view(name: str) -> bool:
    """Tell whether an operator only makes a view: it computes nothing."""
    return bool(_VIEW.search(packet(name)))


def packet(name: str) -> str:
    """Return an operator without its overload, "aten.sum" for "aten.sum.default"."""
    # The profiler's names ("aten::sum") have no overload. Overloads of another library may do other
    # work, so they are kept.
    overloaded = name.startswith("aten.") and name.count(".") > 1
    return name.rpartition(".")[0] if overloaded else name


def _distance_from_cause(part: PartMove) -> tuple[int, bool, bool, bool, int, int]:
    """Return the place of a part in the order, causes first: by kind; parts that are new or gone;
    attention before the products that replace it; rises before falls; a cast to a wide type before
    the casts back; large moves before small ones.
    """
    kinds = [rank for rank, kind in _KINDS.items() if kind.search(part.name)]
    kind = max(kinds, default=_OTHER_KIND)
    changed_number = 0 not in (part.old, part.new)
    lost = part.new < part.old
    cast = _CAST.search(part.name)
    narrow = _WIDEST.get(cast.group(), len(_WIDEST)) if cast else 0
    size = abs(part.new - part.old)
    return kind, changed_number, "attention" not in part.name, lost, narrow, -size


def _moved_operators(
    moved: Sequence[PartMove], now: Recording, past: Recording, new_caller: NewCaller
) -> tuple[Site, ...]:
    """Return the lines that call these operators more often, or less, with a negative count.
    Touched lines and products come first, those with a phase last, and lines that call fewer views
    behind all if the step calls more.
    """
    new, old = _by_line(now, past)
    # Lines from a baseline have no phase, so HEAD's phase of the line is used.
    called = {_line(site) for site in new if not site.phase}
    phases = {_line(site): site.phase for site in new}
    libraries, moved_lines = _libraries(now), []
    for part in moved:
        rose = part.new > part.old
        if not old and part.old or not new and part.new:  # the lines of one side are unknown
            continue
        here, there = (new, old) if rose else (old, new)
        for site, count in _more_here(part.name, here, there):
            phase = "" if _line(site) in called else phases.get(_line(site), site.phase)
            signed = {"count": count} if rose else {"count": -count, "line": 0}
            via = libraries.get(site.key[:4]) or site.via
            moved_lines.append(replace(site, phase=phase, via=via, **signed))
    number, touched = {part.name: at for at, part in enumerate(moved)}, _touched(new, old)
    rose = sum(part.new - part.old for part in moved) > 0

    def order(site: Site) -> tuple[bool, bool, bool, int, int]:
        fell = rose and site.count < 0 and is_view(site.what)
        own = touched(site) or site.count > 0 and new_caller(site)[1]
        # Of several changes the one with products comes first: it makes the FLOPs.
        own = own or not site.phase and bool(_PRODUCT.search(site.what))
        return fell, not own, bool(site.phase), number[site.what], -abs(site.count)

    return tuple(sorted(moved_lines, key=order))


def _more_here(
    operator: str, here: Sequence[Site], there: Sequence[Site]
) -> Iterator[tuple[Site, int]]:
    """Yield the lines that call an operator more often in ``here`` than in ``there``, and by how
    much. Only functions that call it more often have such lines. If a function's lines do not add
    up to its rise, the line nearest to the rise gets all of it.
    """
    here, there = ([s for s in side if s.what == operator] for side in (here, there))
    lines = added(there, here)
    now, then = (summed(((s.file, s.function), s.count) for s in side) for side in (here, there))
    for place, count in (now - then).items():
        inside = [site for site in lines if (site.file, site.function) == place]
        if sum(site.count for site in inside) != count:  # some lines were only edited
            yield min(inside, key=lambda site: abs(site.count - count)), count
        else:
            yield from ((site, site.count) for site in inside)


def _moved_collectives(
    now: Recording, past: Recording, fell: bool, new_caller: NewCaller
) -> tuple[Site, ...]:
    """Return the lines that call more collectives; with ``fell`` those that called more."""
    moved = [part for part in moved_parts(OPERATORS, now, past) if _COLLECTIVE.match(part.name)]
    these = [part for part in moved if (part.new < part.old) == fell]
    return tuple(
        replace(site, what=site.what.rpartition(".")[0], count=abs(site.count))
        for site in _moved_operators(these, now, past, new_caller)
    )


def _by_line(now: Recording, past: Recording) -> tuple[list[Site], list[Site]]:
    """Return the places that call operators, of both sides, each once. A baseline does not keep the
    library's line that a place calls (``via``). Then places are not distinguished by it.
    """
    sides = now.operator_sites(), past.operator_sites()
    if any(site.via for site in sides[1]):
        new, old = map(merge, sides)
    else:
        bare = ([replace(s, via=UNSET) for s in side] for side in sides)
        new, old = map(merge, bare)
    return list(new), list(old)


def _libraries(now: Recording) -> dict[tuple[str, ...], str]:
    """Return the library's line that a place calls now, by place, where there is just one."""
    called: dict[tuple[str, ...], set[str]] = {}
    for site in now.operator_sites():
        called.setdefault(site.key[:4], set()).add(site.via or "")
    return {place: "".join(lines) for place, lines in called.items() if len(lines) == 1}


def _moved_sites(metric: str, now: Recording, past: Recording, fell: bool) -> tuple[Site, ...]:
    """Return where a counter rose, or, with ``fell``, was; without places that are allowed."""
    new, old = (list(side.sites.get(metric, ())) for side in (now, past))
    after, before = ([site for site in side if not site.allowed] for side in (new, old))
    touched = _touched([*now.operator_sites(), *new], [*past.operator_sites(), *old])
    # The recording has a count but no places. So only a touched line is surely new. Bytes between
    # steps are an exception: weights have no place, so an empty list is complete.
    if not old and past.counters.get(metric) and metric != BETWEEN_STEPS:
        after = [site for site in after if touched(site)]
    sites = added(after, before) if fell else added(before, after)
    if metric in OF_KERNELS:  # of several lines that may be a kernel's only a touched one is named
        lines = Counter(site.what for site in sites)
        sites = tuple(site for site in sites if lines[site.what] == 1 or touched(site))
    ordered = sorted(sites, key=lambda site: (not touched(site), -site.count))
    # Line numbers of the other side may be outdated.
    return tuple(replace(site, line=0) for site in ordered) if fell else tuple(ordered)


def risen_python(now: Counts, past: Counts) -> tuple[Site, ...]:
    """Return the functions that run more lines of Python, the most first; none if these are too few
    to make a step slower. A function that is not listed ran as many as the last one in the list.
    """
    places, known = now.sites.get(PYTHON_LINES, ()), past.sites.get(PYTHON_LINES, ())
    if not places or not known:
        return ()
    before = {(site.file, site.function): site.count for site in known}
    total = past.information.get(PYTHON_LINES, 0.0)
    unknown = 0 if sum(before.values()) >= total else min(before.values())
    more = [
        replace(site, count=site.count - before.get((site.file, site.function), unknown))
        for site in places
    ]
    risen = sorted((site for site in more if site.count > 0), key=lambda site: -site.count)
    enough = sum(site.count for site in risen) >= max(LEAST_LINES, LEAST_LINES_SHARE * total)
    return tuple(risen) if enough else ()


def _line(site: Site) -> tuple[str, str, str]:
    return site.file, site.function, site.text


def _touched(new: Iterable[Site], old: Iterable[Site]) -> Callable[[Site], bool]:
    """Return a function that tells whether only one side has a site's line, if both have lines."""
    sides = {_line(site) for site in new}, {_line(site) for site in old}
    one_side = sides[0] ^ sides[1] if all(sides) else set()
    return lambda site: _line(site) in one_side


def _with_callers(
    sites: Sequence[Site], past: Recording, new_caller: NewCaller
) -> tuple[Site, ...]:
    """Return the sites. Each line that both sides have, and that does more now, gets a caller: the
    one that is new, or that calls the line's function more often.
    """
    before = {_line(site) for site in past.operator_sites()}
    return tuple(
        replace(site, caller=caller)
        if _line(site) in before and site.count > 0 and (caller := new_caller(site)[0])
        else site
        for site in sites
    )


def without_lines(callers: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return callers without line numbers, which change with every edit above them."""
    return {
        function: dict(summed((_LINE_NUMBER.sub("", name), n) for name, n in counts.items()))
        for function, counts in callers.items()
    }


def _new_callers(now: Recording, past: Recording) -> NewCaller:
    """Return what names callers. A new line that calls a function through others goes before an old
    one that calls it itself, and of old ones the outermost goes first. Empty if there is none, or
    if the former callers are unknown.
    """
    callers = without_lines(past.callers or {})
    after, before = (summed((_line(s), s.count) for s in x.operator_sites()) for x in (now, past))
    # A function of which a line does no more is not called more often: a loop in it is longer.
    as_often = {f"{at[0]} {at[1]}" for at, count in before.items() if 0 < after[at] <= count}
    lines = {f"{name} ({file}): {text}" for file, name, text in before}.union(*callers.values())

    @cache
    def caller_of(function: str) -> tuple[str, bool]:
        found, above, seen = "", False, set[str]()
        while function not in seen:
            seen.add(function)
            new, old = (now.callers or {}).get(function, {}), callers.get(function, {})
            bare = {name: _LINE_NUMBER.sub("", name) for name in new}
            rises = {name: new[name] - old.get(bare[name], 0) for name in new}
            # A new line goes before an old one that never called it, such as a backward pass.
            unknown = {name: (bare[name] not in old) + (bare[name] not in lines) for name in new}
            most = max(new, key=lambda name: (unknown[name], rises[name]), default="")
            if not (old and most) or (rises[most] <= 0 and not above):
                break
            caller = f"{most.partition('): ')[0]})"
            if unknown[most]:
                return caller, True
            often = rises[most] > 0 and function not in as_often
            # Of several old lines none is known to call what calls the function more often.
            if above and len(new) > 1 and not often:
                break
            found, above = caller if often else found, True
            name, _, where = caller.partition(" (")
            function = f"{where.rpartition(':')[0]} {name}"
        return found, False

    return lambda site: caller_of(f"{site.file} {site.function}")
