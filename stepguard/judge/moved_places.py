"""What a counter that moved is made of, and where: operators, calls, lines of source. Pure.

The first place is the one that a headline names. Lines that the change touched come first, then the
line that counts most. A line was touched if the other side has no line of that text in that
function: what an unchanged line calls more often follows from another line. A shared function may
be unchanged: then the caller that calls it more often is named, too.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from stepguard.core.evidence import Counts
from stepguard.core.metrics import (
    BETWEEN_STEPS,
    COLLECTIVES,
    OF_KERNELS,
    OPERATORS,
    PEAK,
    PYTHON_LINES,
)
from stepguard.core.recording import Recording
from stepguard.core.site import Site, added, merge
from stepguard.core.verdict import PartMove

# Kinds of operators, causes first: products, all other operators, what autograd adds beside them,
# backward operators, views.
_OTHER_KIND = 1
_KINDS = {
    0: re.compile(r"attention|convolution|mm(\.|$)"),
    2: re.compile(r"[.:](add|clone|copy|fill|mul|ones_like|sum|zeros_like)_?(\.|$)"),
    3: re.compile(r"backward"),
    4: re.compile(
        r"[.:](_unsafe_view|alias|as_strided|detach|empty\w*|expand|lift_fresh|permute|reshape|"
        r"select|slice|split|squeeze|t|transpose|unbind|unsqueeze|view)(\.|$)"
    ),
}
# Operators that compute nothing. If one of them copies, the copy is an operator of its own. What a
# step keeps through one is counted as bytes. Another library's permute or split is not among them.
_VIEW = re.compile(
    r"^aten(\.|::)(_reshape_alias|_unsafe_view|as_strided|chunk|detach|expand|expand_as|"
    r"flatten|movedim|narrow|permute|reshape|select|slice|split|split_with_sizes|squeeze|t|"
    r"transpose|unbind|unflatten|unsqueeze|view|view_as)$"
)
# Operators whose overloads all compute the same. Overloads of others may sort stably, round, or
# raise to the powers of a tensor.
_ALIKE = re.compile(r"^aten\.(add|arange|eq|full|ge|gt|le|lt|mean|mul|ne|sub|sum)_?$")
_COLLECTIVE = re.compile(r"^_?c10d")
_LINE_NUMBER = re.compile(r":\d+(?=\): )")  # in a caller, "Block.forward (gpt.py:152): text"
_UNTYPED = "aten._to_copy.default"
_CAST = re.compile(r"(?<=_to_copy)\[\w+\]")  # the type that the cast makes
_WIDEST = {"[float64]": 0, "[float32]": 1}  # other types come after them
VIEWS_PCT = 2.0  # of the operator calls; more views than that are work for the host
EDITED = "edited line"  # the place of a peak at a line that calls nothing more
FEW_LINES = 3  # if an edit touched more lines, nobody knows which of them it is
# A slower step is blamed on Python from so many lines on, and from this share of its lines on:
# refactors move fewer.
LEAST_LINES = 100
LEAST_LINES_SHARE = 0.1


def where_moved(
    metric: str, now: Recording, past: Recording, moved: Sequence[PartMove], rise: int
) -> tuple[Site, ...]:
    """Return the places of a count that moved by ``rise``."""
    if metric == OPERATORS:
        return with_new_callers(_moved_operators(moved, now, past), now, past)
    if metric == PEAK:
        return _lines_of_a_peak(now, past) if rise > 0 else ()
    if metric == COLLECTIVES:
        return _moved_collectives(now, past, rise < 0)
    return with_new_callers(_moved_sites(metric, now, past, rise < 0), now, past)


def moved_parts(metric: str, now: Recording, past: Recording) -> tuple[PartMove, ...]:
    """Return the parts of a counter that moved, causes first."""
    new, old = now.detail.get(metric, {}), past.detail.get(metric, {})
    if not old and past.counters.get(metric):  # the recorded parts are unknown
        return ()
    # Recordings of a GPU may be older than types in the names of casts; there the time shows the
    # cost of a cast. On a CPU only the name shows it.
    if past.device_uuid and _UNTYPED in old and not any(_CAST.search(name) for name in old):
        new = _without_types(new)
    moves = [
        PartMove(name, old.get(name, 0), new.get(name, 0))
        for name in sorted(old.keys() | new.keys())
        if old.get(name, 0) != new.get(name, 0)
    ]
    return tuple(sorted(moves, key=_distance_from_cause))


def _without_types(parts: Mapping[str, int]) -> dict[str, int]:
    """Return the parts without types in the names of casts, as older recordings have them."""
    calls: Counter[str] = Counter()
    for name, count in parts.items():
        calls[_CAST.sub("", name)] += count
    return calls


def computes_as_much(moved: Sequence[PartMove], calls: int) -> bool:
    """Tell whether only the way of calling operators moved: other overloads, other views, or a few
    views more or fewer.
    """
    changes: Counter[str] = Counter()
    for part in moved:
        name = packet(part.name)
        alike = is_view(name) or _ALIKE.search(name)
        changes[name if alike else part.name] += part.new - part.old
    views = all(is_view(name) for name, change in changes.items() if change)
    return bool(moved) and views and abs(changes.total()) <= VIEWS_PCT / 100 * calls


def is_view(name: str) -> bool:
    """Tell whether an operator only makes a view: it computes nothing."""
    return bool(_VIEW.search(packet(name)))


def packet(name: str) -> str:
    """Return an operator without its overload, "aten.sum" for "aten.sum.default"."""
    # The profiler writes "aten::sum". What overloads of another library do is unknown.
    overloaded = name.startswith("aten.") and name.count(".") > 1
    return name.rpartition(".")[0] if overloaded else name


def _distance_from_cause(part: PartMove) -> tuple[int, bool, bool, bool, int, int]:
    """Order parts: by kind; new and lost ones before others; attention before the products that
    replace it; new before lost; a cast to a wide type before the casts back; then by the size of
    the move.
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
    moved: Sequence[PartMove], now: Recording, past: Recording
) -> tuple[Site, ...]:
    """Return the lines that call these operators more often, or less often: then the count is
    negative. Of untouched lines those come last whose operators are called only in backward passes
    and optimizers, with that phase.
    """
    new, old = _by_line(now, past)
    # The lines of a baseline have no phase. A line has one phase for all that it calls.
    called = {_line(site) for site in new if not site.phase}
    phases = {_line(site): site.phase for site in new}
    moved_lines = []
    for part in moved:
        rose = part.new > part.old
        if not old and part.old or not new and part.new:  # the lines of one side are unknown
            continue
        here, there = (new, old) if rose else (old, new)
        for site in _more_here(part.name, here, there):
            phase = "" if _line(site) in called else phases.get(_line(site), site.phase)
            signed = replace(site, count=site.count if rose else -site.count, phase=phase)
            moved_lines.append(signed if rose else _former(signed))
    number, touched = {part.name: at for at, part in enumerate(moved)}, _touched(new, old)

    def order(site: Site) -> tuple[bool, bool, int, int]:
        return not touched(site), bool(site.phase), number[site.what], -abs(site.count)

    return tuple(_with_library(sorted(moved_lines, key=order), now))


