"""What is said of evidence that was accepted."""

from pathlib import Path

import msgspec
import pytest
from builders import CASE_ID, replace

from stepguard.core.metrics import METRICS, UNWANTED
from stepguard.core.reason_sentences import MovedNumbers
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.core.verdict import MetricVerdict, PartMove
from stepguard.report.metric_list import accepted_line, moves
from stepguard.report.next_steps import Commands
from stepguard.storage.accept_recording import Accepted, Action


@pytest.mark.parametrize(("action", "words"), [
    (Action.NOTHING_TO_ADD, "equal to what cpu.json holds, nothing to add"),
    (Action.ONE_LAUNCH,
     "same as cpu.json by one launch, nothing to add; --perf-update measures all launches"),
    (Action.FIRST_RECORDING, "first recording in cpu.json"),
    (Action.APPENDED, "recording 2 of its level in cpu.json"),
    (Action.FIRST_OF_SOFTWARE, "first under this software in cpu.json"),
    (Action.EPOCH_OPENED, "a new level begins (fused the loss) in cpu.json"),
])  # fmt: skip
def test_what_was_accepted_is_said_in_a_line(action, words):
    """The case, what was done with its evidence, and where."""
    done = Accepted(CASE_ID, action, Path("cpu.json"), 2, "fused the loss")
    assert accepted_line(done, Commands()) == f"{CASE_ID}: {words}"


def test_accepting_shows_the_cause_first():
    """As the red that is accepted did."""
    names = ("flops_per_step", "operator_calls_per_step", "sync_candidates_per_step")
    moved = tuple(
        MetricVerdict(name, Status.CHANGED, Reason.WORK_MOVED, 10.0, 11.0) for name in names
    )
    done = Accepted(CASE_ID, Action.EPOCH_OPENED, Path("cpu.json"), 2, "why", moved)
    assert [line.split()[0] for line in moves(done)] == [*names[:0:-1], names[0]]


def test_accepting_says_what_took_the_place_of_what():
    """As many calls of other operators would read 10 -> 10."""
    parts = (PartMove("aten.silu.default", 0, 4), PartMove("aten.gelu.default", 4, 0))
    name = "operator_calls_per_step"
    moved = MetricVerdict(name, Status.CHANGED, Reason.WORK_MOVED, 10.0, 10.0, moved=parts)
    done = Accepted(CASE_ID, Action.EPOCH_OPENED, Path("cpu.json"), 2, "why", (moved,))
    assert moves(done) == [f"  {name} 10 -> 10: +4 aten.silu"]


def test_accepting_says_which_numbers_are_right_now():
    """Their count is no news."""
    moved = MovedNumbers(moved=(("loss", 10.98, 10.9, 1),))
    said = Status.CHANGED, Reason.WORK_MOVED, 43.0, 43.0
    of = (MetricVerdict("numbers", *said, figures=moved),)
    done = Accepted(CASE_ID, Action.EPOCH_OPENED, Path("cpu.json"), 2, "why", of)
    assert moves(done) == ["  numbers 43 -> 43: loss 10.98 -> 10.9 (-0.73 %)"]


def test_a_first_recording_says_what_it_accepts_that_a_good_step_has_not():
    """Syncs and leaks, which would be nobody's news from then on; no time, and none that is 0. The
    place with most comes first.
    """
    values = {"step_ms": 10.0, "sync_candidates_per_step": 9, "graph_breaks": 0}
    moved = tuple(
        MetricVerdict(name, Status.NO_BASELINE, Reason.NOT_RECORDED, None, value)
        for name, value in (values | {"leaked_bytes_per_step": 4096}).items()
    )
    counts = {8: 1, 12: 1, 14: 1, 19: 6}
    sites = tuple(Site(".item()", "train.py", line, count=n) for line, n in counts.items())
    moved = (moved[0], msgspec.structs.replace(moved[1], sites=sites), *moved[2:])
    done = Accepted(CASE_ID, Action.FIRST_RECORDING, Path("cpu.json"), 1, "", moved)
    where = "6 x .item() train.py:19, 1 x .item() train.py:8, 1 x .item() train.py:12 and 1 more"
    assert moves(done) == [
        f"  Recorded as normal: 9 calls a step that would wait on a GPU ({where}). More will fail.",
        "  Recorded as normal: 4,096 B that each step leaves behind. More will fail.",
    ]
    assert moves(replace(done, moved=moved[:1])) == []


@pytest.mark.parametrize(("calls", "said"), [(0, True), (3, False)])
def test_a_first_recording_says_that_ranks_exchange_nothing(calls, said):
    """Nobody means to train several copies that know nothing of each other."""
    name = "collectives_per_step"
    moved = MetricVerdict(name, Status.NO_BASELINE, Reason.NOT_RECORDED, None, calls)
    shown = moves(Accepted(CASE_ID, Action.FIRST_RECORDING, Path("cpu.json"), 1, "", (moved,)))
    assert any("exchange nothing" in line for line in shown) is said


@pytest.mark.parametrize("name", UNWANTED)
def test_each_counter_of_waste_is_said_in_words(name):
    """A name of a metric is none."""
    moved = MetricVerdict(name, Status.NO_BASELINE, Reason.NOT_RECORDED, None, 2048.0)
    (line,) = moves(Accepted(CASE_ID, Action.FIRST_RECORDING, Path("cpu.json"), 1, "", (moved,)))
    assert line.startswith("  Recorded as normal: 2,048 ") and "_" not in line


@pytest.mark.parametrize(("count", "more"), [(0, 0), (1, 0), (9, 0), (11, 3)])
def test_accepting_shows_what_moved_in_ten_lines(count, more):
    """Old -> new for each metric, under the line that says what was done."""
    names = [name for name in METRICS if METRICS[name].kind == "counter"][:count]
    moved = tuple(
        MetricVerdict(name, Status.CHANGED, Reason.COUNTER_ROSE, 10.0, 11.0) for name in names
    )
    done = Accepted(CASE_ID, Action.EPOCH_OPENED, Path("cpu.json"), 2, "why", moved)
    shown = moves(done)
    assert len(shown) <= 9
    assert len([line for line in shown if " -> 11 " in line]) == count - more
    assert (shown[-1:] == [f"  and {more} more"]) == bool(more)
