"""trace_readers: a trace repeated, read by two sides, and compared."""

import json
import sys

import kineto
import pytest

from benchmarks import trace_readers
from benchmarks.trace_readers import differences_pct, in_their_terms, write_longer
from stepguard.core.profile import mean
from stepguard.trace.kernel_classes import usual_classes
from stepguard.trace.make_profile import analyse, profile
from stepguard_lab.chrome_chunks import read_chrome


@pytest.fixture
def trace(tmp_path):
    """A file of three complete steps."""
    path = tmp_path / "short.json"
    path.write_bytes(kineto.three_steps())
    return path


def read(path):
    """The trace, taken apart."""
    with path.open("rb") as file:
        return analyse(read_chrome(file), usual_classes())


def test_a_repeated_trace_has_as_many_steps_of_the_same_work(trace, tmp_path):
    """Three times four steps, of which the last ends none; each as long as before."""
    longer = tmp_path / "longer.json"
    write_longer(trace, longer, 3)
    once, thrice = profile(read(trace)), profile(read(longer))
    assert (once.steps, thrice.steps) == (3, 11)
    assert mean(thrice.parts.compute_us) == pytest.approx(mean(once.parts.compute_us))


def test_figures_in_the_terms_of_the_other_tool(trace):
    """From the first kernel's begin to the end of the record behind the last step."""
    found = in_their_terms(read(trace))
    assert found["kernel_us"] == pytest.approx(3500)
    assert found["compute_us"] == pytest.approx(2000)
    assert found["exposed_us"] == pytest.approx(300)
    assert found["idle_us"] == pytest.approx(1200)
    assert found["overlap_pct"] == 0.0
    assert found["kernels_us"] == pytest.approx({"nvjet": 2000, "ncclDevKernel_AllReduce": 300})


def test_each_side_reads_in_a_process_of_its_own(trace, tmp_path, monkeypatch):
    """The row has what each took, and stepguard's figures are those of its analysis."""
    out = tmp_path / "out.json"
    given = ["trace_readers", str(trace), "--turns", "1", "--copies", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", given)
    assert trace_readers.main() == 0
    (row,) = json.loads(out.read_text())["files"]
    assert row["file"] == "short_x2.json"
    for side in ("stepguard", "json"):
        assert row[side]["peak_mib"] > 1
        assert row[side]["times_ours"] == row[side]["cpu_s"] / row["stepguard"]["cpu_s"]


def test_a_rank_reads_all_of_a_trace_that_is_made(tmp_path):
    """As many records, launches and kernels as were written, and an identity that is known."""
    path = tmp_path / "made.json"
    launched = trace_readers.write_made(path, 0.1) * trace_readers.OPERATORS
    with path.open("rb") as file:
        assert len(read_chrome(file).gpu.kind) == launched
    figures = trace_readers.with_rank(str(path))()
    assert figures["launches"] == launched
    assert figures["kernels"] > 40 and figures["parts"] == 4


def test_figures_that_differ_are_shown():
    """A kernel that the other side has not, by its share of all; the rest is equal."""
    figures = dict.fromkeys(trace_readers.FIGURES, 10.0)
    ours = figures | {"kernels_us": {"a": 90.0}, "idle_us": 11.0}
    theirs = figures | {"kernels_us": {"a": 90.0, "b": 10.0}}
    found = differences_pct(ours, theirs)
    assert found.pop("idle_us") == pytest.approx(10) == found.pop("worst_kernel")
    assert set(found.values()) == {0.0}
