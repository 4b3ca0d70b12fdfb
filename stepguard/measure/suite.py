"""Measure the cases of one run, judge them by baselines or by another revision, and keep them.

The pytest plugin and the commands use this module: neither measures nor judges by itself.
"""

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any

from stepguard.core.case import Case
from stepguard.core.comparison import Answer, Comparison, Question, judged, other_side
from stepguard.core.device import is_gpu
from stepguard.core.evidence import Evidence, Fault
from stepguard.core.margins import ALPHA, BUDGET_MIN
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.permission import Permission
from stepguard.core.reasons import Reason
from stepguard.core.recording import Entry
from stepguard.core.verdict import Verdict
from stepguard.judge.rule_book import judge, need
from stepguard.launch.loaded_sources import changed_modules
from stepguard.launch.nodes import Launcher, identity
from stepguard.machine.git.resolve import Chosen, TreeError, commit_for_confirmation
from stepguard.machine.git.revision import Revision, current, differing
from stepguard.machine.git.worktree import Tree, share, tree_of
from stepguard.machine.gpu import Gpu
from stepguard.machine.packages import Pythons
from stepguard.measure.case_workers import Ahead, Bench, Progress
from stepguard.measure.combine_ranks import Answers
from stepguard.measure.driver import Pairing, ask_ranks, measure
from stepguard.storage import baseline_files as baseline
from stepguard.storage.baseline_files import today
from stepguard.storage.compile_cache import CompileCache
from stepguard.storage.kept_runs import Store


@dataclass(frozen=True)
class Other:
    """What a run is compared with in pairs: another tree, another interpreter, or both."""

    tree: Tree | None = None  # None: HEAD's own, as it is
    pythons: Pythons | None = None  # the running one and the other one; None: both sides' is this
    cache: Path | None = None  # compile caches of the other interpreter


def measure_beside(
    case: Case,
    bench: Bench,
    other: Other,
    asked: Question,
    progress: Progress,
    keep: Callable[[Comparison], Comparison] = lambda pairs: pairs,
    alpha: float = ALPHA,
    budget_s: float = inf,
) -> Comparison:
    """Measure pairs of HEAD's side (``bench``) and the ``other`` one, and return them."""
    of_head: dict[str, Any] = {"folder": bench.folder / "head"}
    of_base: dict[str, Any] = {"folder": bench.folder / "base"}
    base, tree = bench, other.tree
    if tree:
        own = bench.own or tree.base  # HEAD's side may be a revision's tree, too
        files = differing(own, tree.commit, own / "baselines")
        if files is None:  # git does not say: all may differ
            files = tuple(str(path.relative_to(tree.top)) for path in tree.top.rglob("*.py"))
        changed = changed_modules((own, tree.top), files)
        base = in_tree(bench, tree, case)
        of_base |= {"forbidden": (*bench.forbidden, own), "changed": changed}
        of_head |= {"own": own, "forbidden": (*bench.forbidden, tree.top), "changed": changed}
    python = ""
    if other.pythons:
        of_head["python"], of_base["python"] = other.pythons
        python, of_base["cache"] = other.pythons[1].asked, other.cache or bench.cache
    against = other_side(tree.rev if tree else "", python)
    beside = Pairing(replace(base, **of_base), against, alpha, budget_s)
    pairs = measure(case, replace(bench, **of_head), asked, progress, beside, keep).pairs
    assert pairs is not None, "two trees are compared in pairs"
    return pairs


def in_tree(bench: Bench, tree: Tree, case: Case) -> Bench:
    """Return the bench of another revision's tree, which gets links to the case's data."""
    share(tree, tree.base / tree.root.relative_to(tree.top), case.data)
    at = Revision(tree.commit)
    return replace(bench, root=tree.root, revision=at, own=tree.top, forbidden=(tree.base,))


