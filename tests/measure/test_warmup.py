"""When a warm-up is over, and what is said of one that did not settle in its time."""

from dataclasses import replace

from stepguard.measure.warmup import PROTOCOLS, WarmUp

PROTOCOL = replace(PROTOCOLS["cpu"], warmup_min_s=1.0, warmup_cap_s=4.0, tolerance=0.1)


def window(ms):
    """A second of steps that take ``ms`` each."""
    steps = round(1e3 / ms)
    return [{"step_ms": [ms] * steps, "wall_ms": ms * steps, "compiled_graphs": 0}]


def test_a_launch_that_steadies_after_its_time_is_steady():
    """It goes on until the next launch's import is over: what was said of it until then is not."""
    warmup = WarmUp(PROTOCOL)
    for ms in (10, 20, 10, 20):
        assert not warmup.done()
        warmup.add(window(ms))
    assert warmup.done() and "not steady" in warmup.problem
    for _ in range(4):
        warmup.add(window(20))
    assert warmup.done() and warmup.problem == ""
    warmup.add(window(60))
    assert warmup.done() and "not steady" in warmup.problem
