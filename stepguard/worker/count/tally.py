"""Collects counts: a value that differs between two steps is unstable, never averaged."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import asdict

from stepguard.site import Site

ACTIVE_STEPS = 2  # a count is taken when this many steps agree


@dataclass
class Tally:
    """The fields of evidence.Counts, as they come in."""

    values: dict[str, int] = field(default_factory=dict)
    unstable: dict[str, str] = field(default_factory=dict)
    detail: dict[str, dict[str, int]] = field(default_factory=dict)
    sites: dict[str, tuple[Site, ...]] = field(default_factory=dict)
    information: dict[str, float] = field(default_factory=dict)

    def add(
        self,
        metric: str,
        seen: list[int],
        detail: dict[str, int] | None = None,
        sites: Iterable[Site] = (),
    ) -> None:
        """Take the value if all of ``seen`` agree, else note what was seen."""
        if len(set(seen)) == 1:
            self.values[metric] = seen[0]
        else:
            self.unstable[metric] = f"steps differ: {', '.join(str(value) for value in seen)}"
        if detail is not None:
            self.detail[metric] = dict(sorted(detail.items()))
        if sites := tuple(sites):
            self.sites[metric] = sites

    def missing(self, reason: str, *metrics: str) -> None:
        """Note why none of these could be counted."""
        self.unstable |= dict.fromkeys(metrics, reason)

    def as_dict(self) -> dict[str, Any]:
        """Return what a rank sends."""
        return {
            "values": self.values,
            "unstable": self.unstable,
            "detail": self.detail,
            "sites": {name: [asdict(site) for site in sites] for name, sites in self.sites.items()},
            "information": self.information,
        }
