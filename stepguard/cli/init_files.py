"""The files that guard a workload: its test, its settings, its workflow and who owns them."""

import contextlib
import json
import os
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
from stepguard.machine.git.remote import name_on_github, origin
from stepguard.machine.git.resolve import TreeError, main_branch
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
    branches: [{branch}]
  pull_request:
    branches: [{branch}] # judged for another branch, it would stay green when it is retargeted
  merge_group:

permissions:
  contents: read

jobs:
  perf:
    runs-on: {runner}
    timeout-minutes: 60
{environment}    steps:
      - uses: actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1
        with:
          persist-credentials: false
          fetch-depth: 0 # recordings name commits, and a pull request is judged by its base's
      - uses: actions/setup-python@5fda3b95a4ea91299a34e894583c3862153e4b97 # v7.0.0
        with:
          python-version: "{python}"
      # The same torch as in the recording: another version is another baseline. Put the line that
      # installs your project here.
{cpu_build}      - run: pip install torch=={torch}
      # Installs stepguard, measures and judges. A pull request is judged by the branch that it goes
      # into. The one that brings the first recording is red, since that branch has none: an owner
      # merges it.
      - uses: {action}
{inputs}"""
CPU_BUILD = """\
      # This runner has no GPU: add the --index-url of the CPU build, which PyTorch's install page
      # names. Without it pip may fetch the build for CUDA, of several GB.
