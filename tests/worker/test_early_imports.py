"""What a launch imports of its own before torch: as little as will do."""

import subprocess
import sys

import pytest

HEAVY = ("msgspec", "numpy", "pytest", "scipy", "torch")


@pytest.mark.parametrize("name", ["worker.agent", "worker.main", "case"])
def test_beside_torch_a_rank_imports_little(name):
    """torchrun's process, a rank and a user's module of cases: nothing heavy comes with them."""
    code = f"import sys, stepguard.{name}; print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
