"""Orders to a loop that is not ours: what a block's time holds, and who may call the clock."""

import hashlib
import json
import runpy
import time
from argparse import Namespace

import numpy as np
import pytest

from studies.build_nanogpt import measure as against
from studies.build_nanogpt.comparison import result_table
from studies.build_nanogpt.groups import what_matters
from studies.build_nanogpt.orders import Borders, Leave
from studies.build_nanogpt.their_rank import stand_ins, watched
from studies.common.series import ratio


class Orders:
    """A line with orders prepared; keeps the answers."""

    def __init__(self, *orders):
        self.orders, self.answers = list(orders), []

    def order(self):
        """The next one."""
        if not self.orders:
            raise Leave
        return self.orders.pop(0)

    def answer(self, steps, wall_ms, tokens_per_step):
        """Noted."""
        self.answers.append((steps, wall_ms, tokens_per_step))


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self):
        self.ns = 0

    def __call__(self):
        return self.ns


def loop(borders, clock, step_ms):
    """A loop whose n-th step takes step_ms[n]; then it is at a border once more."""
    for ms in step_ms:
        borders.reached(128)
        clock.ns += ms * 1_000_000
    borders.reached(128)


def test_a_block_is_timed_from_border_to_border():
    """The lead-in is left out, and all that follows is in, up to the border after the last step."""
    clock, line = Clock(), Orders((0, 1), (2, 3))
    with pytest.raises(Leave):
        loop(Borders(line, 99, clock), clock, [1000, 500, 500, 10, 20, 30])
    assert line.answers == [(1, 1000.0, 128), (3, 60.0, 128)]


def test_waiting_for_an_order_is_not_a_steps_time():
    """The clock runs on while the other group runs its block."""
    clock = Clock()

    class Slow(Orders):
        def order(self):
            clock.ns += 7_000_000_000
            return super().order()

    line = Slow((0, 2), (1, 1))
    with pytest.raises(Leave):
        loop(Borders(line, 99, clock), clock, [10, 10, 5, 40])
    assert line.answers == [(2, 20.0, 128), (1, 40.0, 128)]


def test_steps_that_are_not_alike_are_refused():
    """The loop validates every so often: before it would, the run ends with a reason."""
    clock, line = Clock(), Orders((0, 5))
    with pytest.raises(RuntimeError, match="3 steps are the most"):
        loop(Borders(line, 3, clock), clock, [1] * 5)


SCRIPT = """
import time

class Loader:
    B, T = 2, 8

def elsewhere():
    return time.time()

train_loader, grad_accum_steps, ddp_world_size = Loader(), 3, 4
for step in range(3):
    t0 = time.time()
    elsewhere()
    t1 = time.time()
    assert t1 >= t0 > 1e9
"""


def test_only_the_loops_own_clock_calls_are_borders(tmp_path, monkeypatch):
    """A step begins with every other call from the script's own level; libraries and functions
    call the same clock and mean nothing. Tokens are as the script counts them.
    """
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    seen = []

    class Seen:
        def reached(self, tokens):
            seen.append(tokens)

    monkeypatch.setattr(time, "time", watched(str(path), Seen(), time.time))
    assert time.time() > 1e9
    runpy.run_path(str(path), run_name="__main__")
    assert seen == [2 * 8 * 3 * 4] * 3


def test_one_example_for_each_rank(monkeypatch):
    """So that every rank evaluates as many, and their number is not zero."""
    monkeypatch.setenv("WORLD_SIZE", "4")
    hellaswag = stand_ins()["hellaswag"]
    examples = list(hellaswag.iterate_examples("val"))
    _, tokens, mask, label = hellaswag.render_example(examples[3])
    assert len(examples) == 4 and tokens.shape == mask.shape == (4, 8)
    assert int(tokens.max()) < 50257 and label in range(4)


def test_the_switch_is_all_that_changes():
    """One place, or none: a file that says it twice is not touched."""
    source = b"a = 1\nuse_compile = False # why\nb = 2\n"
    assert against.switched(source) == b"a = 1\nuse_compile = True # why\nb = 2\n"
    for wrong in (b"", source * 2):
        with pytest.raises(SystemExit, match="wanted is one"):
            against.switched(wrong)


def test_a_source_is_known_by_its_hash(tmp_path):
    """Missing and changed files are refused, with the value found and what to do."""
    options = Namespace(source=tmp_path, sha256=hashlib.sha256(b"x").hexdigest())
    with pytest.raises(SystemExit, match="is missing"):
        against.their_source(options)
    (tmp_path / against.SCRIPT).write_bytes(b"x")
    assert against.their_source(options) == b"x"
    (tmp_path / against.SCRIPT).write_bytes(b"y")
    with pytest.raises(SystemExit, match=f"--sha256 {hashlib.sha256(b'y').hexdigest()}"):
        against.their_source(options)


def test_shards_hold_tokens_that_their_model_knows(tmp_path):
    """As many as asked for, as uint16, all below their vocabulary of 50257."""
    against.make_data(tmp_path / "data", 3_000_000)
    for path in (tmp_path / "data").iterdir():
        tokens = np.load(path)
        assert (tokens.dtype, len(tokens)) == (np.uint16, 3_000_000)
        assert int(tokens.max()) < 50257 and len(set(tokens[:1000])) > 50
    assert len(list((tmp_path / "data").glob("*train*"))) == 1
    assert len(list((tmp_path / "data").glob("*val*"))) == 1


@pytest.mark.parametrize(("gpus", "micro_steps"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_our_step_has_their_tokens(gpus, micro_steps):
    """524,288 a step on any number of GPUs that divides them."""
    found = against.our_params(Namespace(device="cuda", ranks=gpus, params=[]))
    assert found["micro_steps"] == micro_steps
    assert gpus * micro_steps * found["batch"] * found["seq"] == against.TOKENS_PER_STEP


def test_a_number_of_gpus_that_does_not_divide():
    """Three GPUs make no 524,288 tokens: said, not rounded."""
    with pytest.raises(SystemExit, match="3 GPUs do not divide"):
        against.our_params(Namespace(device="cuda", ranks=3, params=[]))


def test_a_shard_limits_the_steps():
    """Beyond its end they would load the next one within a step."""
    few, many = (Namespace(device="cuda", shard_tokens=n) for n in (10 * 524_288, 10**9))
    assert (against.most_steps(few), against.most_steps(many)) == (9, 249)


def test_what_a_rank_said_is_shown_before_torchruns_report():
    """The traceback is not crowded out by the long report that follows it."""
    said = [f"rank {at}" for at in range(100)]
    report = ["E1121 torch/distributed/elastic/multiprocessing/api.py:1 failed (exitcode: 1)"]
    report += [f"report {at}" for at in range(50)]
    shown = what_matters("\n".join(said + report)).splitlines()
    assert "rank 99" in shown and "report 49" in shown and "report 0" not in shown
    assert what_matters("one line") == "one line"


def test_the_table_has_the_ratio_and_its_interval():
    """Theirs over ours, so above one is ours faster; one pair has no interval."""
    pairs = [(400.0, 200.0), (404.0, 200.0)]
    mean = {"theirs": 402.0, "ours": 200.0}
    one = {"what": "as shipped", "theirs_over_ours": ratio(pairs), "mean_ms": mean}
    two = {"what": "switched", "theirs_over_ours": ratio(pairs[:1]), "mean_ms": mean}
    text = result_table(json.loads(json.dumps({"comparisons": {"a": one, "b": two}})))
    assert "| as shipped | 402.0 | 200.0 | 2.010 | [1.887, 2.141] of 2 pairs |" in text
    assert "one pair: none" in text
