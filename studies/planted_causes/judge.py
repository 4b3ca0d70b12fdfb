"""Judge what was measured of planted faults: is the first cause that is named right?

    python -m studies.planted_causes.judge                 # of what is kept here
    python -m studies.planted_causes.judge FOLDER

The functions of the verdict name the first cause of each fault, from its evidence and that of the
tree as it is. No pair was timed: that the step is slower is what its causes say. Whether the cause
is right is decided by its kind, the class, name and phase of its kernels, or the counter, and the
line (faults.py). The exit status is 1 with fewer than eleven right, or, of fewer faults, with any
wrong.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepguard.comparison import Comparison
from stepguard.evidence import Evidence, from_json, to_json
from stepguard.explanation import Cause, Kind
from stepguard.judge import findings
from stepguard.judge.ab.decision import beside_time, why
from stepguard.judge.compare import compare
from stepguard.judge.summary import summarise
from stepguard.metrics import METRICS
from stepguard.report.why import culprit, lines, site_of
from stepguard.report.words import headline
from stepguard.site import Site
from stepguard.verdict import MetricVerdict, Reason, Status, Verdict
from studies.common.results import Document
from studies.planted_causes.faults import CLOCK, FAULTS, NOTHING, slower_clock

ENOUGH = 11  # of twelve
SLOWER_SHARE = 0.002  # of the step: the margin below which a comparison ignores a slowdown
KEPT = Path(__file__).parent / "data"
INDEX = "index.json"


class Folder:
    """The evidence of each tree, and how it was made: an index, and a compressed file for each."""

    def __init__(self, path: Path) -> None:
        self.path, index = path, path / INDEX
        self._document = Document(index, json.loads(index.read_text()) if index.exists() else {})
        self.trees: dict[str, dict[str, Any]] = self._document.content

    def keep(self, name: str, found: Evidence | str, about: dict[str, Any]) -> None:
        """Add a tree's evidence, or why there is none."""
        if isinstance(found, Evidence):
            self._file(name).write_bytes(gzip.compress(to_json(found), mtime=0))
        else:
            about = about | {"failed": found}
        self._document.update(**{name: about})

    def evidence(self, name: str) -> Evidence | str:
        """Return a tree's evidence, or why there is none."""
        if name not in self.trees or "failed" in self.trees[name]:
            return str(self.trees.get(name, {}).get("failed", "not measured"))
        file = self._file(name)
        return from_json(gzip.decompress(file.read_bytes()), str(file))

    def _file(self, name: str) -> Path:
        return self.path / f"{name.replace(' ', '-')}.json.gz"


@dataclass(frozen=True)
class Judged:
    """What is said of a fault, and whether it is right."""

    name: str
    said: str
    right: bool
    first: Cause | MetricVerdict | None = None
    verdict: Verdict | None = None


def base_name(gpus: int) -> str:
    """Return the name of the tree as it is, on so many GPUs."""
    return f"base of {gpus}"


def verdict_of(comparison: Comparison) -> Verdict:
    """Return the verdict as pairs would decide it if they saw no more than the causes."""
    head, base = comparison.head, comparison.base
    now, then = summarise(head), summarise(base)
    reasons = why(comparison)
    found = reasons.get("explanation")
    work_us = 0.0
    if found is not None:
        # Pairs take turns, two counting passes do not: that the second ran at a faster clock
        # would hide a fault.
        work_us = sum(one.us for one in found.causes if one.kind is not Kind.CLOCK or one.us > 0)
    slower = found is not None and work_us > SLOWER_SHARE * found.before_us
    status = Status.SLOWER if slower else Status.SAME
    values = now.values()
    metrics = [
        beside_time(compare(name, now, [then], head.gates), status if found else None)
        for name in METRICS
        if name in values and METRICS[name].kind == "counter"
    ]
    if found is not None and not found.refused:
        old = found.before_us / 1e3
        reason = Reason.BEYOND_MARGIN if slower else Reason.WITHIN_MARGINS
        change = 100 * work_us / found.before_us
        time_ms = MetricVerdict("step_ms", status, reason, old, old + work_us / 1e3, change)
        metrics.append(time_ms)
    whole = findings.Findings(head.case_id, tuple(metrics), against=comparison.named, **reasons)
    return findings.verdict_of(whole)


def first_cause(verdict: Verdict) -> tuple[Cause | MetricVerdict | None, Site | None]:
    """Return what is named first, with its line: what explains the time, else a counter that moved,
    else what else the profiles differ in.
    """
    named = culprit(verdict)
    worst = verdict.worst
    if named is None and worst is not None and worst.status is Status.CHANGED:
        named = worst
    found = verdict.explanation
    if named is None and found and found.causes:
        # What is shorter than any slowdown that is judged is not said.
        longest = found.causes[0]
        named = longest if abs(longest.us) > SLOWER_SHARE * found.before_us else None
    if isinstance(named, Cause):
        return named, site_of(named, verdict)
    return named, named.place if named else None


def judged_fault(name: str, base: Evidence, head: Evidence, lines: range) -> Judged:
    """Judge one fault by its evidence."""
    verdict = verdict_of(Comparison("HEAD", head, base))
    first, site = first_cause(verdict)
    right = FAULTS[name].is_right(first, site, lines)
    return Judged(name, headline(verdict), right, first, verdict)


def judged_all(folder: Folder) -> Iterator[Judged]:
    """Judge every fault of the index, in the order of faults.py; one that failed is wrong."""
    for name, fault in FAULTS.items():
        made_of = NOTHING if name == CLOCK else name
        if made_of not in folder.trees:
            continue
        sides = folder.evidence(base_name(fault.gpus)), folder.evidence(made_of)
        failed = [one for one in sides if isinstance(one, str)]
        base, head = sides
        if isinstance(base, str) or isinstance(head, str):
            yield Judged(name, failed[0], False)
            continue
        if name == CLOCK:
            if head.counts is None or head.counts.profile is None:
                continue  # a CPU has no profile
            counts = replace(head.counts, profile=slower_clock(head.counts.profile))
            head = replace(head, counts=counts)
        first, end = folder.trees[made_of]["lines"]
        yield judged_fault(name, base, head, range(first, end))


def row(one: Judged) -> str:
    """Return a fault's row of the table."""
    return f"| {one.name} | {one.said} | {'yes' if one.right else 'NO'} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=KEPT)
    parser.add_argument("--causes", action="store_true", help="what explains each, too")
    options = parser.parse_args(arguments)
    if not (options.folder / INDEX).exists():
        parser.error(f"{options.folder}: there is no {INDEX}")
    print("| planted | named | right |\n|---|---|---|")
    found = []
    for one in judged_all(Folder(options.folder)):
        print(row(one))
        found.append(one)
        for line in lines(one.verdict) if options.causes and one.verdict else ():
            print("   ", line)
    faults = [one for one in found if one.name != NOTHING]
    right = sum(one.right for one in faults)
    print(f"first cause right in {right} of {len(faults)}")
    return 0 if right >= min(ENOUGH, len(faults)) else 1


if __name__ == "__main__":
    sys.exit(main())