"""
ACTION = "OWNER/REPO@COMMIT"  # to be filled in, if the repository or its commit is not known
OWNERS = "CODEOWNERS"
OWNERS_FOLDERS = (".github", ".", "docs")  # GitHub reads the first file that exists
OWNERS_TEXT = """
# Who must approve a change of what decides whether a pull request is green. Write your own team,
# and set "Require review from Code Owners" for the main branch.
"""
TEAM = "@OWNER/maintainers"
OWNED = (".github/", "baselines/", "conftest.py", "perf_tests/")
# pytest takes its settings from the first of these files, even if it is empty.
OWN_FILES = ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini")


@dataclass(frozen=True)
class Wanted:
    """A file that init needs, and the text that it writes into it or adds to it."""

    path: Path
    text: str
    why: str


def as_text(path: Path) -> str:
    """Return a file's text with its own line ends, whatever its encoding; empty without the file.
    Encode it with "surrogateescape", too.
    """
    return path.read_bytes().decode(errors="surrogateescape") if path.is_file() else ""


def files_of_case(root: Path, case: Case) -> Iterator[Wanted]:
    """Yield the files that guard the case."""
    yield Wanted(root / test_file(case), _file_text(case), "what is guarded")
    if settings := _settings(root):
        yield settings
    data = map(os.path.normpath, case.data)
    names = [f"/{path}" for path in data if _shows(root, path)]
    if git(root, "check-ignore", "-q", "__pycache__/x.pyc") is None:
        names.insert(0, "__pycache__/")
    if names:
        why = "what would make the tree dirty"
        yield Wanted(root / ".gitignore", "".join(f"{name}\n" for name in names), why)


def _shows(root: Path, path: str) -> bool:
    """Tell whether git shows files in a folder of data, or the file itself, as untracked."""
    return not path.startswith("..") and bool(
        git(root, "ls-files", "--others", "--directory", "--exclude-standard", "--", path)
    )


def files_of_ci(root: Path, case: Case) -> Iterator[Wanted]:
    """Yield the workflow, and CODEOWNERS: who must approve a change of the files that judge."""
    yield _workflow(root, case)
    places = [root / folder / OWNERS for folder in OWNERS_FOLDERS]
    path = next(filter(Path.is_file, places), places[0])
    known = as_text(path).splitlines()
    owned = {line.split()[0] for line in known if line.split()}
    # Also settings files that do not exist: pytest might read a new one in place of today's.
    settings = (*OWN_FILES, "pyproject.toml", "setup.cfg", "tox.ini")
    names = sorted({*OWNED, *settings, path.relative_to(root).as_posix()})
    if lines := [f"/{name} {TEAM}" for name in names if f"/{name}" not in owned]:
        text = "\n".join([OWNERS_TEXT.rstrip(), *lines, ""])
        yield Wanted(path, text, f"who approves what judges: write your team for {TEAM}")


def test_file(case: Case) -> str:
    """Return the path of the case's test below the project's root."""
    return f"perf_tests/test_{function_name(case)}.py"


def _file_text(case: Case) -> str:
    return DOCSTRING.format(workload=case.workload) + test_text(case, function_name(case))


def test_text(case: Case, test: str) -> str:
    """Return the source of a test that guards the case. Its function is called test_``test``."""
    declared = declaration(case)
    names = "Case, Loop" if "loop=Loop(" in declared else "Case"
    return TEST_TEXT.format(names=names, case=declared, test=test)


def declaration(case: Case) -> str:
    """Return the case as a line of its test."""
    pairs = ", ".join(f"{_quoted(key)}: {_quoted(value)}" for key, value in case.params.items())
    fields = [_quoted(case.name), _quoted(case.workload), *([f"{{{pairs}}}"] if pairs else [])]
    if case.args:
        fields.append(f"args=({' '.join(f'{_quoted(arg)},' for arg in case.args)})")
    if case.loop:
        values, usual = vars(case.loop), vars(Loop())
        own = [f"{key}={_quoted(value)}" for key, value in values.items() if value != usual[key]]
        if own or not case.is_script:  # a script has a loop by itself
            fields.append(f"loop=Loop({', '.join(own)})")
    if case.data:
        fields.append(f"data=({' '.join(f'{_quoted(path)},' for path in case.data)})")
    fields.append(f"device={_quoted(case.device)}")
    fields += [f"world_size={case.world_size}"] if case.world_size > 1 else []
    fields += ["launches=1"] if case.device == CPU else []
    return f"Case({', '.join(fields)})"


def function_name(case: Case) -> str:
    """Return the name of the test function, without "test_". Characters of a script's name that an
    identifier may not have become "_".
    """
    return re.sub(r"\W", "_", case.function)


def _quoted(value: Scalar) -> str:
    """Return a value as Python source. A text is in double quotes, as formatters want it."""
    if isinstance(value, str) and value.isprintable():
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _settings(root: Path) -> Wanted | None:
    """Return the file that makes ``root`` pytest's root, where baselines/ is; None if ``root`` is
    that already.
    """
    why = "pytest's root, where baselines/ will be"
    own = Wanted(root / "pytest.ini", "[pytest]\n", why)
    if any((root / name).is_file() for name in OWN_FILES) or _has_section(root):
        return None
    if (root / "pyproject.toml").is_file():
        return Wanted(root / "pyproject.toml", "\n[tool.pytest.ini_options]\n", why)
    if (root / "setup.cfg").is_file():
        return Wanted(root / "setup.cfg", "\n[tool:pytest]\n", why)
    return own


def _has_section(root: Path) -> bool:
    """Tell whether pyproject.toml, tox.ini or setup.cfg has settings of pytest. Raises ValueError
    if one cannot be read.
    """
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
    action = action_here()
    paths = os.environ["PYTHONPATH"] if source_folders() else ""
    text = WORKFLOW_TEXT.format(
        runner="[self-hosted, linux, gpu]" if gpu else "ubuntu-latest",
        branch=json.dumps(_main_name(root), ensure_ascii=False),
        cpu_build="" if gpu else CPU_BUILD,
        environment=f"    env:\n      PYTHONPATH: {json.dumps(paths)}\n" if paths else "",
        action=action,
        inputs=f'        with:\n          gpus: "{case.world_size}"\n' if gpu else "",
        python=".".join(map(str, sys.version_info[:2])),
        torch=metadata.version("torch").partition("+")[0],
    )
    write = f"; write stepguard's repository and a commit of it for {ACTION}"
    why = "the gate in CI; see the comments in it" + (write if action == ACTION else "")
    return Wanted(root / WORKFLOW, text, why)


def _main_name(root: Path) -> str:
    """Return the name of the main branch on the server; "main" if none is known yet."""
    head = (git(root, "symbolic-ref", "--short", "refs/remotes/origin/HEAD") or "").strip()
    with contextlib.suppress(TreeError):
        return (head or main_branch(root).name).removeprefix("origin/")
    return "main"


def action_here() -> str:
    """Return stepguard's action at the installed commit, as a workflow names it. Its repository is
    the one on GitHub from which pip installed, or the origin of this clone if it has the commit.
    ACTION if neither is known.
    """
    with contextlib.suppress(metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        source = json.loads(metadata.distribution("stepguard").read_text("direct_url.json") or "")
        if place := name_on_github(source["url"]):
            return f"{place}@{source['vcs_info']['commit_id']}"
    clone = Path(__file__).resolve().parents[2]
    commit = (git(clone, "rev-parse", "HEAD") or "").strip()
    place = name_on_github(origin(clone))
    pushed = git(clone, "branch", "--remotes", "--contains", commit) if place and commit else ""
    return f"{place}@{commit}" if pushed else ACTION
