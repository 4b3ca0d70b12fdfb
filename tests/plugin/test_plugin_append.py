"""--perf-append: what is `same` becomes one more recording, and nothing else does."""

import json


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
        assert gate.run("--perf-append", "--perf-no-confirm").ret == code
        assert recordings(gate, case) == [1]


def test_beside_another_revision_nothing_is_recorded(gate, h200):
    """Pairs judge there, and recordings are of a run of their own."""
    gate.gpus = [h200]
    gate.suite(gate.cuda())
    gate.commit(tag="old")
    gate.commit()
    result = gate.run("--perf-append", "--perf-against=old")
    assert result.ret == 4 and "record in another run" in result.stderr.str()
