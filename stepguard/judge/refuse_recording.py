"""Reasons not to record a run. A level that was measured wrongly makes every later verdict wrong.

Pure: no I/O. Each rule returns what is wrong, with the value found, and what mends it; empty if
nothing is wrong.
"""

import re
from collections.abc import Sequence

from stepguard.core.baseline import Entry
from stepguard.core.evidence import Evidence
from stepguard.core.metrics import JUDGED_TIME, METRICS
from stepguard.core.reasons import Reason
from stepguard.core.shared_sentences import uncommitted
from stepguard.core.status import Status
from stepguard.core.text import counted
from stepguard.core.verdict import MetricVerdict, Verdict
from stepguard.judge.judge_recordings import alike
from stepguard.judge.noise_limits import (
    DIFFERENCE_LIMIT_PCT,
    launch_spread_limit_pct,
    launch_spread_pct,
    paired,
)
from stepguard.judge.soundness import measurement_problem

_OF_A_COMMAND = re.compile(r".*\[(run|sweep-.*)\]")  # the ids that these two commands give
MIN_TIMED_LAUNCHES = 2  # for a time on a GPU: one launch does not show how launches differ
MIN_TOGETHER = 3  # cases; if only two move alike, the cause may well be in the code
ALIKE = 2.0  # moves are alike if the largest is at most this many times the smallest


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
    # These come last, since they need sound blocks, launches and differences.
    return _disturbed(evidence) or too_few_launches(evidence) or _vague(evidence)


def _disturbed(evidence: Evidence) -> str:
    """Refuse the run if a block that counts was disturbed, or at least half of all blocks: then the
    other blocks are doubtful, too.
    """
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
            "measure again with --perf-update or --perf-append, which measure all launches"
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


def spread_too_far(evidence: Evidence, entry: Entry | None) -> str:
    """Return why the launches differ too much to be a level; empty if they do not. The limit is how
    much the launches of the last epoch's recordings under this software differ. Without such
    recordings it is how much launches usually differ.
    """
    if JUDGED_TIME not in evidence.gates:
        return ""
    recordings = alike(entry.level, evidence) if entry else []
    now = [launch.step_ms for launch in evidence.launches]
    past = [
        recording.times_ms[JUDGED_TIME]
        for recording in recordings
        if recording.times_ms.get(JUDGED_TIME)
    ]
    spread, limit = launch_spread_pct(now), launch_spread_limit_pct(len(now), past)
    if spread <= limit:
        return ""
    times = ", ".join(f"{ms:.3f}" for ms in now)
    known = counted(len(past), "recording")
    return (
        f"{JUDGED_TIME} of its launches is {times} ms, a standard deviation of {spread:.2f} %; "
        f"with {known} at most {limit:.2f} % is plausible; measure again on a quiet machine"
    )


def moved_together(verdicts: Sequence[Verdict], accept: str) -> str:
    """Return why nothing of this run should be recorded: all cases that can be compared became
    slower, or all faster, by a similar amount, with equal counters. The cause is then likely the
    machine. Empty if the run may be recorded.

    A case whose counters moved is left out, since its code did change. ``accept`` is the command
    that records the run all the same.
    """
    times = [metric for verdict in verdicts if (metric := _plain_time(verdict))]
    moves = [metric.change_pct for metric in times if metric.change_pct is not None]
    kinds = {metric.status for metric in times}
    # If one case is `same`, the machine is not the cause: that case would have moved, too.
    if len(moves) < MIN_TOGETHER or kinds not in ({Status.SLOWER}, {Status.FASTER}):
        return ""
    least, most = min(moves, key=abs), max(moves, key=abs)
    if abs(most) > ALIKE * abs(least):
        return ""
    return (
        f"all {len(moves)} cases that can be compared moved together, {JUDGED_TIME} by "
        f"{least:+.2f} to {most:+.2f} % with equal counters: that is the machine rather than the "
        "code; measure again on the machine that recorded, or, if the code did it: "
        f"{accept} --reason '...'"
    )


def _plain_time(verdict: Verdict) -> MetricVerdict | None:
    """Return the step time of a case that was compared and whose counters are equal; else None."""
    gated = [metric for metric in verdict.metrics if metric.gated]
    counters = [metric for metric in gated if METRICS[metric.metric].kind == "counter"]
    if any(metric.status is not Status.SAME for metric in counters):
        return None
    return next((m for m in gated if m.metric == JUDGED_TIME and m.limit_pct is not None), None)
