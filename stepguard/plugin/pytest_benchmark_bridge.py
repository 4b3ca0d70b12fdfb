"""Bridge to pytest-benchmark: it gets the samples that the workers took.

Its table, --benchmark-json, --benchmark-save and compare then work for our cases. It gets the
samples through its own timer: a round of ``pedantic`` reads the timer twice and subtracts. Our
timer answers 0 and then the sample, so round k lasts exactly sample k.

This module is registered as a plugin if pytest-benchmark is active. Its fixture perf_sink then
overrides that of plugin/__init__.py, which serves under ``-p no:benchmark``.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import pytest

from stepguard.plugin.declared_cases import Sink, asks_for_perf

# Options of pytest-benchmark that concern only its table.
ITS_TABLE = (
    "--benchmark-columns",
    "--benchmark-compare",  # and --benchmark-compare-fail
    "--benchmark-cprofile",
    "--benchmark-group-by",
    "--benchmark-histogram",
    "--benchmark-name",
    "--benchmark-sort",
    "--benchmark-time-unit",
    "--benchmark-verbose",
)
INFO = "stepguard"  # the key of stepguard's part of pytest-benchmark's documents
Groups = list[tuple[str | None, list[dict[str, Any]]]]


class ReplayTimer:
    """A timer whose two readings in a round differ by the round's sample."""

    __name__ = "stepguard-replay"  # pytest-benchmark prints a timer by this name

    def __init__(self) -> None:
        self._samples_s: list[float] = []
        self._calls = 0

    def load(self, samples_s: Sequence[float]) -> None:
        """Set the rounds to replay, in seconds each."""
        self._samples_s = list(samples_s)
        self._calls = 0

    def __call__(self) -> float:
        index, after = divmod(self._calls, 2)
        self._calls += 1
        return self._samples_s[index] if after else 0.0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Give the benchmark of each test of ours the replay timer, by a mark before all others."""
    for item in filter(asks_for_perf, items):
        closest = item.get_closest_marker("benchmark")
        # Our mark hides the user's, so it takes over the user's values.
        options: dict[str, Any] = dict(closest.kwargs) if closest else {}
        options["timer"] = ReplayTimer()
        item.add_marker(pytest.mark.benchmark(**options), append=False)


@pytest.hookimpl(wrapper=True)
def pytest_benchmark_group_stats(config: pytest.Config) -> Generator[None, Groups, Groups]:
    """Leave cases out of pytest-benchmark's table, unless the command has its options."""
    groups = yield
    arguments = config.invocation_params.args
    wanted = any(str(argument).startswith(ITS_TABLE) for argument in arguments)
    shown: Groups = []
    for name, rows in groups:
        kept = [row for row in rows if wanted or INFO not in row["extra_info"]]
        for row in (row for row in kept if INFO in row["extra_info"]):
            row["name"] = row["extra_info"][INFO]["case"]
        shown += [(name, kept)] if kept else []
    return shown


@pytest.fixture
def perf_sink(request: pytest.FixtureRequest, benchmark: Any) -> Iterator[Sink]:
    """Pass samples to the test's benchmark fixture."""
    timer = request.node.get_closest_marker("benchmark").kwargs["timer"]
    fed = False

    def feed(samples_ms: Sequence[float], info: Mapping[str, object]) -> None:
        nonlocal fed
        fed = True
        benchmark.extra_info.update(info)
        samples_s = [ms / 1e3 for ms in samples_ms]
        # Without samples the case has no row in pytest-benchmark's table. A disabled benchmark
        # needs none.
        benchmark.disabled = benchmark.disabled or not samples_s
        timer.load(samples_s)
        # No warm-up, and one iteration a round: then the timer is read exactly twice a sample.
        benchmark.pedantic(lambda: None, rounds=max(1, len(samples_s)), iterations=1)

    yield feed
    # If nothing was measured, the test itself says so. Without this line pytest-benchmark would
    # also warn of an unused fixture.
    benchmark.skipped = not fed
