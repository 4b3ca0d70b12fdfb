"""Measure HEAD's tree beside another revision's: on request, or after a stored baseline says SLOWER
or FASTER, to tell whether the code or the machine changed.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from stepguard.core.case import Case
from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Evidence
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.question import Answer
from stepguard.core.reasons import Reason
from stepguard.launch.loaded_sources import changed_modules
from stepguard.machine.git.resolve import Chosen, TreeError, commit_for_confirmation
from stepguard.machine.git.revision import Revision, differing
from stepguard.machine.git.worktree import Tree, share, tree_of
from stepguard.measure.case_workers import Bench, Progress
from stepguard.measure.pair_run import PairsWanted, measure_ab
from stepguard.measure.start_ahead import Ahead


@dataclass
class Budget:
    """The seconds that a run may still use for pairs, shared equally among the cases to come."""

    left_s: float
    cases: int

    def share_s(self) -> float:
        """Return how many seconds the next case may take."""
        return max(0.0, self.left_s / max(1, self.cases))

    @contextlib.contextmanager
    def charged(self) -> Iterator[None]:
        """Charge a case with the time of the block. The others get what is left of its share."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.left_s -= time.monotonic() - began
            self.cases -= 1


def compare_with(
    case: Case, bench: Bench, tree: Tree, progress: Progress, wanted: PairsWanted
) -> Comparison:
    """Measure pairs of HEAD's tree (``bench``) and ``tree``, and return them."""
    share(tree, bench.root, case.data)
    files = differing(tree.base, tree.commit, tree.base / "baselines")
    if files is None:  # git does not say: all may differ
        files = tuple(str(path.relative_to(tree.top)) for path in tree.top.rglob("*.py"))
    bench = replace(bench, changed=changed_modules((tree.base, tree.top), files))
    head = replace(bench, folder=bench.folder / "head", own=tree.base, forbidden=(tree.top,))
    base = replace(
        bench,
        root=tree.root,
        folder=bench.folder / "base",
        revision=Revision(tree.commit),
        own=tree.top,
        forbidden=(tree.base,),
    )
    return measure_ab(case, (head, base), tree.rev, progress, wanted)


def confirm(
    case: Case,
    bench: Bench,
    evidence: Evidence,
    recorded: tuple[str, str],
    progress: Progress,
    wanted_beside: Callable[[Case], PairsWanted],
) -> tuple[Answer, Comparison | None]:
    """Measure the recording's commit beside HEAD to answer an alarm. Return the answer, and the
    pairs that were kept, if there are any.

    ``recorded`` is the recording's commit, and the branch that must contain it (empty: the main
    branch). ``wanted_beside(case)`` returns which pairs to measure.
    """
    chosen = commit_for_confirmation(bench.root, *recorded)
    if answer := _without_pairs(bench, evidence, chosen):
        return answer, None
    # FLOPs are counted as well: times of trees that do other work are not compared.
    times = replace(case, gates=(JUDGED_TIME, "flops_per_step"))
    wanted = wanted_beside(times)
    try:
        pairs = _beside(times, bench, chosen.commit, progress, wanted)
    except TreeError as error:
        return Answer(failed=str(error)), None
    kept = wanted.keep(pairs)
    if kept.head.tree_changed:
        return Answer(failed=Reason.TREE_CHANGED.phrase), kept
    return Answer(chosen.how, pairs, chosen.own), kept


def _without_pairs(bench: Bench, evidence: Evidence, chosen: Chosen) -> Answer | None:
    """Return the answer to an alarm if pairs are not needed or not possible; else None."""
    if evidence.tree_changed:  # nobody knows what was measured
        return Answer(failed=Reason.TREE_CHANGED.phrase)
    if not chosen.commit:
        return Answer(failed=chosen.how)
    # An untracked module may have changed since the recording.
    of_commit = not (bench.revision.dirty or evidence.untracked)
    if chosen.commit == bench.revision.commit and of_commit:
        return Answer(chosen.how, same_code=True)
    return None


def _beside(
    case: Case, bench: Bench, commit: str, progress: Progress, wanted: PairsWanted
) -> Comparison:
    """Measure pairs of HEAD's tree and of a commit. Raises TreeError."""
    # The next case begins with a launch of HEAD alone, so none of these launches starts it.
    alone = replace(bench, ahead=Ahead())
    front = f"confirming, {wanted.budget_s / 60:.0f} min at most"
    notices: list[str] = []
    with tree_of(bench.root, commit, notices.append) as tree:
        comparison = compare_with(
            case, alone, tree, lambda text: progress(f"{front}: {text}"), wanted
        )
    for notice in notices:
        progress(notice)
    return comparison
