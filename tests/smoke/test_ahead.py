"""The next case's first launch imports while a case's last one runs, and is taken if it fits."""

import os
import resource
import shutil
import signal
import time
from dataclasses import replace

import factories
import pytest

from stepguard import Case
from stepguard.launch.diagnosis import alive
from stepguard.launch.group import WorkerGroup
from stepguard.measure import workers
from stepguard.measure.ahead import Ahead
from stepguard.measure.launches import measure_launches


def case(name, workload="factories:linear", launches=1):
    """A case on a CPU that gates a counter."""
    return Case(name, workload, {}, "cpu", 1, launches, ("graph_breaks",))


@pytest.fixture
def measured(bench, tmp_path):
    """Measures a case with another one ahead; returns its evidence, and what is held then, which
    has imported.
    """
    bench = replace(bench, root=tmp_path, ahead=Ahead())
    shutil.copy(factories.__file__, tmp_path)

    def measure(now, following):
        bench.ahead.expect(following)
        found = measure_launches(now, bench)
        assert not found.faults, found.faults
        while not bench.ahead.ready():
            time.sleep(0.05)
        return found, bench.ahead._group

    yield measure
    bench.ahead.close()


def test_the_next_case_takes_what_was_started_for_it(measured, tmp_path):
    """The very process: it imported torch before its case began, and nothing that may be written
    until then, and ends with it.
    """
    module, following = tmp_path / "late.py", case("second", "late:linear")
    module.write_text("def linear(device):\n    raise ValueError('of the case before')\n")
    _, held = measured(case("first", launches=2), following)
    assert held.spec.folder.parent.name == following.slug and not held.pids
    module.write_text("from factories import linear\n")
    found, last = measured(following, None)
    assert held.pids and last is None and len(found.launches) == 1
    assert not any(alive(pid) for pid in held.pids.values())


def test_another_case_has_a_launch_of_its_own(measured):
    """Of a test that was skipped, or ran in another order: what is held waits for its case."""
    _, held = measured(case("first"), case("second"))
    found, still = measured(case("third"), case("second"))
    assert len(found.launches) == 1 and still is held and held.imported()


@pytest.mark.parametrize("change", ["environment", "limit", "agent"])
def test_what_is_not_as_it_would_be_now_is_not_taken(measured, monkeypatch, change):
    """Another environment, another limit of resources, or a process that has died since."""
    following = case("second")
    _, held = measured(case("first"), following)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if change == "environment":
        monkeypatch.setenv("NEW_SINCE", "1")
    elif change == "limit":
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    else:
        os.kill(held._agent.pid, signal.SIGKILL)
        held._agent.wait()
    began = []
    monkeypatch.setattr(
        workers, "WorkerGroup", lambda spec: began.append(spec) or WorkerGroup(spec)
    )
    found, _ = measured(following, None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(found.launches) == len(began) == 1


def test_a_case_that_cannot_be_imported_breaks_its_own_alone(measured, bench):
    """The case before it is sound, and waits for nothing that will not come."""
    broken = case("broken", workload="no_such_module:linear")
    measured(case("first"), broken)
    assert measure_launches(broken, bench).faults[0].code == "BAD_WORKLOAD"


def test_what_no_case_took_ends_with_the_run(measured, bench):
    """Nothing is left behind; closing twice is as closing once."""
    ahead = Ahead()
    ahead.expect(case("second"))
    measure_launches(case("first"), replace(bench, ahead=ahead))
    agent = ahead._group._agent
    ahead.close()
    ahead.close()
    assert agent.poll() is not None and ahead.ready()
