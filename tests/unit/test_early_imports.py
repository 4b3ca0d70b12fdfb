"""What is imported before a rank says hello: as little as will do, and then what will be needed."""

import contextlib
import subprocess
import sys
from types import SimpleNamespace

import pytest

import stepguard.host.station
from stepguard import Case
from stepguard.host.revision import Revision
from stepguard.host.station import COMPILER, Bench, Station

HEAVY = ("msgspec", "numpy", "pytest", "scipy", "torch")


@pytest.mark.parametrize("name", ["worker.agent", "worker.main", "case"])
def test_beside_torch_a_rank_imports_little(name):
    """torchrun's process, a rank and a user's module of cases: nothing heavy comes with them."""
    code = f"import sys, stepguard.{name}; print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


class Group:
    """A WorkerGroup's stand-in: only what it was started with."""

    def __init__(self, spec, elsewhere):
        self.spec = spec

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        pass

    def leave(self):
        """It is told to."""


@pytest.fixture
def station(monkeypatch, tmp_path):
    """Makes a station for a case on a device, of groups that only were started."""
    monkeypatch.setattr(stepguard.host.station, "WorkerGroup", Group)

    def station(device):
        bench = Bench(tmp_path, tmp_path, tmp_path / "x", (), Revision("f" * 40), "pytest")
        ticker = SimpleNamespace(tick=lambda: None)
        return Station(Case("a", "m:f", device=device), bench, ticker, None, contextlib.ExitStack())

    return station


def answering(*installed):
    """An ask whose rank has imported these."""
    told = {"sources": {}, "installed": dict.fromkeys(installed, "/x.py")}
    return lambda command, **arguments: [told]


@pytest.mark.parametrize("imported", [(), ("torch._dynamo",), COMPILER])
@pytest.mark.parametrize("when", ["prepare", "leave"])
def test_on_a_cpu_the_first_launch_tells_whether_the_compiler_is_needed(station, imported, when):
    """It takes as long to import as torch: a launch does so early if the one before came to it."""
    found = station("cpu")
    first = found.start("launch 1")
    assert first.spec.preload == ("m",)
    getattr(found, when)(first, answering("torch", "torch.nn", *imported))
    assert found.start("launch 2").spec.preload == ("m", *imported)


def test_on_a_gpu_the_compiler_is_imported_early(station):
    """There most steps are compiled, and time on the card costs more than an import."""
    assert station("cuda").start("launch 1").spec.preload == ("m", *COMPILER)
