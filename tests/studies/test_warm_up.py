"""warm_up: rules are asked as a launch asks them, and every one of them has to wait."""

import json
from itertools import islice

import numpy as np

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
