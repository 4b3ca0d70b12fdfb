"""docs/first-hour.md: every command of it is typed, on a small model of the test's own."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from short_launches import BUSY_LIMIT_S, CONFTEST

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "first-hour.md").read_text()
PYTHON = f'python() {{ {shlex.quote(sys.executable)} "$@"; }}\n'
# What the page takes of nanoGPT's model.py.
MODEL = """
from dataclasses import dataclass

import torch


@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int


class MLP(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc, self.gelu = torch.nn.Linear(width, width), torch.nn.GELU()

    def forward(self, x):
        x = self.fc(x)
        x = self.gelu(x)
        return x


class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding = torch.nn.Embedding(config.vocab_size, config.n_embd)
        self.head = torch.nn.Linear(config.n_embd, config.vocab_size)
        self.blocks = torch.nn.Sequential(*(MLP(config.n_embd) for _ in range(config.n_layer)))

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        return torch.optim.SGD(self.parameters(), lr=learning_rate)

    def forward(self, idx, targets):
        logits = self.head(self.blocks(self.embedding(idx)))
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
"""


TRAIN = """
import torch

from model import GPT, GPTConfig

model = GPT(GPTConfig(block_size=64, vocab_size=512, n_layer=2, n_head=4, n_embd=64))
optimizer = model.configure_optimizers(0.1, 0.0, (0.9, 0.95), "cpu")
while True:
    inputs = torch.randint(512, (4, 64))
    _, loss = model(inputs, inputs)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def shell(folder):
    """A repository of the script in ``folder``, and what types commands there."""
    (folder / "model.py").write_text(MODEL)
    (folder / "train.py").write_text(TRAIN)
    (folder / "conftest.py").write_text(CONFTEST)
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    env |= {f"GIT_{who}_{of}": "t@t" for who in ("AUTHOR", "COMMITTER") for of in ("NAME", "EMAIL")}
    env |= {
        "PATH": f"{Path(sys.executable).parent}:{env['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}",
        "TORCHINDUCTOR_VEC_ISA_OK": "1",
    }

    def typed(commands, **own):
        done = subprocess.run(
            ["bash", "-c", PYTHON + commands],
            cwd=folder,
            env=env | own,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUSY_LIMIT_S,
        )
        return done.returncode, done.stdout

    assert typed("git init -q -b main && git add . && git commit -q -m Begin")[0] == 0
    return typed


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The repository, what types there, and what each block of commands answered, in the page's
    order.
    """
    folder = tmp_path_factory.mktemp("first-hour")
    typed = shell(folder)
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)
    return folder, typed, [typed(f"set -e\n{one}") for one in blocks]


def test_the_five_lines_of_the_readme(tmp_path):
    """All but the installation: they record the script, and judge a later change by the recording,
    and beside main. How the pairs end is left open, since a busy machine scatters.
    """
    readme = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", readme, re.M | re.S)
    lines = next(block for block in blocks if "-- train.py" in block).splitlines()
    install, init, add, judged, beside_main = lines
    assert install.startswith("pip install ")
    change = "git switch -q -c change && echo '# later' >> train.py && git commit -q -am Change"
    typed = shell(tmp_path)
    status, said = typed("\n".join(["set -e", init, add, change, judged]))
    assert (status, said.count("first recording in"), said.count("\n1 same")) == (0, 1, 1), said
    status, said = typed(beside_main, PYTEST_ADDOPTS="--perf-budget=0.01", CI="")
    assert " main (" in said and "BROKEN" not in said, said


def test_each_command_does_what_the_page_says(answers):
    """The first of each pair of lines stands in the page's own answers, too."""
    _, typed, found = answers
    said = [
        (0, "train[cpu]: first recording in baselines/cpu.json"),
        (0, ""),
        (1, "2 x .item(): x = self.gelu(x); self.last = x.norm().item() in MLP.forward (model.py:"),
        (0, "train[cpu]: a new level begins (the norm is wanted) in baselines/cpu.json"),
        (0, ""),
    ]
    assert [status for status, _ in found] == [status for status, _ in said], found
    for (_, out), (_, words) in zip(found, said, strict=True):
        assert words in out and words in PAGE
    steps = re.findall(r"^  (?:accept|or for some days): .*$", PAGE, re.M)
    assert len(steps) == 2 and all(step in found[2][1] for step in steps), found[2][1]
    # What was printed as the way out, a sync that is meant, leads out.
    assert typed("python -m pytest -q perf_tests/test_train.py")[0] == 0


def test_the_files_that_init_wrote_are_as_the_page_says(answers):
    """What it committed, under the name that the page gives, and nothing else was left over."""
    folder, _, found = answers
    for line in ("wrote perf_tests/test_train.py: ", "wrote pytest.ini: ", "committed "):
        assert line in found[0][1] and line in PAGE
    left = subprocess.run(
        ["git", "status", "--porcelain"], cwd=folder, capture_output=True, text=True
    ).stdout
    assert not left
