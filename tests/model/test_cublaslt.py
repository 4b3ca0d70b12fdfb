"""Which of cuBLASLt's kernels a product takes.

python -m pytest tests/model/test_cublaslt.py
"""

import pytest

from model import cublaslt


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
    """By tile and cluster, wherever it stands in cuBLASLt's order."""
    offered = [Kernel(24, 5), Kernel(20, 5), Kernel(20, 3), Kernel(20, 5)]
    assert cublaslt._choose(offered, wanted) is offered[taken]
