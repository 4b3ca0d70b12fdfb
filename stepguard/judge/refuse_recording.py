"""Reasons not to record a run. A level that was measured wrongly makes every later verdict wrong.

Pure: no I/O. Each rule returns what is wrong, with the value found, and what mends it; empty if
nothing is wrong.
"""

import re

from stepguard.core.evidence import Evidence
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.reasons import Reason
from stepguard.core.shared_sentences import uncommitted
from stepguard.judge.limits import DIFFERENCE_LIMIT_PCT, paired
from stepguard.judge.soundness import measurement_problem

_OF_A_COMMAND = re.compile(r".*\[(run|sweep-.*)\]")  # the ids that these two commands give
MIN_TIMED_LAUNCHES = 2  # for a time on a GPU: one launch does not show how launches differ


def unfit_to_record(evidence: Evidence) -> str:
    """Return why this evidence must not be recorded, whatever the baseline holds; else empty."""
    problem = measurement_problem(evidence)
    if problem is not None:
        return f"{problem.status.value}: {problem.figures.sentence}"
    # The command run gives all runs of a factory one id, whatever their parameters. No test
    # measures a row of a sweep.
    if _OF_A_COMMAND.fullmatch(evidence.case_id):
        return "it is no case of the suite: run and sweep- are names that the commands give"
    # To confirm an alarm the recording's commit is measured. So the commit must exist, and it must
    # have the code that was measured.
    if not evidence.commit:
        return (
            "its commit is not known: the tree was no git repository, or it had no commit yet, or "
            "git was not on PATH; commit, then measure again"
        )
    differs = uncommitted(evidence.dirty)
    if evidence.tree_changed:  # an editor changed it, or the script itself, which writes files
        mended = f"{differs}, then measure again" if differs else "measure again"
        return f"{Reason.TREE_CHANGED.phrase}; {mended}"
    if differs:
        return f"measured on a tree with {differs}, then measure again"
    if wrong := evidence.counted.numbers and evidence.counted.numbers.first_not_finite:
        return f"{wrong} is not finite: what is recorded must train"
    # These come last, since they need sound blocks, launches and differences.
    return _disturbed(evidence) or too_few_launches(evidence) or _vague(evidence)


def _disturbed(evidence: Evidence) -> str:
    """Refuse the run if a block that counts was disturbed, or at least half of all blocks."""
    kept = [block for launch in evidence.launches for block in launch.blocks]
    if spoilt := [block.disturbance for block in kept if block.disturbance]:
        return f"a block that counts was disturbed ({spoilt[0].text}); measure again"
    lost = evidence.disturbances
    if lost and len(lost) >= len(kept):
        return (
            f"{len(lost)} blocks were disturbed ({lost[-1]}) and {len(kept)} were not; "
            "see what the command doctor says, then measure again"
        )
    return ""


def too_few_launches(evidence: Evidence) -> str:
    """Return why the launches are too few for a level; empty if they are enough."""
    timed = evidence.on_gpu and JUDGED_TIME in evidence.gates
    count = len(evidence.launches)
    if timed and count < MIN_TIMED_LAUNCHES:
        return (
            f"{count} launch, a time needs {MIN_TIMED_LAUNCHES}: one was enough to judge the case; "
            "measure again with --perf-update, which measures all launches"
        )
    return ""


def _vague(evidence: Evidence) -> str:
    for difference in evidence.differences:
        half = paired(difference.pairs_ms).half_width_pct
        # Written this way so that NaN is refused, too.
        if not half <= DIFFERENCE_LIMIT_PCT:
            return (
                f"{difference.name} is known to +- {half:.2f} % of a step only, its limit is "
                f"{DIFFERENCE_LIMIT_PCT} %; measure again"
            )
    return ""
