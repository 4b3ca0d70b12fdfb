"""--perf-append: what is `same` becomes one more recording, and nothing else does."""

import json

import pytest


def recordings(gate, case):
    """How many recordings the case's epochs have."""
    (path,) = (gate.path / "baselines").glob("*.json")
    return [
        len(one["recordings"]) for one in json.loads(path.read_text())["cases"][case.id]["epochs"]
    ]


def test_what_is_same_is_appended(gate, h200):
    """In a strict run, too: nothing passes by it that would not pass."""
    case = gate.guarded(h200)
    gate.commit()
    result = gate.run("--perf-append", "--perf-strict")
    assert result.ret == 0, result.stdout.str()
    assert recordings(gate, case) == [2]


def test_a_new_level_is_not(gate, h200):
    """SLOWER stays a failure, and FASTER a gain that somebody accepts."""
    case = gate.guarded(h200)
    gate.commit()
    for ms, code in ((20.0, 1), (5.0, 0)):
        gate.will_measure(case, step_ms=ms)
        assert gate.run("--perf-append").ret == code
        assert recordings(gate, case) == [1]


@pytest.mark.parametrize("ms", [9.8, 10.2])
def test_a_time_that_pairs_cleared_joins_no_level_of_its_own_card(gate, h200, ms):
    """The level's first commit is as fast on this machine, today: `same`, and no fault."""
    case = gate.recorded(h200, step_ms=ms)
    result = gate.run("--perf-append", "--perf-strict")
    assert result.ret == 0 and recordings(gate, case) == [1]
    result.says("linear?124m?: not recorded, it passes, but *", "*1 passed*")


def test_beside_another_revision_nothing_is_recorded(gate, h200):
    """Pairs judge there, and recordings are of a run of their own."""
    gate.gpus = [h200]
    gate.suite(gate.cuda())
    gate.commit(tag="old")
    gate.commit()
    result = gate.run("--perf-append", "--perf-against=old")
    assert result.ret == 4 and "record without --perf-against" in result.stderr.str()
