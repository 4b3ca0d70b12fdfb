"""The counting pass as a whole."""

import itertools
import re

import pytest
import torch
from whole_pass import count

from stepguard.worker.count.counting import count_without_compiler
from stepguard.worker.count.tally import RankStep

pytestmark = pytest.mark.usefixtures("own_heap")


def test_lines_that_grow_are_counted_in_a_launch_that_ran_no_step():
    """Its first step does more than others once, which hides nothing."""
    built, history = [], []

    def step():
        for _ in range(0 if built else 100):
            built.append(0)
        history.append(0)
        for _ in history:
            pass
        return torch.ones(4, 4) @ torch.ones(4, 4)

    nothing = {"values": {}, "unstable": {}, "detail": {}}
    found = count_without_compiler(RankStep(step, torch.device("cpu")), lambda text: None, nothing)
    assert found["values"]["growing_python_lines_per_step"] == 2
    assert found["values"]["flops_per_step"] == 128


def test_eager_counts_rest_on_two_steps():
    """Every other step does a product more: FLOPs and calls are unstable, with both values seen."""
    a = torch.ones(4, 4)
    parity = itertools.count()

    def step():
        for _ in range(1 + next(parity) % 2):
            a @ a

    found = count(RankStep(step, torch.device("cpu")))
    for metric, seen in (("flops_per_step", {128, 256}), ("operator_calls_per_step", {1, 2})):
        assert metric not in found["values"]
        values = re.findall(r"\b\d+\b", found["unstable"][metric].removeprefix("steps differ: "))
        assert len(values) == 2 and {int(value) for value in values} == seen, found["unstable"]
    steady = count(RankStep(lambda: a @ a, torch.device("cpu")))
    assert steady["values"]["flops_per_step"] == 128
    assert steady["values"]["operator_calls_per_step"] == 1
    assert not {"flops_per_step", "operator_calls_per_step"} & steady["unstable"].keys()
