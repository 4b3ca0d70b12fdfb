"""The command init: guard a workload in this project, from a test file to its first recording.

    python -m stepguard init -- train.py --batch_size=12
    python -m stepguard init --gpus 2 -- train.py --batch_size=12
    python -m stepguard init my_model:train_step width=64

It writes the files that are missing, commits them, measures once and records. It leaves the files
that are there as they are. If nothing is recorded it takes its commit back, so that the command can
be given again, or another one.
"""

import argparse
import contextlib
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
    RUNS_AS_IT_IS,
    add_parameters,
    chosen_case,
    parameters,
)
from stepguard.core.case import Case, Loop, Scalar
from stepguard.core.device import CPU, GPU
from stepguard.core.reason_sentences import uncommitted
from stepguard.core.text import listed
from stepguard.machine.git.resolve import TreeError, main_branch
from stepguard.machine.git.revision import (
    current,
    git,
    name_on_github,
    no_commit,
    origin,
    run_git,
    top_of,
)
from stepguard.machine.gpu import visible_gpus
from stepguard.machine.interpreter import interpreter, source_folders
from stepguard.machine.packages import require_torch
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
ACTION = "OWNER/STEPGUARD@COMMIT"  # to be filled in, if the repository or its commit is not known
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
    """Return a file's text with its line ends, escaping what is no UTF-8; "" without it."""
    return path.read_bytes().decode(errors="surrogateescape") if path.is_file() else ""


def files_of_case(root: Path, case: Case) -> Iterator[Wanted]:
    """Yield the files that guard the case."""
    text = DOCSTRING.format(workload=case.workload) + test_text(case, function_name(case))
    yield Wanted(root / test_file(case), text, "what is guarded")
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
    """Return the name of the test function, without "test_"."""
    return re.sub(r"\W", "_", case.function)


def _quoted(value: Scalar) -> str:
    """Return a value as Python source. A text is in double quotes, as formatters want it."""
    if isinstance(value, str) and value.isprintable():
        return json.dumps(value, ensure_ascii=False)
    return repr(value)


def _settings(root: Path) -> Wanted | None:
    """Return the file that makes ``root`` pytest's root; None if it is that already."""
    why = "pytest's root, where baselines/ will be"
    if any((root / name).is_file() for name in OWN_FILES) or _has_section(root):
        return None
    sections = {"pyproject.toml": "tool.pytest.ini_options", "setup.cfg": "tool:pytest"}
    for name, section in sections.items():
        if (root / name).is_file():
            return Wanted(root / name, f"\n[{section}]\n", why)
    return Wanted(root / "pytest.ini", "[pytest]\n", why)


def _has_section(root: Path) -> bool:
    """Tell whether a file has settings of pytest. Raises ValueError if one cannot be read."""
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


PLUGIN = "stepguard.plugin"
PYTEST_USAGE = 4  # pytest's exit status for options that it does not know, among others
RANKS_OF_A_CORE = 4  # with more, ranks wait for each other all the time
SUBJECT = "Guard the speed of a step"  # of init's own commit


def add_command(commands: Any, root: Path) -> None:
    text = "guard a script or a factory in this project: writes a test, measures once and records"
    command = commands.add_parser("init", help=text)
    command.add_argument("factory", nargs="?", metavar="FACTORY", help="package.module:function")
    add_parameters(command)
    command.add_argument("--name", help="of the case (default: the device)")
    text = "a file or folder that git ignores and the workload reads; repeat it for several"
    command.add_argument("--data", action="append", default=[], metavar="PATH", help=text)
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
    again = f"then again: {_again(python)}"
    # All cheap checks come before anything is written.
    if problem := no_commit(root):
        raise ValueError(f"not measured, {problem}; {again}")
    wanted = [*files_of_case(root, case), *(files_of_ci(root, case) if options.ci else [])]
    paths = [os.path.realpath(file.path) for file in wanted]
    _refuse_other_case(root / test_file(case), case, python)
    if others := _others(root, case, paths):
        raise ValueError(f"not measured, there are {uncommitted(others)}; {again}")
    for file in wanted:
        _write(file, root)
    before = git(root, "rev-parse", "HEAD")
    if problem := _commit(root, paths):
        raise ValueError(f"not measured, {problem}; {again}")
    if case.loop:
        say(RUNS_AS_IT_IS.format(workload=case.workload))
    status = 1
    try:
        status = _record(root, python, test_file(case))
    finally:
        if status:
            _take_back(root, str(before).strip())
    return status


def _wanted_case(options: argparse.Namespace) -> Case:
    _, device = parameters(options)
    ranks, cpu = options.gpus or 1, device == CPU
    if cpu and ranks > (most := RANKS_OF_A_CORE * (os.cpu_count() or 1)):
        raise UsageError(f"--gpus {ranks}: of a CPU's ranks this machine can run {most} at most")
    several = f"-{ranks}-{'ranks' if cpu else 'gpus'}" if ranks > 1 else ""
    if not options.script and ":" not in options.factory:
        raise UsageError(f"{options.factory!r}: write package.module:function, or -- SCRIPT")
    name = options.name or f"{device}{several}"
    return chosen_case(options, name=name, data=tuple(options.data))


def _again(python: str) -> str:
    return f"{python} -m stepguard {shlex.join(sys.argv[1:])}"


