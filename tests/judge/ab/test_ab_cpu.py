"""Step times of a CPU beside another revision: a slowdown fails, a busy machine does not."""

import math

import numpy as np
import pytest
from builders import evidence, replace
from test_judge_pairs import decided, metric, turns

from stepguard import Case
from stepguard.core.comparison import judged, judges_ungated_time
from stepguard.core.margins import MARGINS_PCT
from stepguard.core.metrics import PYTHON_LINES
from stepguard.core.reasons import Reason
from stepguard.core.site import Site
from stepguard.core.status import Status
from stepguard.judge.judge_pairs import (
    judge_ab,
    wants_another_pair,
    wants_every_pair,
)
from stepguard.judge.rules import mean_on_cpu
from stepguard.report.verdict_text import evidence_lines, headline, times

QUICK = {"floor_flops_per_step": 0.0, "margins_pct": MARGINS_PCT["cpu"]}
HOW = {"head": QUICK, "base": QUICK, "glance": True}


def outcome(draw, pct, sd_pct, modes=0.0):
    """The verdict on pairs with a true change of so many percent, and how many it took; in a fifth
    of launches other work makes the whole launch slower by ``modes``.
    """
    ratios = []
    while True:
        ratio = math.log1p(pct / 100) + sd_pct / 100 * draw.standard_normal()
        if modes:
            head, base = draw.random(2) < 0.2
            ratio += math.log1p(modes / 100) * (int(head) - int(base))
        ratios.append(ratio)
        found = turns(ratios, **HOW)
        if not wants_another_pair(found):
            return judge_ab(found), len(ratios)


def test_a_cpu_case_is_judged_by_its_step_time_too():
    """By counters and by a few pairs of the step; a GPU's case only by what it gates."""
    case = Case("a", "m:f", device="cpu", gates=("graph_breaks",))
    assert judged(case) == ("step_ms", "graph_breaks") and judges_ungated_time(case)
    assert not judges_ungated_time(Case("a", "m:f", device="cpu", gates=("step_ms",)))
    assert not judges_ungated_time(Case("a", "m:f", gates=("graph_breaks",)))


def test_a_step_several_times_as_long_is_slower():
    """Six pairs, as SLOWER takes anywhere, and the figures."""
    found = turns([math.log(3) + one for one in (0.1, -0.1, 0.05, -0.05, 0.1, -0.1)], **HOW)
    assert decided(found) == (Status.SLOWER, Reason.BEYOND_MARGIN)
    assert not wants_another_pair(found)


def python(*functions, total=2000.0):
    """A side whose steps run so many lines of Python, in functions of one file."""
    sites = tuple(
        Site("lines of Python", "data.py", line, name, f"def {name}(batch):", count=count)
        for line, (name, count) in enumerate(functions, start=10)
    )
    counts = replace(
        evidence().counts, sites={PYTHON_LINES: sites}, information={PYTHON_LINES: total}
    )
    return QUICK | {"counts": counts}


SHORT = python(("step", 900), ("encode", 600), ("pad", 400))


@pytest.mark.parametrize(
    ("head", "places"),
    [
        # A loop over a list in a function that was there, and one in a new one.
        (python(("encode", 5600), ("step", 901), ("pad", 400), total=7001), [("encode", 5000)]),
        (python(("mask", 5400), ("step", 901), ("encode", 600), total=7001), [("mask", 5000)]),
        # A refactor: a call more, ten lines more, no line at all.
        (python(("step", 910), ("encode", 600), ("pad", 420), total=2030), []),
        (python(("step", 900), ("encode", 600), ("pad", 400)), []),
        (python(("step", 100), total=100), []),
        (QUICK, []),
    ],
)
def test_a_slower_step_names_the_function_that_runs_more_python(head, places):
    """In its headline and below, and of what neither side knows no more than is sure. It explains:
    an undecided step says it, too, and a step that is as fast says nothing of it.
    """
    ratios = [math.log(3) + one for one in (0.1, -0.1, 0.05, -0.05, 0.1, -0.1)]
    verdict = judge_ab(turns(ratios, head, SHORT, glance=True))
    found = metric(verdict, "step_ms")
    assert verdict.status is Status.SLOWER
    rest = [(site.function, site.count) for site in found.sites]
    assert rest[: len(places)] == places and bool(rest) == bool(places)
    if places:
        name, count = places[0]
        assert f" data.py:{found.sites[0].line}" in headline(verdict)
        text = f"    {count} x lines of Python: def {name}(batch): in {name} (data.py"
        assert text in "\n".join(evidence_lines(verdict))
        few = judge_ab(turns(ratios[:2], head, SHORT, glance=True, out_of_time=True))
        assert f", undecided after 2 pairs data.py:{found.sites[0].line}" in headline(few)
    same = judge_ab(turns([-0.2, 0.1], head, SHORT, glance=True))
    assert metric(same, "step_ms").sites == ()


