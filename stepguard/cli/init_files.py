"""The files that guard a workload: its test, its settings, its workflow and who owns them."""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser, Error
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from stepguard.core.case import Case, Loop, Scalar
from stepguard.core.device import CPU, GPU
from stepguard.machine.git.revision import git
from stepguard.machine.interpreter import source_folders

FACTORY = "perf_workload.py"
FACTORY_TEXT = '''"""One training step, which stepguard measures: put your model in here."""

import torch


class TrainStep:
    tokens_per_step = 256  # on one rank

    def __init__(self, device):
        self.model = torch.nn.Linear(64, 64, device=device)  # <- your model
        # With a learning rate of 0 every step costs the same.
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0)
        self.inputs = torch.randn(self.tokens_per_step, 64, device=device)  # <- its inputs

    def step(self):
        loss = self.model(self.inputs).square().mean()  # <- its loss
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def train_step(device: str):
    return TrainStep(device)
'''
DOCSTRING = '"""Guards the speed of {workload}."""\n\n'
TEST_TEXT = """from stepguard import {names}
from stepguard.plugin import cases


@cases(
    {case},
)
def test_{test}(perf, case):
    perf(case)
"""
WORKFLOW = ".github/workflows/stepguard.yml"
WORKFLOW_TEXT = """name: stepguard

on:
  push:
    branches: [main]
  pull_request:

permissions:
  contents: read

jobs:
  perf:
    runs-on: {runner}
    timeout-minutes: 60
    steps:
      - uses: actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1
        with:
          persist-credentials: false
          fetch-depth: 0 # recordings name commits, and a pull request is judged by its base's
      - uses: actions/setup-python@5fda3b95a4ea91299a34e894583c3862153e4b97 # v7.0.0
        with:
          python-version: "{python}"
      # The same torch as in the recording: another version is another baseline. Put the line that
      # installs stepguard and your project here.
      - run: pip install torch=={torch}
      # A pull request is judged by the branch that it goes into. The one that brings the first
      # recording is red, since that branch has none: an owner merges it.
      - run: >-
          {folders}python -m pytest perf_tests --perf-strict{options}
          ${{GITHUB_BASE_REF:+"--perf-base=origin/$GITHUB_BASE_REF"}}
"""
OWNERS = "CODEOWNERS"
OWNERS_FOLDERS = (".github", ".", "docs")  # GitHub reads the first
OWNERS_TEXT = """
# Who must approve a change of what decides whether a pull request is green. Write your own team,
# and set "Require review from Code Owners" for the main branch.
"""
TEAM = "@OWNER/maintainers"
OWNED = (".github/", "baselines/", "conftest.py", "perf_tests/")
# What pytest takes its settings from, even empty, before any file that others read, too.
OWN_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")


@dataclass(frozen=True)
class Wanted:
    """A file that is to be there: what to write into it, behind what it has."""

    path: Path
    text: str
    why: str

    @property
    def alone(self) -> bool:
        """Tell whether the file is as an earlier call left it, which did not come to its commit."""
        return self.path.is_file() and self.path.read_text() == self.text


def files_of_case(root: Path, case: Case) -> Iterator[Wanted]:
    """Yield the files that guard the case."""
    text = DOCSTRING.format(workload=case.workload) + test_text(case, function_name(case))
    yield Wanted(root / test_file(case), text, "what is guarded")
    if settings := _settings(root):
        yield settings
    ignored = Wanted(root / ".gitignore", "__pycache__/\n", "a recording needs a clean tree")
    if ignored.alone or git(root, "check-ignore", "-q", "__pycache__/x.pyc") is None:
        yield ignored


