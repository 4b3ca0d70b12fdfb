"""SLOWER of the same trees under the same conditions stays; what passed is measured again."""

import numpy as np
import pytest
from builders import replace
from comparisons import alike

from stepguard.core.comparison import from_json
from stepguard.core.evidence import Fault, to_json
from stepguard.core.margins import MARGINS
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.judge_pairs import judge_ab
from stepguard.judge.pair_statistics import bounds
from stepguard.judge.sequential_plan import MOST_PAIRS, may_decide
from stepguard.judge.slower_stays import changed_condition, says_slower, still_slower

QUIET = (0.05, -0.05, 0.02, -0.02)
SLOW = (1.0, 1.1, 0.9, 1.05, 0.95, 1.0)
OTHER = "c" * 40


def compared(ratios_pct, **changes):
    """Two commits in pairs of these log-ratios, in percent."""
    found = alike(ratios_pct)
    base = replace(found.base, commit="b" * 40)
    return replace(found, base=base, against="main", **changes)


def now(**changes):
    """HEAD's evidence of a run that has counted and not timed."""
    return replace(compared([]).head, **changes)


def test_slower_stays():
    """The verdict of the run before, of this run's commits, and with the day of its pairs."""
    before = compared(SLOW)
    head = now(commit=OTHER, date="2026-12-01T00:00:00+00:00")  # an amended message
    found = still_slower([before], head, "d" * 40)
    assert judge_ab(found).status is judge_ab(before).status is Status.SLOWER
    assert (found.head.commit, found.base.commit, found.head.date) == (OTHER, "d" * 40, head.date)
    assert found.head.launches == before.head.launches and found.stays == before.head.date
    again = still_slower([found, before], now(), OTHER)
    assert again.stays == before.head.date, "the day on which it was measured"
    assert from_json(to_json(found), "x") == found


@pytest.mark.parametrize(
    ("ratios_pct", "out_of_time"),
    [
        (QUIET, False),  # same
        (tuple(-one for one in SLOW), False),  # FASTER
        (SLOW[:5], True),  # fewer than six prove nothing
        ((1.2, -0.4) * 12, False),  # all that there are, and undecided
        ((), False),  # it timed nothing
    ],
)
def test_whatever_else_an_earlier_run_said_is_measured_again(ratios_pct, out_of_time):
    """It has no say: it neither passes nor shortens what comes."""
    assert still_slower([compared(ratios_pct, out_of_time=out_of_time)], now(), OTHER) is None


def test_what_passed_between_does_not_end_it():
    """Of two runs at the same time the one that says SLOWER counts."""
    quiet, slow = compared(QUIET), compared(SLOW)
    for earlier in ([quiet, slow], [slow, quiet]):
        assert still_slower(earlier, now(), OTHER) is not None


def test_what_was_measured_afresh_sets_aside_what_was_before_it():
    """Whatever it says itself; SLOWER again stays in its turn."""
    slow, fresh = compared(SLOW), compared(QUIET, fresh=True)
    assert still_slower([fresh, slow], now(), OTHER) is None
    assert still_slower([compared(QUIET), fresh, slow], now(), OTHER) is None
    assert still_slower([slow, fresh], now(), OTHER) is not None
    assert still_slower([compared(SLOW, fresh=True)], now(), OTHER) is not None


def test_a_run_with_a_fault_says_nothing():
    """Its pairs may be of another machine state."""
    before = compared(SLOW)
    failed = replace(before.head, faults=(Fault(Reason.THROTTLED, "hot", "", "pair 7"),))
    assert says_slower(before) and not says_slower(replace(before, head=failed))


def of_other_machine(**changes):
    """HEAD's evidence now, of another fingerprint."""
    found = now()
    return replace(found, fingerprint=replace(found.fingerprint, **changes))


@pytest.mark.parametrize(
    ("head", "why"),
    [
        (of_other_machine(device_uuid="GPU-9"), "device_uuid "),
        (of_other_machine(driver="1"), "driver "),
        (of_other_machine(torch="9.9"), "torch "),
        (of_other_machine(cpu_threads=3), "cpu_threads "),
        (of_other_machine(environment={"CUBLAS_X": "1"}), "CUBLAS_X"),
        (now(fingerprint=None), "machine is not known"),
        (now(margins_pct=(0.1, 0.4)), "margins_pct (0.2, 0.5) -> (0.1, 0.4)"),
        (now(case=now().case | {"compile": False}), "compile "),
        (now(dirty=("a.py",)), "no commit, a.py"),
        (now(untracked=("b.py",)), "no commit, b.py"),
        (now(tree_changed=True), "changed while"),
    ],
)
def test_it_stays_until_something_changes(head, why):
    """Code, machine, software, environment or margins; of what is in no commit nobody knows."""
    assert why in changed_condition(compared(SLOW), head)
    assert still_slower([compared(SLOW)], head, OTHER) is None


@pytest.mark.parametrize("side", ["head", "base"])
def test_an_earlier_run_of_no_commit_has_no_say(side):
    """What its trees were nobody knows."""
    before = compared(SLOW)
    loose = replace(getattr(before, side), dirty=("a.py",))
    assert still_slower([replace(before, **{side: loose})], now(), OTHER) is None


def stubborn(draw, true_pct, sd_pct, pairs):
    """Run again until it is green, twelve times at most, each time of up to so many new pairs;
    SLOWER stays. Tell whether it passed.
    """
    for _ in range(12):
        ratios = (true_pct + sd_pct * draw.standard_normal(pairs)) / 100
        for count in range(1, pairs + 1):
            if not may_decide(count, last=count == pairs):
                continue
            said = bounds(ratios[:count].tolist()).status(MARGINS)
            if said is not Status.INCONCLUSIVE:
                return said is not Status.SLOWER
    return False


@pytest.mark.parametrize(
    ("true_pct", "sd_pct", "pairs", "least_pct", "most_pct"),
    [
        (0.5, 0.2, MOST_PAIRS, 0.0, 1.3),
        (0.5, 0.5, MOST_PAIRS, 2.5, 7.0),
        (0.5, 0.5, 10, 12.0, 20.0),
        (0.5, 0.5, 6, 12.0, 20.0),
        (1.0, 0.2, MOST_PAIRS, 0.0, 0.3),
    ],
)
def test_who_runs_it_until_it_is_green(true_pct, sd_pct, pairs, least_pct, most_pct):
    """As studies/judge_power states: what a slowdown's author gets through by patience."""
    draw, users = np.random.default_rng(20261125), 600
    passed = sum(stubborn(draw, true_pct, sd_pct, pairs) for _ in range(users))
    assert least_pct <= 100 * passed / users <= most_pct
