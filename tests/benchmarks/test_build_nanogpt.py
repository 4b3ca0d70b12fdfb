"""build_nanogpt: what a launch's time holds, who may call the clock, and one pair on a CPU."""

import hashlib
import json
import sys
import time

import pytest

from benchmarks import build_nanogpt
from benchmarks.build_nanogpt_rank import Borders, Over, stand_ins, theirs

SLEEP_S = 0.02
LOOP = f"""
import time

import numpy as np
import tiktoken
from hellaswag import iterate_examples, render_example

use_compile = False # as in theirs


class Loader:
    B, T = 1, 32
    tokens = np.load("edu_fineweb10B/edufineweb_train_000001.npy")


def elsewhere():
    return time.time()


enc, train_loader = tiktoken.get_encoding("gpt2"), Loader()
grad_accum_steps, ddp_world_size = 2, 1
for step in range(6):
    t0 = time.time()
    elsewhere()
    time.sleep({SLEEP_S})
    t1 = time.time()
    assert t1 >= t0 > 1e9 and train_loader.tokens.max() < 50257
    time.sleep({SLEEP_S})
"""


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self):
        self.ns = 0

    def __call__(self):
        return self.ns


def test_steps_are_timed_from_border_to_border():
    """The lead-in is left out, and all that follows is in, up to the border after the last step."""
    clock = Clock()
    borders = Borders(2, 3, clock)
    with pytest.raises(Over):
        for ms in [1000, 500, 10, 20, 30, 0]:
            borders.reached(128)
            clock.ns += ms * 1_000_000
    assert (borders.step_ms, borders.tokens_per_step) == (20.0, 128)


def test_their_step_is_all_that_their_loop_does(tmp_path, monkeypatch):
    """A loop that sleeps inside its step and again behind its own clock takes both. Functions of
    the script call the same clock and mean nothing; tokens are as the script counts them.
    """
    build_nanogpt.make_data(tmp_path / build_nanogpt.DATA, 4096)
    script = tmp_path / "train_gpt2.py"
    script.write_text(LOOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    for name in ("tiktoken", "hellaswag"):
        monkeypatch.setitem(sys.modules, name, stand_ins()[name])
    real = time.time
    found = theirs(str(script), 1, 3)
    assert found.step_ms >= 2e3 * SLEEP_S and found.tokens_per_step == 2 * 32
    with pytest.raises(RuntimeError, match="ended before 1 . 9 steps"):
        theirs(str(script), 1, 9)
    assert time.time is real


@pytest.mark.parametrize(("gpus", "micro_steps"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_our_step_has_their_tokens(gpus, micro_steps):
    """524,288 a step on any number of GPUs that divides them; three do not."""
    found = build_nanogpt.our_params("cuda", gpus)
    assert found["micro_steps"] == micro_steps
    assert gpus * micro_steps * found["batch"] * found["seq"] == build_nanogpt.TOKENS_PER_STEP
    with pytest.raises(SystemExit, match="3 GPUs do not divide"):
        build_nanogpt.our_params("cuda", 3)


@pytest.fixture
def words(tmp_path, monkeypatch):
    """The words of a command that compares one pair on a CPU; what it writes."""
    source = tmp_path / "source"
    source.mkdir()
    (source / build_nanogpt.SCRIPT).write_text(LOOP)
    given = ["build_nanogpt", "--source", str(source), "--device", "cpu", "--gpus", "1"]
    given += ["--sha256", hashlib.sha256(LOOP.encode()).hexdigest(), "--pairs", "2"]
    given += ["--only", "shipped", "--shard-tokens", "4096", "--out", str(tmp_path / "out.json")]
    monkeypatch.setattr(sys, "argv", given)
    return tmp_path / "out.json"


def test_launches_take_turns(words, monkeypatch, capsys):
    """A B B A; the ratio is that of the pairs, and every pair is in the file."""
    ran = []

    def launch(side, *_):
        ran.append(side)
        return {"step_ms": {"ours": 100.0, "theirs": 120.0}[side], "tokens_per_step": 64}

    monkeypatch.setattr(build_nanogpt, "launch", launch)
    assert build_nanogpt.main() == 0
    assert ran == ["ours", "theirs", "theirs", "ours"]
    found = json.loads(words.read_text())
    assert found["comparisons"]["shipped"]["theirs_over_ours"]["ratio"] == pytest.approx(1.2)
    assert "| as shipped | 120.0 | 100.0 | 1.200 " in capsys.readouterr().out
    assert found["missing"] == []
