"""Refuse options that cannot be obeyed. Collect what the guard asks for before a run measures: the
run's options and its tree.
"""

import argparse
import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from stepguard.core.margins import BUDGET_MIN
from stepguard.core.run_document import Problem
from stepguard.core.shared_sentences import no_folder, uncommitted
from stepguard.core.text import first, has_words, printable
from stepguard.judge.guard_options import JUDGING, RECORDING
from stepguard.judge.guarded_run import Option, Tree
from stepguard.launch.nodes.scheduler import LauncherError
from stepguard.machine.git.resolve import TreeError, resolve
from stepguard.machine.git.revision import (
    Revision,
    current,
    no_commit,
    tracked_files,
    untracked,
)
from stepguard.machine.gpu.nvml import MachineError, known_gpus
from stepguard.machine.interpreter import as_typed
from stepguard.machine.requirements import commands_of_packages, to_install_lab
from stepguard.plugin.options import TEXTS, base_branch, is_typed, value_of
from stepguard.storage import output_files
from stepguard.storage.json_file import FileError

NO_GATE = "the run is strict since CI is set; if it is no gate, add --perf-no-strict"
SHOWN = 10  # lines of a refusal


def refuse_bad_options(config: pytest.Config, root: Path, baselines: Path, gpus: int) -> None:
    """Raise UsageError for options that would pass cases unmeasured, or that cannot be obeyed."""
    for problem in _problems(config, root, baselines, gpus):
        raise pytest.UsageError(printable(problem))


class Refused(Exception):
    """Problems that a strict run has before it measures. Each is a line of pytest's error."""

    def __init__(self, problems: Sequence[Problem], *more: str) -> None:
        named = first([problem.sentence for problem in problems], SHOWN)
        super().__init__(*map(printable, (*named, *more)))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))


@contextlib.contextmanager
def usage_errors(front: str = "") -> Iterator[None]:
    """Turn errors of options, files and the machine into UsageError, which ends the run before it
    measures. ``front`` is put before the text.
    """
    try:
        yield
    except (FileError, LauncherError, MachineError, TreeError) as error:
        raise pytest.UsageError(printable(f"{front}{error}")) from None
    except Refused as error:
        raise pytest.UsageError(*error.args) from error


