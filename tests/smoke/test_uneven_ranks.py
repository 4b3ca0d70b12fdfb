"""Two real ranks that differ: they begin a block together, and each has counts of its own."""

from builders import replace
from factories import COLLECT_S
from short_launches import measured_alone

from stepguard import Case
from stepguard.core.question import Question
from stepguard.core.reasons import Reason
from stepguard.core.recording import Entry, Epoch
from stepguard.core.status import Status
from stepguard.judge.rule_book import judge
from stepguard.judge.summarise_evidence import stored
from stepguard.report.metric_notes import note


def measured(bench, factory):
    """The evidence of a CPU case of two ranks and one launch, which gates no time."""
    case = Case(factory, f"factories:{factory}", {}, "cpu", 2, 1, ("graph_breaks",))
    return measured_alone(case, bench)


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
    verdict = judge(Question(after, known))
    assert (verdict.status, verdict.reason) == (Status.CHANGED, Reason.COUNTER_ROSE)
    assert (verdict.worst.old, verdict.worst.new) == (0, 1)
    assert note(verdict.worst).startswith("on rank 1")
    assert judge(Question(replace(before, gates=gates), known)).status is Status.SAME
