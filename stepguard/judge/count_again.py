"""Which counters one more launch of this tree has to count, and what both launches say together.

Steps of a loop may differ. Equal lists of counts over the same step numbers are equal. Others may
be moved by the change or by chance, which another launch tells apart.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from msgspec import structs

from stepguard.core.evidence import Counts, Evidence
from stepguard.core.metrics import GROWING_LINES, NUMBERS
from stepguard.core.reason_sentences import STEPS_DIFFER, MovedNumbers, OverSteps
from stepguard.core.recording import Entry, Recording, on_same_steps
from stepguard.core.status import Status
from stepguard.core.step_numbers import StepNumbers
from stepguard.core.text import listed
from stepguard.core.verdict import MetricVerdict
from stepguard.judge.compare_numbers import compare_numbers, moved_numbers, shown
from stepguard.judge.judge_recordings import alike
from stepguard.judge.summarise_evidence import summarise

# Of both launches' steps so many must have one count, if the launches disagree.
USUAL_SHARE = 0.75
NOT_COMPARABLE = "not judged: launches of this tree compute other numbers"
SEED = "give what draws a seed, such as numpy.random.default_rng(0)"


def doubtful(now: Evidence, past: Recording | None) -> tuple[str, ...]:
    """Return the gated counters that one more launch has to count: steps differ and the counts are
    not those of ``past``, other lines of Python grow than there, or numbers moved. None: nothing is
    known of the past.
    """
    if now.counted.launches > 1:
        return ()
    new = summarise(now)
    if past is not None:
        new, past = on_same_steps(new, past)
    asked = {name for one in (new, past) if one for name in one.differing_steps()}
    asked |= {GROWING_LINES} if new.counters.get(GROWING_LINES) else set()
    asked -= {name for name in asked if past and _figures(name, new) == _figures(name, past)}
    asked |= {NUMBERS} if past and _other_numbers(new, past) else set()
    return tuple(name for name in now.gates if name in asked and name in new.counters)


def doubtful_of(now: Evidence, entry: Entry | None) -> tuple[str, ...]:
    """Return doubtful() beside the newest recording of a case's baseline; None if it has none."""
    past = alike(entry.level, now) if entry and now.fingerprint else []
    return doubtful(now, past[-1] if past else None)


def doubtful_of_other(base: Evidence, head: Evidence) -> tuple[str, ...]:
    """Return the counters that the other tree has to count once more: its steps differ."""
    return tuple(name for name in doubtful(base, summarise(head)) if name in base.counted.lists)


def _other_numbers(new: Recording, past: Recording) -> bool:
    """Tell whether the step computes other numbers. Other options of an optimizer are no chance."""
    found = compare_numbers(new, past, True)
    return found.status is Status.CHANGED and found.figures is not None


def _figures(name: str, of: Recording) -> tuple[object, ...]:
    return of.counters.get(name), of.differing_steps().get(name), of.detail.get(name)


def counted_again(first: Counts, again: Counts, names: Collection[str]) -> Counts:
    """Return the ``first`` launch's counts with what a second one says of these counters. If both
    disagree, the count is what USUAL_SHARE of their steps have, or it is not decided.
    """
    found: dict[str, Counts] = {}
    unstable, of_both, numbers = {**first.unstable}, {**first.of_both}, first.numbers
    for name in (name for name in names if name in again.values):
        each = _steps(name, first, again), _steps(name, again, first)
        parts = [one.detail.get(name) for one in (first, again)]
        if name == NUMBERS:
            numbers = _with_apart(first.numbers, again.numbers)
        elif name == GROWING_LINES:
            found[name] = _grown(first, again)
        elif each[0] == each[1] and parts[0] == parts[1]:
            continue
        elif usual := _usual(name, first, again):
            found[name], of_both[name] = usual, (*each[0], *each[1])
        else:
            shown = "; in another launch: ".join(", ".join(map(str, steps)) for steps in each)
            why = f"{STEPS_DIFFER}: {shown}"
            if each[0] == each[1]:
                why += f" ({_moved(*parts)})"
            found[name], unstable[name] = _undecided(first), why
    settled = {"launches": 2, "unstable": unstable, "of_both": of_both, "numbers": numbers}
    return with_counts(first, found, **settled)


