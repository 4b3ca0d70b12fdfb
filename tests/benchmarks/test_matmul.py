"""matmul.cu: compiled where nvcc is, and run where a GPU is."""

import shutil
import subprocess

import pytest
import torch

from benchmarks.shared import ROOT


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_the_two_products_agree(tmp_path):
    """The program compares them itself."""
    program, source = tmp_path / "matmul", ROOT / "benchmarks" / "matmul.cu"
    subprocess.run(["nvcc", "-arch=native", "-o", program, source], check=True)
    done = subprocess.run([program, "64"], capture_output=True, text=True)
    if torch.cuda.is_available():
        assert done.stdout == "64 x 64: both products agree\n", done.stderr
