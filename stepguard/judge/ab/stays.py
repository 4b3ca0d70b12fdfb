"""SLOWER stays: what pairs have called slower is not measured again until something changes. Pure.

Who repeats a red run until it is green draws pairs anew each time, and one draw in twenty may miss
a slowdown of the matter margin. So a SLOWER of the same two trees holds on the same machine, with
the same software and environment. An earlier run that passed, or did not decide, has no say: the
next one measures again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Evidence
from stepguard.core.margins import margins_of
from stepguard.core.verdict import Status
from stepguard.judge.ab.decision import by_plan, decision, problem
from stepguard.judge.conditions import first_change
from stepguard.judge.series import of_pairs

MACHINE = ("device_uuid", "device_name", "driver", "torch", "python", "cpu_threads")


def says_slower(comparison: Comparison) -> bool:
    """Tell whether these pairs say that HEAD's step is slower."""
    if decision(comparison) is None or problem(comparison) is not None:
        return False
    slower = by_plan(comparison).status is Status.SLOWER
    return slower or of_pairs(comparison) is not None


def still_slower(earlier: Sequence[Comparison], now: Evidence, base: str) -> Comparison | None:
    """Return the comparison of an earlier run whose SLOWER holds for ``now``, HEAD's evidence of
    this run, beside the commit ``base``; None where pairs have to be measured.

    ``earlier`` are those of the same two trees, newest first. One that was measured afresh sets all
    before it aside.
    """
    for one in earlier:
        if says_slower(one) and not unlike(one, now):
            head = replace(one.head, commit=now.commit, date=now.date, command=now.command)
            since = one.stays or one.head.date
            return replace(one, head=head, base=replace(one.base, commit=base), stays=since)
        if one.fresh:
            return None
    return None


def unlike(earlier: Comparison, now: Evidence) -> str:
    """Return the first thing that differs between an earlier comparison and HEAD's evidence now;
    empty if it was made under the same conditions.
    """
    for one in (now, earlier.head, earlier.base):
        if one.tree_changed:
            return "its tree changed while it was measured"
        if loose := (*one.dirty, *one.untracked):
            return f"its tree has files that are in no commit, {loose[0]}"
        if one.fingerprint is None:
            return "its machine is not known"
    margins = margins_of(now.margins_pct, now.case["device"])
    known = [
        *zip(_conditions(earlier.head), _conditions(now), strict=True),
        (asdict(earlier.margins), asdict(margins)),
    ]
    return first_change(known)


def _conditions(one: Evidence) -> Iterator[Mapping[str, Any]]:
    yield one.case
    yield {name: getattr(one.fingerprint, name) for name in MACHINE}
    # Of the environment what steers; other variables name folders, some a fresh one each run.
    yield one.software_key()
