"""What must not become a recording: each rule with values on both sides of its border."""

import pytest
from builders import (
    PROPERTY,
    block,
    cpu_evidence,
    entry,
    evidence,
    launch,
    recording,
    replace,
    with_counts,
)
from hypothesis import given
from hypothesis import strategies as st

from stepguard.core.evidence import Disturbance
from stepguard.core.reasons import Reason
from stepguard.judge.judge_recordings import judge
from stepguard.judge.noise_limits import launch_spread_limit_pct, launch_spread_pct
from stepguard.judge.refuse_recording import moved_together, spread_too_far, unfit_to_record

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


def test_the_limit_of_the_first_recording_is_known():
    """F(0.999; 2, 4) = 61.246: 0.25 % times its root, 1.9565 %, for three launches."""
    assert launch_spread_limit_pct(3, []) == pytest.approx(0.25 * 61.246**0.5, rel=1e-4)
    assert launch_spread_limit_pct(1, []) == float("inf")
    assert launch_spread_pct([250.0]) == 0


def test_a_first_recording_whose_launches_differ_is_refused():
    """1.9 % are believed, 2.1 % are not; the times, the spread and the limit are told."""
    near = [250.0 * (1 + x / 100) for x in (-1.9, 0.0, 1.9)]
    far = [250.0 * (1 + x / 100) for x in (-2.1, 0.0, 2.1)]
    assert spread_too_far(evidence(near), None) == ""
    problem = spread_too_far(evidence(far), None)
    assert "245.000, 250.000" not in problem and "244.750, 250.000, 255.250 ms" in problem
    assert "standard deviation of 2.10 %; with 0 recordings at most 1.96 % is" in problem


def test_a_quiet_machine_is_reported_by_its_recordings():
    """Five recordings within 0.1 %: launches that differ by 1 % are then no level."""
    calm = [250.0, 250.25, 249.75]
    found = evidence([247.5, 250.0, 252.5])
    recordings = [recording(250.0, n, times_ms={"step_ms": calm}) for n in range(5)]
    known = entry()
    known = replace_epoch(known, recordings)
    assert spread_too_far(found, entry()) == ""
    assert "with 5 recordings at most 0.5" in spread_too_far(found, known)
    other = replace(found, fingerprint=replace(found.fingerprint, torch="2.12.0"))
    assert spread_too_far(other, known) == ""  # nothing is known of how those differ


def replace_epoch(found, recordings):
    """The baseline with these recordings in its epoch."""
    from stepguard.core.baseline import Entry, Epoch

    return Entry(case=found.case, epochs=[Epoch(reason="first", recordings=recordings)])


@PROPERTY
@given(st.lists(st.lists(st.floats(200, 300), min_size=1, max_size=4), max_size=6))
def test_more_launches_are_held_to_less(recordings):
    """The limit is positive, and never rises with the number of launches."""
    limits = [launch_spread_limit_pct(n, recordings) for n in (2, 3, 4, 6)]
    assert all(a >= b > 0 for a, b in zip(limits, limits[1:], strict=False))


# All cases of a run together


def verdicts(*changes_pct, moved=()):
    """Verdicts of cases that moved by so much; those in ``moved`` have another graph break."""
    found = []
    for index, change in enumerate(changes_pct):
        now = evidence((250.0 * (1 + change / 100),) * 3, case_id=f"c[{index}]")
        found.append(judge(with_counts(now, graph_breaks=2) if index in moved else now, entry()))
    return found


@pytest.mark.parametrize("sign", [1, -1])
def test_a_suite_that_moved_as_one_is_the_machine(sign):
    """Three cases by 5, 6 and 7 %, either way: refused, with what was found and what to do."""
    problem = moved_together(verdicts(5 * sign, 6 * sign, 7 * sign), "accept")
    assert problem.startswith("all 3 cases that can be compared moved together, step_ms by ")
    assert f"{5 * sign:+.2f} to {7 * sign:+.2f} %" in problem
    assert "measure again on the machine that recorded" in problem and "--reason" in problem


@pytest.mark.parametrize(
    ("changes", "moved"),
    [
        ((5, 6), ()),  # too few to tell
        ((5, 6, 0), ()),  # one did not move: the machine is as it was
        ((5, 6, -5), ()),
        ((5, 6, 11), ()),  # not alike
        ((5, 6, 7), (0,)),  # the code of one changed, and two are too few
        ((0.5, 0.6, 0.7), ()),  # within the limit
        ((), ()),
    ],
)
def test_what_is_not_the_machine(changes, moved):
    """Nothing is said, and every case is judged by itself."""
    assert moved_together(verdicts(*changes, moved=moved), "accept") == ""


def test_cases_that_cannot_be_compared_do_not_count():
    """A case without a baseline, a broken one, one of a CPU: neither for nor against."""
    others = [
        judge(evidence(case_id="new"), None),
        judge(evidence(launches=()), None),
        judge(cpu_evidence(), None),
    ]
    assert moved_together([*verdicts(5, 6, 7), *others], "accept") != ""
    assert moved_together([*verdicts(5, 6), *others], "accept") == ""
