"""What a counter that moved is made of, and where: operators, calls, lines of source. Pure."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from stepguard.core.metrics import BETWEEN_STEPS, COLLECTIVES, METRICS, OPERATORS, PEAK
from stepguard.core.recording import Recording
from stepguard.core.site import Site, added, merge
from stepguard.core.verdict import PartMove

# Parts of a step, those first that the others follow from: a product, any other operator, what
# autograd adds beside them, their backward passes, and views.
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
# Operators that compute nothing: what they copy, if they do, is an operator of its own, and what a
# step keeps by one of them is counted as bytes. Not a library's own permute or split.
_VIEW = re.compile(
    r"^aten(\.|::)(_reshape_alias|_unsafe_view|as_strided|chunk|detach|expand|expand_as|"
    r"flatten|movedim|narrow|permute|reshape|select|slice|split|split_with_sizes|squeeze|t|"
    r"transpose|unbind|unflatten|unsqueeze|view|view_as)$"
)
# Operators whose overloads compute as much: others sort stably, round, or raise to tensors' powers.
_ALIKE = re.compile(r"^aten\.(add|arange|eq|full|ge|gt|le|lt|mean|mul|ne|sub|sum)_?$")
_COLLECTIVE = re.compile(r"^_?c10d")
_UNTYPED = "aten._to_copy.default"
_CAST = re.compile(r"(?<=_to_copy)\[\w+\]")  # the type that it makes
VIEWS_PCT = 2.0  # of the calls: more of them is work for the host; of launches it is as much


def where_moved(
    metric: str, now: Recording, past: Recording, moved: Sequence[PartMove], rise: int
) -> tuple[Site, ...]:
    """Return where a count that moved by ``rise`` moved."""
    if metric == OPERATORS:
        return _moved_operators(moved, now, past)
    if metric == PEAK:
        return _calls_at_other_lines(now, past) if rise > 0 else ()
    if metric == COLLECTIVES:
        return _moved_collectives(now, past, rise < 0)
    return _moved_sites(metric, now, past, rise < 0)


def moved_parts(metric: str, now: Recording, past: Recording) -> tuple[PartMove, ...]:
    """Return the parts of a counter that moved, those first that the others follow from."""
    new, old = now.detail.get(metric, {}), past.detail.get(metric, {})
    if not old and past.counters.get(metric):  # what it was made of is not known
        return ()
    # Of a GPU alone, whose time tells a copy from a cast: on a CPU there is nothing but the name.
    if past.device_uuid and _UNTYPED in old and not any(_CAST.search(name) for name in old):
        new = _without_types(new)
    moves = [
        PartMove(name, old.get(name, 0), new.get(name, 0))
        for name in sorted(old.keys() | new.keys())
        if old.get(name, 0) != new.get(name, 0)
    ]
    return tuple(sorted(moves, key=_distance_from_cause))


def _without_types(parts: Mapping[str, int]) -> dict[str, int]:
    """Return the parts as a recording has them that is older than types in the names of casts."""
    found: Counter[str] = Counter()
    for name, count in parts.items():
        found[_CAST.sub("", name)] += count
    return found


def computes_as_much(moved: Sequence[PartMove], calls: int) -> bool:
    """Tell whether nothing moved but how operators are called: by another overload, by other views,
    or with a few views more or fewer.
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
    # The profiler has "aten::sum". What another library's overloads do, nobody knows.
    overloaded = name.startswith("aten.") and name.count(".") > 1
    return name.rpartition(".")[0] if overloaded else name


def _distance_from_cause(part: PartMove) -> tuple[int, bool, bool, bool, int]:
    """Order parts: by their kind, what is new or lost, attention before the products that are put
    in its place, what is new before what it replaces, then by how far.
    """
    kinds = [rank for rank, kind in _KINDS.items() if kind.search(part.name)]
    kind = max(kinds, default=_OTHER_KIND)
    changed_number = 0 not in (part.old, part.new)
    lost = part.new < part.old
    return kind, changed_number, "attention" not in part.name, lost, -abs(part.new - part.old)


