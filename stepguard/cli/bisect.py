"""The command bisect: which commit, or which of several interpreters, moved a case.

BAD beside GOOD, in pairs, shows what moved. Halves of what lies between them are asked for it. At
the end the culprit is measured beside its parent. The same command goes on with a search that was
interrupted.

    python -m stepguard bisect v1.4 HEAD 'train_step[124m-bf16]'
    python -m stepguard bisect v1.4 HEAD -- train.py --batch_size=12
    python -m stepguard bisect --pythons old/bin/python,python CASE
"""

import argparse
import contextlib
import hashlib
import math
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import msgspec

from stepguard.cli.common import (
    UsageError,
    add_json,
    progress_line,
    put_json,
    refuse_target,
    say,
    suite_of,
)
from stepguard.cli.workload_arguments import add_parameters, chosen_case
from stepguard.core.case import Case
from stepguard.core.comparison import Comparison, Question, judged
from stepguard.core.evidence import Evidence, to_json
from stepguard.core.margins import BUDGET_MIN
from stepguard.core.metrics import FLOPS, JUDGED_TIME
from stepguard.core.reason_sentences import WorkMoved
from stepguard.core.reasons import Reason
from stepguard.core.recording import Entry, Epoch
from stepguard.core.status import Status
from stepguard.core.strict_json import DocumentPart
from stepguard.core.text import counted, revision, short_hash
from stepguard.core.verdict import Verdict, worst_first
from stepguard.judge.rule_book import judge
from stepguard.judge.summarise_evidence import stored
from stepguard.machine.git.resolve import DEEPEN, TreeError, has_commit, resolve
from stepguard.machine.git.revision import git
from stepguard.machine.git.worktree import FOLDER, Notice, tree_of
from stepguard.machine.gpu import MachineError
from stepguard.machine.packages import Python, survey_other
from stepguard.measure.case_workers import Bench
from stepguard.measure.driver import measure
from stepguard.measure.suite import Other, Suite, in_tree, measure_beside
from stepguard.report.document_json import judged_document
from stepguard.report.verdict_text import evidence_lines, headline
from stepguard.storage.compile_cache import CompileCache
from stepguard.storage.json_file import read, replace_file, save
from stepguard.storage.kept_runs import COMPARISON, Store, read_comparison

SCHEMA = 1
NOT_RUN = "name a GOOD and a BAD that both run the case: git log --oneline -- FILE"
NOT_FOUND = {
    Status.SAME: "nothing to find: if two changes cancel each other, name a BAD between them",
    Status.INCONCLUSIVE: "the proof is undecided: name a GOOD and a BAD that are farther apart",
}


# What lies between GOOD and BAD, and which of it is asked next.
Sides = Iterator[tuple[Bench, Other]]
Move = tuple[str, int]  # a metric, and in which direction: 1, -1, or 0 if it has none
MOVED = (Status.SLOWER, Status.CHANGED, Status.FASTER)


class Half(Enum):
    """The half of the search that a commit or an interpreter is in: has it the move?"""

    GOOD = "without it"
    BAD = "with it"
    SKIPPED = "skipped"  # it does not run, or nothing decides


class Asked(DocumentPart, frozen=True):
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


# The command.
class Kept(DocumentPart, frozen=True):
    """The file of a search: what was asked after the proof."""

    schema: Annotated[int, msgspec.Meta(ge=SCHEMA)]
    answers: list[Asked]


def add_command(commands: Any, root: Path) -> None:
    command = commands.add_parser("bisect", help="find the commit that moved a case")
    text = "two revisions; then package.module:function, or the id of a case that has a baseline"
    command.add_argument("words", nargs="*", metavar="GOOD BAD CASE", help=text)
    text = "interpreters in place of revisions, in order, GOOD first"
    command.add_argument("--pythons", metavar="A,B,C", help=text)
    add_parameters(command)
    add_json(command)
    command.set_defaults(call=_bisect, root=root)


