"""Sites: places in the measured source where a counted thing happens.

Line numbers move with every edit above them, so sites of two revisions are matched by file,
function, source text and what happens there; the line is for the reader.
"""

import re
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from stepguard.core.profile import grouped
from stepguard.core.text import cut

_LINE = re.compile(r":\d+ in ")


class Site(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One place, and what happens there: so often a step (of the compiler's, in all), or bytes."""

    what: str  # ".item()", "graph break: ...", "recompile: ..."
    file: str = ""  # relative to the tree that was measured where it lies in it; empty if unknown
    line: int = 0
    function: str = ""
    text: str = ""  # the source line, stripped
    phase: str = ""  # "micro_step_0/forward"
    count: int = 1
    allowed: str = ""  # the reason that the source gives, if it is deliberate
    # The library's line that is called from there, "transformers/trainer.py:41 in Trainer.train",
    # where that is neither torch's nor the tree's. Only then it is written.
    via: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """Return the fields that must be equal for two sites to be the same one."""
        library = _LINE.sub(" in ", self.via or "", count=1)
        return (self.what, self.file, self.function, self.text, library)

    def location(self) -> str:
        """Return ``loss.item() in train_step (model/workloads.py:88), forward``."""
        if not self.file:
            return f"{self.what}{f', {self.phase}' if self.phase else ''}"
        source = self.text.partition("  #")[0]  # a comment would read as part of the sentence
        where = f"{cut(source, 60) or self.what} in {self.function} ({self.place})"
        where += f" via {self.via}" if self.via else ""
        return f"{where}, {self.phase}" if self.phase else where

    def described(self) -> str:
        """Return ``.item(): loss.item() in step (train.py:10), forward``."""
        return f"{self.what}: {self.location()}" if self.file else self.location()

    @property
    def place(self) -> str:
        """Return ``model/gpt.py:88``; the file alone where the line is another revision's."""
        return f"{self.file}:{self.line}" if self.line else self.file


def merge(sites: Iterable[Site]) -> tuple[Site, ...]:
    """Return equal sites as one: counts added, phases joined, the first line kept."""
    return tuple(
        replace(
            alike[0],
            count=sum(site.count for site in alike),
            phase=", ".join(dict.fromkeys(site.phase for site in alike if site.phase)),
        )
        for alike in grouped(sites, lambda site: site.key).values()
    )


def added(old: Iterable[Site], new: Iterable[Site]) -> tuple[Site, ...]:
    """Return the sites of ``new`` that ``old`` has less often; their count is the difference."""
    before = {site.key: site.count for site in merge(old)}
    return tuple(
        replace(site, count=site.count - before.get(site.key, 0))
        for site in merge(new)
        if site.count > before.get(site.key, 0)
    )
