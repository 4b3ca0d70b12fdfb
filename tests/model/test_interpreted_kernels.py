"""The Triton operators against fp64, on a CPU through Triton's interpreter.

TRITON_INTERPRET=1 python -m pytest tests/model/test_interpreted_kernels.py
"""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")
# Triton decides when it is imported.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")
if INTERPRETED:
    from kernel_checks import check_cross_entropy, check_norm_backward, check_pack

TOO_OLD = torch.__version__.startswith("2.8.")
FP32_RTOL = 1e-5


@pytest.mark.skipif(INTERPRETED, reason="is what runs now")
@pytest.mark.skipif(TOO_OLD, reason="torch 2.8 wraps only kernels that are compiled")
def test_in_the_interpreter():
    """The tests below pass in a process that interprets Triton."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "7 passed" in done.stdout


@interpreted
@pytest.mark.parametrize("rows, columns", [(1, 8), (7, 1000), (3, 9000)])
def test_cross_entropy(rows, columns):
    """Loss and gradient, also where targets are masked and a row is longer than a block."""
    check_cross_entropy("cpu", rows, columns, 0, torch.float32, FP32_RTOL)


@interpreted
@pytest.mark.parametrize("rows, columns", [(1, 8), (45, 100)])
def test_norm_backward(rows, columns):
    """All four results, at a width that is no power of two."""
    check_norm_backward("cpu", rows, columns, 0, torch.float32, FP32_RTOL)


@interpreted
@pytest.mark.parametrize("rows, columns", [(1, 8), (45, 200)])
def test_pack(rows, columns):
    """The concatenation and its column sums."""
    check_pack("cpu", rows, columns, 0, torch.bfloat16)