def _more_here(operator: str, here: Sequence[Site], there: Sequence[Site]) -> list[Site]:
    """Return the lines of each function that calls an operator more often here than there: its new
    lines if they account for the whole rise, else the line that accounts for most of it.
    """
    here, there = ([s for s in side if s.what == operator] for side in (here, there))
    lines, more = added(there, here), []
    for place, count in (_by_function(here) - _by_function(there)).items():
        inside = [site for site in lines if (site.file, site.function) == place]
        if sum(site.count for site in inside) != count:  # some lines were only edited
            line = min(inside, key=lambda site: abs(site.count - count))
            inside = [replace(line, count=count)]
        more += inside
    return more


def _moved_collectives(now: Recording, past: Recording, fell: bool) -> tuple[Site, ...]:
    """Return the lines that call more collectives in the eager step. With ``fell``: the lines that
    called them before.
    """
    moved = [part for part in moved_parts(OPERATORS, now, past) if _COLLECTIVE.match(part.name)]
    these = [part for part in moved if (part.new < part.old) == fell]
    return tuple(
        replace(site, what=site.what.rpartition(".")[0], count=abs(site.count))
        for site in _moved_operators(these, now, past)
    )


def _lines_of_a_peak(now: Recording, past: Recording) -> tuple[Site, ...]:
    """Return the lines that now call an operator that another line called before. If all of them
    are untouched, the lines that the change touched come first, if they are few:
    ``backward(retain_graph=True)`` calls nothing more, and keeps its graph.
    """
    new, old = _by_line(now, past)
    touched, calls = _touched(new, old), _calls_at_other_lines(now, past)
    if any(map(touched, calls)):
        return tuple(sorted(calls, key=lambda site: not touched(site)))
    moved = {function[:2] for function, _ in _calls_of(new).items() ^ _calls_of(old).items()}
    edited = {_line(s): s for s in new if touched(s) and (s.file, s.function) not in moved}
    few = edited.values() if len(edited) <= FEW_LINES else ()
    return (*(replace(site, what=EDITED, count=1, phase="") for site in few), *calls)