def refuse_unmeasured(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Raise UsageError for options of pytest-benchmark that would pass these tests unmeasured."""
    start = Path(config.invocation_params.dir)
    files = sorted({os.path.relpath(item.path, start) for item in items})
    leave_out = " ".join(f"--ignore={shlex.quote(file)}" for file in files)
    for name in ("--benchmark-skip", "--benchmark-disable"):
        if files and config.getoption(name, False):
            raise pytest.UsageError(
                f"{name} would pass the performance cases unmeasured; leave them out of this run: "
                f"{printable(leave_out)}"
            )


def _problems(config: pytest.Config, root: Path, baselines: Path, gpus: int) -> Iterator[str]:
    option = config.option
    texts = {name: value_of(name, config) for name in TEXTS}
    for name, value in texts.items():
        # An empty value would quietly change the gate: after --perf-against= the baseline judges.
        if value is not None and not value.strip():
            yield f"{name}={value}: empty; is a variable not set?"
    yield from _too_few_gpus(option.perf_require_gpus, gpus)
    updates, reason = option.perf_update or option.perf_update_new, option.perf_reason
    records = updates or option.perf_append
    if reason is not None and not (has_words(reason) and reason.isprintable()):
        yield f"--perf-reason={reason!r}: write a line of words"
    if reason is not None and not updates:
        yield "--perf-reason: nothing is recorded; it goes with --perf-update or --perf-update-new"
    if all(is_typed(name, config) for name in ("--perf-strict", "--perf-no-strict")):
        yield "--perf-strict with --perf-no-strict: a run is a gate or is none; give one of the two"
    yield from _two_ways_to_record(option)
    if not 0 < option.perf_budget < 1e6:  # written this way so that NaN is refused, too
        yield f"--perf-budget={option.perf_budget}: minutes, above 0 and below 1,000,000"
    if option.perf_against and records:
        yield "--perf-against judges against a revision, not a baseline: record in another run"
    if option.perf_against:
        yield from _bad_revision(option.perf_against, root, baselines)
    if records and (base := base_branch(config)[1]):
        yield f"{base} judges by another branch's baselines: record in another run"
    if records and (problem := no_commit(root) or uncommitted(current(root, baselines).dirty)):
        yield f"nothing can be recorded: {problem}"
    if option.perf_baselines and not baselines.is_dir():
        yield f"--perf-baselines={option.perf_baselines}: {no_folder(str(baselines))}"
    yield from _bad_documents(config.invocation_params.dir, texts)


def _too_few_gpus(required: int, gpus: int) -> Iterator[str]:
    wanted = f"--perf-require-gpus={required}"
    if required < 0:
        yield f"{wanted}: give 0 or more"
    if gpus < required:
        yield f"{wanted}: this machine shows {gpus}; see: {as_typed('stepguard doctor')}"
    if required > 0 and gpus < (known := known_gpus()):
        yield (
            f"{wanted}: this machine has {known} and shows {gpus}, so cases that need more would "
            "be skipped; look at CUDA_VISIBLE_DEVICES"
        )


def _two_ways_to_record(option: argparse.Namespace) -> Iterator[str]:
    """Yield a problem if changed levels would be recorded beside an option that keeps them."""
    narrower = {"--perf-update-new": option.perf_update_new, "--perf-append": option.perf_append}
    for name, given in narrower.items():
        if option.perf_update and given:
            yield (
                f"--perf-update with {name}: it also records changed levels, which {name} leaves "
                "alone; give one of the two"
            )


def _bad_documents(folder: Path, texts: Mapping[str, str | None]) -> Iterator[str]:
    seen = set[Path]()
    for name in ("--perf-json", "--perf-report"):
        text = texts[name]
        if not text:
            continue
        path = Path(folder, text)
        if problem := output_files.unwritable(path) or _lacks(path):
            yield f"{name}={text}: {problem}"
        if (path := path.resolve()) in seen:
            yield f"{name}={text}: that is where --perf-json is written"
        seen.add(path)


def _lacks(path: Path) -> str:
    """Return how to install what writes a page. Empty if it is installed, or not needed."""
    if path.suffix != output_files.HTML or "report" in commands_of_packages():
        return ""
    return to_install_lab()


def _bad_revision(rev: str, root: Path, baselines: Path) -> Iterator[str]:
    try:
        named = resolve(root, rev)
    except TreeError as error:
        yield f"--perf-against={rev}: {error}"
        return
    head = current(root, baselines)
    # A user who writes HEAD means it: pairs of one tree show how noisy this machine is.
    if named.commit == head.commit and not head.dirty and rev != "HEAD":
        yield (
            f"--perf-against={rev}: that is HEAD itself, without a change, and always the same; "
            "to compare the machine with itself say --perf-against=HEAD"
        )


def guarding_options(config: pytest.Config) -> list[Option]:
    """Return the options that change what a run guards, named as on the command line."""
    option = config.option
    shows = {
        "--collect-only": option.collectonly,
        "--fixtures": option.showfixtures,
        "--fixtures-per-test": option.show_fixtures_per_test,
    }
    given = [Option(name) for name, asked in shows.items() if asked]
    given += [Option(name) for name in RECORDING if value_of(name, config)]
    given += [
        Option(name, value, is_typed(name, config))
        for name in JUDGING
        if (value := value_of(name, config))
    ]
    if not option.perf_base and (branch := base_branch(config)[0]):  # CI's command names it
        given.append(Option("--perf-base", branch))
    if option.perf_budget < BUDGET_MIN:
        given.append(Option("--perf-budget", typed=is_typed("--perf-budget", config)))
    return given


def tree_beside_commit(root: Path, baselines: Path, revision: Revision) -> Tree:
    """Return how the tree, baselines included, differs from its commit. ``revision`` is the tree's,
    with no excuse for baselines.
    """
    if not revision.commit:
        return Tree("", no_commit(root) or f"git knows no commit of {root}")
    dirty = list(revision.dirty)
    judges = sorted(baselines.rglob("*.json"))  # waivers, too
    tracked = tracked_files(root, baselines)
    dirty += [os.path.relpath(path, root) for path in untracked(root, judges, tracked)]
    # Without the file of its baseline nothing reports that a case is missing.
    gone = [path for path in tracked if not (root / path).exists()]
    left_out = [path for path in gone if path not in dirty]
    return Tree(revision.commit, "", list(dict.fromkeys(dirty)), left_out)
