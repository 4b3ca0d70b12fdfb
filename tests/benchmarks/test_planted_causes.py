"""planted_causes: the first line names the fault, by evidence that was measured on GPUs."""

import re

import pytest

from benchmarks.planted_causes import (
    FAULTS,
    NOTHING,
    OF_TWO_GPUS,
    is_named,
    judged_kept,
)


@pytest.fixture(scope="module")
def found():
    """What is said of each kept fault."""
    return list(judged_kept())


def test_what_was_measured_on_gpus_is_named_right(found):
    """Of all twelve faults, and of a step that has none nothing is said."""
    assert [one.name for one in found if not one.right] == []
    assert len(found) == len(FAULTS) + len(OF_TWO_GPUS) + 2


@pytest.mark.parametrize("name", FAULTS)
def test_another_fault_is_not_named(name, found):
    """No fault's first line passes for another one's, whatever its lines are."""
    first_lines = {one.name: one.first_line for one in found}
    said = first_lines[name]
    others = {one: change for one, change in FAULTS.items() if one != name}
    # Both are products, of which other ones take longer.
    alike = {"a changed GEMM shape", "an unpadded vocabulary", "fp32 products"}
    named = {one for one, change in others.items() if is_named(change, said, range(10**4))}
    assert named <= (alike if name in alike else set())
    assert not is_named(FAULTS[name], first_lines[NOTHING], range(9))


def test_a_line_is_right_where_it_was_planted():
    """The line in the file that was changed; a pattern that asks for it takes no other."""
    said = "host_syncs_per_step 0 -> 2 (+2 syncs) model/workloads.py:210"
    assert is_named(FAULTS["a sync"], said, range(209, 211))
    assert not is_named(FAULTS["a sync"], said, range(211, 213))
    assert not is_named(FAULTS["a sync"], re.sub("workloads", "gpt", said), range(209, 211))
    assert not is_named(FAULTS["a sync"], said.partition(" model")[0], range(209, 211))
