"""Real ranks: two that begin a block together, and one alone beside them, which is measured after
them, held apart, and no failure if it fails.
"""

import pytest
from builders import replace
from factories import COLLECT_S

from stepguard import Case
from stepguard.core.baseline import Entry, Epoch
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.judge_recordings import judge
from stepguard.judge.summarise_evidence import stored, summarise
from stepguard.measure.launches import measure_launches, planned_launches
from stepguard.report.metric_notes import note


def measured(bench, factory, wants_more=lambda evidence: False, times=()):
    """The evidence of a CPU case of one planned launch, which gates no time unless it is said."""
    gates = ("graph_breaks", *times)
    case = Case(factory, f"factories:{factory}", {}, "cpu", 2, 1, gates)
    return measure_launches(case, bench, wants_another=wants_more)


@pytest.fixture(scope="module")
def pair(bench):
    """Two ranks that exchange in every step, which asked for one launch more than planned."""

    def wants_more(evidence):
        return len(evidence.launches) < 2

    return measured(bench, "uneven", wants_more=wants_more, times=("step_ms",))


def test_one_rank_is_measured_and_is_none_of_the_launches(pair):
    """Alone it has blocks of one rank, though its step reduces over all ranks there are."""
    assert not pair.faults, pair.faults
    assert [launch.index for launch in pair.launches] == [1, 2]
    assert all(len(block.wall_ms) == 2 for x in pair.launches for block in x.blocks)
    assert pair.one_rank is not None
    assert [len(block.wall_ms) for block in pair.one_rank.blocks] == [1, 1, 1]


def test_the_figures_are_of_both(pair):
    """Tokens are those of all ranks; efficiency is one rank's step over the case's."""
    values = summarise(pair).values()
    assert (pair.tokens_per_step, pair.one_rank_tokens_per_step) == (2, 1)
    assert values["one_rank_step_ms"] == pair.one_rank.step_ms
    wanted = 100 * pair.one_rank.step_ms / values["step_ms"]
    assert values["scaling_efficiency_pct"] == pytest.approx(wanted)
    assert values["tokens_per_s"] == pytest.approx(2 / values["step_ms"] * 1e3)


def test_what_one_rank_does_before_a_block_is_in_no_ranks_time(bench):
    """Rank 1 collects for COLLECT_S: rank 0 does not wait for it in its first exchange."""
    found = measured(bench, "littered")
    assert not found.faults, found.faults
    (first,) = found.launches
    assert min(block.step_ms[0] for block in first.blocks) < 1e3 * COLLECT_S / 2


def test_a_cost_that_only_idle_ranks_gain_is_found(bench):
    """Rank 0 alone logged, now all do: no rank counts more than rank 0 did, and the other one waits
    in every step.
    """
    before, after = measured(bench, "rank_0_logs"), measured(bench, "all_ranks_log")
    gates = ("sync_candidates_per_step",)
    after = replace(after, case=before.case, gates=gates)
    epoch = Epoch(reason="first", recordings=[stored(before)])
    known = Entry(case=before.case, epochs=[epoch])
    verdict = judge(after, known)
    assert (verdict.status, verdict.reason) == (Status.CHANGED, Reason.COUNTER_ROSE)
    assert (verdict.worst.old, verdict.worst.new) == (0, 1)
    assert note(verdict.worst).startswith("on rank 1")
    assert judge(replace(before, gates=gates), known).status is Status.SAME


def test_a_rank_that_cannot_run_alone_breaks_nothing_and_is_named(bench):
    """What it would tell informs: the case's launches stand, and why there is no figure is said."""
    found = measured(bench, "together", times=("step_ms",))
    assert not found.faults, found.faults
    assert len(found.launches) == 1 and found.one_rank is None
    assert found.one_rank_problem == "rank 0 in prepare: ValueError: planted: alone"
    assert "scaling_efficiency_pct" not in summarise(found).values()


@pytest.mark.parametrize("gates", [("graph_breaks",), ("step_ms",)])
def test_one_rank_has_nobody_to_be_compared_with(gates):
    """A case of one rank has no such launch."""
    (launch,) = planned_launches(Case("linear", "factories:linear", {}, "cpu", 1, 1, gates))
    assert launch.timed and not launch.alone
