"""lab/docs/seeds.md: each figure has a row, and the command of each row is one that runs today.

Nothing is measured: commands are parsed, tests are collected, workloads and sweeps looked up.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from inspect import signature
from pathlib import Path

import pytest

from stepguard.cli.main import main as stepguard_main
from stepguard.cli.workload_arguments import chosen_case
from stepguard.core.metrics import METRICS
from stepguard.worker.workload import find_function
from stepguard_lab.sweep import read_declaration

ROOT = Path(__file__).resolve().parents[2]
FIGURES = {"S0": 13, "S1": 12, "S2": 14, "S3": 22, "S4": 6}
YOURS = {  # what a reader puts in place of a capital word
    "CASE": "train_step[124m-bf16]",
    "FACTORY": "model.workloads:forward",
    "DIR": "traces",
    "FOLDER": "traces",
    "FILE": "rank0.json.gz",
}


def rows():
    """Return the names and the commands of each row; other code there is a metric's name."""
    found = []
    for line in (ROOT / "lab" / "docs" / "seeds.md").read_text().splitlines():
        if re.match(r"\| S\d[-,]", line):
            _, names, _, cell, *_ = re.split(r"(?<!\\)\|", line)
            code = re.findall(r"`([^`]+)`", cell.replace(r"\|", "|"))
            found.append((names.strip(), [one for one in code if one not in METRICS]))
    return found


def test_each_figure_has_a_row_with_a_command():
    """67 of them; some share a row."""
    found = set()
    for names, commands in rows():
        assert commands, names
        for text, first, last in re.findall(r"(S\d)-(\d+)(?: to S\d-(\d+))?", names):
            found |= {(text, number) for number in range(int(first), int(last or first) + 1)}
    assert found == {(text, n) for text, most in FIGURES.items() for n in range(1, most + 1)}
    assert len(found) == 67


class Parsed(Exception):
    """Carries the options of a command line that its own parser accepted."""


@pytest.fixture
def options_of(monkeypatch):
    """``options_of(main, words)`` returns what the parser of ``main`` makes of the words."""

    def stopping(parse):
        def call(self, arguments=None, namespace=None):
            raise Parsed(parse(self, arguments, namespace))

        return call

    def options(main, words):
        with monkeypatch.context() as changed:
            for name in ("parse_args", "parse_intermixed_args"):
                real = getattr(argparse.ArgumentParser, name)
                changed.setattr(argparse.ArgumentParser, name, stopping(real))
            changed.setattr(sys, "argv", ["command", *words])
            with pytest.raises(Parsed) as parsed:
                main(words) if signature(main).parameters else main()
        return parsed.value.args[0]

    monkeypatch.chdir(ROOT)
    return options


def is_taken(case):
    """The factory is there, and takes the parameters."""
    if not case.loop:
        signature(find_function(case.workload)).bind(device=case.device, **case.params)


def stepguards(words, options_of):
    """The command's parser takes it, and the workload, the sweep or the files are there."""
    options = options_of(stepguard_main, words)
    if getattr(options, "factory", None):
        is_taken(chosen_case(options))
    if words[0] == "sweep":
        _, case = read_declaration(options.file).cases()[0]
        is_taken(case)
    if words[0] == "compare":
        assert all((ROOT / word).is_file() for word in words[1:])


def modules(words, options_of):
    """A module's parser takes what stands behind its name; timeit, which has none, is run."""
    module, *rest = words[words.index("-m") + 1 :]
    if module == "timeit":
        subprocess.run([sys.executable, "-m", module, "-n", "1", *rest], check=True, cwd=ROOT)
    else:
        options_of(import_module(module).main, rest)


def check(words, options_of):
    """Raise if the command would not begin to run."""
    program, *rest = words
    if program == "stepguard":
        stepguards(rest, options_of)
    elif program == "pytest":
        collect = [sys.executable, "-m", "pytest", "--co", "-q", "-p", "no:cacheprovider", *rest]
        env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
        done = subprocess.run(collect, cwd=ROOT, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout
    elif program == "make":
        subprocess.run(["make", "-n", *rest], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    elif program == "torchrun":
        import_module("torch.distributed.run").parse_args(rest)
        modules(words, options_of)
    elif "python" in words:  # itself, or under a tool that is not ours
        modules(words[words.index("python") :], options_of)
    else:
        assert program in ("nsys", "ncu", "nvcc")
        named = [word for word in rest if "/" in word and not word.startswith("./")]
        assert all((ROOT / word).is_file() for word in named)


@pytest.mark.parametrize("command", sorted({one for _, found in rows() for one in found}))
def test_each_command_is_one_that_runs(command, options_of):
    """As it is typed, with a word of ours for each capital one of yours."""
    words = [YOURS.get(word, word) for word in shlex.split(command)]
    check(words, options_of)
