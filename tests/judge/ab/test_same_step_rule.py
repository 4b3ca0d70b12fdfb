"""A step that is known to be the same is `same` after one pair, or a few; else the plan decides.

Each planted difference is in one part of what is known of HEAD; all else is as in the other tree.
"""

from dataclasses import replace

import pytest
from builders import evidence
from comparisons import alike, with_margins

from stepguard.core.comparison import Question
from stepguard.core.profile import Parts, Profile, StepIdentity
from stepguard.core.reasons import Reason
from stepguard.core.status import Status
from stepguard.judge.judge_pairs import wants_another_pair
from stepguard.judge.rule_book import judge
from stepguard.judge.time_rules import (
    MOST_ALIKE,
    WITHIN_PCT,
    by_same_step,
    not_enough,
    why_not_same,
)
from stepguard.report.verdict_text import page_of

PARTS_OF_A_STEP = ("kernels and copies", "operators", "CUDA calls", "collectives", "settings")
IDENTITY = StepIdentity(dict.fromkeys(PARTS_OF_A_STEP, "a1"))
STEP_US, NONE = (250e3,) * 6, (0.0,) * 6
PROFILE = Profile("NVIDIA H200", 1, Parts(STEP_US, STEP_US, NONE, NONE, NONE), (), ())
VALUES = evidence().counts.values


def idle(share):
    """Parts of a step whose GPU is idle for that share."""
    return replace(PROFILE.parts, idle_us=(share * 250e3,) * 6)


def pairs(*ratios_pct, side="head", **counts):
    """Pairs of steps that are the same, whose log-ratios are these percentages; ``counts`` are
    other counts of a side.
    """
    found = alike(ratios_pct)
    known = replace(evidence().counts, profile=PROFILE, identity=IDENTITY)
    head, base = (replace(one, counts=known) for one in (found.head, found.base))
    found = replace(found, head=replace(head, commit="e" * 40), base=base)
    changed = replace(getattr(found, side), counts=replace(known, **counts))
    return replace(found, **{side: changed})


@pytest.mark.parametrize(("ratios_pct", "is_same"), [
    ([0.0], True),
    ([0.399], True), ([-0.399], True),
    ([0.401], False), ([-0.401], False),
    ([0.6, -0.035], True), ([0.6, -0.034], False),  # the mean of two within 0.283 %
    ([-0.6, 0.035], True), ([0.6, -0.6], True),
    ([0.9, 0.9, -1.108], True), ([0.9, 0.9, -1.107], False),  # of three within 0.231 %
    ([0.9, 0.9, 0.9, -1.901], True), ([0.9, 0.9, 0.9, -1.899], False),  # of four within 0.2 %
    ([1.0, 1.0, 1.0, 1.0, -4.0], False),  # a fifth: the plan has them
])  # fmt: skip
def test_the_mean_of_up_to_four_pairs(ratios_pct, is_same):
    """Within 0.4 % of zero, divided by the root of the pairs, it is `same`, and no further pair is
    asked for.
    """
    assert (WITHIN_PCT, MOST_ALIKE) == (0.4, 4)
    found = pairs(*ratios_pct)
    assert why_not_same(found) == "" and (by_same_step(found) is not None) is is_same
    if is_same:
        verdict = judge(Question(pairs=found))
        assert (verdict.status, verdict.reason) == (Status.SAME, Reason.IDENTICAL_STEP)
        assert (
            "the same kernels, generated code, operands and settings"
            in page_of(verdict).notes["step_ms"]
        )
    else:
        assert judge(Question(pairs=found)).reason is not Reason.IDENTICAL_STEP
    assert wants_another_pair(found) is not is_same


def test_pairs_that_did_not_run_in_turns_do_not_count():
    """The card may have drifted between the sides."""
    assert by_same_step(replace(pairs(0.0), together=False)) is None


