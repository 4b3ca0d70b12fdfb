"""The next case's first launch imports while a case's last one runs, and is taken if it fits."""

import os
import resource
import shutil
import signal
import time
from contextlib import ExitStack
from dataclasses import replace

import factories
import pytest

from stepguard import Case
from stepguard.core.comparison import Question
from stepguard.judge.rule_book import NOTHING, Need
from stepguard.machine.lifeline import alive
from stepguard.measure import driver
from stepguard.measure.case_workers import Ahead, CaseWorkers


def case(name, workload="factories:linear", launches=1):
    """A case on a CPU that gates a counter."""
    return Case(name, workload, {}, "cpu", 1, launches, ("graph_breaks",))


@pytest.fixture
def place(bench, tmp_path):
    """A bench that holds what is started ahead, from a tree of its own."""
    shutil.copy(factories.__file__, tmp_path)
    place = replace(bench, root=tmp_path, ahead=Ahead())
    yield place
    place.ahead.close()


def spec_of(case, place):
    """The specification of a case's first launch."""
    return CaseWorkers(case, place, print, None, ExitStack()).spec("launch 1")


def waiting(place, case, *others):
    """The specification of a case's first launch, and its group, which waits and has imported. So
    do those of other benches.
    """
    specs = [spec_of(case, each) for each in (place, *others)]
    place.ahead.begin(specs, os.environ)
    while not place.ahead.ready():
        time.sleep(0.05)
    return specs[0], place.ahead._groups[0]


def test_the_next_case_takes_what_was_started_for_it(place, monkeypatch):
    """The very process: it imported torch before its case began, and nothing that may be written
    until then, and ends with it. It starts beside a first launch that turns out to be enough.
    """
    module, following = place.root / "late.py", case("second", "late:linear")
    module.write_text("def linear(device):\n    raise ValueError('of the case before')\n")
    place.ahead.expect(following)
    first = Need(launch=True, last=True)
    needed = lambda asked: NOTHING if asked.now.launches else first  # noqa: E731
    monkeypatch.setattr(driver, "need", needed)
    before = driver.measure(case("first", launches=2), place, Question()).now
    (held,) = place.ahead._groups
    assert len(before.launches) == before.planned_launches == 1
    assert not before.faults and held.spec.folder.parent.name == following.slug and not held.pids
    module.write_text("from factories import linear\n")
    place.ahead.expect(None)
    found = driver.measure(following, place, Question()).now
    assert not found.faults and len(found.launches) == 1
    assert held.pids and not any(alive(pid) for pid in held.pids.values())
    assert not place.ahead._groups


def test_another_case_takes_nothing(place):
    """Of a test that was skipped, or ran in another order: what is held waits for its case."""
    _, held = waiting(place, case("second"))
    third = spec_of(case("third"), place)
    assert place.ahead.take(third, os.environ) is None
    assert place.ahead._groups == [held] and held.imported()


@pytest.mark.parametrize("change", ["environment", "limit", "agent"])
def test_what_is_not_as_it_would_be_now_is_not_taken(place, monkeypatch, change):
    """Another environment, another limit of resources, or a process that died since. It ends."""
    spec, held = waiting(place, case("second"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if change == "environment":
        monkeypatch.setenv("NEW_SINCE", "1")
    elif change == "limit":
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    else:
        os.kill(held._agent.pid, signal.SIGKILL)
        held._agent.wait()
    taken = place.ahead.take(spec, os.environ)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert taken is None and held._agent.poll() is not None


def test_each_tree_takes_its_own_launch(place, tmp_path_factory):
    """HEAD's waits on while the base's is taken, and is not started again if that died."""
    other = replace(place, root=tmp_path_factory.mktemp("base"))
    spec, held = waiting(place, case("second"), other)
    specs, base = [spec, replace(spec, root=other.root)], place.ahead._groups[1]
    place.ahead.begin(specs, os.environ)
    assert place.ahead._groups == [held, base]
    with place.ahead.take(specs[1], os.environ) as taken:
        assert taken is base and place.ahead._groups == [held]
    place.ahead.begin(specs, os.environ)
    (kept, new) = place.ahead._groups
    assert kept is held and new is not base
    os.kill(new._agent.pid, signal.SIGKILL)
    new._agent.wait()
    assert place.ahead.take(specs[1], os.environ) is None
    assert place.ahead._groups == [held] and held.imported() and place.ahead.ready()


def test_what_no_case_took_ends_with_the_run(place):
    """Nothing is left behind; closing twice is as closing once."""
    _, held = waiting(place, case("second"))
    place.ahead.close()
    place.ahead.close()
    assert held._agent.poll() is not None and place.ahead.ready()


def test_an_interrupt_while_one_launch_ends_leaves_none_behind(
    place, tmp_path_factory, monkeypatch
):
    """The user is impatient; the other tree's launch is ended all the same, and both are gone."""
    other = replace(place, root=tmp_path_factory.mktemp("other"))
    shutil.copy(factories.__file__, other.root)
    waiting(place, case("next"), other)
    first, last = place.ahead._groups
    end = last.close  # the one that is ended first

    def interrupted():
        end()
        raise KeyboardInterrupt

    monkeypatch.setattr(last, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        place.ahead.close()
    assert all(group._agent.poll() is not None for group in (first, last))
    assert not place.ahead._groups
