"""Which counters are counted in one more launch, and what two launches say together."""

import pytest
from builders import entry_of, evidence, recording, replace
from hypothesis import given
from hypothesis import strategies as st

from stepguard.core.evidence import Counts
from stepguard.core.metrics import GROWING_LINES, NUMBERS, OPERATORS, PEAK
from stepguard.core.recording import on_same_steps, without_labels
from stepguard.core.site import Site
from stepguard.core.step_numbers import StepNumbers
from stepguard.judge.count_again import counted_again, doubtful, doubtful_of, doubtful_of_other
from stepguard.judge.summarise_evidence import summarise

NAME = "copies_per_step"
LINE, OTHER = (Site("lines of Python", file, 3, "step") for file in ("train.py", "bar.py"))


def counts(*steps, name=NAME, detail=None, sites=()):
    """The count of each step, as a launch has it."""
    differ = len(set(steps)) > 1 or detail is not None and len(steps) > 1
    return Counts(
        {name: sum(steps) if differ else steps[0]},
        lists={name: steps} if differ else {},
        detail={name: detail} if detail else {},
        sites={name: sites} if sites else {},
    )


def of(*steps, **changes):
    """Evidence of such a launch."""
    counted, found = counts(*steps, **changes), evidence()
    values = found.counts.values | {GROWING_LINES: 0} | counted.values
    return replace(found, counts=replace(found.counts, values=values, lists=counted.lists))


@pytest.mark.parametrize(("now", "past", "asked"), [
    ((4,), (4,), False),
    ((5,), (4,), False),  # exact in each step
    ((4, 5), (4, 5), False),  # equal lists are equal
    ((4, 5), (5, 4), True),
    ((4, 5), (4,), True),
    ((4,), (4, 5), True),
    ((4, 5), None, True),  # a level must not be what chance made
    ((4,), None, False),
])  # fmt: skip
def test_steps_that_differ_are_counted_again_unless_they_are_the_recordings(now, past, asked):
    """Beside the newest recording, or the other tree of a pair."""
    then = None if past is None else summarise(of(*past))
    assert doubtful(of(*now), then) == ((NAME,) if asked else ())
    baseline = None if past is None else entry_of(of(*past), lists=then.lists)
    assert doubtful_of(of(*now), baseline) == ((NAME,) if asked else ())


def test_what_is_not_gated_is_not_counted_again():
    """It is only shown."""
    assert not doubtful(replace(of(4, 5), gates=("step_ms",)), None)


@pytest.mark.parametrize(
    ("base", "head", "asked"),
    [((4, 5), (4,), True), ((4,), (4, 5), False), ((4, 5), (4, 5), False), ((4,), (4,), False)],
)
def test_the_other_tree_counts_again_if_its_own_steps_differ(base, head, asked):
    """A change that makes HEAD's steps differ says nothing of the other tree's."""
    assert bool(doubtful_of_other(of(*base), of(*head))) is asked


@pytest.mark.parametrize(("first", "again", "value", "steps"), [
    ((4, 5), (4, 5), 9, (4, 5)),  # it repeats itself: the sums are judged
    ((4, 5), (4, 4), 4, None),  # three quarters have 4
    ((4, 4), (4, 5), 4, None),
    ((4, 4), (4, 4), 4, None),
    ((4, 5, 4, 4), (4, 4, 4, 5), 4, None),  # at other steps
    ((4,), (4, 4, 5, 4), 4, None),
    ((4, 5), (5, 4), None, None),
    ((4, 5), (6, 7), None, None),
    ((4, 4), (5, 5), None, None),
    ((4,), (4, 5, 5, 5), None, None),
])  # fmt: skip
def test_two_launches_say_one_count_or_none(first, again, value, steps):
    """Without one the reason has both, and the places are kept."""
    launches = (counts(*each, sites=(LINE,)) for each in (first, again))
    found = counted_again(*launches, [NAME])
    assert found.values.get(NAME) == value and found.lists.get(NAME) == steps
    if value is None:
        assert found.unstable[NAME].startswith("steps differ: 4")
        assert found.unstable[NAME].endswith(f"; in another launch: {', '.join(map(str, again))}")
        assert found.sites == {NAME: (LINE,)}
    else:
        assert not found.unstable
    agree = value is None or steps is not None or first == again
    assert found.of_both == ({} if agree else {NAME: (*alike(first, again), *alike(again, first))})


def alike(steps, other):
    """A launch's counts, as many as the other's."""
    return steps if len(steps) > 1 else steps * len(other)


def test_the_usual_count_of_no_launch_has_no_parts_or_ranks():
    """So it is no value where these are known."""
    both = counts(4, 5, 4, 4), counts(4, 4, 4, 5)
    for table in ({"detail": {NAME: {"a": 17}}}, {"by_rank": {NAME: (17, 16)}}):
        assert not counted_again(replace(both[0], **table), both[1], [NAME]).values


def test_equal_sums_of_other_parts_are_not_decided():
    """And the parts are named."""
    first = counts(4, 4, detail={"a": 6, "b": 2})
    found = counted_again(first, counts(4, 4, detail={"a": 6, "c": 2}), [NAME])
    assert found.unstable[NAME].endswith("(b, c)") and NAME not in found.detail
    assert counted_again(first, first, [NAME]) == replace(first, launches=2)