def files_of_ci(root: Path, case: Case) -> Iterator[Wanted]:
    """Yield the workflow, and who has to approve a change of what judges."""
    yield _workflow(root, case)
    places = [root / folder / OWNERS for folder in OWNERS_FOLDERS]
    path = next(filter(Path.is_file, places), places[0])
    known = path.read_text().splitlines() if path.is_file() else []
    owned = {line.split()[0] for line in known if line.split()}
    # Files of settings that are not there, too: pytest might read them before the one that is.
    settings = (*OWN_FILES, "pyproject.toml", "setup.cfg", "tox.ini")
    names = sorted({*OWNED, *settings, path.relative_to(root).as_posix()})
    if lines := [f"/{name} {TEAM}" for name in names if f"/{name}" not in owned]:
        text = "\n".join([OWNERS_TEXT.rstrip(), *lines, ""])
        yield Wanted(path, text, f"who approves what judges: write your team for {TEAM}")


def test_file(case: Case) -> str:
    """Return the path of the case's test below the project's root."""
    return f"perf_tests/test_{function_name(case)}.py"


def test_text(case: Case, test: str) -> str:
    """Return the source of a test that guards the case, its function called test_``test``."""
    declared = declaration(case)
    names = "Case, Loop" if "loop=Loop(" in declared else "Case"
    return TEST_TEXT.format(names=names, case=declared, test=test)


def declaration(case: Case) -> str:
    """Return the case as a line of its test."""
    pairs = ", ".join(f"{_quoted(key)}: {_quoted(value)}" for key, value in case.params.items())
    fields = [_quoted(case.name), _quoted(case.workload), *([f"{{{pairs}}}"] if pairs else [])]
    if case.args:
        fields.append(f"args=({' '.join(f'{_quoted(one)},' for one in case.args)})")
    if case.loop:
        values, usual = vars(case.loop), vars(Loop())
        own = [f"{key}={_quoted(value)}" for key, value in values.items() if value != usual[key]]
        if own or not case.is_script:  # a script has a loop by itself
            fields.append(f"loop=Loop({', '.join(own)})")
    fields.append(f"device={_quoted(case.device)}")
    fields += [f"world_size={case.world_size}"] if case.world_size > 1 else []
    fields += ["launches=1"] if case.device == CPU else []
    return f"Case({', '.join(fields)})"


def function_name(case: Case) -> str:
    """Return what the test is called after: a script's name may hold what no identifier does."""
    return re.sub(r"\W", "_", case.function)


def _quoted(value: Scalar) -> str:
    """Return a value as Python source, a text in double quotes, as formatters want it."""
    if isinstance(value, str) and value.isprintable():
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _settings(root: Path) -> Wanted | None:
    """Return what makes ``root`` the root of pytest, where baselines/ is; None if it is that."""
    why = "pytest's root, where baselines/ will be"
    own = Wanted(root / "pytest.ini", "[pytest]\n", why)
    if own.alone:
        return own
    if any((root / name).is_file() for name in OWN_FILES) or _has_section(root):
        return None
    if (root / "pyproject.toml").is_file():
        return Wanted(root / "pyproject.toml", "\n[tool.pytest.ini_options]\n", why)
    if (root / "setup.cfg").is_file():
        return Wanted(root / "setup.cfg", "\n[tool:pytest]\n", why)
    return own


def _has_section(root: Path) -> bool:
    """Tell whether a file that is not pytest's own has settings of it."""
    try:
        text = (root / "pyproject.toml").read_text() if (root / "pyproject.toml").is_file() else ""
        if "pytest" in tomllib.loads(text).get("tool", {}):
            return True
        for name, section in (("tox.ini", "pytest"), ("setup.cfg", "tool:pytest")):
            parser = ConfigParser(interpolation=None)
            parser.read(root / name)
            if parser.has_section(section):
                return True
    except (OSError, ValueError, Error) as error:
        raise ValueError(f"{root}: pytest could not read its settings either: {error}") from None
    return False


def _workflow(root: Path, case: Case) -> Wanted:
    gpu = case.device == GPU
    text = WORKFLOW_TEXT.format(
        runner="[self-hosted, linux, gpu]" if gpu else "ubuntu-latest",
        folders=source_folders(),
        options=f" --perf-require-gpus={case.world_size}" if gpu else "",
        python=".".join(map(str, sys.version_info[:2])),
        torch=metadata.version("torch").partition("+")[0],
    )
    return Wanted(root / WORKFLOW, text, "the gate in CI; see the comments in it")
