"""Two real ranks that differ: they begin a block together."""

from factories import COLLECT_S
from short_launches import measured_alone

from stepguard import Case


def test_what_one_rank_does_before_a_block_is_in_no_ranks_time(bench):
    """Rank 1 collects for COLLECT_S: rank 0 does not wait for it in its first exchange."""
    case = Case("littered", "factories:littered", {}, "cpu", 2, 1, ("graph_breaks",))
    found = measured_alone(case, bench)
    assert not found.faults, found.faults
    (first,) = found.launches
    assert min(block.step_ms[0] for block in first.blocks) < 1e3 * COLLECT_S / 2
