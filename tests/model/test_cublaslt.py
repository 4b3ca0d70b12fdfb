"""Which of cuBLASLt's kernels a product takes.

python -m pytest tests/model/test_cublaslt.py
"""

import json
from pathlib import Path

import pytest

from model import cublaslt

DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "product_kernels_h100.json"
KINDS = {"logits": (False, True, cublaslt.PLAIN), "heads": (False, True, cublaslt.ADD_BIAS),
         "attention's projection": (False, True, cublaslt.ADD_BIAS),
         "MLP out": (False, True, cublaslt.ADD_BIAS),
         "MLP in, GELU": (False, True, cublaslt.GELU_AUX_BIAS),
         "MLP out, GELU, by input": (False, False, cublaslt.DGELU)}  # fmt: skip


class Kernel:
    """One that cuBLASLt offers."""

    def __init__(self, tile, cluster):
        self.attributes = {cublaslt.TILE: tile, cublaslt.CLUSTER: cluster}

    def get(self, *attribute):
        return self.attributes[attribute]


@pytest.mark.parametrize("wanted, taken", [
    ((20, 3), 2),
    ((20, 5), 1),  # the first of two
    ((24, 3), 0),  # not offered: cuBLASLt's own first choice
    (None, 0),
])  # fmt: skip
def test_the_wanted_kernel_is_taken_where_it_is_offered(wanted, taken):
    """It is found by tile and cluster, at any place in cuBLASLt's order."""
    offered = [Kernel(24, 5), Kernel(20, 5), Kernel(20, 3), Kernel(20, 5)]
    assert cublaslt._choose(offered, wanted) is offered[taken]


@pytest.mark.parametrize("sequences", ["64", "128"])
def test_what_is_taken_was_measured(sequences):
    """On an H100, for each product of a step: at most 4 % slower than the fastest kernel."""
    for name, one in json.loads(DATA.read_text())["products"][sequences].items():
        by_input = False, False, cublaslt.PLAIN
        by_weight = True, False, cublaslt.PLAIN
        kind = KINDS.get(name, by_weight if name.endswith("by weight") else by_input)
        of_logits = name in ("logits, by input", "logits, by weight")
        wanted = cublaslt.FASTEST_OF_WIDE if of_logits else cublaslt.FASTEST[kind]
        offered = [Kernel(*each) for each in one["tile_cluster"]]
        taken = offered.index(cublaslt._choose(offered, wanted))
        assert taken == one["taken"], name
        assert one["us"][taken] <= 1.04 * min(one["us"]), name
