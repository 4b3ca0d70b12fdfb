"""What the launches of a case do, in which order, where nothing is real but the plan."""

from types import SimpleNamespace

import pytest
from builders import evidence, launch

import stepguard.measure.launches
import stepguard.measure.pair
from stepguard import Case
from stepguard.core.evidence import Difference
from stepguard.core.question import Question
from stepguard.judge.rule_book import NOTHING, Need, need
from stepguard.measure import beside_base
from stepguard.measure.launches import _CaseRun

GATES = ("step_ms", "graph_breaks", "sync_overhead_pct")


class World:
    """Stands in for launches, and keeps what each was asked for."""

    def __init__(self, fits, ends):
        self.fits = fits  # the eager step fits into memory
        self.ends = ends  # label of the launch in whose warm-up the run is ended
        self.asked = {}
        self.closed = []
        self.may_end = []  # warm-ups, as far as imports are concerned
        self.ahead = []  # the launch that ran when the next case's began to import

    def running(self):
        """The launch that was asked for something last."""
        return [label for label, asked in self.asked.items() if asked][-1]

    def expect(self, *launches):
        """These may be on the GPUs."""

    def __call__(self, workers, label, protocol):
        """A launch that imports from now on."""
        asked = self.asked.setdefault(label, [])
        group = SimpleNamespace(close=lambda: self.closed.append(label))

        def build():
            asked.append("build")
            return [{"tokens_per_step": 10}]

        def warm_up(until):
            asked.append("warm-up")
            if label == self.ends:
                raise KeyboardInterrupt
            self.may_end.append(until())

        def count():
            asked.append("count")
            made.ended = not self.fits

        made = SimpleNamespace(
            asked=asked,
            group=group,
            hello=lambda: asked.append("hello"),
            ready=lambda: True,
            build=build,
            workers=workers,
            label=label,
            protocol=protocol,
            ended=False,
            park=lambda: asked.append("park"),
            warm_up=warm_up,
            warmup=SimpleNamespace(step_s=0.25),
            timed_block=lambda steps, of: asked.append("block"),
            count=count,
            count_again=lambda: asked.append("count again"),
            profile=lambda lead: asked.append("profile"),
            read_kernels=lambda: None,
            locate=lambda: asked.append("locate"),
            leave=lambda: asked.append("leave"),
            measured=lambda index: launch(250.0, index),
        )
        return made


def difference(name, launch, pairs, enough):
    """One that took no time."""
    launch.asked.append(name)
    assert enough is None or enough(Difference(name, ((1.0, 1.0),)))
    return Difference(name, ((1.0, 1.0),))


FIRST = Need(launch=True)


def needs_all(found):
    """What the judge needs of a case that is recorded."""
    return need(Question(found, everything=True))


def certain(found, difference):
    """A difference is certain at once; it is asked while the newest launch still runs."""
    return found.launches[-1].index == len(found.launches)


@pytest.fixture
def run(monkeypatch):
    """Measures a case of so many launches on a device; the world, and the evidence."""

    def run(
        device="cuda",
        launches=2,
        fits=True,
        imported=True,
        needs=(),
        ends="",
        **changes,
    ):
        world = World(fits, ends)
        for module in (stepguard.measure.launches, stepguard.measure.pair):
            monkeypatch.setattr(module, "RunningLaunch", world)
        monkeypatch.setattr(stepguard.measure.launches, "measure_difference", difference)
        gates = GATES if device == "cuda" else GATES[:2]
        case = Case("one", "work:step", {}, device, gates=gates, launches=launches, **changes)
        counts = evidence().counts
        workers = SimpleNamespace(case=case, launches=[], faults=[], counts=counts)
        workers.note_end = workers.faults.append
        workers.ahead = SimpleNamespace(ready=lambda: imported)
        workers.start_ahead = lambda label: world.ahead.append(world.running())
        workers.evidence = lambda **how: evidence(launches=tuple(workers.launches), **how)
        answers = iter(needs)
        need = (lambda found: next(answers)) if needs else needs_all
        measured = _CaseRun(workers, need, certain)
        measured.measure()
        assert bool(workers.faults) == bool(ends)
        return world, measured.evidence()

    return run


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("launches", [2, 3])
def test_the_first_launch_counts_before_anything_else(run, device, launches):
    """Then each launch counts the same steps, whatever its warm-up does. What slows down later
    steps comes last. Before the warm-up it gives back memory that other launches do not have.
    """
    world, found = run(device, launches)
    first = world.asked["launch 1"]
    order = ["build", "count", "park", "warm-up", "block", "locate", "leave"]
    assert [first.index(what) for what in order] == sorted(first.index(what) for what in order)
    assert ("profile" in first) == (device == "cuda")
    assert sum("count" in asked for asked in world.asked.values()) == 1
    assert [one.index for one in found.launches] == list(range(1, launches + 1))


