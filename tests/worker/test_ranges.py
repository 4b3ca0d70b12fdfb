"""Ranges of phases that are entered and never left."""

from range_recorder import recorder

from stepguard.worker.counters.profiled_steps import Ranges

STEP = "micro_step_0 forward backward micro_step_1 forward backward clip_grad optimizer".split()


def paths(step, steps):
    """Every range of the last of some steps, with those that lie around it."""
    found, opened, entered = recorder()
    ranges = Ranges(entered)
    for _ in range(steps):
        found.clear()
        for name in step:
            ranges(name)
        ranges.end_step()
        assert not opened
    return found


def test_micro_steps_lie_around_their_phases():
    """What comes once, after them, is in none: from the second step on."""
    inside = [f"micro_step_{n}{part}" for n in (0, 1) for part in ("", "/forward", "/backward")]
    assert paths(STEP, 2) == [*inside, "clip_grad", "optimizer"]


def test_one_micro_step_is_around_nothing():
    """Nothing tells which phases would be in it."""
    step = "micro_step_0 forward backward optimizer".split()
    assert paths(step, 1) == ["micro_step_0", *[f"micro_step_0/{name}" for name in step[1:]]]
    assert paths(step, 2) == step


def test_phases_without_micro_steps():
    """One after the other."""
    assert paths(["load", "forward", "load", "forward"], 3) == ["load", "forward"] * 2
