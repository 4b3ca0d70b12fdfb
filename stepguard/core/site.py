"""Sites: places in the measured source at which something happens that is counted.

Line numbers move with every edit above them. So sites of two revisions are matched by file,
function, source text and what happens there. The line is only for the reader.
"""

import re
from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from stepguard.core.profile import grouped
from stepguard.core.strict_json import DocumentPart
from stepguard.core.text import cut

INSTALLED = ("site-packages", "dist-packages")
_LINE = re.compile(r":\d+ in ")


class Site(DocumentPart, frozen=True):
    """One place, and what happens there: calls a step, bytes, or compilations in all."""

    what: str  # ".item()", "graph break: ...", "recompile: ..."
    file: str = ""  # relative to the measured tree if it lies in it; empty if unknown
    line: int = 0
    function: str = ""
    text: str = ""  # the source line, stripped
    phase: str = ""  # "micro_step_0/forward"
    count: int = 1
    allowed: str = ""  # the reason in the source, if it is deliberate
    # The line of another library than torch that this line calls, "transformers/trainer.py:41 in
    # Trainer.train". In a backward pass it is the operator that is differentiated, "backward of
    # aten.mul, gpt.py:88 in MLP.forward". Otherwise it is unset, and documents leave it out.
    via: str | msgspec.UnsetType = msgspec.UNSET
    # The caller that calls the function more often than before, "Block.forward (gpt.py:152)". Only
    # a verdict has it.
    caller: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def key(self) -> tuple[str, str, str, str, str]:
        """Return the fields by which sites are matched: they are equal for the same place."""
        library = _LINE.sub(" in ", self.via or "", count=1)
        return (self.what, self.file, self.function, self.text, library)

    def location(self) -> str:
        """Return ``loss.item() in train_step (model/workloads.py:88), forward``."""
        if not self.file:
            return f"{self.what}{f', {self.phase}' if self.phase else ''}"
        source = self.text.partition("  #")[0]  # a comment would read as part of the sentence
        where = f"{cut(source, 60) or self.what} in {self.function} ({self.place})"
        where += self.reached
        return f"{where}, {self.phase}" if self.phase else where

    def described(self) -> str:
        """Return ``.item(): loss.item() in step (train.py:10), forward``."""
        return f"{self.what}: {self.location()}" if self.file and self.text else self.location()

    @property
    def reached(self) -> str:
        """Return " called from Block.forward (gpt.py:152)", " via numpy/a.py:3 in sum", or both."""
        caller = f" called from {self.caller}" if self.caller else ""
        return caller + (f" via {self.via}" if self.via else "")

    @property
    def cause(self) -> "Site":
        """Return the line that calls this one more often, if there is one; else this site."""
        if not self.caller:
            return self
        function, _, where = self.caller.removesuffix(")").partition(" (")
        file, _, line = where.rpartition(":")
        fields = {"file": file, "line": int(line), "function": function}
        return replace(self, **fields, text="", caller=msgspec.UNSET, via=msgspec.UNSET)

    @property
    def place(self) -> str:
        """Return ``model/gpt.py:88``; only the file if the line is another revision's."""
        file = named_file(self.file) if self.file.startswith("/") else self.file
        return f"{file}:{self.line}" if self.line else file


def named_file(file: str) -> str:
    """Return a library's file as its readers know it, "transformers/trainer.py"."""
    parts = [part for part in file.split("/") if part]
    packages = [number for number, part in enumerate(parts) if part in INSTALLED]
    return "/".join(parts[packages[-1] + 1 :] if packages else parts[-2:])


def merge(sites: Iterable[Site]) -> tuple[Site, ...]:
    """Merge sites of one place: the sum of the counts, all phases, the first line number."""
    return tuple(
        replace(
            alike[0],
            count=sum(site.count for site in alike),
            phase=", ".join(dict.fromkeys(site.phase for site in alike if site.phase)),
        )
        for alike in grouped(sites, lambda site: site.key).values()
    )


def added(old: Iterable[Site], new: Iterable[Site]) -> tuple[Site, ...]:
    """Return the sites that ``new`` has more often than ``old``, with the difference."""
    before = {site.key: site.count for site in merge(old)}
    return tuple(
        replace(site, count=site.count - before.get(site.key, 0))
        for site in merge(new)
        if site.count > before.get(site.key, 0)
    )
