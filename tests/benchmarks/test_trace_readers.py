"""trace_readers: a trace repeated, read by two sides, and compared."""

import kineto
import pytest

from benchmarks.trace_readers import in_their_terms, write_longer
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