def _bisect(options: argparse.Namespace) -> int:
    refuse_target(options.json)
    names, case = _asked(options)
    between: Range
    if options.pythons:
        pythons = {one: survey_other(one, Path.cwd(), options.root, os.environ) for one in names}
        if len({(one.prefix, one.version) for one in pythons.values()}) < len(names):
            raise UsageError(f"--pythons {options.pythons}: two of them are one environment")
        between = Interpreters(names[0], names[-1], pythons, Store(options.root).cache)
    else:
        between = commits_between(options.root, names[0], names[1], say)
    with contextlib.closing(suite_of(options.root)) as suite:
        search = Search(between, case, suite)
        try:
            return _report(search, options.json)
        except KeyboardInterrupt:
            if search.folder.is_dir():
                known = counted(len(search.answers), "answer")
                say(f"the proof and {known} are kept: the same command goes on from there")
            raise


def _asked(options: argparse.Namespace) -> tuple[list[str], Case]:
    """Return the revisions or interpreters that the words name, and the case."""
    words, names = [*options.words, *options.params], (options.pythons or "").split(",")
    if not options.pythons:
        names, words = words[:2], words[2:]
    if len(names) < 2 or not (words or options.script):
        raise UsageError("name GOOD, BAD and CASE, or --pythons GOOD,BAD and CASE")
    options.factory, options.params = next(iter(words), None), words[1:]
    return names, chosen_case(options)


class Search:
    """A search for what moved a case, and what is known of it. A folder keeps that until the end.

    .stepguard/bisect/<digest>/comparison.json    BAD beside GOOD
    .stepguard/bisect/<digest>/answers.json       what was asked since
    """

    def __init__(self, between: Range, case: Case, suite: Suite) -> None:
        self.between, self.case = between, case
        self._bench = replace(suite.bench, folder=suite.bench.folder / "bisect" / "start")
        packages = sorted(f"{one.name} {one.version}" for one in metadata.distributions())
        asked: list[object] = [between, case, suite.gpus, sys.executable, packages]
        if not between.alone:  # they run this tree
            asked += [suite.revision, suite.revision.state]
        digest = hashlib.sha256(repr(asked).encode()).hexdigest()
        self.folder = suite.root / FOLDER / "bisect" / digest[:12]
        self._proof_path, self._path = self.folder / COMPARISON, self.folder / "answers.json"
        kept = read(self._path, Kept, SCHEMA, "", remedy=f"rm -r {self.folder}")
        self.answers = [*kept.answers] if kept else []
        done, left = len(self.answers), next_of(between, self.answers)[1]
        steps = [f"half-{done + n}" for n in range(1, 1 + math.ceil(math.log2(len(left))))]
        steps = ["proof"][: not self._proof_path.is_file()] + [*steps, "culprit"]
        self._line = progress_line(suite.root, [replace(case, name=step) for step in steps], False)
        for answer in self.answers:
            self._line.learn(replace(case, name="culprit").id, answer.took_s)

    def begin(self) -> Verdict:
        """Return the verdict on BAD beside GOOD, as it was measured before or now."""
        if not self._proof_path.is_file():
            pairs = self.prove("proof", self.between.bad, self.between.good)
            replace_file(self._proof_path, to_json(pairs))
        self._proof = read_comparison(self._proof_path)
        return judge(Question(pairs=self._proof))

    def prove(self, step: str, new: str, old: str) -> Comparison:
        """Return fresh pairs of all that the case gates."""
        with self._step(step):
            return self._pairs(new, old, self.case)

    def ask(self, one: str, sought: Move) -> Asked:
        """Return whose side it is on. The answer is kept."""
        began = time.monotonic()
        with self._step(f"half-{len(self.answers) + 1}"):
            verdict = self._beside_good(one, sought)
        side, took_s = side_of(verdict, sought), round(time.monotonic() - began, 1)
        otherwise = f"moved otherwise: {headline(verdict)}" if moves_of(verdict) else ""
        text = otherwise if side is Half.GOOD else headline(verdict)
        self.answers.append(Asked(one, side, text, took_s))
        save(self._path, Kept(SCHEMA, self.answers), SCHEMA, "then repeat the command")
        return self.answers[-1]

    def _beside_good(self, one: str, sought: Move) -> Verdict:
        """Return the verdict by pairs, or by one launch if counters tell the move."""
        gates, of_time = judged(self.case), sought[0] == JUDGED_TIME
        gates = tuple(name for name in gates if (name == JUDGED_TIME) is of_time)
        # A CPU's time is judged although no case gates it. It needs equal work.
        named = FLOPS if of_time else sought[0]
        case = replace(self.case, gates=tuple(dict.fromkeys((*gates, named))))
        if of_time or not self.between.alone:
            return judge(Question(pairs=self._pairs(one, self.between.good, case)))
        recording = Epoch(reason="GOOD", recordings=[stored(self._proof.base)])
        asked = Question(entry=Entry(case=self._proof.base.case, epochs=[recording]))
        with self.between.sides(self._bench, case, one) as (bench, _):
            asked = measure(case, bench, asked, self._line.stage)
        assert asked.now is not None, "one tree has evidence"
        _refuse(asked.now)
        return judge(asked)

    @contextlib.contextmanager
    def _step(self, name: str) -> Iterator[None]:
        """Measure a step in a folder of its own. Show how much time is left for the search."""
        shown, began = replace(self.case, name=name).id, time.monotonic()
        self._bench = replace(self._bench, folder=self._bench.folder.parent / name)
        with self._line.case(shown):
            yield
        self._line.learn(shown, time.monotonic() - began)

    def _pairs(self, new: str, old: str, case: Case) -> Comparison:
        with self.between.sides(self._bench, case, new, old) as (bench, other):
            asked, budget_s = Question(), 60.0 * BUDGET_MIN
            pairs = measure_beside(case, bench, other, asked, self._line.stage, budget_s=budget_s)
            replace_file(bench.folder / COMPARISON, to_json(pairs))
        _refuse(pairs.head)
        return pairs


