"""--perf-append: what is `same` becomes one more recording, and nothing else does."""

import json

import pytest
from builders import replace

import stepguard.measure.suite
from stepguard.core.reasons import Reason
from stepguard.core.verdict import Confirmation, Confirmed


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


MACHINE = "not recorded, the machine changed, not the code: linear?124m?: step_ms "


@pytest.mark.parametrize(
    ("ms", "options", "why"),
    [
        (9.8, ("--perf-no-confirm",), "linear?124m?: not recorded, it passes, but *"),
        (9.8, (), f"{MACHINE}*a new level needs a reason*"),
        (10.2, (), f"{MACHINE}*a new level needs a reason*"),
    ],
)
def test_what_passes_beside_its_level_is_left_out(gate, h200, ms, options, why):
    """The machine moved, or a gain is unproven: `same`, no recording of the level, and no fault."""
    case = gate.recorded(h200, step_ms=ms)
    result = gate.run("--perf-append", "--perf-strict", *options)
    assert result.ret == 0 and recordings(gate, case) == [1]
    result.says(why, "*1 passed*")


@pytest.mark.parametrize(
    ("outcome", "count"),
    [
        (None, 1),
        (Confirmation.UNDECIDED, 1),
        (Confirmation.NOT_MEASURED, 1),
        (Confirmation.STEP_SAME, 2),
    ],
)
def test_kernels_in_doubt_are_no_reference(gate, h200, monkeypatch, outcome, count):
    """Kernels that take longer fail nothing; but unless pairs say that the step is the same, the
    next run is compared with those before.
    """
    case, real = gate.guarded(h200), stepguard.measure.suite.settled
    gate.commit()

    def moved(*arguments):
        found = real(*arguments)
        why = {"reason": Reason.KERNELS_MOVED, "confirmed": outcome and Confirmed(outcome)}
        metrics = (replace(m, **why) if m.metric == "step_ms" else m for m in found.metrics)
        return replace(found, metrics=tuple(metrics))

    monkeypatch.setattr(stepguard.measure.suite, "settled", moved)
    result = gate.run("--perf-append", "--perf-strict", "--perf-no-confirm")
    assert result.ret == 0 and recordings(gate, case) == [count]
    if count == 1:
        result.says("*linear?124m?: not recorded, it passes, but *its kernels*")


def test_a_level_that_crept_takes_no_more(gate, h200):
    """`same` by the newest recordings, and 4 % from the first: that is for a person to accept."""
    case = gate.guarded(h200)
    path = gate.baselines / "h200x1.json"
    content = json.loads(path.read_text())
    (epoch,) = content["cases"][case.id]["epochs"]
    (first,) = epoch["recordings"]
    later = {"times_ms": {"step_ms": [10.39, 10.39]}}
    epoch["recordings"] += [
        first | later | {"date": f"2030-02-{day:02d}T00:00:00+00:00"} for day in range(1, 11)
    ]
    path.write_text(json.dumps(content))
    gate.commit()
    gate.will_measure(case, step_ms=10.41)
    result = gate.run("--perf-append", "--perf-strict")
    assert result.ret == 1 and recordings(gate, case) == [11]
    result.says("*from the first recording of its level; a new level needs a reason*")


def test_beside_another_revision_nothing_is_recorded(gate, h200):
    """Pairs judge there, and recordings are of a run of their own."""
    gate.gpus = [h200]
    gate.suite(gate.cuda())
    gate.commit(tag="old")
    gate.commit()
    result = gate.run("--perf-append", "--perf-against=old")
    assert result.ret == 4 and "record without --perf-against" in result.stderr.str()