def test_two_pairs_without_a_slowdown_end_it():
    """If they agree; and HEAD against itself measures no more of what is not gated."""
    assert wants_another_pair(turns([-0.5], **HOW))
    found = turns([-0.15, 0.05], **HOW)
    assert decided(found) == (Status.SAME, Reason.NO_SLOWDOWN)
    assert not wants_another_pair(found) and not wants_every_pair(found)
    verdict = judge_ab(found)
    assert not verdict.has_notice
    said = "no slowdown seen, on a CPU: -4.9 % on average over 2 pairs, pair sd 14.14 %; margins "
    assert times(verdict)[0].startswith(f"step_ms: {said}")


@pytest.mark.parametrize("scatter", [0.25, 0.79])
def test_pairs_that_scatter_by_more_than_matters_say_nothing_yet(scatter):
    """Up to eight pairs, whatever their mean says; a budget that ends before is no pass."""
    ratios = [scatter - 0.05, -scatter - 0.05] * 4
    for count in range(2, mean_on_cpu.DOUBTED_PAIRS):
        few = turns(ratios[:count], **HOW)
        assert mean_on_cpu.own_sd_pct(few) > 20 and wants_another_pair(few)
        late = judge_ab(turns(ratios[:count], out_of_time=True, **HOW))
        assert late.status is Status.INCONCLUSIVE
    found = turns(ratios, **HOW)
    assert decided(found) == (Status.SAME, Reason.NO_SLOWDOWN) and not wants_another_pair(found)


def test_what_stays_in_doubt_passes_with_a_notice():
    """Eight pairs, slower on average, and scattered: no error for a busy machine."""
    ratios = [0.3, -0.1] * 4
    assert all(
        wants_another_pair(turns(ratios[:n], **HOW)) for n in range(2, mean_on_cpu.DOUBTED_PAIRS)
    )
    verdict = judge_ab(turns(ratios, **HOW))
    assert (verdict.status, verdict.reason) == (Status.SAME, Reason.MAYBE_SLOWER)
    assert verdict.has_notice and metric(verdict, "step_ms").pairs.decision.pairs == 8


@pytest.mark.parametrize("ratios", [[-0.1], [0.07], [0.06, 0.08], [0.3, -0.1] * 3])
def test_too_few_pairs_decide_nothing(ratios):
    """A budget that ends after a pair, or while a slowdown is in doubt, passes none."""
    late = judge_ab(turns(ratios, out_of_time=True, **HOW))
    assert (late.status, late.reason) == (Status.INCONCLUSIVE, Reason.UNDECIDED)
    assert f" of {mean_on_cpu.DOUBTED_PAIRS} at most" in times(late)[0]


def test_a_mean_that_would_matter_does_not_pass_in_doubt():
    """A sleep in one step of sixteen: a third more on average, most of it in a pair of four. There
    are pairs until the plan ends, and then it is no pass.
    """
    ratios = [1.2, 0.05, -0.05, 0.1] * 6
    assert all(wants_another_pair(turns(ratios[:n], **HOW)) for n in range(1, len(ratios)))
    found = turns(ratios, **HOW)
    assert decided(found) == (Status.INCONCLUSIVE, Reason.UNDECIDED)
    assert not wants_another_pair(found)
    early = turns(ratios[:9], out_of_time=True, **HOW)
    assert decided(early) == (Status.INCONCLUSIVE, Reason.UNDECIDED)


@pytest.mark.parametrize(("sd_pct", "modes"), [(5.0, 0.0), (15.0, 0.0), (40.0, 0.0), (5.0, 60.0)])
def test_unchanged_code_on_a_busy_cpu_is_not_red(sd_pct, modes):
    """Pairs that scatter by 5 to 40 %, or whose launches fall into two modes: of 30 verdicts none
    fails, and none is an error; four pairs are enough on average where they scatter by no more
    than matters, and else eight.
    """
    draw = np.random.default_rng(18)
    found = [outcome(draw, 0.0, sd_pct, modes) for _ in range(30)]
    assert {verdict.outcome for verdict, _ in found} == {"passed"}
    few = 4.5 if sd_pct + modes < 20 else mean_on_cpu.DOUBTED_PAIRS
    assert mean_on_cpu.LEAST_PAIRS <= np.mean([pairs for _, pairs in found]) <= few


@pytest.mark.parametrize(("pct", "sd_pct", "least"), [(20, 3, 0.95), (50, 8, 0.95), (200, 20, 0.9)])
def test_a_slowdown_is_found_on_a_busy_cpu(pct, sd_pct, least):
    """20 % where pairs scatter by 3 %, 50 % by 8 %, and three times the step by 20 %."""
    draw = np.random.default_rng(18)
    found = [outcome(draw, pct, sd_pct)[0].status for _ in range(20)]
    assert found.count(Status.SLOWER) >= least * 20
