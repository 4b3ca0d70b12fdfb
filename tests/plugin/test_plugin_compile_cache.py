"""A killed compile, or a damaged compile cache, costs a case nothing but time. Real launches of a
workload whose compiler is a few lines of Python.
"""

import shutil

import factories
import pytest
from short_launches import shorten_launches

from stepguard import Case

COMPILER = """
import os
import signal
from pathlib import Path

from factories import Linear


def compiled():
    path = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "step.so")
    if path.exists() and not Path("fails").exists():
        if path.read_text() != "whole":
            raise ImportError(f"{path}: file too short")
        return
    path.parent.mkdir(exist_ok=True)
    path.write_text("ha")
    if Path("fails").exists():
        with Path("fails").open("a") as tries:
            tries.write("x")
        raise ImportError(f"{path}: file too short")
    if Path("dies").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    path.write_text("whole")


class Step(Linear):
    def step(self):
        if "is_compiled" not in vars(self):
            compiled()
            self.is_compiled = True
        super().step()


def factory(*, device):
    return Step(device)
"""
DAMAGED = "*: failed with */inductor/step.so of the compile cache, and was measured again *"


@pytest.fixture
def project(gate, monkeypatch):
    """A repository with a case that compiles, and no baseline."""
    shorten_launches(monkeypatch)
    gate.measure_really()
    shutil.copy(factories.__file__, gate.path)
    (gate.path / "compiles.py").write_text(COMPILER)
    gate.suite(Case("nano", "compiles:factory", device="cpu", launches=1, gates=("graph_breaks",)))
    return gate


def cached(project, folder="inductor"):
    """What the cache has of the step; "" if nothing."""
    path = project.path / ".stepguard/cache" / folder / "step.so"
    return path.read_text() if path.exists() else ""


def test_a_case_whose_cache_is_damaged(project):
    """A killed compile leaves nothing to the next run, which is measured as if that launch had
    never been. A cache that fails to load is set aside, and the run says so. A tree that breaks its
    own is BROKEN, with an empty cache, too: then the cache was not the cause, and is as it was.
    """
    (project.path / "dies").touch()
    project.run().says("*BROKEN*SIGKILL in first step*")
    assert cached(project) == ""
    (project.path / "dies").unlink()
    result = project.run()
    result.says("*NO BASELINE*")
    result.stdout.no_fnmatch_line(DAMAGED)
    assert cached(project) == "whole"

    (project.path / ".stepguard/cache/inductor/step.so").write_text("ha")
    project.run().says("*NO BASELINE*", DAMAGED)
    assert (cached(project), cached(project, "set-aside/inductor")) == ("whole", "ha")

    before = project.path / ".stepguard/cache/inductor/kernel.py"
    before.write_text("")
    (project.path / "fails").touch()
    (project.path / "compiles.py").write_text(COMPILER.replace("{path}: ", f"{before}: "))
    result = project.run()
    result.says("*BROKEN*file too short*")
    result.stdout.no_fnmatch_line(DAMAGED)
    assert before.exists() and (project.path / "fails").read_text() == "xx"
