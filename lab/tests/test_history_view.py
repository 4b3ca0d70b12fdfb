"""What is said of a series: marks beside its values, and how far it is from an anchor."""

import random
import re

from builders import CASE, CASE_ID, recording

from stepguard.machine.interpreter import as_typed
from stepguard_lab.history_page import page
from stepguard_lab.history_store import measurement_of, series_of
from stepguard_lab.history_table import said
from stepguard_lab.history_view import Anchor, view_of

SEED = 47


def series(values_ms):
    """Step times of one H200, a recording of a commit of its own each."""
    points = [
        measurement_of(
            recording(
                ms,
                number % 28,
                date=f"2026-{1 + number // 28:02d}-{1 + number % 28:02d}",
                commit=f"{number:040x}",
            ),
            CASE_ID,
            "NVIDIA H200",
            CASE,
        )
        for number, ms in enumerate(values_ms)
    ]
    found = {one.metric: one for one in series_of(points)}
    return found["step_ms"]


def drifting(total_pct, points=60):
    """Times that rise by so much in all, with the noise of a card."""
    draw = random.Random(SEED)
    return [
        250.0 * (1 + total_pct / 100 * i / points) * (1 + draw.gauss(0, 0.0015))
        for i in range(points)
    ]


def anchor(newest):
    """The commit of that point, which has those before it."""
    return Anchor("v1 (000000000005)", "v1", {f"{number:040x}" for number in range(newest + 1)})


def test_creep_against_an_anchor_is_named_with_what_judges_it():
    """3 % in sixty small steps is beyond the margin of 0.5 %; none at all is inside of it."""
    crept, calm = (view_of(series(drifting(pct)), anchor(5)) for pct in (3.0, 0.0))
    assert crept.crept and not calm.crept
    text = "\n".join(said(crept, anchor(5)))
    assert "slower than at v1 (000000000005): +" in text
    command = as_typed("pytest perf_tests --perf-against=v1")
    assert f"judge it in pairs: {command}" in text
    assert "since v1 (000000000005): " in "\n".join(said(calm, anchor(5)))


def test_a_page_begins_with_what_changed_most():
    """By the size of the change, then the newest first; what was measured once is a row."""
    points = []
    for late in (False, False, True):
        counters = {"graph_breaks": 7 if late else 2, "flops_per_step": 100 + late}
        counters |= {"unique_graphs": 5, "copies_per_step": 7 if points else 2}
        counters |= {"recompiles": 9} if late else {}
        found = recording(number=len(points), counters=counters)
        points.append(measurement_of(found, CASE_ID, "m", CASE))
    text = page([view_of(one, None) for one in series_of(points) if one.metric in counters], None)
    titles = " ".join(re.findall(r"<figcaption>(\w+)", text))
    assert titles == "graph_breaks copies_per_step flops_per_step unique_graphs"
    assert "History: 3 of 4 series changed" in text and "2 -&gt; 7" in text
    assert text.index("2 -&gt; 7") < text.index("100 -&gt; 101") < text.index("<figure>")
    assert text.rindex("<td>recompiles</td>") > text.rindex("<figure>")


def test_marks_say_what_differs():
    """A library that came, one that went, a parameter, and the reason of a level."""
    before = measurement_of(recording(number=0), CASE_ID, "m", CASE)
    software = {"torch": "2.13.0", "new": "1"}
    other = {**CASE, "world_size": 2}
    after = measurement_of(recording(number=1, software=software), CASE_ID, "m", other, "refreshed")
    (found,) = (one for one in series_of([before, after]) if one.metric == "graph_breaks")
    texts = [mark.text for mark in view_of(found, None).marks]
    assert all(mark.at == 1 for mark in view_of(found, None).marks)
    environment, case, level = texts
    assert environment.startswith("environment: torch 2.11.0 -> 2.13.0, arch x86_64 -> unset, ")
    assert "new unset -> 1" in environment
    assert (case, level) == ("case: world_size 1 -> 2", "new level: refreshed")