def _moved_operators(
    moved: Sequence[PartMove], now: Recording, past: Recording
) -> tuple[Site, ...]:
    """Return where these operators are called more often, or less: then the count is negative.

    Sites of each function that calls one more often, or less often if it is called less in all: the
    lines that the other side has not, or fewer times, if those make all of it, else one. What only
    backward passes and optimizers call comes last, and has that as its phase.
    """
    new, old = now.operator_sites(), past.operator_sites()
    # A baseline's lines have no phase; that of a line is the same for all that it calls.
    called = {(s.file, s.function, s.text) for s in new if not s.phase}
    phases = {(s.file, s.function, s.text): s.phase for s in new}
    found = []
    for part in moved:
        rose = part.new > part.old
        if not old and part.old or not new and part.new:  # where they were is not known
            continue
        here, there = (new, old) if rose else (old, new)
        here, there = ([s for s in side if s.what == part.name] for side in (here, there))
        lines = added(there, here)
        for place, count in (_by_function(here) - _by_function(there)).items():
            inside = [site for site in lines if (site.file, site.function) == place]
            if sum(site.count for site in inside) != count:  # some of them are edited ones
                line = min(inside, key=lambda site: abs(site.count - count))
                inside = [msgspec.structs.replace(line, count=count)]
            for line in inside:
                key = (line.file, line.function, line.text)
                phase = "" if key in called else phases.get(key, line.phase)
                signed = line.count if rose else -line.count
                line = msgspec.structs.replace(line, count=signed, phase=phase)
                found.append(line if rose else _former(line))
    return tuple(sorted(found, key=lambda site: bool(site.phase)))


def _moved_collectives(now: Recording, past: Recording, fell: bool) -> tuple[Site, ...]:
    """Return where the eager step calls more collectives, or did call them if they ``fell``."""
    moved = [part for part in moved_parts(OPERATORS, now, past) if _COLLECTIVE.match(part.name)]
    these = [part for part in moved if (part.new < part.old) == fell]
    return tuple(
        msgspec.structs.replace(site, what=site.what.rpartition(".")[0], count=abs(site.count))
        for site in _moved_operators(these, now, past)
    )


def _calls_at_other_lines(now: Recording, past: Recording) -> tuple[Site, ...]:
    """Return the lines that now call what another one did, which is still there: a cast that a loss
    made of its input, and now the line before it. A line that was only edited is none.
    """
    new, old = now.operator_sites(), past.operator_sites()
    calls = {site.key: site.count for site in merge(new)}
    lines = {site.key[1:] for site in new}
    left: Counter[str] = Counter()
    for site in merge(old):
        if site.key[1:] in lines:
            left[site.what] += max(0, site.count - calls.get(site.key, 0))
    return tuple(
        msgspec.structs.replace(site, what=packet(site.what))
        for site in added(old, new)
        if left[site.what] >= site.count and not site.phase and not is_view(site.what)
    )


def _former(site: Site) -> Site:
    """Return a place without its line, which is the other side's: here another one may have it."""
    return msgspec.structs.replace(site, line=0)


def _by_function(sites: Sequence[Site]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for site in sites:
        counts[site.file, site.function] += site.count
    return counts


def _moved_sites(metric: str, now: Recording, past: Recording, fell: bool) -> tuple[Site, ...]:
    """Return the places of what rose, or the former ones of what fell, but not allowed ones."""
    # Where it was is not known; but a model's weights have no place among what its steps allocate.
    if not past.sites.get(metric) and past.counters.get(metric) and metric != BETWEEN_STEPS:
        return ()
    new = [site for site in now.sites.get(metric, ()) if not site.allowed]
    old = [site for site in past.sites.get(metric, ()) if not site.allowed]
    found = tuple(map(_former, added(new, old))) if fell else added(old, new)
    if METRICS[metric].unit == "B":  # as so many bytes; those that matter first
        return tuple(sorted(found, key=lambda site: -site.count))
    return found
