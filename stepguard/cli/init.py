"""The command init: guard a workload in this project, from a test file to its first recording.

    python -m stepguard init -- train.py --batch_size=12
    python -m stepguard init --gpus 2 -- train.py --batch_size=12
    python -m stepguard init my_model:train_step width=64

It writes what is not there yet, commits that, measures once and records. What is there is left as
it is, so that the command can be given again after whatever it stopped at.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser, Error
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from stepguard.cli.common import UsageError, say
from stepguard.cli.workload_arguments import (
    add_parameters,
    loop_of,
    missing,
    parameters,
    script_of,
    with_colon,
)
from stepguard.core.case import Case, Loop, Scalar
from stepguard.core.device import CPU, GPU
from stepguard.core.sentences import uncommitted
from stepguard.machine.git.revision import current, git, no_commit, run_git
from stepguard.machine.gpu.nvml import visible_gpus
from stepguard.machine.interpreter import interpreter, source_folders
from stepguard.machine.requirements import require_torch
from stepguard.storage.json_file import replace_file

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
PLUGIN = "stepguard.plugin"
PYTEST_USAGE = 4  # pytest's exit status for options that it does not know, among others
SUBJECT = "Guard the speed of a step"  # of init's own commit
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


def add_command(commands: Any, root: Path) -> None:
    text = "guard a script or a factory in this project: writes a test, measures once and records"
    command = commands.add_parser("init", help=text)
    command.add_argument("factory", nargs="?", metavar="FACTORY", help="package.module:function")
    add_parameters(command)
    command.add_argument("--name", help="of the case (default: the device)")
    command.add_argument("--ci", action="store_true", help=f"write {WORKFLOW} and its owners, too")
    command.set_defaults(call=_init, root=root)


def _init(options: argparse.Namespace) -> int:
    root, python = options.root, interpreter(Path.cwd())
    if options.factory is None and not options.script:
        return _without_factory(root, python)
    case = _wanted_case(options)
    require_torch()
    if case.device == GPU and not visible_gpus():
        raise UsageError(
            "this machine shows no GPU, so that nothing could be measured; nothing was written: "
            "give the command in a clone on a machine that has one, or guard the counters of a "
            f"small step here: --device {CPU}"
        )
    wanted = [*_wanted(root, case), *(_in_ci(root, case) if options.ci else [])]
    _refuse_other_case(root / _test_file(case), case, python)
    for one in wanted:
        _write(one, root)
    # All that is cheap comes before what takes minutes.
    if problem := no_commit(root) or _commit(root, [one.path for one in wanted]):
        raise ValueError(f"not measured, {problem}; then again: {_again(python)}")
    if case.loop:
        say(f"{case.workload} runs as it is: it writes what a run of its own would write")
    return _record(root, python, _test_file(case))


def _wanted_case(options: argparse.Namespace) -> Case:
    """Return the case that is to be guarded. Raises UsageError."""
    params, device = parameters(options)
    ranks, cpu = options.gpus or 1, device == CPU
    several = f"-{ranks}-{'ranks' if cpu else 'gpus'}" if ranks > 1 else ""
    name = options.name or f"{device}{several}"
    workload, args = script_of(options) if options.script else (options.factory, ())
    if not options.script and ":" not in workload:
        hint = with_colon(workload, options.root)
        raise UsageError(f"{workload!r}: write package.module:function, or -- SCRIPT{hint}")
    try:
        case = Case(
            name,
            workload,
            params,
            device=device,
            world_size=ranks,
            launches=1 if cpu else 3,
            args=args,
            loop=loop_of(options),
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    if problem := missing(workload, options.root, None if case.loop else params):
        raise UsageError(problem)
    return case


def _again(python: str) -> str:
    return f"{python} -m stepguard {shlex.join(sys.argv[1:])}"


def _without_factory(root: Path, python: str) -> int:
    """Write a factory to fill in; it runs as it is."""
    again = f"{python} -m stepguard init {Path(FACTORY).stem}:train_step"
    if (root / FACTORY).exists():
        raise UsageError(f"name the factory; for that of {FACTORY}: {again}")
    _write(Wanted(root / FACTORY, FACTORY_TEXT, "a factory, which runs as it is"), root)
    say(f"put your model into it, then: {again}")
    return 0


def _test_file(case: Case) -> str:
    return f"perf_tests/test_{_function(case)}.py"


def _declaration(case: Case) -> str:
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


def _refuse_other_case(test: Path, case: Case, python: str) -> None:
    """Raise ValueError where the test is there without this case, however a formatter broke its
    line: it is the user's, and what would be measured is what an earlier, mistyped command wrote.
    """
    line = _declaration(case)
    text = test.read_text() if test.is_file() else ""
    there = "".join(text.split())
    if not there or "".join(line.split()).removesuffix(")") in there:
        return
    name = f"{test.parent.name}/{test.name}"
    front = f"{name} is there without this case, and left as it is. To guard the case, "
    if "@cases(" in there:
        raise ValueError(
            f"{front}put it in as {line}, and init again. To record the cases that the file has: "
            f"{python} -m pytest {name} --perf-update-new"
        )
    # The file may have the test's usual name, for another test.
    say(f"# to be added to {name}", *_test_text(case, f"speed_of_{_function(case)}").splitlines())
    raise ValueError(f"{front}add the lines above to it, and init again")


def _function(case: Case) -> str:
    """Return what the test is called after: a script's name may hold what no identifier does."""
    return re.sub(r"\W", "_", case.function)


