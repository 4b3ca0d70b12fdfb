"""The pytest plugin's entry: the options, the ``perf`` fixture, and whether a run has cases.

    @cases(Case("124m", "model.workloads:forward", {"size": "124m"}))
    def test_forward(perf, case):
        perf(case)

It is loaded in every project of an environment, so that it imports next to nothing: the engine and
the hooks of hooks.py come with the first case that pytest collects.
"""

from collections.abc import Callable, Iterator

import pytest

from stepguard.case import Case
from stepguard.plugin.benchmark import Bridge, Sink, WithBenchmark, WithoutBenchmark
from stepguard.plugin.items import asks_for_perf, cases, lacks_perf, refuse_without_perf
from stepguard.plugin.options import add_options, documents_wanted

__all__ = ["cases"]

MARKERS = (
    "gpu: needs a GPU",
    "multi_gpu: needs several GPUs",
    "smoke: runs on a CPU; gates counters only (skipped where there is a GPU, unless -m smoke)",
    "extended: beyond the core suite; run with -m extended",
)
_BRIDGE = pytest.StashKey[Bridge]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all prefixed."""
    add_options(parser.getgroup("stepguard", "performance regression gate"))


def pytest_configure(config: pytest.Config) -> None:
    """Register markers and the bridge to pytest-benchmark."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    # By its entry point, or by -p pytest_benchmark.plugin where autoload is off.
    active = map(config.pluginmanager.hasplugin, ("benchmark", "pytest_benchmark.plugin"))
    bridge = config.stash[_BRIDGE] = WithBenchmark() if any(active) else WithoutBenchmark()
    config.pluginmanager.register(bridge, "stepguard-bridge")


# First: -k, -m and other plugins deselect in this hook, and all cases should be known.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Refuse what would pass unmeasured; begin if there is a case, or a document to write."""
    # xdist hides a worker's usage errors: there each test is refused in its turn, as an error.
    if not hasattr(config, "workerinput"):
        for item in items:
            refuse_without_perf(item)
    ours = any(asks_for_perf(item) or lacks_perf(item) for item in items)
    if not (ours or documents_wanted(config.option)):
        return
    from stepguard.plugin import hooks  # half a second, which other projects do not pay

    config.pluginmanager.register(hooks, "stepguard-hooks")
    # A module that failed to import hides its cases, so that not all of them are known.
    hooks.begin(config, config.stash[_BRIDGE], items, all_collected=not session.testsfailed)


@pytest.fixture
def perf(request: pytest.FixtureRequest, perf_sink: Sink) -> Iterator[Callable[[Case], None]]:
    """Measure a case with ``perf(case)``, compare it with its baseline and give the verdict.

    A test that has the fixture and measures nothing is an error: it would pass whatever happens.
    """
    hooks = request.config.pluginmanager.getplugin("stepguard-hooks")
    if hooks is None:  # asked for by its name, in the middle of a test: its options are unchecked
        raise pytest.UsageError("perf: take it as an argument of the test")
    yield from hooks.measuring(request.node, request.config, perf_sink)