def _refuse(evidence: Evidence) -> None:
    """Raise KeyboardInterrupt if the run was ended, MachineError if the machine is unfit."""
    for fault in evidence.faults:
        if fault.code is Reason.UNDECIDED or Status.UNFIT in fault.code.statuses:
            ended = fault.code is Reason.UNDECIDED
            raise (KeyboardInterrupt if ended else MachineError)(fault.message)


def _report(search: Search, target: str | None) -> int:
    """Search, and print what is found. Return the exit status: 0 if a culprit is proven."""
    between, culprit, left = search.between, "", tuple[str, ...]()
    say(*(f"{side} {between.named(getattr(between, side.lower()))}" for side in ("GOOD", "BAD")))
    verdict = search.begin()
    say(headline(verdict))
    if moves := moves_of(verdict):
        while asked := next_of(between, search.answers)[0]:
            answer = search.ask(asked, moves[0])
            why = f": {answer.text}" if answer.text not in ("", headline(verdict)) else ""
            say(f"  {answer.side.value}: {between.named(asked)} ({answer.took_s:.0f} s){why}")
        left = next_of(between, search.answers)[1]
        if len(left) == 1:
            pairs = search.prove("culprit", left[0], between.before(left[0]))
            verdict = judge(Question(pairs=pairs))
            culprit = left[0] if moves[0] in moves_of(verdict) else ""
            say(f"{between.named(left[0])}, beside what was before it:", headline(verdict))
        if not culprit:
            left = left if left[1:] else [*between.left(left[0], [between.good])][-1]
            say(f"between these {len(left)}, none is proven:", *map(between.named, left))
    why = NOT_FOUND.get(verdict.status, NOT_RUN)
    end = f"culprit: {between.named(culprit)}" if culprit else why
    say(*evidence_lines(verdict), *([end] if culprit or not moves else []))
    document: dict[str, Any] = {
        "case": search.case.id,
        "good": between.good,
        "bad": between.bad,
        "moved": moves[0][0] if moves else None,
        "culprit": culprit or None,
        "between": [] if culprit else left,
        "answers": search.answers,
        "proof": judged_document(verdict),
    }
    put_json(document, target)
    shutil.rmtree(search.folder, ignore_errors=True)  # the search is over
    return 0 if culprit else 1
