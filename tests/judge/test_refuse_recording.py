"""What must not become a recording: each rule with values on both sides of its border."""

from builders import (
    block,
    cpu_evidence,
    evidence,
    launch,
    replace,
)

from stepguard.core.evidence import Disturbance
from stepguard.core.reasons import Reason
from stepguard.core.step_numbers import StepNumbers
from stepguard.storage.accept_recording import unfit_to_record

HOT = block(disturbance=Disturbance(Reason.THROTTLED, "thermal slowdown (hardware)"))


def launches(ms=250.0, count=3, lost=0):
    """Launches of three blocks, with so many lost ones in the first."""
    first = launch(ms, discarded=(HOT,) * lost)
    return (first, *(launch(ms, number) for number in range(2, count + 1)))


def test_a_disturbed_block_that_counts_is_refused():
    """Whoever let it through: evidence says so itself."""
    found = replace(evidence(), launches=(launch(blocks=(block(), HOT)), *launches()[1:]))
    assert "a block that counts was disturbed (thermal" in unfit_to_record(found)


def test_as_many_lost_blocks_as_counted_ones_are_refused():
    """Nine blocks count: eight lost ones are borne, nine are not, and the values are told."""
    assert unfit_to_record(evidence(launches=launches(lost=8))) == ""
    problem = unfit_to_record(evidence(launches=launches(lost=9)))
    assert problem.startswith("9 blocks were disturbed (thermal slowdown (hardware)) and 9 were")
    assert "doctor" in problem


def test_one_launch_is_no_level_of_a_time():
    """However many were planned. Counters, and a CPU, need one."""
    one = {"launches": launches(count=1), "planned_launches": 1}
    assert "1 launch, a time needs 2" in unfit_to_record(evidence(**one))
    assert unfit_to_record(evidence(**one, gates=("graph_breaks",))) == ""
    assert unfit_to_record(cpu_evidence()) == ""


def test_numbers_that_are_not_finite_are_no_level():
    """The first of them is named, with its step. A step that a scaler left out is no reason."""
    found = evidence()

    def of(*listed):
        counts = replace(found.counts, numbers=StepNumbers(listed=[*listed]))
        return unfit_to_record(replace(found, counts=counts))

    lost = ("loss", [[9.0], [None]]), ("gradient of a", [[1.0], [None]])
    assert "loss in step 2 is not finite" in of(*lost)
    assert of(("loss", [[9.0], [9.0]]), ("gradient of a", [[None], [1.0]])) == ""
