"""The traces of studies/traces, where a folder holds them: they are too large to be kept here.

STEPGUARD_TRACES=FOLDER pytest tests/studies/test_traces.py
"""

import json
import os
from pathlib import Path

import pytest

from stepguard.explain.causes import explain
from stepguard.explanation import Kind
from stepguard.profile import mean, over_ranks
from stepguard.trace.classes import usual_classes
from stepguard.trace.profiles import analyse, profile
from stepguard.trace.read.chrome import read_chrome

FOLDER = os.environ.get("STEPGUARD_TRACES")
pytestmark = pytest.mark.skipif(not FOLDER, reason="STEPGUARD_TRACES names no folder of traces")
STUDY = Path(__file__).resolve().parents[2] / "studies" / "traces"


def recorded(loop):
    """The mean profile of the two ranks of a loop."""
    profiles = []
    for rank in (0, 1):
        with (Path(FOLDER) / f"ddp4_{loop}_rank{rank}.json.gz").open("rb") as file:
            profiles.append(profile(analyse(read_chrome(file), usual_classes())))
    return over_ranks(profiles)


def test_the_synchronize_is_the_only_cause():
    """It is named with its cost; steps that differ by 4 % through clocks add no other cause."""
    found = explain(recorded("pipelined"), recorded("synced"))
    (cause,) = found.causes
    assert (cause.kind, cause.what) == (Kind.IDLE, "cudaDeviceSynchronize")
    assert 600 < cause.us < 750
    assert found.explained_us + found.scatter_us == pytest.approx(found.change_us)


@pytest.mark.parametrize("loop", ["pipelined", "synced"])
def test_nothing_is_lost(loop):
    """All steps but the last are complete, and their parts sum up."""
    found = recorded(loop)
    assert found.steps == 2 and found.lost_share == 0
    parts = found.parts
    whole = [parts.compute_us, parts.exposed_communication_us, parts.exposed_copies_us]
    whole.append(parts.idle_us)
    assert sum(map(mean, whole)) == pytest.approx(mean(parts.step_us))


def test_figures_agree_with_those_of_hta():
    """As recorded in the study: to 0.1 % in every figure."""
    for row in json.loads((STUDY / "compare_hta_2026-11-23.json").read_text())["files"]:
        assert max(row["difference_pct"].values()) < 0.1
        assert row["worst_kernel_difference_pct"] < 0.1
