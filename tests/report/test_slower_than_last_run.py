"""A step that takes several times its last run's time is a sentence where no time is gated."""

from dataclasses import replace

import pytest
from builders import evidence, launch

from stepguard.core.evidence import Counts
from stepguard.core.metrics import PYTHON_LINES
from stepguard.core.site import Site
from stepguard.report.slower_than_last_run import several_times_slower

GATES = ("flops_per_step",)


def run(step_ms, **fields):
    """Evidence whose step takes that long, and that gates no time."""
    return evidence(gates=GATES, launches=(launch(step_ms),), **fields)


def test_several_times_as_long_is_said():
    """With both times; twice as long is what a busy machine does."""
    text = several_times_slower(run(5.0), run(1.0))
    assert text.startswith("a step takes 5.0 times as long as in this machine's last run ")
    assert "(1.000 -> 5.000 ms), and no time is gated; " in text
    assert several_times_slower(run(2.0), run(1.0)) == ""
    assert several_times_slower(run(1.0), run(5.0)) == ""


def test_what_is_judged_or_of_another_machine_is_not_compared():
    """A gated time has its verdict; and the first run has nothing to compare with."""
    now, then = run(5.0), run(1.0)
    assert several_times_slower(now, None) == ""
    assert several_times_slower(replace(now, gates=("step_ms",)), then) == ""
    assert then.fingerprint is not None
    other = replace(then.fingerprint, device_name="another")
    assert several_times_slower(now, replace(then, fingerprint=other)) == ""


@pytest.mark.parametrize("was_there", [True, False])
def test_more_lines_of_python_are_said_with_their_function(was_there):
    """That which runs more of them than it did, not that which always runs most."""
    forward = Site("lines of Python", "gpt.py", 3, "forward", "def forward(self):", count=600)
    scan = Site("lines of Python", "data.py", 12, "scan", "def scan(x):", count=500)
    known = [forward, replace_count(scan, 10)] if was_there else [forward]
    now = run(5.0, counts=python(1200, forward, scan))
    lines = sum(site.count for site in known)
    text = several_times_slower(now, run(1.0, counts=python(lines, *known)))
    assert f"; it runs 1,200 lines of Python, {lines} then, most of the new ones in scan " in text
    assert "(data.py:12); --perf-against=REV" in text
    fewer = several_times_slower(run(5.0, counts=python(700, *known)), now)
    assert "lines" not in fewer


def replace_count(site, count):
    """The site with another count."""
    return Site(site.what, site.file, site.line, site.function, site.text, count=count)


def python(lines, *sites):
    """Counts of so many lines of Python."""
    return Counts({}, information={PYTHON_LINES: float(lines)}, sites={PYTHON_LINES: sites})
