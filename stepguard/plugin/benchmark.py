"""Bridge to pytest-benchmark: it is given the samples that the workers took.

Its table, --benchmark-json, --benchmark-save and compare then work on our cases. The samples reach
it through its own timer: a round of ``pedantic`` reads the timer twice and subtracts, so a timer
that answers 0 and then the sample makes round k last exactly sample k.

Two classes, one of which is registered when pytest is configured, keep ``-p no:benchmark`` working.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import pytest

# What 5.2 and older have for no --benchmark-columns.
_ALL = ["min", "max", "mean", "stddev", "median", "iqr", "outliers", "ops", "rounds", "iterations"]
# Options that say how its table is made, or what only its table does, with their usual values.
ITS_TABLE: tuple[tuple[str, Any], ...] = (
    ("columns", None),
    ("compare", []),
    ("compare_fail", None),
    ("cprofile", None),
    ("group_by", "group"),
    ("histogram", []),
    ("name", "normal"),
    ("sort", "min"),
    ("time_unit", None),
    ("verbose", False),
)
INFO = "stepguard"  # the key under which its documents have what is ours
Groups = list[tuple[str | None, list[dict[str, Any]]]]
Sink = Callable[[Sequence[float], Mapping[str, Any]], None]  # samples [ms], what describes them


class ReplayTimer:
    """A timer whose successive pairs of readings lie one sample apart."""

    __name__ = "stepguard-replay"  # pytest-benchmark prints a timer by this

    def __init__(self) -> None:
        self._samples_s: list[float] = []
        self._calls = 0

    def load(self, samples_s: Sequence[float]) -> None:
        """Take the rounds to replay, in seconds each."""
        self._samples_s = list(samples_s)
        self._calls = 0

    def __call__(self) -> float:
        """Return 0 before a round, its sample after it."""
        index, after = divmod(self._calls, 2)
        self._calls += 1
        return self._samples_s[index] if after else 0.0


class WithBenchmark:
    """Used when pytest-benchmark is active."""

    def prepare(self, item: pytest.Item) -> None:
        """Give the item's benchmark our timer; prepended, since the closest mark wins."""
        closest = item.get_closest_marker("benchmark")
        # Ours will hide the user's mark, so it takes over what that one says.
        options: dict[str, Any] = dict(closest.kwargs) if closest else {}
        options["timer"] = ReplayTimer()
        item.add_marker(pytest.mark.benchmark(**options), append=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_benchmark_group_stats(
        self, config: pytest.Config
    ) -> Generator[None, Groups, Groups]:
        """Leave cases out of its table, where our own has them, unless the user asks for what is
        in it alone; there they are called as in ours.
        """
        groups = yield
        wanted = is_asked_for(config)
        shown: Groups = []
        for name, rows in groups:
            kept = [row for row in rows if wanted or INFO not in row["extra_info"]]
            for row in (row for row in kept if INFO in row["extra_info"]):
                row["name"] = row["extra_info"][INFO]["case"]
            shown += [(name, kept)] if kept else []
        return shown

    @pytest.fixture
    def perf_sink(self, request: pytest.FixtureRequest, benchmark: Any) -> Iterator[Sink]:
        """Hand samples to the test's benchmark fixture."""
        timer = request.node.get_closest_marker("benchmark").kwargs["timer"]
        fed = False

        def feed(samples_ms: Sequence[float], info: Mapping[str, Any]) -> None:
            nonlocal fed
            fed = True
            benchmark.extra_info.update(info)
            samples_s = [ms / 1e3 for ms in samples_ms]
            # Without samples there is no row for its table; disabled, it takes that quietly.
            benchmark.disabled = benchmark.disabled or not samples_s
            timer.load(samples_s)
            # No warm-up and one iteration a round: the timer is then read exactly twice a sample.
            benchmark.pedantic(lambda: None, rounds=max(1, len(samples_s)), iterations=1)

        yield feed
        # Where nothing is measured the test says so: a warning that it was not used adds nothing.
        benchmark.skipped = not fed


class WithoutBenchmark:
    """Used under ``-p no:benchmark``."""

    def prepare(self, item: pytest.Item) -> None:
        """Prepare nothing."""

    @pytest.fixture
    def perf_sink(self) -> Sink:
        """Return a sink that drops what it is given."""
        return lambda samples_ms, info: None


def is_asked_for(config: pytest.Config) -> bool:
    """Return whether an option asks for pytest-benchmark's own table."""
    given = {name: config.getoption(f"benchmark_{name}", usual) for name, usual in ITS_TABLE}
    if given["columns"] == _ALL:
        given["columns"] = None
    return any(given[name] != usual for name, usual in ITS_TABLE)


Bridge = WithBenchmark | WithoutBenchmark
