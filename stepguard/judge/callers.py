"""Names the caller that calls a shared function more often: the function may be unchanged."""

import re
from collections.abc import Mapping, Sequence

import msgspec

from stepguard.core.recording import Recording
from stepguard.core.site import Site

_LINE = re.compile(r":\d+(?=\): )")


def with_new_callers(sites: Sequence[Site], now: Recording, past: Recording) -> tuple[Site, ...]:
    """Return the sites, with a caller for each known line that does more now: the caller of its
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
    bare_callers: dict[str, dict[str, int]] = {}
    for function, counts in callers.items():
        mine = bare_callers.setdefault(function, {})
        for caller, count in counts.items():
            bare = _LINE.sub("", caller)
            mine[bare] = mine.get(bare, 0) + count
    return bare_callers


def _new_caller(site: Site, now: Recording, past: Recording) -> str:
    """Return "Block.forward (gpt.py:152)"; empty if no caller is new, or none is known."""
    function = f"{site.file} {site.function}"
    new, old = ((side.callers or {}).get(function, {}) for side in (now, past))
    if not old:
        return ""
    known = without_lines({function: old})[function]
    rises = {name: count - known.get(_LINE.sub("", name), 0) for name, count in new.items()}
    most = max(rises, key=lambda name: rises[name], default="")
    return f"{most.partition('): ')[0]})" if most and rises[most] > 0 else ""