def _test_text(case: Case, test: str) -> str:
    declared = _declaration(case)
    names = "Case, Loop" if "loop=Loop(" in declared else "Case"
    return TEST_TEXT.format(names=names, case=declared, test=test)


def _wanted(root: Path, case: Case) -> Iterator[Wanted]:
    """Yield the files that guard the case."""
    text = DOCSTRING.format(workload=case.workload) + _test_text(case, _function(case))
    yield Wanted(root / _test_file(case), text, "what is guarded")
    if settings := settings_of(root):
        yield settings
    ignored = Wanted(root / ".gitignore", "__pycache__/\n", "a recording needs a clean tree")
    if ignored.alone or git(root, "check-ignore", "-q", "__pycache__/x.pyc") is None:
        yield ignored


def _quoted(value: Scalar) -> str:
    """Return a value as Python source, a text in double quotes, as formatters want it."""
    if isinstance(value, str) and value.isprintable():
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def settings_of(root: Path) -> Wanted | None:
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


def _in_ci(root: Path, case: Case) -> Iterator[Wanted]:
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


def _write(wanted: Wanted, root: Path) -> None:
    """Write a file, or add to it, and say so; nothing where its text is there already."""
    path, shown = wanted.path, os.path.relpath(wanted.path, root)
    there = path.read_text() if path.is_file() else ""
    if wanted.text.strip() in there:
        return
    if there and path.suffix in (".py", ".yml"):
        say(f"{shown} is there, and left as it is")
        return
    glue = "" if not there or there.endswith("\n") else "\n"
    replace_file(path, f"{there}{glue}{wanted.text if there else wanted.text.lstrip()}".encode())
    say(f"{'extended' if there else 'wrote'} {shown}: {wanted.why}")


def _commit(root: Path, paths: list[Path]) -> str:
    """Commit these files where nothing else is uncommitted; return why that cannot be done."""
    dirty = set(current(root, root / "baselines").dirty)
    names = [os.path.relpath(path, root) for path in paths if path.exists()]
    top = (git(root, "rev-parse", "--show-toplevel") or "").rstrip("\n")
    ours = {name: os.path.relpath(root / name, top) for name in names}
    if others := sorted(dirty - {*ours.values()}):
        return f"there are {uncommitted(others)}"
    if not dirty:
        return ""
    typed = f"git add {shlex.join(names)} && git commit -m {shlex.quote(SUBJECT)}"
    for arguments in (["add", *names], ["commit", "-m", SUBJECT, *names]):
        done = run_git(root, *arguments)
        if done is None or done.returncode != 0:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines() if done else []
            return f"git {arguments[0]} failed ({last[-1] if last else 'no answer'}); do: {typed}"
    new = [name for name in names if ours[name] in dirty]
    say(f"committed {', '.join(new)}: a recording names its commit")
    return ""


def _record(root: Path, python: str, test: str) -> int:
    """Measure the cases of a test file once, and record them."""
    command = [sys.executable, "-m", "pytest", test, "--perf-update-new", "--perf-no-strict"]
    status = subprocess.run(command, cwd=root, check=False).returncode
    if status == PYTEST_USAGE and not metadata.entry_points(group="pytest11", name=PLUGIN):
        clone = shlex.quote(str(Path(__file__).resolve().parents[2]))
        say("", "pytest does not know these options where stepguard is not installed:")
        say(f"  {python} -m pip install {clone}", "then init again")
    elif status:
        say("", "Mend what is told above, commit, then again:", f"  {_again(python)}")
        last = (git(root, "log", "-1", "--format=%h %s", "--", test) or "").strip()
        own, _, subject = last.partition(" ")
        if subject == SUBJECT:
            say("To take back what init committed:", f"  git revert --no-edit {own}")
    if status:
        return 1
    say("")
    if git(root, "status", "--porcelain", "--", "baselines") != "":
        say("Commit the recording, so that everybody is compared with it:")
        say("  git add baselines && git commit -m 'The first recording'")
    say("From now on:", f"  {python} -m pytest {test}")
    return 0
