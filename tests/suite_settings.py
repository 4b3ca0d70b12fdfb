"""Settings of all tests, the lab's too: which come first, what the compiler and Python's
collector may leave out, which examples a property is tried on.
"""

import compileall
import contextlib
import gc
import importlib.util
import os
import sys
from collections.abc import Generator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from builders import PROPERTY
from hypothesis import settings

import stepguard.storage.baseline_files

# The same examples in every run, in any order and beside whatever else: else a run fails by chance,
# and the next one does not show it. Hypothesis also draws constants of the modules that are loaded,
# which depends on the tests that the same process has run before.
settings.register_profile("repeatable", PROPERTY)
settings.load_profile("repeatable")
drawing = sys.modules.get("hypothesis.internal.conjecture.providers")
if hasattr(drawing, "_get_local_constants"):  # which is private, and not in older versions
    drawing._get_local_constants = lambda: drawing._local_constants

# They start processes, or compile; in this order, since a file is run by one worker.
SLOW = ("workflows", "smoke", "faults", "worker", "plugin", "model", "tests")


TESTS = Path(__file__).parent


class OneDay(datetime):
    """A clock that stands: waivers end by the day, and a test may run into the next one."""

    stands_at = datetime.now(UTC)

    @classmethod
    def now(cls, tz=None):
        """Return when the tests began."""
        return cls.stands_at.astimezone(tz)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put those of the slow folders first: files that run in parallel end with short ones."""
    order = {name: place for place, name in enumerate(SLOW)}
    items.sort(key=lambda item: order.get(item.path.parent.name, len(SLOW)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let Python's collector not look at what is only loaded: that is a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def heap() -> None:
    """Put aside what tests and libraries hold by now: counting in this process collects again and
    again, and would each time walk through a million objects.
    """
    gc.collect()
    gc.freeze()


# Without the first setting the first compilation in each cache builds and runs a program for every
# instruction set; without the second a process that compiles starts others that import torch. Not
# for the cases of perf_tests/, whose recordings are without them.
COMPILER = {"TORCHINDUCTOR_VEC_ISA_OK": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
IN_PROCESS = {"cpp.vec_isa_ok": True, "compile_threads": 1}


COMPILED = pytest.StashKey[bool]()


def compile_all(config: pytest.Config) -> None:
    """Write the bytecode of the engine and of the tests, whose assertions pytest rewrites: else on
    a fresh clone each worker of xdist would, at the same time.
    """
    for package in ("stepguard", "lab/stepguard_lab"):
        compileall.compile_dir(TESTS.parent / package, quiet=2)
    hook = config.pluginmanager.rewrite_hook
    for path in (*TESTS.rglob("test_*.py"), *(TESTS.parent / "lab").rglob("test_*.py")):
        with contextlib.suppress(Exception):  # a worker will say what is wrong with a file
            module = importlib.util.module_from_spec(hook.find_spec(path.stem, [str(path.parent)]))
            vars(module)["__builtins__"] = {}  # so it is not run: its first import fails
            hook.exec_module(module)


@pytest.hookimpl(wrapper=True)
def pytest_sessionstart(session: pytest.Session) -> Generator[None, object, object]:
    """Compile what the workers of xdist are about to import."""
    config = session.config
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        if not sys.dont_write_bytecode and COMPILED not in config.stash:
            config.stash[COMPILED] = True  # this hook is of two conftest.py
            compile_all(config)
    return (yield)


@pytest.fixture(scope="module", autouse=True)
def environment() -> Iterator[None]:
    """The environment of tests and of what they start."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for variable, value in COMPILER.items():
            monkeypatch.setenv(variable, value)
        # Nor what this machine's user configured: commits that are signed, say.
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(Path(__file__).with_name("gitconfig")))
        monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
        # In CI, too, a run within a test is strict, and annotates, only if the test says so.
        for name in ("CI", "GITHUB_ACTIONS"):
            monkeypatch.delenv(name, raising=False)
        # No file has to outlive a crash of the machine.
        monkeypatch.setattr(os, "fsync", lambda handle: None)
        monkeypatch.setattr(stepguard.storage.baseline_files, "datetime", OneDay)
        compiler = sys.modules.get("torch._inductor.config")  # it read them when it was imported
        with compiler.patch(IN_PROCESS) if compiler else contextlib.nullcontext():
            yield
