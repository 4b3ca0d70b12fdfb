"""The counting pass as a whole."""

import itertools
import re

import pytest
import torch
from whole_pass import count

from stepguard.worker.count.tally import RankStep

pytestmark = pytest.mark.usefixtures("own_heap")


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
