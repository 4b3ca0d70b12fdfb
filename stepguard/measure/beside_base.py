"""HEAD's tree measured beside another revision's: on request, or to tell the code from the machine
if a stored baseline says SLOWER or FASTER.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from stepguard.core.case import Case
from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Evidence
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.reasons import Reason
from stepguard.judge.alarm import Answer, alarm_of, is_asked
from stepguard.judge.findings import Findings, Permits
from stepguard.launch.loaded_sources import changed_modules
from stepguard.machine.git.resolve import Chosen, TreeError, commit_for_confirmation
from stepguard.machine.git.revision import Revision, differing
from stepguard.machine.git.worktree import Tree, tree_of
from stepguard.measure.case_workers import Bench, Progress
from stepguard.measure.pair_run import PairsWanted, measure_ab
from stepguard.measure.start_ahead import Ahead


@dataclass
class Budget:
    """Minutes that a run may use for pairs, shared equally among the cases still to come."""

    left_s: float
    cases: int

    def share_s(self) -> float:
        """Return how many seconds the next case may take."""
        return max(0.0, self.left_s / max(1, self.cases))

    @contextlib.contextmanager
    def charged(self) -> Iterator[None]:
        """Charge a case with the time inside. What is left of its share is for the others."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.left_s -= time.monotonic() - began
            self.cases -= 1


def compare_with(
    case: Case, bench: Bench, tree: Tree, progress: Progress, wanted: PairsWanted
) -> Comparison:
    """Measure pairs of HEAD's tree, ``bench``, and of ``tree``."""
    files = wanted.files
    if files is None:  # nobody has asked git yet
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
    findings: Findings,
    permits: Permits,
    evidence: Evidence,
    recorded: tuple[str, str],
    progress: Progress,
    wanted_beside: Callable[[Case, str], PairsWanted],
) -> tuple[Answer | None, Comparison | None]:
    """Return the answer to an alarm, and the pairs to keep: the recording's commit is measured
    beside HEAD. None if nothing has to be answered, neither an alarm nor a SLOWER of an earlier
    run.

    ``recorded`` is the recording's commit, and the branch that must contain it (empty: the main
    branch). ``wanted_beside`` returns the pairs that are wanted of a case with a commit. The pairs
    time the steps that the screen's ``evidence`` timed, so that a slowdown in late steps is in
    both.
    """
    moved, dirty = alarm_of(findings, permits) is not None, bench.revision.dirty
    if not moved and (dirty or evidence.tree_changed or JUDGED_TIME not in case.gates):
        return None, None
    chosen = commit_for_confirmation(bench.root, *recorded)
    if moved and (answer := _without_pairs(bench, evidence, chosen)):
        return answer, None
    # FLOPs are counted as well: times of trees that do other work are not compared.
    times, steps = replace(case, gates=(JUDGED_TIME, "flops_per_step")), evidence.timed_steps
    wanted = replace(wanted_beside(times, chosen.commit), steps=steps)
    stays = wanted.stays(evidence)
    if not is_asked(findings, permits, stays):
        return None, None
    try:
        pairs = stays or _beside(times, bench, chosen.commit, progress, wanted)
    except TreeError as error:
        return Answer(failed=str(error)), None
    kept = wanted.keep(pairs)
    if moved and kept.head.tree_changed:
        return Answer(failed=Reason.TREE_CHANGED.phrase), kept
    return Answer(chosen.how, pairs, chosen.own), kept


def _without_pairs(bench: Bench, evidence: Evidence, chosen: Chosen) -> Answer | None:
    """Return the answer to an alarm that no pairs are needed for, or can be had for; else None."""
    if evidence.tree_changed:  # nobody knows what was measured
        return Answer(failed=Reason.TREE_CHANGED.phrase)
    if not chosen.commit:
        return Answer(failed=chosen.how)
    # A module that git ignores may be another one than it was then.
    of_commit = not (bench.revision.dirty or evidence.untracked)
    if chosen.commit == bench.revision.commit and of_commit:
        return Answer(chosen.how, same_code=True)
    return None


def _beside(
    case: Case, bench: Bench, commit: str, progress: Progress, wanted: PairsWanted
) -> Comparison:
    """Measure pairs of HEAD's tree and of a commit. Raises TreeError."""
    alone = replace(bench, ahead=Ahead())  # the next case is not measured in pairs
    front = f"confirming, {wanted.budget_s / 60:.0f} min at most"
    notices: list[str] = []
    with tree_of(bench.root, commit, notices.append) as tree:
        comparison = compare_with(
            case, alone, tree, lambda text: progress(f"{front}: {text}"), wanted
        )
    for notice in notices:
        progress(notice)
    return comparison
