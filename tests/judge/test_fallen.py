"""Less work with the same numbers is a gain; with others, or without any, it is another step."""

import pytest
from builders import cpu_evidence, entry_of, evidence, metric, replace, two_rank_evidence

from stepguard.core.comparison import Question
from stepguard.core.metrics import NUMBERS, OPERATORS
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.core.step_numbers import LOSS, StepNumbers
from stepguard.judge.rule_book import judge
from stepguard.report.verdict_text import headline

COMPILED = "compiled_operator_calls_per_step"
CANDIDATES, SYNCS = "sync_candidates_per_step", "host_syncs_per_step"
READ = "aten._local_scalar_dense.default"
CALLS = {READ: 2, "aten.mm.default": 24, "aten.sum.default": 2}
FEWER = {READ: 0, "aten.sum.default": 0}  # two sums that were read


def step(made=cpu_evidence, calls=None, by_rank=None, loss=10.9, **values):
    """Evidence of a step that calls these operators, in both passes, and has this loss."""
    found, calls = made(), {name: n for name, n in (CALLS | (calls or {})).items() if n}
    both = {OPERATORS: calls, COMPILED: calls}
    totals = {name: sum(each.values()) for name, each in both.items()}
    of = StepNumbers(listed=[(LOSS, [[loss]])] if loss else [])
    known = {NUMBERS: len(of.listed)}
    counts = replace(
        found.counts,
        values=found.counts.values | totals | known | values,
        detail=found.counts.detail | both,
        by_rank=by_rank or {},
        numbers=of,
    )
    return replace(found, counts=counts)


def verdict(now, then):
    """The verdict beside a recording of ``then``."""
    several = {"by_rank": {}} if then.world_size > 1 else {}
    recorded = {"detail": then.counts.detail, "numbers": then.counts.numbers}
    return judge(Question(now, entry_of(then, **recorded, **several)))


@pytest.mark.parametrize("made", [cpu_evidence, evidence, two_rank_evidence])
def test_two_waits_less_are_faster(made):
    """With the operators that read the numbers and computed them. The first line names the wait."""
    waits = CANDIDATES if made is cpu_evidence else SYNCS
    found = verdict(step(made, FEWER, **{waits: 0}), step(made, **{waits: 2}))
    assert (found.status, found.reason) == (Status.FASTER, Reason.COUNTER_FELL)
    for name in (OPERATORS, COMPILED):
        assert metric(found, name).status is Status.FASTER
    assert f"{waits} 2 -> 0" in headline(found)


ATTACKS = {"other numbers": {"loss": 10.8}, "no numbers any more": {"loss": 0},
           "another operator in its place": {"calls": FEWER | {"aten.add.Tensor": 1}},
           "memory that rose": {"leaked_bytes_per_step": 4096}}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_step_that_does_less_and_something_else_is_another_step(attack):
    """A wait and some work go at once."""
    change = {"calls": FEWER, CANDIDATES: 0} | ATTACKS[attack]
    assert verdict(step(**change), step(**{CANDIDATES: 2})).status is Status.CHANGED


def test_a_rank_that_does_more_is_no_gain():
    """Rank 0 reads twice less, and rank 1 calls ten operators more."""
    then = step(two_rank_evidence, **{SYNCS: 2})
    calls = sum(CALLS.values())
    now = step(two_rank_evidence, FEWER, by_rank={OPERATORS: (calls - 4, calls + 10)}, **{SYNCS: 0})
    assert verdict(now, then).status is Status.CHANGED
