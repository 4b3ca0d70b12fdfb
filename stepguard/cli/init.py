"""The command init: guard a workload in this project, from a test file to its first recording.

    python -m stepguard init -- train.py --batch_size=12
    python -m stepguard init --gpus 2 -- train.py --batch_size=12
    python -m stepguard init my_model:train_step width=64

It writes the files that are missing, commits them, measures once and records. It leaves the files
that are there as they are. If nothing is recorded it takes its commit back, so that the command can
be given again, or another one.
"""

import argparse
import os
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from stepguard.cli.common import UsageError, say
from stepguard.cli.init_files import (
    FACTORY,
    FACTORY_TEXT,
    WORKFLOW,
    Wanted,
    as_text,
    declaration,
    files_of_case,
    files_of_ci,
    function_name,
    test_file,
    test_text,
)
from stepguard.cli.workload_arguments import (
    RUNS_AS_IT_IS,
    add_parameters,
    loop_of,
    missing,
    parameters,
    script_of,
    with_colon,
)
from stepguard.core.case import Case
from stepguard.core.device import CPU, GPU
from stepguard.core.shared_sentences import uncommitted
from stepguard.machine.git.revision import current, git, no_commit, run_git, top_of
from stepguard.machine.gpu.nvml import visible_gpus
from stepguard.machine.interpreter import interpreter
from stepguard.machine.requirements import require_torch
from stepguard.storage.json_file import replace_file

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
    """Return the case that is to be guarded. Raises UsageError."""
    params, device = parameters(options)
    ranks, cpu = options.gpus or 1, device == CPU
    if cpu and ranks > (most := RANKS_OF_A_CORE * (os.cpu_count() or 1)):
        raise UsageError(f"--gpus {ranks}: of a CPU's ranks this machine can run {most} at most")
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
            data=tuple(options.data),
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    if problem := missing(workload, options.root, None if case.loop else params):
        raise UsageError(problem)
    return case


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
    """Raise ValueError if the test file exists without this case: another case would be measured,
    and the file is the user's. White space, which a formatter may have changed, does not count.
    """
    line = declaration(case)
    text = as_text(test)
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
    """Return the uncommitted files, apart from those at ``paths`` and from what the .gitignore that
    init writes will name.
    """
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
    """Measure the cases of a test file once, and record them."""
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
        say("", front, f"  {_again(python)}")
    if status:
        return 1
    say("")
    if git(root, "status", "--porcelain", "--", "baselines") != "":
        say("Commit the recording, so that everybody is compared with it:")
        say("  git add baselines && git commit -m 'The first recording'")
    say("From now on:", f"  {python} -m pytest {test}")
    return 0