def _with_apart(first: StepNumbers | None, again: StepNumbers | None) -> StepNumbers | None:
    """Return the ``first`` launch's numbers. If those of a second one differ, with the reason why
    none are comparable.
    """
    if first is None or again is None or not (moves := moved_numbers(again, first)):
        return first
    moved = MovedNumbers(moved=tuple(shown(moves[:1]))).text
    return structs.replace(first, apart=f"{NOT_COMPARABLE}: {moved}; {SEED}")


def with_both(metric: MetricVerdict, counts: Counts) -> MetricVerdict:
    """Return the metric; if launches disagree on it, with the counts that their steps have."""
    each = Counter(counts.of_both.get(metric.metric, ()))
    if not each:
        return metric
    return structs.replace(
        metric, figures=OverSteps(steps=each.total(), counts=tuple(each.most_common()))
    )


def not_counted_again(first: Counts, names: Collection[str], why: str) -> Counts:
    """Return the ``first`` counts, of which these are undecided: a second launch failed."""
    steps = {name: ", ".join(map(str, first.lists.get(name, ()))) for name in names}
    unstable = {name: f"{STEPS_DIFFER}: {each}; {why}" for name, each in steps.items()}
    undecided = dict.fromkeys(names, _undecided(first))
    return with_counts(first, undecided, launches=2, unstable=first.unstable | unstable)


def _undecided(first: Counts) -> Counts:
    """Return what stays of a counter without a value: its places show where it differs."""
    return Counts({}, sites=first.sites)


def _steps(name: str, of: Counts, other: Counts) -> Sequence[int]:
    # Equal steps were as many as the other launch's, two at least.
    alike = (of.values.get(name, 0),) * max(2, len(other.lists.get(name, ())))
    return of.lists.get(name, alike)


def _usual(name: str, first: Counts, again: Counts) -> Counts | None:
    """Return the count that most steps of both launches have; None if too few have it."""
    launches, each = (first, again), (*_steps(name, first, again), *_steps(name, again, first))
    usual, steps = Counter(each).most_common(1)[0]
    if steps < USUAL_SHARE * len(each):
        return None
    for one in launches:
        if name not in one.lists and one.values.get(name, 0) == usual:
            return one
    # Parts and ranks of such a step are not known.
    whole = any(name in table for one in launches for table in (one.detail, one.by_rank))
    return None if whole else Counts({name: usual})


def _grown(*launches: Counts) -> Counts:
    """Return the counts of fewer growing lines; none grow if no function does in both launches."""
    first, again = ({site.key for site in one.sites.get(GROWING_LINES, ())} for one in launches)
    least = min(launches, key=lambda one: one.values.get(GROWING_LINES, 0))
    return least if first & again else Counts({GROWING_LINES: 0})


def _moved(one: Mapping[str, int] | None, other: Mapping[str, int] | None) -> str:
    """Return the parts whose counts differ, "aten.add.Tensor and 2 more"."""
    one, other = one or {}, other or {}
    names = sorted(one.keys() | other.keys())
    return listed([name for name in names if one.get(name, 0) != other.get(name, 0)], 2)


def with_counts(counts: Counts, found: Mapping[str, Counts], **others: Any) -> Counts:
    """Return the counts with what was ``found`` of these counters, by name, and nothing else of
    them. ``others`` are further fields.
    """
    for table in ("values", "lists", "detail", "sites", "by_rank"):
        figures = {name: it for name, it in getattr(counts, table).items() if name not in found}
        known = ((name, getattr(one, table)) for name, one in found.items())
        others[table] = figures | {name: its[name] for name, its in known if name in its}
    return replace(counts, **others)
