"""Accept evidence: make it a recording in a baseline file, or refuse it. A level that was measured
wrongly makes every later verdict wrong.
"""

import re
import shlex
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from stepguard.core.comparison import Question
from stepguard.core.evidence import Evidence
from stepguard.core.margins import margins_of
from stepguard.core.metrics import JUDGED_TIME, UNWANTED, format_value
from stepguard.core.reason_sentences import uncommitted
from stepguard.core.reasons import Reason
from stepguard.core.recording import (
    KEPT_RECORDINGS,
    SCHEMA,
    BaselineFile,
    Entry,
    Epoch,
    Recording,
    on_same_steps,
)
from stepguard.core.status import Status
from stepguard.core.text import has_words
from stepguard.core.verdict import Joins, MetricVerdict, Verdict
from stepguard.judge.compare_metric import DIFFERENCE_LIMIT_PCT, OTHER_CARD_PCT
from stepguard.judge.judge_recordings import alike
from stepguard.judge.rule_book import judge
from stepguard.judge.soundness import measurement_problem
from stepguard.judge.summarise_evidence import paired, stored
from stepguard.machine.git.revision import is_tracked
from stepguard.machine.interpreter import as_typed
from stepguard.storage.baseline_files import load_for, machine_of, save
from stepguard.storage.json_file import FileError, one_at_a_time, restore


class Action(Enum):
    """What accepting evidence does. The values are sentences with fields of Accepted."""

    # The evidence is recorded already, or its case has no times.
    NOTHING_TO_ADD = "equal to what {path} holds, nothing to add"
    # Beside recordings one launch may be enough to judge a case.
    ONE_LAUNCH = "same as {path} by one launch, nothing to add; --perf-update measures all launches"
    FIRST_RECORDING = "first recording in {path}"
    APPENDED = "recording {number} of its level in {path}"
    FIRST_OF_SOFTWARE = "first under this software in {path}"
    EPOCH_OPENED = "a new level begins ({reason}) in {path}"


@dataclass(frozen=True)
class Accepted:
    """The result of accepting one case's evidence."""

    case_id: str
    action: Action
    path: Path  # the baseline file
    number: int = 1  # the number of the recording in its epoch, or of the new epoch
    reason: str = ""  # of a new epoch
    # Gated metrics whose level this changes. Not compared, since they follow from the evidence.
    moved: tuple[MetricVerdict, ...] = field(default=(), compare=False)


@one_at_a_time
def accept(
    path: Path,
    evidence: Evidence,
    reason: str,
    where: str = "",
    verdict: Verdict | None = None,
    beside: Evidence | None = None,
) -> Accepted:
    """Make the evidence a recording of its case in ``path``. Return what was done.

    Evidence joins the epoch if it is `same`, if it is the first under new software, or if it only
    adds metrics and has a ``reason``. Evidence of another level or with other parameters opens a
    new epoch, and needs a ``reason``. ``beside`` is evidence of the same tree under the software
    that recorded the level, if pairs say that both are `same`: then it carries the level over,
    whatever figures of different versions are.

    ``where`` is the option for the folder of baselines, for the command in
    an error. ``verdict`` is the run's, which may be by pairs; None: recordings alone judge.
    Raises FileError; the file is then unchanged.
    """
    if _is_same_by_one_launch(path, evidence):
        return Accepted(evidence.case_id, Action.ONE_LAUNCH, path)
    if problem := unfit_to_record(evidence):
        raise FileError(f"{evidence.case_id}: not recorded, {problem}")
    recording, machine = stored(evidence), machine_of(evidence)
    content = _content(path, machine)
    entry = content.cases.get(evidence.case_id)
    pairs = verdict
    if verdict is None or beside:  # between two environments pairs do not know the level
        verdict = judge(Question(evidence, entry))
    guard = _guard(evidence, recording)
    guards = entry is not None and guard.items() <= msgspec.structs.asdict(entry).items()
    equal = guards and verdict.joins is Joins.ITSELF and _adds_nothing(recording, entry)
    if equal or _has(entry, recording):
        return Accepted(evidence.case_id, Action.NOTHING_TO_ADD, path)
    carried = _carried(beside, entry, pairs) if entry and beside and pairs else ""
    action, number, epochs = _place(evidence, recording, entry, verdict, reason, where, carried)
    # The entry has the newest parameters, since a run is compared only with the last epoch.
    fresh = Entry(case=evidence.case, epochs=epochs, **guard)
    cases = content.cases | {evidence.case_id: fresh}
    save(path, BaselineFile(schema=SCHEMA, machine=machine, cases=cases))
    opened = action is Action.EPOCH_OPENED
    moved = tuple(_placed(metric, recording) for metric in verdict.moved)
    return Accepted(evidence.case_id, action, path, number, reason if opened else "", moved)


