"""What ranks say of themselves: they must agree, and each must run on the GPU that is watched."""

import pytest
from builders import evidence, replace

from stepguard.core.evidence import Counts
from stepguard.core.profile import Parts, Profile
from stepguard.core.replies import Counted, Prepared
from stepguard.core.site import Site
from stepguard.judge.summarise_evidence import summarise
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.measure.combine_ranks import (
    counts_of,
    refuse_differing_ranks,
    without_eager,
)


def rank(**changes):
    """What a rank says of itself."""
    known = {"device_name": "NVIDIA H200", "torch": "2.11.0", "nccl": "2.27", "environment": {}}
    return Prepared(tokens_per_step=0, fingerprint=known | changes, sources={}, installed={})


@pytest.mark.parametrize(("odd", "words"), [
    ({"torch": "2.8.0"}, "rank 1 has torch 2.8.0"),
    ({"nccl": "2.26"}, "rank 1 has nccl 2.26"),
    ({"device_name": "NVIDIA H100"}, "rank 1 has device_name NVIDIA H100"),
    ({"environment": {"TORCH_COMPILE_X": "1"}}, "steering variables"),
])  # fmt: skip
def test_a_rank_on_other_software_stops_the_launch(odd, words):
    """torch itself says what it is; how a node names its network is its own affair."""
    refuse_differing_ranks([rank(), rank(environment={"NCCL_SOCKET_IFNAME": "eth1"})])
    with pytest.raises(LaunchFailed) as raised:
        refuse_differing_ranks([rank(), rank(**odd)])
    assert raised.value.fault.code == "RANKS_DIFFER" and words in raised.value.fault.message


def test_profiles_of_all_ranks_become_one():
    """Their mean, and the parts of each rank's step; a rank without one leaves none, with why."""
    steps = (2.0, 2.0)
    ranks = [Profile("H200", 2, Parts(steps, (us, us), *(steps,) * 3), (), ()) for us in (1.0, 3.0)]
    answers = [Counted(counts=Counts({}, profile=one)) for one in ranks]
    found = counts_of(answers, 1.0)
    assert found.profile.parts.compute_us == steps
    assert [parts.compute_us for parts in found.parts_by_rank] == [(1.0, 1.0), (3.0, 3.0)]
    broken = Counted(counts=Counts({}, profile_problem="no step is complete"))
    found = counts_of([answers[0], broken], 1.0)
    assert found.profile is None and found.profile_problem == "no step is complete"
    assert counts_of(answers[:1], 1.0).parts_by_rank == ()


def test_sites_of_what_differs_between_steps():
    """They are kept, of the ranks whose steps differ: of another rank they are all that it has. No
    recording holds them, as it holds no count.
    """
    sync = "host_syncs_per_step"
    item, copy = (Site(what, "model/gpt.py", 7, "forward") for what in (".item()", ".cpu()"))
    unstable = Counts({}, unstable={sync: "steps differ: 0, 1"}, sites={sync: (item,)})
    stable = Counts({sync: 1}, sites={sync: (copy,)})
    found = counts_of([Counted(counts=one) for one in (stable, unstable)], 1.0)
    assert found.unstable == {sync: "rank 1: steps differ: 0, 1"}
    assert found.values == {} and found.sites == {sync: (item,)}
    assert summarise(replace(evidence(), counts=found)).sites == {}


def test_a_count_of_ranks_is_of_equally_many_steps():
    """The steps of one rank differ, so those of the others are taken together, too. A peak is the
    largest.
    """
    launches, peak = "launches_per_step", "peak_allocated_bytes"
    item, copy = (Site(what, "model/gpt.py", 7, "forward") for what in (".item()", ".cpu()"))
    varies = Counts({launches: 9, peak: 6}, lists={launches: (4, 5), peak: (5, 6)})
    varies = replace(varies, detail={launches: {"a": 8, "b": 1}}, sites={launches: (item,)})
    steady = Counts({launches: 6, peak: 5}, detail={launches: {"a": 6}}, sites={launches: (copy,)})
    ranks = [Counted(counts=one) for one in (varies, steady)]
    for both, busiest in ((ranks, 0), (ranks[::-1], 1)):
        found = counts_of(both, 1.0)
        assert found.values == {launches: 12, peak: 6}
        assert found.by_rank[launches][busiest] == 9 and found.by_rank[peak][busiest] == 6
        assert found.lists == {launches: (6, 6), peak: (5, 6)}
        assert found.detail == {launches: {"a": 12}}
        assert {site.what: site.count for site in found.sites[launches]} == {
            ".item()": 1,
            ".cpu()": 2,
        }


FIRST = Counts(values={"graph_breaks": 0, "leaked_bytes_per_step": 8},
               unstable={"garbage_objects_per_step": "rank 1: steps differ: 1, 2"},
               detail={"graph_breaks": {"a": 1}}, by_rank={"leaked_bytes_per_step": (8, 0)},
               information={"peak_reserved_bytes": 5.0}, profile_problem="why",
               wall_s=2.0)  # fmt: skip


def test_what_this_process_knows_stays_beside_what_ranks_say():
    """What the first step took, and how long both parts of the counting pass."""
    found = counts_of([Counted(counts=FIRST)], 3.0, {"cold_compile_s": 5.0})
    known = FIRST.information | {"cold_compile_s": 5.0}
    assert (found.information, found.wall_s) == (known, 3.0)


@pytest.mark.parametrize(
    ("device", "host"), [("cuda", set()), ("cpu", {"sync_candidates_per_step"})]
)
def test_what_did_not_fit_is_what_only_the_second_part_counts(device, host):
    """On this kind of device."""
    lost = without_eager(FIRST, device, 2).unstable.keys() - FIRST.unstable.keys()
    eager = {"flops_per_step", "operator_calls_per_step", "growing_python_lines_per_step"}
    assert lost == eager | host
