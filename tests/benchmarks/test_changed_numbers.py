"""numbers: moves of a step's numbers, and a launch of a changed model."""

import multiprocessing

import pytest

from benchmarks.changed_numbers import HONEST, WRONG, Launch, Variant, planned, row, take
from benchmarks.shared import ROOT, Change


@pytest.mark.parametrize("variant", [*HONEST.values(), *WRONG.values()])
def test_each_change_can_be_made(tmp_path, variant):
    """In the model as it is."""
    (tmp_path / "model").mkdir()
    for name in ("config.py", "gpt.py", "workloads.py"):
        (tmp_path / "model" / name).write_text((ROOT / "model" / name).read_text())
    Change(variant.edits).plant(tmp_path)
    for path in (tmp_path / "model").iterdir():
        compile(path.read_text(), str(path), "exec")


def test_a_launch_trains_the_changed_model():
    """A softmax scale that is doubled moves gradients of attention, and the judge names them."""
    launches = [
        Launch("wrong", name, variant, "fp32", "not learning")
        for name, variant in (("nothing", Variant()), ("doubled", WRONG["softmax scale doubled"]))
    ]
    # Not forked as by main(): the threads of this process may hold locks.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as processes:
        past, now = processes.map(take, launches, 1)
    assert row(launches[0], past, past)["said"] == ""
    assert row(launches[1], now, past)["said"].startswith("gradient of h.*.attn.c_attn.")


def test_each_unchanged_launch_comes_before_what_is_compared_with_it():
    """Of each precision and time."""
    seen = set()
    for launch in planned("cuda"):
        where = launch.precision, launch.time
        assert launch.kind == "unchanged" or where in seen
        seen.add(where)