def _is_same_by_one_launch(path: Path, evidence: Evidence) -> bool:
    few = too_few_launches(evidence)
    if not few or unfit_to_record(evidence) != few:
        return False
    content = load_for(path, machine_of(evidence))
    entry = content.cases.get(evidence.case_id) if content else None
    return judge(Question(evidence, entry)).joins is Joins.ITSELF


def _adds_nothing(recording: Recording, entry: Entry | None) -> bool:
    """Tell whether a recording that is `same` has only metrics that its level has, and no times:
    counters are exact. Else every run on a CPU would add one.
    """
    exact = not (recording.times_ms or recording.differences_pct)
    return exact and entry is not None and recording.values().keys() <= _recorded(entry.level)


def _has(entry: Entry | None, recording: Recording) -> bool:
    """Tell whether a case has this recording: twice, it would agree with itself."""
    known = (one for epoch in entry.epochs for one in epoch.recordings) if entry else ()
    one = (recording.date, recording.commit, recording.device_uuid)
    return one in ((other.date, other.commit, other.device_uuid) for other in known)


def _placed(metric: MetricVerdict, recording: Recording) -> MetricVerdict:
    """Return the metric; with its recorded places if nothing was compared with it."""
    if metric.old is not None:
        return metric
    sites = (site for site in recording.sites.get(metric.metric, ()) if not site.allowed)
    return msgspec.structs.replace(metric, sites=tuple(sites))


def _content(path: Path, machine: str) -> BaselineFile:
    content = load_for(path, machine)
    if content is None and is_tracked(path):  # a new file would lose the other cases and the levels
        raise FileError(f"{path}: git has it, and it is gone here; {restore(path)}")
    return content or BaselineFile(schema=SCHEMA, machine=machine, cases={})


def _guard(evidence: Evidence, recording: Recording) -> dict[str, Any]:
    """Return what a strict run expects of the case: gates, margins, whether it must run."""
    entry = Entry(case=evidence.case, epochs=[Epoch(reason="-", recordings=[recording])])
    fewer = not entry.required_gates <= set(evidence.gates)
    usual = margins_of(evidence.margins_pct, evidence.case["device"]) == entry.margins
    return {
        "extended": evidence.extended,
        "gates": sorted(evidence.gates) if fewer else [],
        "margins_pct": [] if usual else list(evidence.margins_pct),
    }


def _place(
    evidence: Evidence,
    recording: Recording,
    entry: Entry | None,
    verdict: Verdict,
    reason: str,
    where: str,
    carried: str,
) -> tuple[Action, int, list[Epoch]]:
    """Return the action, its number as in Accepted, and the case's epochs with the recording."""
    if entry is None:
        why = reason if has_words(reason) else "first recording"
        epoch = Epoch(reason=why, recordings=[recording])
        return Action.FIRST_RECORDING, 1, [epoch]
    last = entry.level
    same = alike(last, evidence)
    drift = "" if same or carried else _other_software(recording, last)
    # New metrics alone open no level: the times belong to one that other cards and days confirmed.
    more = has_words(reason) and _only_adds_metrics(verdict, last)
    joins = verdict.joins is Joins.ITSELF or not same or more
    if entry.case == evidence.case and joins and not drift:
        # Places and parts are only compared with the newest recording, so older ones lose them.
        software = recording.software
        older = [_without_detail(r) if r.software == software else r for r in last.recordings]
        kept = [*_kept(older), recording]
        action = Action.APPENDED if same else Action.FIRST_OF_SOFTWARE
        added = reason if more else "" if same else carried
        why = f"{last.reason}; {added}" if added else last.reason
        epoch = Epoch(reason=why, recordings=kept)
        return action, len(same) + 1, [*entry.epochs[:-1], epoch]
    if not has_words(reason):
        command = as_typed(
            f"stepguard accept {shlex.quote(evidence.case_id)}{where} --reason '...'"
        )
        why = f"{evidence.case_id}: {drift or _moved(verdict)}"
        raise FileError(f"{why}; a new level needs a reason: {command}")
    # No run is compared with an older epoch, so its recordings lose places and parts.
    past = Epoch(reason=last.reason, recordings=[_without_detail(r) for r in last.recordings])
    epochs = [*entry.epochs[:-1], past, Epoch(reason=reason, recordings=[recording])]
    return Action.EPOCH_OPENED, len(epochs), epochs