def test_a_launch_that_the_eager_step_ended_is_started_anew_and_timed(run):
    """The other one runs the same steps, without the one that does not fit."""
    world, found = run(fits=False)
    asked = world.asked["launch 1"]
    counted = asked[: asked.index("park")]
    assert counted == ["hello", "build", "count", "hello", "build", "count again"]
    assert asked.count("warm-up") == 1 and "locate" in asked
    assert [one.index for one in found.launches] == [1, 2]


def test_what_is_in_doubt_is_counted_in_one_more_launch(run):
    """It is not timed."""
    doubt = Need(counters=("graph_breaks",))
    world, found = run(needs=(FIRST, doubt, Need(launch=True, last=True), NOTHING))
    assert [label for label, asked in world.asked.items() if "count" in asked] == [
        "launch 1",
        "counting launch",
    ]
    assert "block" not in world.asked["counting launch"]
    assert [one.index for one in found.launches] == [1, 2]


@pytest.mark.parametrize("launches", [2, 3])
def test_the_first_launch_may_be_enough(run, launches):
    """The others are not even started. The next case imports meanwhile."""
    world, found = run(launches=launches, needs=(Need(launch=True, last=True), NOTHING))
    assert {*world.asked} == {"launch 1"}
    assert len(found.launches) == found.planned_launches == 1
    assert world.ahead == ["launch 1"]


def test_a_launch_that_imported_for_nothing_is_ended(run):
    """Two of three were enough."""
    world, found = run(launches=3, needs=(FIRST, FIRST, NOTHING))
    assert len(found.launches) == found.planned_launches == 2
    assert world.closed == ["launch 3"]


@pytest.mark.parametrize("launches", [2, 3])
def test_the_next_case_imports_while_the_last_planned_launch_runs(run, launches):
    """Nobody waits for an import then."""
    world, _ = run(launches=launches)
    assert world.ahead == [f"launch {launches}"]


@pytest.mark.parametrize("imported", [False, True])
def test_a_warm_up_waits_for_the_next_cases_import(run, imported):
    """It would disturb timed blocks."""
    world, _ = run(imported=imported)
    assert world.may_end == [imported] * 2


def test_an_end_keeps_the_launches_before_it(run):
    """Ctrl-C in the second of three launches: the first one counts, and no other runs."""
    world, found = run(launches=3, ends="launch 2")
    assert [one.index for one in found.launches] == [1]
    assert world.asked["launch 2"][-1] == "warm-up" and not world.asked["launch 3"]


def test_cases_share_the_time_that_is_left(monkeypatch):
    """A case that needs less than its share leaves the rest to the others; one that needs all of
    the time leaves nothing.
    """
    clock_s = iter([50.0, 150.0, 200.0, 1100.0])
    monkeypatch.setattr(beside_base.time, "monotonic", lambda: next(clock_s))
    budget = beside_base.Budget(900.0, 3)
    assert budget.share_s() == 300.0
    with budget.charged():
        pass
    assert budget.share_s() == 400.0
    with budget.charged():
        pass
    assert budget.share_s() == 0.0
