"""Counts as they come in: a value, or why there is none."""

from msgspec.structs import replace

from stepguard.core.site import Site
from stepguard.worker.count.tally import Tally


def test_a_count_that_differs_between_steps_is_no_value():
    """Two steps that disagree make a counter unstable, with what was seen; no average."""
    tally = Tally()
    tally.add("graph_breaks", [2, 2], {"b": 1, "a": 1})
    tally.add("launches_per_step", [676, 677])
    assert tally.as_dict() == {
        "values": {"graph_breaks": 2},
        "unstable": {"launches_per_step": "steps differ: 676, 677"},
        "detail": {"graph_breaks": {"a": 1, "b": 1}},
        "sites": {},
        "callers": {},
        "information": {},
        "profile": None,
        "profile_problem": "",
        "identity": None,
    }


def test_places_travel_with_their_count():
    """What a count is made of goes with it as plain types, and as nothing where it is nowhere."""
    tally = Tally()
    sync = [Site(".item()", "model/gpt.py", 7)]
    tally.add("host_syncs_per_step", [1, 1], sites=[sync, sync])
    tally.add("graph_breaks", [0], sites=[[]])
    sent = tally.as_dict()["sites"]
    assert list(sent) == ["host_syncs_per_step"]
    assert Site(**sent["host_syncs_per_step"][0]) == Site(".item()", "model/gpt.py", 7)


def test_where_steps_differ_goes_with_an_unstable_count():
    """What the step with the most has more than the one with the least, by so many; what is
    allowed differs rightly.
    """
    tally, every = Tally(), Site(".item()", "train.py", 7)
    sometimes = [Site(".tolist()", "train.py", 9, count=2), Site(".cpu()", "a.py", allowed="log")]
    tally.add("host_syncs_per_step", [3, 1, 2], sites=[[every, *sometimes], [every], [every]])
    assert tally.sites == {"host_syncs_per_step": (sometimes[0],)}


def test_steps_of_as_many_other_parts_differ():
    """One that alternates would be compared by whichever step comes first, the old one or the new;
    it is nowhere a value, and the line of the other step is there. Launches are not judged so.
    """
    tally, name = Tally(), "operator_calls_per_step"
    old, new = Site("aten.add", "train.py", 7), Site("aten.maximum", "train.py", 9)
    steps = [{"aten.add": 2}, {"aten.add": 1, "aten.maximum": 1}]
    tally.add_parts(name, steps, [[replace(old, count=2)], [old, new]])
    assert tally.unstable == {name: "steps differ in aten.add, aten.maximum"}
    assert tally.values == {} and tally.sites == {name: (new,)}
    tally.add_parts("launches_per_step", [{"cudaLaunchKernel": 2}, {"cuLaunchKernel": 2}])
    tally.add_parts("flops_per_step", [{"mm": 2}, {"mm": 2}])
    assert tally.values == {"launches_per_step": 2, "flops_per_step": 2}


def test_what_could_not_be_counted_says_why():
    """A reason in place of a value, for each of the metrics."""
    tally = Tally()
    tally.missing("no memory", "flops_per_step", "operator_calls_per_step")
    assert tally.values == {}
    assert tally.unstable == dict.fromkeys(
        ("flops_per_step", "operator_calls_per_step"), "no memory"
    )


def test_steps_of_more_or_fewer_parts_say_which_differ():
    """The sum alone would send a reader through all operators of a step."""
    tally, name = Tally(), "compiled_operator_calls_per_step"
    tally.add_parts(name, [{"aten.mm": 2}, {"aten.mm": 2, "aten.add": 1}])
    assert tally.unstable == {name: "steps differ: 2, 3 (aten.add)"}
