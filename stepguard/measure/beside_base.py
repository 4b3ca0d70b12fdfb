"""Measure HEAD's tree beside another revision's, or beside itself under another interpreter: on
request, or to answer an alarm of recordings: did the code or the machine change?
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path

from stepguard.core.case import Case
from stepguard.core.comparison import Comparison, other_side
from stepguard.core.evidence import Evidence
from stepguard.core.margins import ALPHA
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.question import Answer, Question
from stepguard.core.reasons import Reason
from stepguard.launch.loaded_sources import changed_modules
from stepguard.machine.git.resolve import Chosen, TreeError, commit_for_confirmation
from stepguard.machine.git.revision import Revision, differing
from stepguard.machine.git.worktree import Tree, share, tree_of
from stepguard.machine.other_python import Pythons
from stepguard.measure.case_workers import Bench, Progress
from stepguard.measure.driver import Pairing, measure
from stepguard.measure.start_ahead import Ahead


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
    keep: Callable[[Comparison], object],
    alpha: float = ALPHA,
    budget_s: float = inf,
) -> Comparison:
    """Measure pairs of HEAD's side (``bench``) and the ``other`` one, and return them."""
    head, base = (replace(bench, folder=bench.folder / side) for side in ("head", "base"))
    if tree := other.tree:
        share(tree, bench.root, case.data)
        files = differing(tree.base, tree.commit, tree.base / "baselines")
        if files is None:  # git does not say: all may differ
            files = tuple(str(path.relative_to(tree.top)) for path in tree.top.rglob("*.py"))
        changed = changed_modules((tree.base, tree.top), files)
        head = replace(head, own=tree.base, forbidden=(tree.top,), changed=changed)
        base = replace(
            base,
            root=tree.root,
            revision=Revision(tree.commit),
            own=tree.top,
            forbidden=(tree.base,),
            changed=changed,
        )
    python = ""
    if other.pythons:
        mine, theirs = other.pythons
        python, head = theirs.asked, replace(head, python=mine)
        base = replace(base, python=theirs, cache=other.cache or base.cache)
    against = other_side(tree.rev if tree else "", python)
    beside = Pairing(base, against, alpha, budget_s)
    pairs = measure(case, head, asked, progress, beside, keep).pairs
    assert pairs is not None, "two trees are compared in pairs"
    return pairs


def answer_alarm(
    case: Case,
    bench: Bench,
    evidence: Evidence,
    recorded: tuple[str, str],
    asked: Question,
    progress: Progress,
    keep: Callable[[Comparison], Comparison],
    budget_s: float,
) -> tuple[Answer, Comparison | None]:
    """Measure the recording's commit beside HEAD. Return the answer to the alarm, and the pairs
    that were kept, if there are any.

    ``recorded`` is the recording's commit, and the branch that must contain it (empty: the main
    branch). ``asked`` is the question about the pairs.
    """
    chosen = commit_for_confirmation(bench.root, *recorded)
    if answer := _without_pairs(bench, evidence, chosen):
        return answer, None
    # FLOPs are counted as well: times of trees that do other work are not compared.
    times = replace(case, gates=(JUDGED_TIME, "flops_per_step"))
    # The next case begins with a launch of HEAD alone, so none of these launches starts it.
    alone = replace(bench, ahead=Ahead())
    front = f"confirming, {budget_s / 60:.0f} min at most"
    notices: list[str] = []
    try:
        with tree_of(bench.root, chosen.commit, notices.append) as tree:
            pairs = measure_beside(
                times,
                alone,
                Other(tree),
                asked,
                lambda text: progress(f"{front}: {text}"),
                keep,
                budget_s=budget_s,
            )
    except TreeError as error:
        return Answer(failed=str(error)), None
    for notice in notices:
        progress(notice)
    kept = keep(pairs)
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
