"""The comparison with a public loop, on two ranks of a CPU: a loop of that shape stands in."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from studies.build_nanogpt import comparison
from studies.build_nanogpt import measure as against
from studies.build_nanogpt.groups import SOCKET_ENV, Block, Group, GroupError

ROOT = Path(__file__).resolve().parents[2]
LONG_S = 900
SLEEP_S = 0.1
LOOP = f"""
import os
import time

import numpy as np
import tiktoken
import torch
import torch.distributed as dist
from hellaswag import iterate_examples, render_example

dist.init_process_group("gloo")
rank, ddp_world_size = dist.get_rank(), dist.get_world_size()
enc = tiktoken.get_encoding("gpt2")


def stamp():
    return time.time()


class Loader:
    B, T = 1, 32

    def __init__(self, split):
        (name,) = [one for one in os.listdir("edu_fineweb10B") if split in one]
        self.tokens = np.load(os.path.join("edu_fineweb10B", name))
        assert self.tokens.max() < 50257


train_loader, val_loader = Loader("train"), Loader("val")
grad_accum_steps = 2
use_compile = False # as in theirs
os.makedirs("log", exist_ok=True)
for step in range(1000):
    t0 = time.time()
    stamp()
    if step == 0:
        seen = [one for i, one in enumerate(iterate_examples("val")) if i % ddp_world_size == rank]
        _, tokens, mask, label = render_example(seen[0])
        assert tokens.shape == mask.shape == (4, 8) and len(seen) == 1
    time.sleep({SLEEP_S} if not use_compile else {2 * SLEEP_S})
    loss = torch.ones(1)
    dist.all_reduce(loss)
    t1 = time.time()
    if rank == 0:
        print(f"step {{step}} {{1e3 * (t1 - t0):.1f}} ms", flush=True)
        time.sleep({SLEEP_S})
"""
DYING = f"""
import os
import socket

line = socket.socket(socket.AF_UNIX)
line.connect(os.environ["{SOCKET_ENV}"])
line.recv(100)
raise SystemExit("a planted end")
"""
QUICK = ("--pairs", "2", "--block-s", "0.05", "--lead-in", "1", "--warm-up-s", "0")
TINY = ("size=nano", "batch=1", "seq=32", "precision=fp32", "compile=false", "micro_steps=2")


def arguments(folder, loop, *more, sha256=None):
    """The words of a command that compares with this loop, on two ranks."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    (source / "train_gpt2.py").write_text(loop)
    words = ["studies.build_nanogpt.measure", "--source", str(source), "--device", "cpu"]
    words += ["--ranks", "2", "--shard-tokens", "4096", "--out", str(folder / "against.json")]
    return [*words, "--sha256", sha256 or hashlib.sha256(loop.encode()).hexdigest(), *QUICK, *more]


def run(folder, loop, *more, **changed):
    """The finished command, and what it wrote."""
    command = [sys.executable, "-m", *arguments(folder, loop, *more, **changed)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONG_S)
    out = folder / "against.json"
    return done, json.loads(out.read_text()) if out.exists() else {}


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Both comparisons."""
    folder = tmp_path_factory.mktemp("against")
    markdown = folder / "against.md"
    return *run(folder, LOOP, "--markdown", str(markdown), *TINY), folder


def test_their_step_is_all_that_their_loop_does(compared):
    """A loop that sleeps inside its step and again after its own clock takes both; the one with
    the switch changed sleeps twice as long inside.
    """
    done, found, _ = compared
    assert done.returncode == 0, done.stdout + done.stderr
    for name, least_s in (("shipped", 2 * SLEEP_S), ("switched", 3 * SLEEP_S)):
        assert found["comparisons"][name]["mean_ms"]["theirs"] >= 1e3 * least_s


def test_pairs_alternate_and_have_every_rank(compared):
    """A B B A; both ranks of both; the ratio is that of the pairs."""
    _, found, _ = compared
    for one in found["comparisons"].values():
        first, second = one["pairs"]
        assert first["order"] == ["ours", "theirs"] and second["order"] == ["theirs", "ours"]
        assert all(len(pair[who]["rank_ms"]) == 2 for pair in one["pairs"] for who in pair["order"])
        ratios = [pair["theirs"]["step_ms"] / pair["ours"]["step_ms"] for pair in one["pairs"]]
        assert min(ratios) <= one["theirs_over_ours"]["ratio"] <= max(ratios)
    assert found["tokens_per_step"] == 2 * 2 * 32 and found["missing"] == []


def test_the_table_says_what_was_changed(compared):
    """A row for each comparison, in print and in the file."""
    done, _, folder = compared
    text = (folder / "against.md").read_text()
    assert text in done.stdout
    assert "as shipped" in text and "one switch changed" in text


def test_nothing_is_left_running(compared):
    """When the command has ended, no process works in its folder any more."""
    left = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if b"studies.build_nanogpt" in line and str(compared[2]).encode() in line:
            left.append(entry.name)
    assert not left


def test_another_version_is_refused(tmp_path):
    """A changed file is not the one that is named: refused before anything starts."""
    done, found = run(tmp_path, LOOP, *TINY, sha256="0" * 64)
    assert done.returncode == 1 and "has SHA-256" in done.stderr
    assert not found


class Stand:
    """In a group's place: steps of so many tokens by its name."""

    def __init__(self, name, *_):
        self.name, self.tokens = name, 32 if name == "our step" else 64

    def hello(self):
        """Ready at once."""

    close = hello

    def block(self, steps, lead_in, limit_s):
        """Run at once."""
        return Block(10.0, (10.0,), self.tokens, 0, 0.01 * steps)


def test_other_tokens_are_not_compared(tmp_path, monkeypatch, capsys):
    """Steps of unlike size have no ratio: status 1, and the document says that it lacks figures."""
    monkeypatch.setattr(comparison, "Group", Stand)
    monkeypatch.setattr(sys, "argv", arguments(tmp_path, LOOP, "--only", "shipped", *TINY))
    assert against.main() == 1
    assert "32: not comparable" in capsys.readouterr().err
    found = json.loads((tmp_path / "against.json").read_text())
    assert found["comparisons"] == {}
    assert any("no pair of shipped" in one for one in found["missing"])


def test_a_loop_that_dies_is_shown(tmp_path):
    """The end of its log is in the error."""
    script = tmp_path / "dies.py"
    script.write_text(DYING)
    group = Group("their loop", [str(script)], 1, tmp_path / "theirs")
    try:
        group.hello()
        with pytest.raises(GroupError, match=r"(?s)their loop: .*a planted end"):
            group.block(1, 0, LONG_S)
    finally:
        group.close()
