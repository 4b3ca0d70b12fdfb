"""Find what moved a step: the first commit, or the first interpreter of a list, that has the move.
Between GOOD, which has it not, and BAD the middle is asked, and the search goes on in one half.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

import msgspec

from stepguard.core.case import Case
from stepguard.core.reason_sentences import WorkMoved
from stepguard.core.status import Status
from stepguard.core.text import revision, short_hash
from stepguard.core.verdict import Verdict, worst_first
from stepguard.machine.git.resolve import DEEPEN, TreeError, has_commit, resolve
from stepguard.machine.git.revision import git
from stepguard.machine.git.worktree import Notice, tree_of
from stepguard.machine.packages import Python
from stepguard.measure.case_workers import Bench
from stepguard.measure.suite import Other, in_tree
from stepguard.storage.compile_cache import CompileCache

Sides = Iterator[tuple[Bench, Other]]
Move = tuple[str, int]  # a metric, and in which direction: 1, -1, or 0 if it has none
MOVED = (Status.SLOWER, Status.CHANGED, Status.FASTER)


class Half(Enum):
    """The half of the search that a commit or an interpreter is in: has it the move?"""

    GOOD = "without it"
    BAD = "with it"
    SKIPPED = "skipped"  # it does not run, or nothing decides


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a commit or an interpreter."""

    of: str
    side: Half
    text: str  # the verdict's first line; empty if nothing moved
    took_s: float


@dataclass(frozen=True)
class Commits:
    """The commits after GOOD up to BAD."""

    root: Path
    good: str
    bad: str
    notice: Notice = field(repr=False)
    alone: bool = True  # one launch is enough to count: all run under one software

    def left(self, bad: str, goods: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yield ``bad`` and what came before it and after ``goods``, the middle first: the line of
        first parents, then branches, too, but none that began before GOOD and may differ from it.
        """
        for how in ("--first-parent", "--ancestry-path"):
            after = (f"^{good}" for good in goods)
            found = git(self.root, "rev-list", "--bisect-all", how, bad, *after)
            if not found:
                raise TreeError(f"git lists no commits up to {bad}: update git to 2.29 or newer")
            yield tuple(line.split()[0] for line in found.splitlines())

    def before(self, one: str) -> str:
        """Return the first parent."""
        return (git(self.root, "rev-parse", f"{one}^") or "").strip()

    def named(self, one: str) -> str:
        """Return a short hash and the commit's subject."""
        subject = git(self.root, "log", "-1", "--no-show-signature", "--format=%s", one) or ""
        return f"{short_hash(one)} {subject.strip()}"

    @contextlib.contextmanager
    def sides(self, bench: Bench, case: Case, new: str, old: str = "") -> Sides:
        """Check both commits out, for as long as they are measured."""
        with tree_of(self.root, new, self.notice) as head, contextlib.ExitStack() as stack:
            base = stack.enter_context(tree_of(self.root, old, self.notice)) if old else None
            yield in_tree(bench, head, case), Other(base)


@dataclass(frozen=True)
class Interpreters:
    """Interpreters in order, GOOD first, each with its packages, by how they were asked for."""

    good: str
    bad: str
    pythons: Mapping[str, Python]
    cache: Path  # the checkout's compile caches
    alone: bool = False

    def left(self, bad: str, goods: Sequence[str]) -> Iterator[tuple[str, ...]]:
        """Yield those after the last of ``goods`` up to ``bad``."""
        names = [*self.pythons]
        between = names[max(map(names.index, goods)) + 1 : names.index(bad) + 1]
        middle = len(between) / 2 - 1
        yield tuple(sorted(between, key=lambda one: abs(between.index(one) - middle)))

    def before(self, one: str) -> str:
        """Return the one before it."""
        names = [*self.pythons]
        return names[names.index(one) - 1]

    def named(self, one: str) -> str:
        """Return its path and its torch."""
        return f"{one} (torch {self.pythons[one].packages.get('torch', 'without metadata')})"

    @contextlib.contextmanager
    def sides(self, bench: Bench, case: Case, new: str, old: str = "") -> Sides:
        """Give each side its interpreter and compile caches."""
        pythons = self.pythons[new], self.pythons[old]
        mine, theirs = (CompileCache(python.beside(self.cache)) for python in pythons)
        with contextlib.closing(mine), contextlib.closing(theirs):
            yield replace(bench, cache=mine.folder), Other(None, pythons, theirs.folder)


Range = Commits | Interpreters


def commits_between(root: Path, good: str, bad: str, notice: Notice) -> Commits:
    """Return the commits between two revisions. Raises TreeError if GOOD is no ancestor of BAD."""
    then, now = resolve(root, good), resolve(root, bad)
    older, newer = revision(good, then), revision(bad, now)
    if then == now:
        raise TreeError(f"{older} and {newer} are one commit: name an older GOOD")
    if not has_commit(root, now, then):
        both = (git(root, "merge-base", then, now) or "").strip()
        if both == now:
            raise TreeError(f"{older} comes after {newer}: name the older one first")
        mend = f"name a commit that both have: {short_hash(both)}" if both else DEEPEN
        raise TreeError(f"{older} is no ancestor of {newer}: {mend}")
    return Commits(root, then, now, notice)


def moves_of(verdict: Verdict) -> list[Move]:
    """Return what moved, the worst first."""
    work, found = verdict.figures, []
    if isinstance(work, WorkMoved):
        found = [(work.metric, _sign(max(work.new, default=0) - max(work.old, default=0)))]
    return found + [
        (one.metric, _sign(one.rise))
        for one in worst_first(verdict.moved)
        if one.status in MOVED and (one.old is not None or not verdict.whole)
    ]


def _sign(rise: float) -> int:
    return (rise > 0) - (rise < 0)


def side_of(verdict: Verdict, sought: Move) -> Half:
    """Return whose side a commit or an interpreter is on, by its verdict beside GOOD."""
    if sought in moves_of(verdict):
        return Half.BAD
    of_metric = [one for one in verdict.metrics if one.metric == sought[0]]
    known = all(one.status in (*MOVED, Status.SAME) for one in of_metric)
    compared = bool(of_metric) and all(one.old is not None for one in of_metric)
    return Half.GOOD if known and (compared or not verdict.whole) else Half.SKIPPED


def next_of(between: Range, answers: Sequence[Asked]) -> tuple[str, tuple[str, ...]]:
    """Return what to ask next, if anything, and what may have the move first."""
    goods = [between.good, *(one.of for one in answers if one.side is Half.GOOD)]
    bad = next((one.of for one in reversed(answers) if one.side is Half.BAD), between.bad)
    known, left = {bad, *(one.of for one in answers)}, tuple[str, ...]()
    for left in between.left(bad, goods):
        if asked := next((one for one in left if one not in known), ""):
            return asked, left
    return "", left
