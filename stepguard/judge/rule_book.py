"""Judge a case: the two questions that are asked of the judge. Pure.

Whoever measures asks need() until it says nothing. docs/judge.md is the rule book: the order of the
rules, and what each of them says.
"""

from dataclasses import dataclass, replace

from stepguard.core.comparison import Comparison
from stepguard.core.evidence import Evidence
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.question import Question
from stepguard.core.verdict import Joins, Verdict
from stepguard.judge.alarm import alarm_of, settled
from stepguard.judge.count_again import doubtful, doubtful_of, doubtful_of_other, with_both
from stepguard.judge.findings import Findings, verdict_of
from stepguard.judge.judge_pairs import findings_of, wants_another_pair, wants_every_pair
from stepguard.judge.judge_recordings import alike, enough_launches, screen
from stepguard.judge.rules import changed_kernels
from stepguard.judge.rules.same_step import why_not_same
from stepguard.judge.sequential_plan import MOST_PAIRS
from stepguard.judge.soundness import unsteady_launch
from stepguard.judge.summarise_evidence import summarise


@dataclass(frozen=True)
class Need:
    """What has to be measured next, and whether anything will likely follow it."""

    counters: tuple[str, ...] = ()  # one more launch counts them
    of_base: bool = False  # that launch is the other tree's
    launch: bool = False
    pair: bool = False
    profiled: bool = False  # the pair ends with a profile of each launch
    beside: str = ""  # pairs with this commit, to answer an alarm
    last: bool = False

    def __bool__(self) -> bool:
        """Tell whether anything has to be measured."""
        return bool(self.counters or self.launch or self.pair or self.beside)


NOTHING = Need()


def need(question: Question) -> Need:
    """Return what has to be measured now."""
    if question.pairs is not None:
        return _need_of_pairs(question, question.pairs)
    now = question.now
    assert now is not None, "a question without pairs is about evidence"
    if now.faults:
        return NOTHING
    if names := doubtful_of(now, question.entry) if now.counts else ():
        return Need(counters=names)
    if not unsteady_launch(now) and _wants_launch(question, now):
        done, early = len(now.launches), bool(question.entry) and not question.everything
        return Need(launch=True, last=done + 1 == now.planned_launches or early and not done)
    return Need(beside=_commit_beside(question, now))


def judge(question: Question) -> Verdict:
    """Return the verdict on what was measured."""
    findings, accepted = settled(_findings(question), question.answer), False
    if question.now is not None and question.own is not None:
        accepted = judge(Question(question.now, question.own)).joins is Joins.ITSELF
    return verdict_of(findings, accepted)


def _findings(question: Question) -> Findings:
    if question.pairs is not None:
        findings, head = findings_of(question.pairs), question.pairs.head
    else:
        assert question.now is not None, "a question without pairs is about evidence"
        findings, head = screen(question.now, question.entry, question.path), question.now
    metrics = tuple(with_both(metric, head.counted) for metric in findings.metrics)
    return replace(findings, metrics=metrics).under(question.permissions, question.today)


def _wants_launch(question: Question, now: Evidence) -> bool:
    """Tell whether a further launch is wanted: something may have moved."""
    done, entry = len(now.launches), question.entry
    if not done or done >= now.planned_launches or question.everything or entry is None:
        return done < now.planned_launches
    return not enough_launches(replace(now, planned_launches=done), entry)


def _commit_beside(question: Question, now: Evidence) -> str:
    """Return the commit of the level's first recording. Later ones may be a little slower."""
    entry = question.entry
    if question.answer is not None or entry is None or now.fingerprint is None:
        return ""
    recordings = alike(entry.level, now)
    return recordings[0].commit if recordings and alarm_of(_findings(question)) else ""


def _need_of_pairs(question: Question, pairs: Comparison) -> Need:
    head, base = pairs.head, pairs.base
    if head.counts and base.counts and not (head.faults or base.faults):
        # Launches that are alive by then are timed all the same, as the first pair.
        profiled = changed_kernels.wants_profiles(pairs)
        if names := doubtful(head, summarise(base)):
            return Need(counters=names, profiled=profiled)
        if names := doubtful_of_other(base, head):
            return Need(counters=names, of_base=True, profiled=profiled)
    permitted = question.permissions, question.today
    wanted = (
        wants_every_pair(pairs) if question.everything else wants_another_pair(pairs, *permitted)
    )
    if not wanted or pairs.pairs >= MOST_PAIRS:
        return NOTHING
    return next_pair(pairs, question.everything)


def next_pair(pairs: Comparison, everything: bool = False) -> Need:
    """Return the need of a pair that follows these. With ``everything`` none is the last."""
    head = pairs.head
    profiled = changed_kernels.wants_profiles(pairs)
    few = pairs.pairs == changed_kernels.LEAST_PAIRS - 1
    alike_steps = pairs.pairs == 0 and not why_not_same(pairs)
    last = JUDGED_TIME not in head.gates or alike_steps or few and profiled
    return Need(pair=True, profiled=profiled, last=last and not everything)