@pytest.mark.parametrize(("margins", "is_same"), [((0.2, 0.4), True), ((0.2, 0.39), False)])
def test_a_narrower_matter_margin_needs_the_plan(margins, is_same):
    """One pair may hide a change of it."""
    found = with_margins(pairs(0.0), *margins)
    assert (by_same_step(found) is not None) is is_same
    assert why_not_same(found) == ("" if is_same else "the case's matter margin is narrower")


@pytest.mark.parametrize("side", ["head", "base"])
@pytest.mark.parametrize(("counts", "why"), [
    *(({"identity": StepIdentity(IDENTITY.parts | {name: "b"})}, f"other {name}")
      for name in PARTS_OF_A_STEP),
    ({"identity": None}, "not all of a step is known: no trace"),
    ({"identity": StepIdentity(problem="a graph")}, "not all of a step is known: a graph"),
    ({"identity": StepIdentity({})}, "not all of a step is known: "),
    ({"profile": None}, "a profile is not whole"),
    ({"profile": replace(PROFILE, lost_share=0.001)}, "a profile is not whole"),
    ({"profile": replace(PROFILE, incomplete=1)}, "a profile is not whole"),
    ({"profile": replace(PROFILE, parts=replace(PROFILE.parts, step_us=NONE))},
     "a profile has no step"),
    ({"profile": replace(PROFILE, parts=idle(0.0301))}, "a GPU is idle for 3.0 % of a step"),
    # The mean of eight ranks hides one that waits for its host; the others wait for it.
    ({"parts_by_rank": (*(idle(0.0),) * 7, idle(0.2))}, "a GPU is idle for 20.0 % of a step"),
])  # fmt: skip
def test_what_is_not_known_to_be_the_same_is_timed(side, counts, why):
    """Anything unknown or different, on either side: pairs as ever."""
    found = pairs(0.0, side=side, **counts)
    assert why_not_same(found) == why
    assert by_same_step(found) is None and wants_another_pair(found)


def test_nothing_counted_or_no_gpu():
    """A CPU has no identity of a step."""
    found = pairs(0.0)
    lost = replace(found, base=replace(found.base, counts=None))
    assert why_not_same(lost) == "nothing was counted"
    head = replace(found.head, case=found.head.case | {"device": "cpu"})
    assert why_not_same(replace(found, head=head)) == "there is no GPU"


@pytest.mark.parametrize("counts", [
    {"profile": replace(PROFILE, parts=idle(0.0299))},
    {"parts_by_rank": (idle(0.0),) * 8},
    {"detail": {"peak_allocated_bytes": {"forward": 45_000_000_000, "optimizer": 1004}}},
    {"values": VALUES | {"peak_allocated_bytes": VALUES["peak_allocated_bytes"] + 9}},
    {"by_rank": {"launches_per_step": (1000, 999)}},
    {"unstable": {"copies_per_step": "steps differ: 4, 5"}},
])  # fmt: skip
def test_no_counter_takes_part(counts):
    """A phase's peak of 4 bytes more, or a count within its slack, makes no other step."""
    found = pairs(0.0, **counts)
    assert judge(Question(pairs=found)).reason is Reason.IDENTICAL_STEP
    assert not wants_another_pair(found)


def test_why_one_pair_was_not_enough_is_said():
    """Who waited for more pairs of a step that did not change wants to know. A commit beside itself
    needs no reason: all pairs are wanted.
    """
    assert not_enough(pairs(0.1)) == not_enough(pairs(0.5, 0.0)) == ""
    beyond = pairs(0.5, 0.5)
    assert not_enough(beyond) == "the step time differs"
    assert not_enough(replace(beyond, base=replace(beyond.base, commit="e" * 40))) == ""
    other = pairs(*(0.01,) * 4, identity=StepIdentity(IDENTITY.parts | {"operators": "b"}))
    assert (
        "fewer were not enough: other operators"
        in page_of(judge(Question(pairs=other))).notes["step_ms"]
    )
    slower = judge(Question(pairs=pairs(*(5.0,) * 6)))
    assert slower.status is Status.SLOWER and "not enough" not in page_of(slower).notes["step_ms"]
