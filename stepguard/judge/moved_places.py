"""Where a counter moved: the lines that call more, or that called what is gone. Pure.

The first place is the one that a headline names. A line that the change touched comes before one
that it did not, and of equals the one that counts most. A line was touched if the other side has no
line of that text in that function: what an unchanged line calls more often follows from another.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from stepguard.core.evidence import Counts
from stepguard.core.metrics import BETWEEN_STEPS, COLLECTIVES, OPERATORS, PEAK, PYTHON_LINES
from stepguard.core.recording import Recording
from stepguard.core.site import Site, added, merge
from stepguard.core.verdict import PartMove

# Operators that compute nothing: what they copy, if they do, is an operator of its own, and what a
# step keeps by one of them is counted as bytes. Not a library's own permute or split.
_VIEW = re.compile(
    r"^aten(\.|::)(_reshape_alias|_unsafe_view|as_strided|chunk|detach|expand|expand_as|"
    r"flatten|movedim|narrow|permute|reshape|select|slice|split|split_with_sizes|squeeze|t|"
    r"transpose|unbind|unflatten|unsqueeze|view|view_as)$"
)
_COLLECTIVE = re.compile(r"^_?c10d")
# Of a step's lines of Python, that can be why it is slower: refactors move fewer.
LEAST_LINES = 100
LEAST_LINES_SHARE = 0.1
EDITED = "edited line"  # what there is of a line that calls nothing more
FEW_LINES = 3  # that an edit touched; of more of them nobody knows which one it is
_Line = tuple[str, str, str]  # file, function, text


def is_view(packet: str) -> bool:
    """Tell whether an operator computes nothing; it is named without its overload."""
    return bool(_VIEW.search(packet))


def packet_of(name: str) -> str:
    """Return an operator without its overload, "aten.sum" for "aten.sum.default"."""
    # The profiler has "aten::sum". What another library's overloads do, nobody knows.
    overloaded = name.startswith("aten.") and name.count(".") > 1
    return name.rpartition(".")[0] if overloaded else name


def moved_places(
    metric: str, now: Recording, past: Recording, moved: Sequence[PartMove], rise: float
) -> tuple[Site, ...]:
    """Return where a counter that moved by ``rise`` moved, the place that explains it first.

    ``moved`` are the counter's parts that moved; of collectives the operators that did.
    """
    if metric == OPERATORS:
        return _moved_operators(moved, now, past)
    if metric == PEAK:
        return _lines_of_a_peak(now, past) if rise > 0 else ()
    if metric == COLLECTIVES:
        return _moved_collectives(moved, now, past, rise < 0)
    return _moved_sites(metric, now, past, rise < 0)


def _moved_operators(
    moved: Sequence[PartMove], now: Recording, past: Recording
) -> tuple[Site, ...]:
    """Return where these operators are called more often, or less: then the count is negative.

    Sites of each function that calls one more often, or less often if it is called less in all: the
    lines that the other side has not, or fewer times, if those make all of it, else one. What only
    backward passes and optimizers call has that as its phase, and of untouched lines comes last.
    """
    new, old = now.operator_sites(), past.operator_sites()
    # A baseline's lines have no phase; that of a line is the same for all that it calls.
    called = {_line(site) for site in new if not site.phase}
    phases = {_line(site): site.phase for site in new}
    found = []
    for part in moved:
        rose = part.new > part.old
        if not old and part.old or not new and part.new:  # where they were is not known
            continue
        here, there = (new, old) if rose else (old, new)
        for site in _more_here(part.name, here, there):
            phase = "" if _line(site) in called else phases.get(_line(site), site.phase)
            signed = replace(site, count=site.count if rose else -site.count, phase=phase)
            found.append(signed if rose else _former(signed))
    # Parts are in order already: sorting keeps it where lines are alike.
    number = {part.name: at for at, part in enumerate(moved)}
    touched = _touched(new, old)
    return tuple(
        sorted(
            found,
            key=lambda s: (not touched(s), bool(s.phase), number[s.what], -abs(s.count)),
        )
    )


def _more_here(operator: str, here: Sequence[Site], there: Sequence[Site]) -> list[Site]:
    """Return the lines of each function that calls an operator more often than it does there."""
    here, there = ([s for s in side if s.what == operator] for side in (here, there))
    lines, found = added(there, here), []
    for place, count in (_by_function(here) - _by_function(there)).items():
        inside = [site for site in lines if (site.file, site.function) == place]
        if sum(site.count for site in inside) != count:  # some of them are edited ones
            line = min(inside, key=lambda site: abs(site.count - count))
            inside = [replace(line, count=count)]
        found += inside
    return found


def _moved_collectives(
    moved: Sequence[PartMove], now: Recording, past: Recording, fell: bool
) -> tuple[Site, ...]:
    """Return where the eager step calls more collectives, or did call them if they ``fell``."""
    these = [p for p in moved if _COLLECTIVE.match(p.name) and (p.new < p.old) == fell]
    return tuple(
        replace(site, what=site.what.rpartition(".")[0], count=abs(site.count))
        for site in _moved_operators(these, now, past)
    )


def _lines_of_a_peak(now: Recording, past: Recording) -> tuple[Site, ...]:
    """Return the lines that now call what another one did; before untouched ones the lines that the
    change touched, if these are few: `backward(retain_graph=True)` calls nothing more, and keeps.
    """
    new, old = now.operator_sites(), past.operator_sites()
    touched, calls = _touched(new, old), _calls_at_other_lines(now, past)
    if any(map(touched, calls)):
        return tuple(sorted(calls, key=lambda site: not touched(site)))
    edited = {_line(site): site for site in new if touched(site)}
    few = edited.values() if len(edited) <= FEW_LINES else ()
    return (*(replace(site, what=EDITED, count=1, phase="") for site in few), *calls)


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
        replace(site, what=packet_of(site.what))
        for site in added(old, new)
        if left[site.what] >= site.count and not site.phase and not is_view(packet_of(site.what))
    )


def _moved_sites(metric: str, now: Recording, past: Recording, fell: bool) -> tuple[Site, ...]:
    """Return the places of what rose, or the former ones of what fell, but not allowed ones."""
    # Where it was is not known; but a model's weights have no place among what its steps allocate.
    if not past.sites.get(metric) and past.counters.get(metric) and metric != BETWEEN_STEPS:
        return ()
    new, old = (list(side.sites.get(metric, ())) for side in (now, past))
    after, before = ([site for site in side if not site.allowed] for side in (new, old))
    touched = _touched([*now.operator_sites(), *new], [*past.operator_sites(), *old])
    found = added(after, before) if fell else added(before, after)
    ordered = sorted(found, key=lambda site: (not touched(site), -site.count))
    return tuple(map(_former, ordered) if fell else ordered)


def risen_python(now: Counts, past: Counts) -> tuple[Site, ...]:
    """Return the functions that run more lines of Python than in the past, the most first; none
    where all of it is too little to be why a step is slower.

    Both sides know the functions with most lines alone. Of another function of the past it is
    taken that it ran as many as the least of those.
    """
    places, known = now.sites.get(PYTHON_LINES, ()), past.sites.get(PYTHON_LINES, ())
    if not places or not known:
        return ()
    before = {(site.file, site.function): site.count for site in known}
    total = past.information.get(PYTHON_LINES, 0.0)
    unknown = 0 if sum(before.values()) >= total else min(before.values())
    risen = [
        replace(site, count=site.count - before.get((site.file, site.function), unknown))
        for site in places
    ]
    least = max(LEAST_LINES, LEAST_LINES_SHARE * total)
    found = sorted((one for one in risen if one.count > 0), key=lambda one: -one.count)
    return tuple(found) if sum(one.count for one in found) >= least else ()


def _former(site: Site) -> Site:
    """Return a place without its line, which is the other side's: here another one may have it."""
    return replace(site, line=0)


def _by_function(sites: Iterable[Site]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for site in sites:
        counts[site.file, site.function] += site.count
    return counts


def _line(site: Site) -> _Line:
    return site.file, site.function, site.text


def _touched(new: Iterable[Site], old: Iterable[Site]) -> Callable[[Site], bool]:
    """Return what tells whether a line is on one side alone. Where a side has no lines, none is."""
    lines = {_line(site) for site in new}, {_line(site) for site in old}
    one_side = lines[0] ^ lines[1] if all(lines) else set()
    return lambda site: _line(site) in one_side
