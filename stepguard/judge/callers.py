"""Names who calls a shared function more often than before: its own lines may be unchanged."""

import re
from collections.abc import Mapping, Sequence

import msgspec

from stepguard.core.recording import Recording
from stepguard.core.site import Site

_LINE = re.compile(r":\d+(?=\): )")


def with_new_callers(sites: Sequence[Site], now: Recording, past: Recording) -> tuple[Site, ...]:
    """Return the sites. One that does more, at a line that was there before, gets the caller of its
    function that is new, or that calls it more often.
    """
    before = {site.key[1:4] for site in past.operator_sites()}
    return tuple(
        msgspec.structs.replace(site, caller=caller)
        if site.key[1:4] in before and site.count > 0 and (caller := _new_caller(site, now, past))
        else site
        for site in sites
    )


def without_lines(callers: Mapping[str, Mapping[str, int]]) -> dict[str, dict[str, int]]:
    """Return callers as a baseline keeps them: line numbers move with every edit above them."""
    found: dict[str, dict[str, int]] = {}
    for function, counts in callers.items():
        mine = found.setdefault(function, {})
        for caller, count in counts.items():
            bare = _LINE.sub("", caller)
            mine[bare] = mine.get(bare, 0) + count
    return found


def _new_caller(site: Site, now: Recording, past: Recording) -> str:
    """Return "Block.forward (gpt.py:152)"; empty where the callers are as before, or not known."""
    function = f"{site.file} {site.function}"
    new, old = ((one.callers or {}).get(function, {}) for one in (now, past))
    if not old:
        return ""
    known = without_lines({function: old})[function]
    rises = {one: count - known.get(_LINE.sub("", one), 0) for one, count in new.items()}
    most = max(rises, key=lambda one: rises[one], default="")
    return f"{most.partition('): ')[0]})" if most and rises[most] > 0 else ""