def _calls_of(sites: Iterable[Site]) -> Counter[tuple[str, str, str]]:
    """Return how often each function calls each operator."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for site in sites:
        counts[site.file, site.function, site.what] += site.count
    return counts


def _calls_at_other_lines(now: Recording, past: Recording) -> tuple[Site, ...]:
    """Return the lines that now call an operator that another line called before, if that line
    still exists. Example: a loss cast its input; now the line above does. A line that was only
    edited is not returned.
    """
    new, old = _by_line(now, past)
    calls = {site.key: site.count for site in new}
    lines = {site.key[1:] for site in new}
    left: Counter[str] = Counter()
    for site in old:
        if site.key[1:] in lines:
            left[site.what] += max(0, site.count - calls.get(site.key, 0))
    return tuple(
        replace(site, what=packet(site.what))
        for site in _with_library(added(old, new), now)
        if left[site.what] >= site.count and not site.phase and not is_view(site.what)
    )


def _by_line(now: Recording, past: Recording) -> tuple[list[Site], list[Site]]:
    """Return the places that call operators, of both sides, each once. A baseline keeps lines and
    not through which library's line they call: then that does not tell two places apart.
    """
    sides = now.operator_sites(), past.operator_sites()
    if any(site.via for site in sides[1]):
        new, old = map(merge, sides)
    else:
        bare = ([replace(s, via=UNSET) for s in side] for side in sides)
        new, old = map(merge, bare)
    return list(new), list(old)


def _with_library(sites: Sequence[Site], now: Recording) -> list[Site]:
    """Return the places, each with the library's line that it calls now, if that is one line."""
    called: dict[tuple[str, ...], set[str]] = {}
    for site in now.operator_sites():
        called.setdefault(site.key[:4], set()).add(site.via or "")
    placed = []
    for site in sites:
        lines = called.get(site.key[:4], set())
        library = "".join(lines) if len(lines) == 1 else ""
        placed.append(replace(site, via=library) if library else site)
    return placed


def _former(site: Site) -> Site:
    """Return a place without its line number, which is the other side's."""
    return replace(site, line=0)


def _by_function(sites: Sequence[Site]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for site in sites:
        counts[site.file, site.function] += site.count
    return counts


def _moved_sites(metric: str, now: Recording, past: Recording, fell: bool) -> tuple[Site, ...]:
    """Return the places of what rose, or the former ones of what fell; not those allowed."""
    new, old = (list(side.sites.get(metric, ())) for side in (now, past))
    after, before = ([site for site in side if not site.allowed] for side in (new, old))
    touched = _touched([*now.operator_sites(), *new], [*past.operator_sites(), *old])
    # The former places are unknown then, and only a touched line is surely new. For bytes between
    # steps an empty list is known: weights have no place.
    if not old and past.counters.get(metric) and metric != BETWEEN_STEPS:
        after = [site for site in after if touched(site)]
    sites = added(after, before) if fell else added(before, after)
    if metric in OF_KERNELS:  # of several lines that may be a kernel's only a touched one is named
        lines = Counter(site.what for site in sites)
        sites = tuple(site for site in sites if lines[site.what] == 1 or touched(site))
    ordered = sorted(sites, key=lambda site: (not touched(site), -site.count))
    return tuple(map(_former, ordered) if fell else ordered)


def risen_python(now: Counts, past: Counts) -> tuple[Site, ...]:
    """Return the functions that run more lines of Python than in the past, the most first; none if
    all of them together are too few to make a step slower.

    Both sides know only the functions with most lines. Any other function of the past is taken to
    have run as many lines as the last of those.
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
    """Return what tells if a line is on one side alone; if a side has no lines, none is."""
    sides = {_line(site) for site in new}, {_line(site) for site in old}
    one_side = sides[0] ^ sides[1] if all(sides) else set()
    return lambda site: _line(site) in one_side


def with_new_callers(sites: Sequence[Site], now: Recording, past: Recording) -> tuple[Site, ...]:
    """Return the sites, with a caller for each known line that does more now: the caller of its
    function that is new, or that calls it more often.
    """
    before = {site.key[1:4] for site in past.operator_sites()}
    return tuple(
        replace(site, caller=caller)
        if site.key[1:4] in before and site.count > 0 and (caller := _new_caller(site, now, past))
        else site
        for site in sites
    )


def without_lines(callers: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return callers as a baseline keeps them: line numbers move with every edit above them."""
    bare_callers: dict[str, dict[str, int]] = {}
    for function, counts in callers.items():
        mine = bare_callers.setdefault(function, {})
        for caller, count in counts.items():
            bare = _LINE_NUMBER.sub("", caller)
            mine[bare] = mine.get(bare, 0) + count
    return bare_callers


def _new_caller(site: Site, now: Recording, past: Recording) -> str:
    """Return "Block.forward (gpt.py:152)"; empty if no caller is new, or none is known."""
    function = f"{site.file} {site.function}"
    new, old = ((side.callers or {}).get(function, {}) for side in (now, past))
    if not old:
        return ""
    known = without_lines({function: old})[function]
    rises = {name: count - known.get(_LINE_NUMBER.sub("", name), 0) for name, count in new.items()}
    most = max(rises, key=lambda name: rises[name], default="")
    return f"{most.partition('): ')[0]})" if most and rises[most] > 0 else ""
