"""The rules for a step time in pairs: one list, in the order of docs/judge.md."""

from dataclasses import replace
from pathlib import Path

import pytest
from builders import PROPERTY
from comparisons import with_margins
from hypothesis import given
from hypothesis import strategies as st
from test_judge_pairs import turns

from stepguard.core.margins import MARGINS_PCT
from stepguard.judge.rules import RULES, decision

DOCS = Path(__file__).parents[3] / "docs" / "judge.md"
LOG_RATIOS = st.lists(st.floats(-0.5, 0.5), min_size=1, max_size=24)


def test_the_table_of_the_documentation_is_the_list():
    """Names, what each may say and how often it errs, in this order."""
    rows = [
        f"| {rule.name} | {', '.join(f'`{one.value}`' for one in rule.may_say)} | {rule.errs} |"
        for rule in RULES
    ]
    assert "\n".join(rows) in DOCS.read_text()


@PROPERTY
@given(LOG_RATIOS, st.booleans(), st.booleans())
def test_a_rule_says_what_it_may(ratios, out_of_time, on_cpu):
    """Each alone says nothing or one of its verdicts; the first that says something decides."""
    found = turns(tuple(ratios), out_of_time=out_of_time, glance=on_cpu)
    if on_cpu:
        found = with_margins(found, *MARGINS_PCT["cpu"])
    said = [rule.decide(found) for rule in RULES]
    for rule, one in zip(RULES, said, strict=True):
        assert one is None or one.status in rule.may_say
    assert decision(found) == next(one for one in said if one is not None)


def test_the_last_rule_always_says_something():
    """INCONCLUSIVE while more pairs are wanted: no comparison falls through the list."""
    for count in (1, 4, 24):
        assert RULES[-1].decide(turns((0.0,) * count)) is not None


@pytest.mark.parametrize("side", ["head", "base"])
def test_a_time_that_is_not_known_is_not_decided(side):
    """A launch without times, or a case that does not gate it."""
    found = turns()
    launches = (replace(getattr(found, side).launches[0], blocks=()),)
    untimed = replace(getattr(found, side), launches=launches)
    assert decision(replace(found, **{side: untimed})) is None
    assert decision(replace(found, head=replace(found.head, gates=found.head.gates[1:]))) is None
