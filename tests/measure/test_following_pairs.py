"""While a pair is built the next ones import, unless hardly another one will be needed."""

from threading import Event
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from builders import evidence, replace
from comparisons import alike, comparison_of

from stepguard.core.case import Case
from stepguard.core.profile import Parts, Profile, StepIdentity
from stepguard.judge.rule_book import next_pair
from stepguard.measure import pair, pair_run

STEP, NONE = (250e3,) * 6, (0.0,) * 6
NEXT_CASE = [("first launch", "base")]  # of HEAD, and of the other tree
PROFILE = Profile("NVIDIA H200", 1, Parts(STEP, STEP, NONE, NONE, NONE), (), ())


def counted(identity):
    """Two sides that were counted and not timed; of the second the step is ``identity``."""
    found = comparison_of([], [])
    counts = replace(evidence().counts, profile=PROFILE, identity=StepIdentity({"kernels": "a"}))
    head = replace(found.head, counts=counts)
    base = replace(found.base, counts=replace(counts, identity=identity))
    return replace(found, head=head, base=base)


@pytest.mark.parametrize(
    ("identity", "started"),
    [
        (StepIdentity({"kernels": "a"}), NEXT_CASE),
        (StepIdentity({"kernels": "b"}), [2, 3]),
        (StepIdentity(problem="it launches a graph"), [2, 3]),
    ],
)
def test_a_step_that_is_the_same_starts_no_further_pair(monkeypatch, identity, started):
    """But the next case's first launches; what else differs, or is not known, will need pairs."""
    case = Case("x", "a:b", gates=("step_ms",))
    assert started_beside(monkeypatch, case, 1, counted(identity)) == started


def test_a_step_that_one_pair_did_not_decide_has_the_next_ones_ready(monkeypatch):
    """Its pair was odd, or HEAD is compared with itself: then there are pairs as ever."""
    same, one = counted(StepIdentity({"kernels": "a"})), alike([0.0])
    head = replace(same.head, launches=one.head.launches)
    base = replace(same.base, launches=one.base.launches)
    case = Case("x", "a:b", gates=("step_ms",))
    assert started_beside(monkeypatch, case, 2, replace(same, head=head, base=base)) == [3, 4]


def test_a_cpus_case_that_gates_no_time_has_no_pair_ready_behind_the_first(monkeypatch):
    """One is enough where it shows no slowdown."""
    case = Case("x", "a:b", device="cpu", gates=("graph_breaks",))
    found = comparison_of([], [])
    head, base = (replace(side, gates=case.gates) for side in (found.head, found.base))
    assert started_beside(monkeypatch, case, 1, replace(found, head=head, base=base)) == NEXT_CASE


def started_beside(monkeypatch, case, number, found):
    """Return what is started while pair ``number`` is built: pairs, or the next case's launches."""

    def pair(number, *rest, **options):
        made.append(number)
        return SimpleNamespace(launches=[])

    made = []
    monkeypatch.setattr(pair_run, "Pair", pair)
    head = SimpleNamespace(start_ahead=lambda label, base: made.append((label, base)))
    run = pair_run._PairRun(case, [head, "base"], "main", pair_run.PairsWanted(60.0))
    run._start_following(number, next_pair(found))
    return made


def test_the_stage_is_shown_until_both_sides_are_built(monkeypatch):
    """The slower build, too: a progress line does not stop."""
    first_is_built, shown, ticks = Event(), Event(), []

    class Launch:
        """The base's launch is built once the stage was shown some times after HEAD's."""

        expect = staticmethod(lambda *launches: None)

        def __init__(self, workers, label, warmup, standby):
            self.label = label

        def build(self, quietly):
            if "head" in self.label:
                first_is_built.set()
            else:
                assert shown.wait(10), "nothing is shown while the second side is built"

        def park(self):
            pass

    def tick():
        ticks.extend([0] * first_is_built.is_set())
        if len(ticks) > 3:
            shown.set()

    progress = MagicMock(tick=tick)
    monkeypatch.setattr(pair, "RunningLaunch", Launch)
    timing = SimpleNamespace(warmup=None)
    pair.Pair(1, [SimpleNamespace(progress=progress)] * 2, timing).build(at_once=True)
