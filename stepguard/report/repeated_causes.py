"""Causes that several cases of a run share. A report shows them in full only for the first case."""

from collections.abc import Hashable

from stepguard.core.metrics import METRICS
from stepguard.core.reason_sentences import Unstable
from stepguard.core.verdict import Verdict


class ReportedCauses:
    """The causes that a report has shown so far, each with its first case."""

    def __init__(self) -> None:
        self._first: dict[Hashable, str] = {}

    def reference(self, verdict: Verdict) -> str:
        """Return a line that refers to the case that was reported with the same cause. Empty if
        this case is the first, even if it is reported twice.
        """
        cause = _cause(verdict)
        first = self._first.setdefault(cause, verdict.case_id) if cause else verdict.case_id
        if first == verdict.case_id:
            return ""
        return f"the same cause as in {first}, above"


def _cause(verdict: Verdict) -> Hashable:
    """Return what a verdict is based on: the places where counters moved, or a traceback. None if
    each case has more to say, of its times or its waivers.
    """
    moved = verdict.moved
    places = {site.key for metric in moved for site in metric.sites}
    counted = all(METRICS[metric.metric].kind == "counter" for metric in moved if places)
    if verdict.permissions or not counted:
        return None
    if places:
        return frozenset(places), frozenset((metric.metric, metric.status) for metric in moved)
    unstable = verdict.figures.sites if isinstance(verdict.figures, Unstable) else ()
    said = verdict.detail or frozenset(site.key for site in unstable)
    return (verdict.reason, said) if said else None
