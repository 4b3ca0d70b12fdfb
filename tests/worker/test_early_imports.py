"""What a launch imports of its own before torch: as little as will do."""

import subprocess
import sys

import pytest

HEAVY = ("msgspec", "numpy", "pytest", "scipy", "torch")


@pytest.mark.parametrize("name", ["worker.agent", "case"])
def test_beside_torch_a_rank_imports_little(name):
    """Before it has asked to die with its caller, and in a module of cases: nothing heavy."""
    code = f"import sys, stepguard.{name}; print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
