"""The command init: guard a workload in this project, from a test file to its first recording.

    python -m stepguard init -- train.py --batch_size=12
    python -m stepguard init --gpus 2 -- train.py --batch_size=12
    python -m stepguard init my_model:train_step width=64

It writes the files that are missing, commits them, measures once and records. It leaves the files
that are there as they are, so the command can be given again after any error. A test that init
itself wrote is replaced as long as its case is not recorded: the first command may have been wrong.
"""

import argparse
import os
import shlex
import subprocess
import sys
from importlib import metadata
from itertools import takewhile
from pathlib import Path
from typing import Any

from stepguard.cli.common import UsageError, say
from stepguard.cli.init_files import (
    FACTORY,
    FACTORY_TEXT,
    WORKFLOW,
    Wanted,
    as_written,
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
from stepguard.storage.baseline_files import files, load
from stepguard.storage.json_file import replace_file

PLUGIN = "stepguard.plugin"
PYTEST_USAGE = 4  # pytest's exit status for options that it does not know, among others
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
    wanted = [*files_of_case(root, case), *(files_of_ci(root, case) if options.ci else [])]
    _take_back_unrecorded(root, case)
    _refuse_other_case(root / test_file(case), case, python)
    for file in wanted:
        _write(file, root)
    # All cheap checks come before the measurement, which takes minutes.
    if problem := no_commit(root) or _commit(root, [file.path for file in wanted]):
        raise ValueError(f"not measured, {problem}; then again: {_again(python)}")
    if case.loop:
        say(RUNS_AS_IT_IS.format(workload=case.workload))
    return _record(root, python, test_file(case))


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


def _take_back_unrecorded(root: Path, case: Case) -> None:
    """Remove the test of an earlier init whose case differs and was never recorded, so that a
    corrected command can replace it. Leave a test that somebody changed.
    """
    test = root / test_file(case)
    text = test.read_text() if test.is_file() else ""
    if declaration(case) in text or not as_written(text, case):
        return
    recorded = [content.cases for path in files(root / "baselines") if (content := load(path))]
    if not any(each.startswith(f"{function_name(case)}[") for cases in recorded for each in cases):
        test.unlink()
        say(f"removed {os.path.relpath(test, root)}: its case was never recorded")


def _refuse_other_case(test: Path, case: Case, python: str) -> None:
    """Raise ValueError if the test file exists without this case: another case would be measured,
    and the file is the user's. White space, which a formatter may have changed, does not count.
    """
    line = declaration(case)
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
    # The file has the name that init would use, but another test without @cases.
    say(
        f"# to be added to {name}", *test_text(case, f"speed_of_{function_name(case)}").splitlines()
    )
    raise ValueError(f"{front}add the lines above to it, and init again")


def _write(wanted: Wanted, root: Path) -> None:
    """Write a file, or add to it, and say so. Does nothing if the text is there already."""
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
    """Commit these files if nothing else is uncommitted; else return why not."""
    dirty = set(current(root, root / "baselines").dirty)
    names = [os.path.relpath(path, root) for path in paths if path.exists()]
    top = top_of(root)
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


def _own_commits(root: Path, test: str) -> list[str]:
    """Return the newest commits of a test up to the first that init did not make, newest first."""
    log = (git(root, "log", "--format=%h %s", "--", test) or "").splitlines()
    commits = (line.partition(" ") for line in log)
    return [own for own, _, _ in takewhile(lambda commit: commit[2] == SUBJECT, commits)]


def _record(root: Path, python: str, test: str) -> int:
    """Measure the cases of a test file once, and record them."""
    command = [sys.executable, "-m", "pytest", test, "--perf-update-new", "--perf-no-strict"]
    status = subprocess.run(command, cwd=root, check=False).returncode
    if status == PYTEST_USAGE and not metadata.entry_points(group="pytest11", name=PLUGIN):
        clone = shlex.quote(str(Path(__file__).resolve().parents[2]))
        say("", "pytest does not know these options, since stepguard is not installed. Install it:")
        say(f"  {python} -m pip install {clone}", "Then run init again.")
    elif status:
        say("", "Mend what is told above, commit, then again:", f"  {_again(python)}")
        if own := _own_commits(root, test):
            say("To take back what init committed:", f"  git revert --no-edit {' '.join(own)}")
    if status:
        return 1
    say("")
    if git(root, "status", "--porcelain", "--", "baselines") != "":
        say("Commit the recording, so that everybody is compared with it:")
        say("  git add baselines && git commit -m 'The first recording'")
    say("From now on:", f"  {python} -m pytest {test}")
    return 0
