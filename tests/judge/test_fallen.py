"""Removing a wait is a gain, with the operators that only it called; doing less work is none."""

import pytest
from builders import cpu_evidence, entry_of, evidence, metric, replace, two_rank_evidence

from stepguard.core.comparison import Comparison
from stepguard.core.metrics import OPERATORS
from stepguard.core.question import Question
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge import rule_book
from stepguard.judge.rule_book import judge
from stepguard.report.verdict_text import headline

COMPILED = "compiled_operator_calls_per_step"
CANDIDATES, SYNCS = "sync_candidates_per_step", "host_syncs_per_step"
READ, READS = "aten._local_scalar_dense.default", ("aten::item", "aten::_local_scalar_dense")
EAGER = {READ: 2, "aten.mm.default": 24, "aten.sum.default": 2, "aten.detach.default": 4}
PROFILED = dict.fromkeys(READS, 2) | {"aten::mm": 24, "aten::sum": 4}
GONE = {READ: 0}, dict.fromkeys(READS, 0)  # both .item()


def step(made=cpu_evidence, eager=None, profiled=None, by_rank=None, **values):
    """Evidence of a step that calls these operators, in both passes."""
    found, calls = made(), (EAGER | (eager or {}), PROFILED | (profiled or {}))
    totals = {
        name: sum(each.values()) for name, each in zip((OPERATORS, COMPILED), calls, strict=True)
    }
    detail = {
        name: {operator: count for operator, count in each.items() if count}
        for name, each in zip((OPERATORS, COMPILED), calls, strict=True)
    }
    counts = replace(
        found.counts,
        values=found.counts.values | totals | values,
        detail=found.counts.detail | detail,
        by_rank=by_rank or {},
    )
    return replace(found, counts=counts)


def recorded(found):
    """A baseline of what the evidence counted."""
    several = {"by_rank": {}} if found.world_size > 1 else {}
    return entry_of(found, detail=found.counts.detail, **several)


def verdict(now, then):
    """The verdict beside a recording of ``then``."""
    return judge(Question(now, recorded(then)))


def test_two_waits_less_are_faster():
    """On a CPU: two .item() are gone, the operators that read the numbers, and a detach. All of
    them are a gain, and the first line names the wait.
    """
    now = step(eager=GONE[0] | {"aten.detach.default": 2}, profiled=GONE[1], **{CANDIDATES: 0})
    found = verdict(now, step(**{CANDIDATES: 2}))
    assert (found.status, found.reason) == (Status.FASTER, Reason.COUNTER_FELL)
    for name in (OPERATORS, COMPILED):
        assert metric(found, name).status is Status.FASTER
    assert f"{CANDIDATES} 2 -> 0" in headline(found)


@pytest.mark.parametrize("made", [evidence, two_rank_evidence])
def test_so_are_waits_on_a_gpu(made):
    """Against recordings operators gate there, too."""
    now = step(made, *GONE, **{SYNCS: 0})
    assert verdict(now, step(made, **{SYNCS: 2})).status is Status.FASTER


TO_HOST = {"aten::to": 2, "aten::_to_copy": 2, "aten::copy_": 2, "aten::empty_strided": 2}
DOWN, CAST = "DtoH (Device -> Pageable)", "aten._to_copy[float32].default"


def copying(reads=0, casts=0, down=0, syncs=0):
    """A step on a GPU with two .cpu(), so many .item() and casts, and copies to the host."""
    calls = {READ: reads, "aten._to_copy.default": 2, CAST: casts}
    found = step(evidence, calls, dict.fromkeys(READS, reads) | TO_HOST, **{SYNCS: syncs})
    return with_copies(found, down)


def with_copies(found, down):
    """Evidence that also counted copies: eight of another kind, and ``down`` to the host."""
    values = found.counts.values | {"copies_per_step": 8 + down}
    detail = found.counts.detail | {"copies_per_step": {"HtoD (Pinned -> Device)": 8, DOWN: down}}
    return replace(found, counts=replace(found.counts, values=values, detail=detail))


NO_COPY = {"aten._to_copy.default": 0}, dict.fromkeys(TO_HOST, 0)