def _carried(beside: Evidence, entry: Entry, pairs: Verdict) -> str:
    """Return how pairs carry a level over to other software. Raises FileError if it does other
    work, or if the pairs' other side is not of the level: other software recorded it, or the tree
    moved since.
    """
    explains = (one for one in pairs.metrics if one.reason is Reason.TIME_DECIDES)
    if work := [one.metric for one in explains if one.role == "work"]:
        why = f"other work under this software: {', '.join(work)}"
        raise FileError(f"{beside.case_id}: not recorded, {why}; accept it alone, with a reason")
    assert beside.fingerprint is not None  # it was measured
    verdict = judge(Question(beside, entry))
    if verdict.joins is not Joins.ITSELF:
        why = f"under the other interpreter it is no recording of the level, {_moved(verdict)}"
        raise FileError(f"{beside.case_id}: {why}; name the one that recorded it")
    return f"carried over from torch {beside.fingerprint.torch} by pairs"


def _only_adds_metrics(verdict: Verdict, epoch: Epoch) -> bool:
    """Tell whether no other metric moved, and no recording of the epoch has the new ones."""
    new = {m.status for m in verdict.moved} == {Status.NO_BASELINE}
    return new and not _recorded(epoch).intersection(m.metric for m in verdict.moved)


def _recorded(epoch: Epoch) -> set[str]:
    return {name for recording in epoch.recordings for name in recording.values()}


def _moved(verdict: Verdict) -> str:
    """Return, in figures, what makes the evidence another level."""
    worst = verdict.worst
    if verdict.whole or worst is None:
        return verdict.message
    if worst.limit_pct is not None and worst.change_pct is not None:
        return f"{worst.metric} {worst.change_pct:+.2f} % (limit {worst.limit_pct:.2f} %)"
    if worst.old is None:
        return f"{worst.metric} is new"
    old, new = (format_value(worst.metric, value) for value in (worst.old, worst.new))
    return f"{worst.metric} {old} -> {new}"


def _kept(older: list[Recording]) -> list[Recording]:
    """Return the recordings that stay, oldest first, with the first of each software."""
    software = [recording.software for recording in older]
    first = {software.index(name) for name in software}
    others = [number for number in range(len(older)) if number not in first]
    room = max(KEPT_RECORDINGS - 1 - len(first), 0)
    stay = first.union(others[max(len(others) - room, 0) :])
    return [older[number] for number in sorted(stay)]


def _other_software(recording: Recording, last: Epoch) -> str:
    """Return what the first recording under new software would change unseen; empty if nothing.

    Figures of different versions cannot be compared exactly. But a build that does other work, that
    waits or leaks where the old one did not, or that is slower by more than the limit, is another
    level.
    """
    # The first recording, not the newest: otherwise small steps of many upgrades would add up.
    older, recording = on_same_steps(last.recordings[0], recording)
    moves = []
    old_flops, flops = (r.counters.get("flops_per_step") for r in (older, recording))
    old_ranks, ranks = (r.differing_ranks().get("flops_per_step", []) for r in (older, recording))
    if old_flops and flops and old_flops != flops:
        moves.append(f"flops_per_step {100 * (flops / old_flops - 1):+.2f} %")
    elif old_ranks != ranks:
        moves.append(f"flops_per_step by rank {old_ranks} -> {ranks}")
    wasted = ((name, older.counters.get(name), recording.counters.get(name)) for name in UNWANTED)
    moves += [
        f"{name} {format_value(name, old)} -> {format_value(name, new)}"
        for name, old, new in wasted
        if old is not None and new is not None and new > old
    ]
    old_ms, ms = (r.times_ms.get(JUDGED_TIME) for r in (older, recording))
    if old_ms and ms and (change := 100 * (fmean(ms) / fmean(old_ms) - 1)) > OTHER_CARD_PCT:
        moves.append(f"{JUDGED_TIME} {change:+.2f} %")
    return f"against the recordings of other software: {', '.join(moves)}" if moves else ""


def _without_detail(recording: Recording) -> Recording:
    """Return the recording without the fields that are only read of the newest recording."""
    unset = dict.fromkeys(("operators", "callers", "profile", "numbers"), msgspec.UNSET)
    return msgspec.structs.replace(recording, detail={}, sites={}, **unset)


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
        half = paired(difference.pairs_ms)[1].half_width
        # Written this way so that NaN is refused, too.
        if not half <= DIFFERENCE_LIMIT_PCT:
            return (
                f"{difference.name} is known to +- {half:.2f} % of a step only, its limit is "
                f"{DIFFERENCE_LIMIT_PCT} %; measure again"
            )
    return ""
