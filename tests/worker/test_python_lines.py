"""Lines of Python: programs of a known number, and those that run more from step to step."""

import gc
import logging
import sys
from collections import deque

import pytest
import torch

from stepguard.core.metrics import GROWING_LINES, PYTHON_LINES
from stepguard.worker.counters.python_lines import (
    COUNTER,
    FILLING_STEPS,
    count_python,
    lines_of,
)
from stepguard.worker.counters.tally import LEAK_STEPS, RankStep, Tally


def counted(step, steps=5):
    """A tally of the lines of a program."""
    tally = Tally()
    count_python(tally, [lines_of(step) for _ in range(steps)])
    return tally


def scan(numbers):
    """Two lines, and two for each number."""
    total = 0
    for one in numbers:
        total += one
    return total


def test_a_loop_is_its_lines_and_has_its_function():
    """Of 1,000 numbers, by the line of "def"; a step that does the same is no growth."""
    numbers = list(range(1000))

    def step():
        scan(numbers)

    tally = counted(step)
    assert tally.information == {PYTHON_LINES: 2004.0}
    assert tally.values == {GROWING_LINES: 0}
    largest = tally.sites[PYTHON_LINES][0]
    assert (largest.function, largest.text, largest.count) == ("scan", "def scan(numbers):", 2003)
    assert GROWING_LINES not in tally.sites


def test_a_loop_over_what_steps_add_to_grows():
    """Two lines a step, in the function that has the loop and no other."""
    history = []

    def step():
        history.append(len(history))
        scan(history)

    tally = counted(step)
    assert tally.values == {GROWING_LINES: 2}
    assert [(site.function, site.count) for site in tally.sites[GROWING_LINES]] == [("scan", 2)]


def test_lines_of_a_library_grow_at_the_line_that_calls_it():
    """Of logging, to which each step adds a handler: its function has all of them."""
    log = logging.Logger("steps")

    def step():
        log.addHandler(logging.NullHandler())
        log.info("step")

    step()  # the first one also asks for the level
    tally = counted(step)
    (site,) = tally.sites[GROWING_LINES]
    assert (site.text, site.count) == ('log.info("step")', tally.values[GROWING_LINES])
    assert [one.count for one in tally.sites[PYTHON_LINES]] == [tally.information[PYTHON_LINES]]


@pytest.mark.parametrize(("longest", "again", "grows"), [
    (None, scan, 2),
    (FILLING_STEPS, scan, 0),  # a window of losses has filled
    (None, max, 0),  # C, for one
])  # fmt: skip
def test_what_grows_does_so_for_many_steps(longest, again, grows):
    """In one function: a second look comes when a bounded container has filled."""
    window, functions = deque(maxlen=longest), [scan] * (1 + LEAK_STEPS)

    def step():
        window.append(len(window))
        (functions.pop() if functions else again)(window)

    counted, tally = RankStep(step, torch.device("cpu")), Tally()
    for look in (COUNTER.count, COUNTER.locate):
        look(tally, counted)
    assert tally.values == {GROWING_LINES: grows}
    assert [site.count for site in tally.sites.get(GROWING_LINES, ())] == ([2] if grows else [])


def test_lines_of_a_module_are_not_those_of_its_first_line(tmp_path, monkeypatch):
    """As of a script whose loop is in no function: the module is named, and no import."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import sys\nfor one in range(10):\n    sys.path\n")
    code = compile((tmp_path / "train.py").read_text(), str(tmp_path / "train.py"), "exec")

    def step():
        exec(code, {})

    (site,) = (s for s in counted(step).sites[PYTHON_LINES] if s.function == "<module>")
    assert site.described() == "lines of Python in <module> (train.py)"


def test_what_runs_as_garbage_is_collected_is_no_line_of_the_step():
    """A library's callback, for one: when the collector comes is chance."""
    numbers, called = list(range(10)), []

    def callback(phase, info):
        called.append(phase)

    def step():
        made = [[] for _ in range(2 * gc.get_threshold()[0])]
        return len(made), scan(numbers)

    counts = []
    for callbacks in ([], [callback]):
        gc.callbacks.extend(callbacks)
        counts.append(counted(step).information)
    gc.callbacks.remove(callback)
    assert counts[0] == counts[1] and gc.isenabled()


@pytest.mark.parametrize("every", [2, 3, 4])
def test_what_steps_do_now_and_then_is_no_growth(every):
    """Logging, or a schedule that does more for a while."""
    history = []

    def step():
        history.append(0)
        scan(range(10 * (len(history) % every)))

    assert counted(step).values == {GROWING_LINES: 0}


def test_a_tracer_of_the_users_own_stays():
    """A debugger's or a coverage's, also where the step raises."""

    def own(frame, event, argument):
        return None

    def step():
        raise ZeroDivisionError

    before = sys.gettrace()
    sys.settrace(own)
    try:
        with pytest.raises(ZeroDivisionError):
            lines_of(step)
        assert sys.gettrace() is own
    finally:
        sys.settrace(before)
