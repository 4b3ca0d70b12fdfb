"""Counts as they come in: a value, or why there is none."""

from msgspec.structs import replace

from stepguard.core.evidence import Counts
from stepguard.core.site import Site
from stepguard.worker.counters.tally import Tally


def test_a_count_that_differs_between_steps_is_their_list():
    """The value is that of all steps together, and no average. Of peaks it is the largest."""
    tally = Tally()
    tally.add("graph_breaks", [2, 2], {"b": 1, "a": 1})
    tally.add("launches_per_step", [676, 677])
    tally.add("peak_allocated_bytes", [8, 9])
    assert tally.counts() == Counts(
        values={"graph_breaks": 2, "launches_per_step": 1353, "peak_allocated_bytes": 9},
        lists={"launches_per_step": (676, 677), "peak_allocated_bytes": (8, 9)},
        detail={"graph_breaks": {"a": 1, "b": 1}},
    )


def test_places_travel_with_their_count():
    """What a count is made of goes with it, and as nothing where it is nowhere."""
    tally = Tally()
    sync = [Site(".item()", "model/gpt.py", 7)]
    tally.add("host_syncs_per_step", [1, 1], sites=[sync, sync])
    tally.add("graph_breaks", [0], sites=[[]])
    assert tally.counts().sites == {"host_syncs_per_step": tuple(sync)}


def test_a_count_of_several_steps_has_the_places_of_all():
    """Each with its count in all steps."""
    tally, every = Tally(), Site(".item()", "train.py", 7)
    sometimes = Site(".tolist()", "train.py", 9, count=2)
    tally.add("host_syncs_per_step", [3, 1, 1], sites=[[every, sometimes], [every], [every]])
    assert tally.sites == {"host_syncs_per_step": (replace(every, count=3), sometimes)}


def test_steps_of_as_many_other_parts_differ():
    """One that alternates would be compared by whichever step comes first, the old one or the new.
    Launches are not judged so.
    """
    tally, name = Tally(), "operator_calls_per_step"
    old, new = Site("aten.add", "train.py", 7), Site("aten.maximum", "train.py", 9)
    steps = [{"aten.add": 2}, {"aten.add": 1, "aten.maximum": 1}]
    tally.add_parts(name, steps, [[replace(old, count=2)], [old, new]])
    assert (tally.values, tally.lists) == ({name: 4}, {name: (2, 2)})
    assert tally.detail == {name: {"aten.add": 3, "aten.maximum": 1}}
    assert tally.sites == {name: (replace(old, count=3), new)}
    tally.add_parts("launches_per_step", [{"cudaLaunchKernel": 2}, {"cuLaunchKernel": 2}])
    tally.add_parts("flops_per_step", [{"mm": 2}, {"mm": 2}])
    assert tally.values == {name: 4, "launches_per_step": 2, "flops_per_step": 2}
    assert {*tally.lists} == {name}


def test_what_could_not_be_counted_says_why():
    """A reason in place of a value, for each of the metrics."""
    tally = Tally()
    tally.missing("no memory", "flops_per_step", "operator_calls_per_step")
    assert tally.values == {}
    assert tally.unstable == dict.fromkeys(
        ("flops_per_step", "operator_calls_per_step"), "no memory"
    )