def test_the_count_that_stays_is_of_one_launch():
    """Its parts, places and ranks are those of the launch whose steps are alike."""
    first = counts(4, 5, detail={"a": 9}, sites=(LINE,))
    first = replace(first, by_rank={NAME: (9, 8)})
    steady = replace(Counts({NAME: 4, PEAK: 7}), detail={NAME: {"a": 4}}, sites={NAME: (OTHER,)})
    found = counted_again(replace(first, values={NAME: 9, PEAK: 5}), steady, [NAME])
    assert (found.values, found.lists) == ({NAME: 4, PEAK: 5}, {})
    assert (found.detail, found.sites, found.by_rank) == (steady.detail, steady.sites, {})


@pytest.mark.parametrize(("first", "again", "value"), [
    ({LINE: 4}, {LINE: 4}, 4),
    ({LINE: 6}, {LINE: 4}, 4),
    ({LINE: 4, OTHER: 3}, {LINE: 4}, 4),
    ({LINE: 4}, {}, 0),
    ({LINE: 4}, {OTHER: 4}, 0),  # a bar that is drawn by the clock
])  # fmt: skip
def test_lines_grow_that_do_so_in_both_launches(first, again, value):
    """By the smaller of both rises."""
    both = [
        counts(
            sum(lines.values()),
            name=GROWING_LINES,
            sites=tuple(replace(site, count=count) for site, count in lines.items()),
        )
        for lines in (first, again)
    ]
    assert doubtful(of(4, name=GROWING_LINES), None) == (GROWING_LINES,)
    found = counted_again(*both, [GROWING_LINES])
    assert found.values == {GROWING_LINES: value} and not found.unstable
    assert bool(found.sites) is bool(value)


STEPS = st.lists(st.integers(0, 9), min_size=2, max_size=2)


@given(STEPS, STEPS)
def test_a_second_launch_decides_only_for_what_most_steps_have(first, again):
    """Whichever launch came first, unless both say the same."""
    both = counts(*first), counts(*again)
    found, swapped = counted_again(*both, [NAME]), counted_again(*both[::-1], [NAME])
    assert found.values == swapped.values and found.lists == swapped.lists
    most = max((*first, *again).count(n) for n in (*first, *again))
    assert (NAME in found.values) == (first == again or most >= 3)


def test_counts_of_one_step_and_of_several_are_compared_as_of_equally_many():
    """With their parts, places and ranks. A peak is no sum."""
    one = recording(
        counters={NAME: 4, PEAK: 7},
        detail={NAME: {"a": 4}},
        sites={NAME: [LINE]},
        by_rank={NAME: [4, 3]},
    )
    several = recording(counters={NAME: 9, PEAK: 8}, lists={NAME: [4, 5], PEAK: [8, 7]})
    found, same = on_same_steps(one, several)
    assert same is several and found.counters == {NAME: 8, PEAK: 7}
    assert found.detail == {NAME: {"a": 8}} and found.by_rank == {NAME: [8, 6]}
    assert [site.count for site in found.sites[NAME]] == [2]
    assert found.values()[NAME] == 4 and several.values()[NAME] == 4.5
    assert several.values()[PEAK] == 8


def test_an_old_recording_is_read_without_labels():
    """Those of record_function are no operators."""
    label = "profiler._record_function_enter_new.default"
    old = recording(
        counters={OPERATORS: 7},
        detail={OPERATORS: {"aten.mm.default": 5, label: 2}},
        operators={"a.py f: mm()": {"aten.mm.default": 5}, "a.py g: with": {label: 2}},
        by_rank={OPERATORS: [7, 6]},
    )
    found = without_labels(old)
    assert found.counters == {OPERATORS: 5} and found.by_rank == {OPERATORS: [5, 4]}
    assert found.detail == {OPERATORS: {"aten.mm.default": 5}}
    assert found.operators == {"a.py f: mm()": {"aten.mm.default": 5}}
    assert without_labels(found) is found


def computing(loss, launches=1):
    """Evidence of a step with this loss."""
    found, of_loss = evidence(), StepNumbers(listed=[("loss", [[loss]])])
    values = found.counts.values | {NUMBERS: 1, GROWING_LINES: 0}
    counted = replace(found.counts, values=values, numbers=of_loss, launches=launches)
    return replace(found, counts=counted)


def test_other_numbers_are_taken_again_once_by_this_tree():
    """Whatever the steps count. The other tree's launches are not asked: if this one repeats its
    numbers, a step changed, or what draws in it did.
    """
    now, past = computing(10.9), computing(10.8)
    assert doubtful(now, summarise(past)) == (NUMBERS,)
    assert not doubtful_of_other(past, now)
    assert not doubtful(now, summarise(now)) and not doubtful(now, None)
    assert not doubtful(computing(10.9, launches=2), summarise(past))


@pytest.mark.parametrize(("again", "apart"), [(10.9, ""), (10.7, "loss 10.9 -> 10.7")])
def test_numbers_of_launches_that_disagree_are_not_comparable(again, apart):
    """The reason has the first that differs, and what to do about it."""
    first, second = computing(10.9).counts, computing(again).counts
    counted = counted_again(first, second, [NUMBERS])
    assert counted.numbers.listed == first.numbers.listed
    assert apart in counted.numbers.apart and bool(counted.numbers.apart) == bool(apart)
