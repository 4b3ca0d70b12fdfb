"""What a counter that moved is made of, and where: operators, calls, lines of source. Pure."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from stepguard.core.metrics import BETWEEN_STEPS, COLLECTIVES, METRICS, OPERATORS, PEAK
from stepguard.core.recording import Recording
from stepguard.core.site import Site, added, merge
from stepguard.core.verdict import PartMove
from stepguard.judge.callers import with_new_callers

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
_UNTYPED = "aten._to_copy.default"
_CAST = re.compile(r"(?<=_to_copy)\[\w+\]")  # the type that the cast makes
_WIDEST = {"[float64]": 0, "[float32]": 1}  # other types come after them
VIEWS_PCT = 2.0  # of the operator calls; more views than that are work for the host


def where_moved(
    metric: str, now: Recording, past: Recording, moved: Sequence[PartMove], rise: int
) -> tuple[Site, ...]:
    """Return the places of a count that moved by ``rise``."""
    if metric == OPERATORS:
        return with_new_callers(_moved_operators(moved, now, past), now, past)
    if metric == PEAK:
        return _calls_at_other_lines(now, past) if rise > 0 else ()
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
    negative.

    If a function calls an operator more often, its new lines are returned, if they account for the
    whole rise; else the line that accounts for most of it. The same holds for falls. Lines whose
    operators are called only in backward passes and optimizers come last, with that phase.
    """
    new, old = _by_line(now, past)
    # The lines of a baseline have no phase. A line has one phase for all that it calls.
    called = {(s.file, s.function, s.text) for s in new if not s.phase}
    phases = {(s.file, s.function, s.text): s.phase for s in new}
    moved_lines = []
    for part in moved:
        rose = part.new > part.old
        if not old and part.old or not new and part.new:  # the lines of one side are unknown
            continue
        here, there = (new, old) if rose else (old, new)
        here, there = ([s for s in side if s.what == part.name] for side in (here, there))
        lines = added(there, here)
        for place, count in (_by_function(here) - _by_function(there)).items():
            inside = [site for site in lines if (site.file, site.function) == place]
            if sum(site.count for site in inside) != count:  # some lines were only edited
                line = min(inside, key=lambda site: abs(site.count - count))
                inside = [msgspec.structs.replace(line, count=count)]
            for line in inside:
                key = (line.file, line.function, line.text)
                phase = "" if key in called else phases.get(key, line.phase)
                signed = line.count if rose else -line.count
                line = msgspec.structs.replace(line, count=signed, phase=phase)
                moved_lines.append(line if rose else _former(line))
    return tuple(_with_library(sorted(moved_lines, key=lambda site: bool(site.phase)), now))


def _moved_collectives(now: Recording, past: Recording, fell: bool) -> tuple[Site, ...]:
    """Return the lines that call more collectives in the eager step. With ``fell``: the lines that
    called them before.
    """
    moved = [part for part in moved_parts(OPERATORS, now, past) if _COLLECTIVE.match(part.name)]
    these = [part for part in moved if (part.new < part.old) == fell]
    return tuple(
        msgspec.structs.replace(site, what=site.what.rpartition(".")[0], count=abs(site.count))
        for site in _moved_operators(these, now, past)
    )


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
        msgspec.structs.replace(site, what=packet(site.what))
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
        bare = ([msgspec.structs.replace(s, via=msgspec.UNSET) for s in side] for side in sides)
        new, old = map(merge, bare)
    return list(new), list(old)


def _with_library(sites: Sequence[Site], now: Recording) -> list[Site]:
    """Return the places with the library's line that each calls now, where it is one line."""
    called: dict[tuple[str, ...], set[str]] = {}
    for site in now.operator_sites():
        called.setdefault(site.key[:4], set()).add(site.via or "")
    found = []
    for site in sites:
        lines = called.get(site.key[:4], set())
        library = "".join(lines) if len(lines) == 1 else ""
        found.append(msgspec.structs.replace(site, via=library) if library else site)
    return found


def _former(site: Site) -> Site:
    """Return a place without its line number, which is the other side's."""
    return msgspec.structs.replace(site, line=0)


def _by_function(sites: Sequence[Site]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for site in sites:
        counts[site.file, site.function] += site.count
    return counts


def _moved_sites(metric: str, now: Recording, past: Recording, fell: bool) -> tuple[Site, ...]:
    """Return the places of what rose, or the former ones of what fell; not those allowed."""
    # The former places are unknown then. For bytes between steps an empty list is known: weights
    # have no place.
    if not past.sites.get(metric) and past.counters.get(metric) and metric != BETWEEN_STEPS:
        return ()
    new = [site for site in now.sites.get(metric, ()) if not site.allowed]
    old = [site for site in past.sites.get(metric, ()) if not site.allowed]
    sites = tuple(map(_former, added(new, old))) if fell else added(old, new)
    if METRICS[metric].unit == "B":  # their count is bytes; the largest first
        return tuple(sorted(sites, key=lambda site: -site.count))
    return sites