def test_copies_to_the_host_that_a_gpu_waited_for_are_faster():
    """Two .cpu() and two .item() are gone: four waits, four copies, and their operators."""
    then = copying(reads=2, down=4, syncs=4)
    now = step(evidence, {READ: 0} | NO_COPY[0], dict.fromkeys(READS, 0) | NO_COPY[1], **{SYNCS: 0})
    assert verdict(with_copies(now, 0), then).status is Status.FASTER


@pytest.mark.parametrize(
    ("calls", "down", "syncs"), [({}, 1, 0), ({}, 0, 1), ({CAST: 0}, 0, 0), ({READ: 0}, 0, 0)]
)
def test_other_copies_that_are_gone_are_less_work(calls, down, syncs):
    """Two .cpu() are gone, but only one copy to the host; or only one wait; or also a cast; or the
    two copies are those of two .item().
    """
    then = copying(reads=2, casts=1, down=2, syncs=2)
    kept = {READ: 2, CAST: 1} | NO_COPY[0] | calls
    now = step(evidence, kept, dict.fromkeys(READS, kept[READ]) | NO_COPY[1], **{SYNCS: syncs})
    assert verdict(with_copies(now, down), then).status is Status.CHANGED


def test_copies_that_go_another_way_are_other_work():
    """Two .cpu() are gone, and a copy on the GPU is new: fewer copies, but not only fewer."""
    calls = {READ: 0} | NO_COPY[0], dict.fromkeys(READS, 0) | NO_COPY[1]
    now = with_copies(step(evidence, *calls, **{SYNCS: 0}), 0)
    values = now.counts.values | {"copies_per_step": 9}
    detail = now.counts.detail["copies_per_step"] | {"DtoD": 1}
    counts = replace(
        now.counts, values=values, detail=now.counts.detail | {"copies_per_step": detail}
    )
    found = verdict(replace(now, counts=counts), copying(down=2, syncs=2))
    assert found.status is Status.CHANGED


def test_so_are_they_in_pairs():
    """On a CPU, beside the other tree."""
    new, old = step(eager=GONE[0], profiled=GONE[1], **{CANDIDATES: 0}), step(**{CANDIDATES: 2})
    sides = [replace(one, planned_launches=1, floor_flops_per_step=0.0) for one in (new, old)]
    found = rule_book.judge(Question(pairs=Comparison("main", *sides)))
    assert (found.status, found.reason) == (Status.FASTER, Reason.COUNTER_FELL)


ATTACKS = {
    "the sum of what is read": {"eager": GONE[0] | {"aten.sum.default": 1}},
    "a product without FLOPs of its own": {"eager": GONE[0] | {"aten.mm.default": 23}},
    "more reads than waits": {"eager": {READ: 0}, CANDIDATES: 1},
    "another operator in its place": {"eager": GONE[0] | {"aten.add.Tensor": 1}},
    "a product of the compiled step": {"profiled": GONE[1] | {"aten::mm": 23}},
    "fewer FLOPs": {"eager": GONE[0], "flops_per_step": 1},
    "memory that rose": {"eager": GONE[0], "leaked_bytes_per_step": 4096},
    "no wait": {"eager": GONE[0], CANDIDATES: 2},
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_step_that_does_less_is_another_step(attack):
    """A wait and some work go at once: what no fallen counter explains is CHANGED as ever."""
    change = {CANDIDATES: 0} | ATTACKS[attack]
    found = verdict(step(**change), step(**{CANDIDATES: 2}))
    assert found.status is Status.CHANGED


def test_fewer_tokens_are_another_step():
    """A wait less, and half of the tokens."""
    now = replace(step(cpu_evidence, *GONE, **{CANDIDATES: 0}), tokens_per_step=1024)
    assert verdict(now, step(**{CANDIDATES: 2})).status is Status.NOT_COMPARABLE


def test_work_of_another_rank_is_not_explained():
    """Rank 0 reads twice less, and rank 1 calls ten operators less."""
    made = two_rank_evidence
    then = step(made, **{SYNCS: 2})
    calls = sum(EAGER.values())
    now = step(made, *GONE, by_rank={OPERATORS: (calls - 2, calls - 12)}, **{SYNCS: 0})
    assert verdict(now, then).status is Status.CHANGED