def _without_pairs(bench: Bench, evidence: Evidence, chosen: Chosen) -> Answer | None:
    if evidence.tree_changed:  # nobody knows what was measured
        return Answer(failed=Reason.TREE_CHANGED.phrase)
    if not chosen.commit:
        return Answer(failed=chosen.how)
    # An untracked module may have changed since the recording.
    of_commit = not (bench.revision.dirty or evidence.untracked)
    if chosen.commit == bench.revision.commit and of_commit:
        return Answer(chosen.how, same_code=True)
    return None


@dataclass(frozen=True)
class Result:
    """One case, measured and judged, and where its evidence is kept."""

    case: Case
    evidence: Evidence
    verdict: Verdict
    evidence_path: Path
    baseline_path: Path
    comparison: Comparison | None = None  # with another revision, if one was measured
    judged_by: str = ""  # the digest of the baseline that judged, if one did

    @property
    def ended(self) -> str:
        """Return how the run was ended while it measured the case; empty if it was not."""
        faults = (self.comparison.head if self.comparison else self.evidence).faults
        return next((fault.message for fault in faults if fault.code is Reason.UNDECIDED), "")


class Ended(KeyboardInterrupt):
    """The run was ended while it measured a case. ``result`` is what is known of the case."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.ended.partition(",")[0])  # the case's verdict says the rest
        self.result = result


@dataclass
class Suite:
    """Runs cases on one machine, and keeps their results."""

    root: Path
    baselines: Path
    gpus: tuple[Gpu, ...]
    arguments: list[str]  # of the command that was typed
    permissions: tuple[Permission, ...] = ()
    # The seconds that are left for pairs, shared equally among the cases to come.
    budget_s: float = 60 * BUDGET_MIN
    cases: int = 1
    alpha: float = ALPHA  # level of each case that pairs judge; pairs of an alarm have ALPHA
    # What is measured may be recorded. So all that is planned is measured, also once it is certain
    # that nothing moved.
    records: bool = True
    tree: Tree | None = None  # of the revision that judges every case in place of the baselines
    pythons: Pythons | None = None  # the running interpreter, and the one that judges every case
    launcher: Launcher | None = None
    base: str = ""  # the branch that HEAD is merged into; empty: the main branch
    base_baselines: Path | None = None  # that branch's baselines; they judge, not the tree's own
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)  # of launches
    results: list[Result] = field(default_factory=list, init=False)
    notices: list[str] = field(default_factory=list, init=False)  # for the user, of the whole run

    def __post_init__(self) -> None:
        self._store = Store(self.root)
        self._cache = CompileCache(self._store.cache)
        self.bench = Bench(
            root=self.root,
            cache=self._cache.folder,
            folder=self._store.new_run(),
            gpus=self.gpus,
            revision=current(self.root, self.baselines),
            command=shlex.join(self.arguments),
            launcher=self.launcher,
            environment=self.environment,
        )
        self._other_cache = self._cache
        if self.pythons:
            # Compilers find what they wrote by code and versions. A package that was patched has
            # the same version.
            self._other_cache = CompileCache(self.pythons[1].beside(self._store.cache))
        self._other = Other(self.tree, self.pythons, self._other_cache.folder)

    @property
    def in_pairs(self) -> bool:
        """Tell whether another tree or interpreter judges, not the baselines."""
        return bool(self.tree or self.pythons)

    @property
    def revision(self) -> Revision:
        """Return the revision of the measured tree, as it was when the suite was made."""
        return self.bench.revision

    def run(self, case: Case, progress: Progress, following: Case | None = None) -> Result:
        """Measure and judge one case, and start the next one, ``following``, if known; then close()
        must be called. Raises FileError, and Ended if the run is ended meanwhile: what is known is
        kept.
        """
        self.bench.ahead.expect(following)
        began_ns = time.time_ns()
        result = self._measure(case, progress)
        texts = [] if result.ended else _failures(result)
        if file := next(filter(None, (self._cache.older_file(t, began_ns) for t in texts)), ""):
            result = self._without_cache(result, progress, file)
        self.results.append(result)
        if result.ended:
            raise Ended(result)
        return result

    def _measure(self, case: Case, progress: Progress) -> Result:
        return (self._compare if self.in_pairs else self._screen)(case, progress)

    def _without_cache(self, failed: Result, progress: Progress, file: str) -> Result:
        """Set the compile cache aside, since a failure names ``file`` of it, and measure the case
        twice: what the first pass writes into a new cache has to serve the second one. If that
        fails, too, the cache was not the cause: put it back.
        """
        case = failed.case
        self.bench.ahead.close()  # these launches may be reading it
        try:
            aside = self._cache.set_aside()
        except OSError as error:
            self.notices.append(f"{case.id}: the compile cache could not be set aside: {error}")
            return failed
        for _ in range(2):
            self.cases += 1  # the case is charged for each pass
            result = self._measure(case, progress)
            if _failures(result) or result.ended:
                break
        if _failures(result):
            self.bench.ahead.close()
            self._cache.put_back()
        else:
            self.notices.append(
                f"{case.id}: failed with {file} of the compile cache, and was measured again "
                f"without the cache, which was set aside: {aside}"
            )
        return result

    def close(self) -> None:
        """End the launches of a next case that did not come. Give the compile caches back."""
        self.bench.ahead.close()
        self._cache.close()
        self._other_cache.close()

    def ask(self, case: Case, progress: Progress, function: str, **arguments: Any) -> Answers:
        """Return what a function returns in each of the case's ranks. Raises LaunchFailed."""
        return ask_ranks(case, self.bench, progress, function, **arguments)

    def longest_s(self, case: Case) -> float | None:
        """Return how many seconds a case's pairs may take; None without such a limit."""
        timed = self.in_pairs and JUDGED_TIME in judged(case)
        return self._share_s() if timed else None

    def _share_s(self) -> float:
        return max(0.0, self.budget_s / max(1, self.cases))

    @contextlib.contextmanager
    def _charged(self) -> Iterator[None]:
        """Charge a case with the time of the block. The others get what is left of its share."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.budget_s -= time.monotonic() - began
            self.cases -= 1

    def _screen(self, case: Case, progress: Progress) -> Result:
        """Judge a case by the stored baseline. A time that moved is confirmed in pairs."""
        path, entry = self._known(case)
        own = baseline.load(path) if self.base_baselines else None
        asked = Question(
            entry=entry,
            path=self._named(path),
            own=own.cases.get(case.id) if own else None,
            permissions=self.permissions,
            today=today(),
            everything=self.records,
        )
        found = measure(case, self.bench, asked, progress).now
        assert found is not None, "one tree has evidence"
        evidence = self._checked(found)
        evidence_path = self._store.keep(self.bench.folder, case.slug, evidence)
        asked, comparison = replace(asked, now=evidence), None
        # Also if there is no alarm: then the others get this case's share of the budget.
        with self._charged():
            if commit := need(asked).beside:
                answer, comparison = self._answer(case, evidence, commit, progress)
                asked = replace(asked, answer=answer)
        if comparison is not None and comparison.head.tree_changed:
            evidence = replace(evidence, tree_changed=True)
        judged_by = entry.digest if entry else ""
        return Result(case, evidence, judge(asked), evidence_path, path, comparison, judged_by)

    def _answer(
        self, case: Case, evidence: Evidence, commit: str, progress: Progress
    ) -> tuple[Answer, Comparison | None]:
        """Measure the recording's commit beside HEAD. Return the answer to the alarm, and the pairs
        that were kept.
        """
        chosen, budget_s = commit_for_confirmation(self.root, commit, self.base), self._share_s()
        if answer := _without_pairs(self.bench, evidence, chosen):
            return answer, None
        # FLOPs are counted as well: times of trees that do other work are not compared.
        times = replace(case, gates=(JUDGED_TIME, "flops_per_step"))
        # The next case begins with a launch of HEAD alone, so none of these launches starts it.
        alone, notices = replace(self.bench, ahead=Ahead()), list[str]()
        front = f"confirming, {budget_s / 60:.0f} min at most"
        try:
            with tree_of(self.root, chosen.commit, notices.append) as tree:
                pairs = measure_beside(
                    times,
                    alone,
                    Other(tree),
                    Question(permissions=self.permissions, today=today()),
                    lambda text: progress(f"{front}: {text}"),
                    lambda so_far: self._keep_pairs(case, so_far)[0],
                    budget_s=budget_s,
                )
        except TreeError as error:
            return Answer(failed=str(error)), None
        for notice in notices:
            progress(notice)
        kept, _ = self._keep_pairs(case, pairs)
        if kept.head.tree_changed:
            return Answer(failed=Reason.TREE_CHANGED.phrase), kept
        return Answer(chosen.how, pairs, chosen.own), kept

    def _compare(self, case: Case, progress: Progress) -> Result:
        """Judge a case by pairs with the other side. No stored baseline counts."""
        path, _ = self._known(case)
        revision = self.bench.revision
        # Of a commit with itself all pairs are wanted: they show the machine's noise.
        itself = self.tree is not None and self.tree.commit == revision.commit
        everything = itself and not revision.dirty and not self.pythons
        asked = Question(permissions=self.permissions, today=today(), everything=everything)
        with self._charged():
            pairs = measure_beside(
                case,
                self.bench,
                self._other,
                asked,
                progress,
                lambda so_far: self._keep_pairs(case, so_far)[0],
                alpha=self.alpha,
                budget_s=self._share_s(),
            )
        comparison, kept = self._keep_pairs(case, pairs)
        verdict = judge(replace(asked, pairs=comparison))
        return Result(case, comparison.head, verdict, kept, path, comparison)

    def _keep_pairs(self, case: Case, comparison: Comparison) -> tuple[Comparison, Path]:
        """Store the comparison, marked if its tree changed meanwhile. Return it and its path."""
        head = self._checked(comparison.head)
        fault = Fault(Reason.TREE_CHANGED, Reason.TREE_CHANGED.phrase, "", "pairs")
        # HEAD's launches may be of different trees.
        if head.tree_changed and fault not in head.faults:
            head = replace(head, faults=(*head.faults, fault))
        comparison = replace(comparison, head=head)
        return comparison, self._store.keep(self.bench.folder, case.slug, comparison)

    def _known(self, case: Case) -> tuple[Path, Entry | None]:
        """Return a case's baseline file and its baseline on this machine. Raises FileError."""
        machine = baseline.CPU_MACHINE
        if is_gpu(case.device):
            machine = self.bench.gpus[0].name if self.bench.gpus else ""
        name = baseline.name_of(identity(case, self.bench.launcher), machine)
        path, judges = self.baselines / name, (self.base_baselines or self.baselines) / name
        content = baseline.load_for(judges, machine)
        return path, content.cases.get(case.id) if content else None

    def _named(self, path: Path) -> str:
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)

    def _checked(self, evidence: Evidence) -> Evidence:
        """Return the evidence, marked if its tree changed meanwhile."""
        now, then = current(self.root, self.baselines), self.bench.revision
        # ``==`` ignores the states of two revisions (machine/git/revision.py).
        if (now, now.state) == (then, then.state):
            return evidence
        # Files that the script itself wrote are named, too: the user adds them to .gitignore.
        dirty = tuple(sorted({*evidence.dirty, *now.dirty}))
        return replace(evidence, tree_changed=True, dirty=dirty)


def _failures(result: Result) -> list[str]:
    """Return the failures that a damaged file of the compile cache may cause."""
    pairs, may_cause = result.comparison, (Reason.RAISED, Reason.KILLED)
    sides = (result.evidence, pairs.head, pairs.base) if pairs else (result.evidence,)
    faults = (fault for side in sides for fault in side.faults)
    return [f"{fault.message}\n{fault.detail}" for fault in faults if fault.code in may_cause]
