"""The pytest plugin's entry: the options, the ``perf`` fixture, and whether a run has cases.

    @cases(Case("124m", "model.workloads:forward", {"size": "124m"}))
    def test_forward(perf, case):
        perf(case)

pytest loads this module in every project of the environment, so it imports next to nothing. The
engine and hooks.py are imported when they are needed, usually when pytest has collected a case.
"""

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import pytest

# Imported before any conftest runs: it keeps the environment that pytest was started with.
import stepguard.machine.inherited  # noqa: F401
from stepguard.core.case import Case
from stepguard.machine.interpreter import as_typed
from stepguard.plugin import pytest_benchmark_bridge
from stepguard.plugin.declared_cases import Collected, Sink, cases, lacks_perf
from stepguard.plugin.options import add_options, asked_documents, read_settings

__all__ = ["cases"]

MARKERS = (
    "gpu: needs a GPU",
    "multi_gpu: needs several GPUs",
    "smoke: runs on a CPU; gates counters only (skipped where there is a GPU, unless -m smoke)",
    "extended: beyond the core suite; run with -m extended",
)
_COLLECTION = pytest.StashKey[Collected]()
_HOOKS = "stepguard-hooks"


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Add the options. Remove old documents first: a conftest may end the process."""
    add_options(parser)
    started = pluginmanager.getplugin("pytestconfig").invocation_params
    paths = asked_documents(started.args)
    with contextlib.suppress(ModuleNotFoundError):  # _hooks() says which
        if paths:
            from stepguard.plugin.run_outputs import forget_documents

            forget_documents(started.dir, paths)


def pytest_configure(config: pytest.Config) -> None:
    """Read settings. Register markers and the bridge to pytest-benchmark."""
    read_settings(config)
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    # pytest-benchmark is active by its entry point, or by -p pytest_benchmark.plugin without
    # autoload.
    if any(map(config.pluginmanager.hasplugin, ("benchmark", "pytest_benchmark.plugin"))):
        config.pluginmanager.register(pytest_benchmark_bridge, "stepguard-bridge")
    config.stash[_COLLECTION] = Collected()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Begin at once if the run must report or fail even without a case."""
    option = session.config.option
    if option.perf_json or option.perf_report or option.perf_strict:
        _hooks(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Note a test when it is made: no other hook can have removed it yet."""
    item.config.stash[_COLLECTION].add(item)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Note a module that gave no tests."""
    report = yield
    collector.config.stash[_COLLECTION].add_report(report)
    return report


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Note the tests that pytest deselects, so that the run can say why it left out their cases."""
    for item in items:
        item.config.stash[_COLLECTION].deselected.add(item.nodeid)


# First: -k, -m and other plugins deselect tests in this hook, and all cases must be known before.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Begin the run if it has a case. Refuse tests and options that would pass unmeasured."""
    begun = config.pluginmanager.hasplugin(_HOOKS)
    if begun or config.stash[_COLLECTION].tests or any(map(lacks_perf, items)):
        # A module that failed to import hides its cases, so not all of them are known.
        _hooks(config).check(config, items, all_collected=not session.testsfailed)


def _hooks(config: pytest.Config) -> Any:
    """Return the module of hooks. Its import takes half a second, if a run has cases."""
    if (known := config.pluginmanager.getplugin(_HOOKS)) is not None:
        return known
    try:
        from stepguard.plugin import hooks
    except ModuleNotFoundError as error:
        # A pytest of another environment finds stepguard beside the conftest of a clone.
        raise pytest.UsageError(
            f"stepguard needs {error.name}, which is not installed for {sys.executable}: "
            f"source .venv/bin/activate, or see {as_typed('stepguard doctor')}"
        ) from None
    hooks.begin(config, config.stash[_COLLECTION])
    # If -p no: blocks these hooks, nothing would measure the cases.
    if config.pluginmanager.register(hooks, _HOOKS) is None:
        raise pytest.UsageError(f"-p no:{_HOOKS}: it is a part of stepguard; block all or none")
    return hooks


@pytest.fixture
def perf_sink() -> Sink:
    """Return a sink that drops what it gets. The bridge's overrides it, where it is registered."""
    return lambda samples_ms, info: None


@pytest.fixture
def perf(request: pytest.FixtureRequest, perf_sink: Sink) -> Iterator[Callable[[Case], None]]:
    """Measure a case with ``perf(case)``, compare it with its baseline and give the verdict.

    A test that has the fixture and measures nothing is an error: it would always pass.
    """
    hooks = request.config.pluginmanager.getplugin(_HOOKS)
    if hooks is None:  # a running test asked for the fixture by name: no options were checked
        raise pytest.UsageError("perf: take it as an argument of the test")
    yield from hooks.measuring(request.node, request.config, perf_sink)
