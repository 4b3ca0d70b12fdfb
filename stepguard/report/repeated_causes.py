"""Causes that several cases of a run share: a report has them in full for the first case alone."""

from collections.abc import Hashable

from stepguard.core.metrics import METRICS
from stepguard.core.reason_sentences import Unstable
from stepguard.core.status import Status
from stepguard.core.verdict import Verdict


class ReportedCauses:
    """The causes that a report has by now, each with the first case that has it."""

    def __init__(self) -> None:
        self._first: dict[Hashable, str] = {}

    def reference(self, verdict: Verdict) -> str:
        """Return a line that refers to the case whose verdict was reported with the same cause;
        empty where this one is the first, also when it is reported again.
        """
        cause = _cause(verdict)
        first = self._first.setdefault(cause, verdict.case_id) if cause else verdict.case_id
        if first == verdict.case_id:
            return ""
        return f"the same cause as in {first}, above"


def _cause(verdict: Verdict) -> Hashable:
    """Return what a verdict rests on: the places where counters moved, or a traceback. None where
    each case has more to say: of its times, of its waivers.
    """
    moved = [one for one in verdict.metrics if one.gated and one.status is not Status.SAME]
    places = {site.key for one in moved for site in one.sites}
    counted = all(METRICS[one.metric].kind == "counter" for one in moved if places)
    if verdict.permissions or not counted:
        return None
    if places:
        return frozenset(places), frozenset((one.metric, one.status) for one in moved)
    unstable = verdict.figures.sites if isinstance(verdict.figures, Unstable) else ()
    told = verdict.detail or frozenset(site.key for site in unstable)
    return (verdict.reason, told) if told else None
