"""What a launch imports before torch, and a command before its work: as little as will do."""

import subprocess
import sys

import pytest

HEAVY = ("msgspec", "numpy", "pytest", "scipy", "torch")


@pytest.mark.parametrize("name", ["worker.agent", "case"])
def test_beside_torch_a_rank_imports_little(name):
    """Before it has asked to die with its caller, and in a module of cases: nothing heavy."""
    assert imported(f"stepguard.{name}", HEAVY) == "[]"


def test_a_command_begins_at_once():
    """Nor does pytest or the command line import what most runs of it can do without."""
    heavy = ("scipy.special", "scipy.stats", "torch")
    assert imported("stepguard.plugin.session, stepguard.cli.main", heavy) == "[]"


def imported(modules, heavy):
    """Which of the heavy ones these import."""
    code = f"import sys, {modules}; print([n for n in {heavy!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()
