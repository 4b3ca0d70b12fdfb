"""warm_up: rules are asked as a launch asks them, and every one of them has to wait."""

import json
import math
from itertools import islice

import numpy as np
import pytest
from builders import block_of, evidence, replace

from stepguard.comparison import Comparison
from stepguard.evidence import Launch
from stepguard.judge.series import of_launches, of_pairs
from studies.warm_up.dips import BLOCK_MS, STEPS_MS, steps_ms
from studies.warm_up.simulate import NOW, RULES, STEPS, strung, warmed_up


def test_recorded_steps_are_steady_when_strung():
    """Each block comes at the level of all, whatever its own was."""
    for noise in json.loads(STEPS.read_text()).values():
        level = np.mean([np.mean(block) for block in noise["blocks_ms"]])
        assert abs(np.mean(list(islice(strung(noise["blocks_ms"], 1), 2000))) / level - 1) < 0.002


def test_the_bias_is_what_the_curve_leaves():
    """Of even steps: no rule ends before its least load, and a slow drift leaves more."""
    for rule in RULES.values():
        steady, none = warmed_up(rule, iter([50.0] * 10000), 0.0, 1.0)
        assert NOW.warmup_min_s <= steady < NOW.warmup_min_s + 2 and none == 0
        fast = warmed_up(rule, iter([50.0] * 10000), 0.04, 1.3)[1]
        slow = warmed_up(rule, iter([50.0] * 10000), 0.04, 3.0)[1]
        assert 0 < fast < slow < 0.004


def in_blocks(draw, step_ms, change):
    """Six launches of two blocks that dip, whose steps, blocks and levels scatter."""
    count, made = round(BLOCK_MS / step_ms), []
    for index in range(1, 7):
        blocks = []
        for begin in (12, 12 + count + (20 if index <= 2 else 0)):
            level = math.exp(0.002 * draw.standard_normal())
            times = steps_ms(count, step_ms * (1 + change)) * level
            ms = times * np.exp(0.004 * draw.standard_normal(count))
            blocks.append(block_of(ms.tolist(), begin))
        made.append(Launch(index, tuple(blocks), 1.0, 5.0, 12, "", 60.0))
    return tuple(made)


@pytest.mark.parametrize("step_ms", STEPS_MS)
@pytest.mark.parametrize("change", [-0.03, 0.0, 0.002, 0.01])
def test_dips_of_both_sides_are_no_slowdown_of_one(step_ms, change):
    """HEAD's longer steps meet the dips a little earlier: no period, and nothing late."""
    draw = np.random.default_rng(1)
    head, base = (in_blocks(draw, step_ms, one) for one in (change, 0.0))
    sides = [evidence((), launches=one, planned_launches=6) for one in (head, base)]
    found = Comparison("main", replace(sides[0], commit="f" * 40), sides[1])
    assert of_pairs(found) is None and of_launches(head) is None