def _without_factory(root: Path, python: str) -> int:
    """Write a factory into which the user puts a model. It already runs. Return the exit status."""
    command = f"{python} -m stepguard init {Path(FACTORY).stem}:train_step"
    if (root / FACTORY).exists():
        raise UsageError(f"name the factory; for that of {FACTORY}: {command}")
    _write(Wanted(root / FACTORY, FACTORY_TEXT, "a factory, which runs as it is"), root)
    say(f"put your model into it, then: {command}")
    return 0


def _refuse_other_case(test: Path, case: Case, python: str) -> None:
    """Raise ValueError if the test file, which is the user's, exists without this case."""
    line = declaration(case)
    text = as_text(test)
    there = "".join(text.split())
    if not there or "".join(line.split()).removesuffix(")") in there:
        return
    name = f"{test.parent.name}/{test.name}"
    front = f"{name} is there without this case, and left as it is. To guard the case, "
    if "@cases(" in there:
        raise ValueError(
            f"{front}put it in as {line}, and init again; with --name NAME, if the file has a case "
            f"of that name. To record its cases: {python} -m pytest {name} --perf-update-new"
        )
    # The file has the name that init would use, but another test without @cases.
    say(
        f"# to be added to {name}", *test_text(case, f"speed_of_{function_name(case)}").splitlines()
    )
    raise ValueError(f"{front}add the lines above to it, and init again")


def _write(wanted: Wanted, root: Path) -> None:
    """Write a file, or add to it, and say so. Does nothing if the text is there already."""
    path, shown = wanted.path, os.path.relpath(wanted.path, root)
    there = as_text(path)
    lines = "\r\n" if "\r\n" in there else "\n"
    if wanted.text.strip() in there.replace(lines, "\n"):
        return
    if there and path.suffix in (".py", ".yml"):
        say(f"{shown} is there, and left as it is")
        return
    glue = "" if not there or there.endswith("\n") else lines
    added = wanted.text.replace("\n", lines) if there else wanted.text.lstrip()
    real = path.resolve()  # a link stays one
    mode = real.stat().st_mode if there else None
    replace_file(real, f"{there}{glue}{added}".encode(errors="surrogateescape"))
    if mode is not None:
        real.chmod(mode)
    say(f"{'extended' if there else 'wrote'} {shown}: {wanted.why}")


def _others(root: Path, case: Case, paths: list[str]) -> list[str]:
    """Return the uncommitted files, without ``paths`` and what .gitignore will name."""
    top = str(top_of(root))
    ours = {os.path.relpath(path, top) for path in paths}
    data = {os.path.relpath(os.path.join(root, path), top) for path in case.data}
    return [
        name
        for name in current(root, root / "baselines").dirty
        if name not in ours
        and "__pycache__" not in name.split("/")
        and not any(f"{name}/".startswith(f"{path}/") for path in data)
    ]


def _commit(root: Path, paths: list[str]) -> str:
    """Commit these files. Return why that failed; empty if it did not."""
    top = str(top_of(root))
    dirty = set(current(root, root / "baselines").dirty)
    new = [path for path in paths if os.path.relpath(path, top) in dirty]
    names = [os.path.relpath(path, root) for path in new]
    if not names:
        return ""
    typed = f"git add {shlex.join(names)} && git commit -m {shlex.quote(SUBJECT)}"
    for arguments in (["add", *names], ["commit", "-m", SUBJECT, *names]):
        done = run_git(root, *arguments)
        if done is None or done.returncode != 0:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines() if done else []
            return f"git {arguments[0]} failed ({last[-1] if last else 'no answer'}); do: {typed}"
    say(f"committed {', '.join(names)}: a recording names its commit")
    return ""


def _take_back(root: Path, before: str) -> None:
    """Take back what init committed on top of the commit ``before``, with its files. Does nothing
    if it committed nothing, if one of them has changed since then, or if a recording names it:
    another plugin may have failed the run.
    """
    own = git(root, "log", "--format=%s", f"{before}..HEAD")
    if git(root, "status", "--porcelain", "--", "baselines") != "":
        return
    if own == f"{SUBJECT}\n" and git(root, "reset", "--keep", before) is not None:
        say("init has taken its commit back.")


def _record(root: Path, python: str, test: str) -> int:
    command = [sys.executable, "-m", "pytest", test, "--perf-update-new", "--perf-no-strict"]
    status = subprocess.run(command, cwd=root, check=False).returncode
    if status == PYTEST_USAGE and not metadata.entry_points(group="pytest11", name=PLUGIN):
        clone = shlex.quote(str(Path(__file__).resolve().parents[2]))
        say("", "pytest does not know these options, since stepguard is not installed. Install it:")
        say(f"  {python} -m pip install {clone}", "Then run init again.")
    elif status:
        front = "Mend what is told above, commit, then again:"
        if status == PYTEST_USAGE:
            front = "pytest refused to start: mend what it says. An option that it does not know "
            front += "is of the project's addopts: install its plugin. Then again:"
        # The tree was clean before. A folder that is new stands for its files.
        if new := (git(root, "status", "--porcelain", "--", ":!baselines") or "").splitlines():
            wrote = listed([line[3:] for line in new], 3)
            say("", f"The run wrote {wrote}: outputs belong in .gitignore.")
        say("", front, f"  {_again(python)}")
    if status:
        return 1
    say("")
    if git(root, "status", "--porcelain", "--", "baselines") != "":
        say("Commit the recording, so that everybody is compared with it:")
        say("  git add baselines && git commit -m 'The first recording'")
    say("From now on:", f"  {python} -m pytest {test}")
    return 0
