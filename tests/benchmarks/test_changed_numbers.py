"""numbers: moves of a step's numbers, and a launch of a changed model."""

import math
import multiprocessing

import pytest
import torch._dynamo  # noqa: F401  # as main() does: else the launch's fork imports it

from benchmarks.changed_numbers import HONEST, WRONG, Launch, Variant, moves, take
from benchmarks.shared import ROOT, Change


def _taken(loss, gradient, options=()):
    return {
        "values": {"loss": loss, "gradient of a": gradient, "update of a": [0.0]},
        "options": [*options],
    }


def test_a_move_is_the_largest_of_any_step_by_kind():
    """What is gone or no longer finite moves without bound."""
    found = moves(_taken([2.0, 2.0], [1.0, 1.5], ["a"]), _taken([2.0, 2.5], [1.0, 1.0]))
    assert found["loss"] == {"largest": pytest.approx(0.2), "of": "loss"}
    assert found["gradient"] == {"largest": 0.5, "of": "gradient of a"}
    assert found["update"]["largest"] == 0.0 and found["options"] == ["a"]
    for gone in ([], [math.nan]):
        assert moves(_taken([2.0], gone), _taken([2.0], [1.0]))["gradient"]["largest"] == math.inf


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
    """A softmax scale that is doubled moves gradients, not the number of them."""
    launches = [
        Launch("", variant, "fp32", "not learning")
        for variant in (Variant(), WRONG["softmax scale doubled"])
    ]
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as forks:
        past, now = forks.map(take, launches, 1)
    assert 1e-3 < moves(now, past)["gradient"]["largest"] < 1
    assert past["options"] == now["options"]
