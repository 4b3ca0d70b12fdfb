"""When a warm-up is over, and what is said of one that did not settle in its time."""

import math
from dataclasses import replace

from stepguard.core.replies import TimedBlock
from stepguard.measure.warm_up import PROTOCOLS, WarmUp

PROTOCOL = replace(PROTOCOLS["cpu"], warmup_min_s=1.0, warmup_cap_s=4.0, tolerance=0.1)


def block(step_ms, **more):
    """A rank's answer."""
    ms = sum(step_ms)
    return TimedBlock(began_ns=0, ended_ns=1, wall_ms=ms, events_ms=ms, step_ms=step_ms, **more)


def window(ms, allocated=0):
    """A second of steps that take ``ms`` each, with so many device allocations up to its end."""
    steps = round(1e3 / ms)
    return [block([ms] * steps, device_allocations=allocated)]


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


def seconds_until_done(allocations):
    """How long a warm-up on a GPU takes whose windows of a second end with these allocations."""
    warmup = WarmUp(PROTOCOLS["cuda"])
    for allocated in allocations:
        warmup.add(window(100, allocated))
        if warmup.done():
            break
    return round(warmup.seconds), warmup.problem


def test_a_warm_up_that_never_gets_steady_is_given_up_early():
    """The cache is emptied every few steps, so that every window allocates: after twice the usual
    time it says why. What allocates a few times more, and then no longer, is waited for.
    """
    seconds, problem = seconds_until_done(range(100))
    assert seconds <= 2 * (PROTOCOLS["cuda"].warmup_min_s + 1)
    assert "takes device memory anew" in problem and "6 times since second 4" in problem
    late = [min(second, 8) for second in range(100)]
    seconds, problem = seconds_until_done(late)
    assert seconds < PROTOCOLS["cuda"].warmup_cap_s and problem == ""


def test_a_clock_that_swings_each_second_is_steady_and_one_that_drifts_is_not():
    """Steps of 42 ms that are slower by a fifth for a quarter of each second: windows of a second
    agree in their mean, whatever their phase. A card that slows down by 4 % over ten seconds is
    not steady at five.
    """

    def seconds(drift, offset):
        warmup, at = WarmUp(PROTOCOLS["cuda"]), 0.0
        while not warmup.done():
            steps = []
            for _ in range(warmup.next_steps()):
                slow = 1.2 if (at + offset) % 1.0 < 0.25 else 1.0
                steps.append(42.0 * slow * (1 + drift * (1 - math.exp(-at / 3))))
                at += steps[-1] / 1e3
            warmup.add([block(steps)])
        assert not warmup.problem
        return warmup.seconds

    for offset in (0.0, 0.2, 0.4, 0.6, 0.8):
        assert seconds(0.0, offset) < 7.5
        assert 7.5 < seconds(0.04, offset) < 20
