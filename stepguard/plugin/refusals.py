"""The refusal of what would turn the gate off, or could not be obeyed.

A strict run is refused, too, for all that leaves a case unguarded by mistake. What such a run can
tell before it measures it refuses at once; the rest fails it at its end.
"""

import argparse
import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from stepguard.core.case import Case
from stepguard.core.margins import BUDGET_MIN
from stepguard.core.run_document import CaseState, Problem, ProblemCode, State
from stepguard.core.sentences import no_folder, uncommitted, wider_margins
from stepguard.core.text import first, printable
from stepguard.judge.acceptance import has_words
from stepguard.machine import inherited
from stepguard.machine.git.resolve import TreeError, resolve
from stepguard.machine.git.revision import current, git, no_commit, untracked
from stepguard.machine.gpu.nvml import known_gpus
from stepguard.machine.interpreter import as_typed
from stepguard.measure.suite import Result
from stepguard.plugin.baseline_folder import Recorded
from stepguard.plugin.items import case_of
from stepguard.plugin.options import TEXTS, base_branch, is_typed, value_of
from stepguard.report import result_documents

NO_GATE = "the run is strict since CI is set; for one that is no gate add --perf-no-strict"
SHOWN = 10  # lines of a refusal
SELECT = "a selection that is meant is said: --perf-select=CASES"


def refuse_bad_options(config: pytest.Config, root: Path, baselines: Path, gpus: int) -> None:
    """Raise UsageError for what would pass cases unmeasured, or could not be done."""
    for problem in _problems(config, root, baselines, gpus):
        raise pytest.UsageError(printable(problem))


class Refused(Exception):
    """Raised for problems that a strict run has before it measures; each is a line of pytest's."""

    def __init__(self, problems: Sequence[Problem], *more: str) -> None:
        named = first([one.sentence for one in problems], SHOWN)
        super().__init__(*map(printable, (*named, *more)))
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "; ".join(map(str, self.args))


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
        # An empty value would quietly choose another gate, --perf-against= the stored baseline.
        if value is not None and not value.strip():
            yield f"{name}={value}: empty; a variable that is not set, maybe"
    if option.perf_select and not all(map(str.strip, option.perf_select.split(","))):
        yield f"--perf-select={option.perf_select}: a name is empty; is a variable not set?"
    wanted = f"--perf-require-gpus={option.perf_require_gpus}"
    if option.perf_require_gpus < 0:
        yield f"{wanted}: give 0 or more"
    if gpus < option.perf_require_gpus:
        yield f"{wanted}: this machine shows {gpus}; see: {as_typed('stepguard doctor')}"
    if option.perf_require_gpus > 0 and gpus < (known := known_gpus()):
        yield (
            f"{wanted}: this machine has {known} and shows {gpus}, so cases of more would be "
            "skipped; look at CUDA_VISIBLE_DEVICES"
        )
    updates, reason = option.perf_update or option.perf_update_new, option.perf_reason
    records = updates or option.perf_append
    if reason is not None and not (has_words(reason) and reason.isprintable()):
        yield f"--perf-reason={reason!r}: write a line of words"
    if reason is not None and not updates:
        yield "--perf-reason: nothing is recorded; it goes with --perf-update or --perf-update-new"
    if all(is_typed(name, config) for name in ("--perf-strict", "--perf-no-strict")):
        yield "--perf-strict with --perf-no-strict: a run is a gate or is none; give one of the two"
    yield from _two_ways_to_record(option)
    if not 0 < option.perf_budget < 1e6:  # NaN neither
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


def _two_ways_to_record(option: argparse.Namespace) -> Iterator[str]:
    """Yield a problem where changed levels would be recorded beside an option that leaves them."""
    narrower = {"--perf-update-new": option.perf_update_new, "--perf-append": option.perf_append}
    for name, given in narrower.items():
        if option.perf_update and given:
            yield (
                f"--perf-update with {name}: it records changed levels, too, which {name} leaves "
                "alone; give one of the two"
            )


def _bad_documents(folder: Path, texts: Mapping[str, str | None]) -> Iterator[str]:
    seen = set[Path]()
    for name in ("--perf-json", "--perf-report"):
        text = texts[name]
        if not text:
            continue
        path = Path(folder, text)
        if problem := result_documents.unwritable(path):
            yield f"{name}={text}: {problem}"
        if (path := path.resolve()) in seen:
            yield f"{name}={text}: that is where --perf-json is written"
        seen.add(path)


def _bad_revision(rev: str, root: Path, baselines: Path) -> Iterator[str]:
    try:
        named = resolve(root, rev)
    except TreeError as error:
        yield f"--perf-against={rev}: {error}"
        return
    head = current(root, baselines)
    # Spelled HEAD it is meant: that is how calibration measures.
    if named.commit == head.commit and not head.dirty and rev != "HEAD":
        yield (
            f"--perf-against={rev}: that is HEAD itself, without a change, and always the same; "
            "to compare the machine with itself say --perf-against=HEAD"
        )


def strict_options(config: pytest.Config) -> Iterator[Problem]:
    """Yield options with which no run is a gate."""
    option = config.option
    for name, asked in (
        ("--collect-only", option.collectonly),
        ("--fixtures", option.showfixtures),
        ("--fixtures-per-test", option.show_fixtures_per_test),
    ):
        if asked:
            yield Problem(ProblemCode.ONLY_COLLECTED, f"{name} measures nothing")
    if option.perf_against == "HEAD":
        text = "--perf-against=HEAD judges the tree against itself, which is always the same"
        yield Problem(ProblemCode.OTHER_BASELINE, text)
    judges = {
        "--perf-against": option.perf_against,
        "--perf-base": option.perf_base,
        "--perf-baselines": option.perf_baselines,
    }
    for name, judge in judges.items():
        if judge and not is_typed(name, config):
            text = f"{name}={judge} comes from settings or PYTEST_ADDOPTS, and may be of this "
            text += "branch, or of a slower level: what judges is said by the command"
            yield Problem(ProblemCode.OTHER_BASELINE, text)
    less = option.perf_budget < BUDGET_MIN
    for name, value in (("no-confirm", option.perf_no_confirm), ("budget", less)):
        if value and not is_typed(f"--perf-{name}", config):
            text = f"--perf-{name} comes from settings or PYTEST_ADDOPTS, and may leave an alarm "
            text += "without the pairs that confirm it: say it in the command"
            yield Problem(ProblemCode.OTHER_BASELINE, text)
    if option.perf_select and not is_typed("--perf-select", config):
        text = f"--perf-select={option.perf_select} comes from settings or PYTEST_ADDOPTS: a "
        text += "selection that is meant is said by the command"
        yield Problem(ProblemCode.CASE_MISSING, text)
    for name in ("--perf-update", "--perf-update-new"):
        if value_of(name, config):
            text = f"{name} passes what it records: record in a run of its own"
            yield Problem(ProblemCode.RECORDS, text)


def strict_tree(root: Path, baselines: Path, written: Collection[Path]) -> Iterator[Problem]:
    """Yield why the tree, baselines included, is not its commit's, but for the run's documents."""
    if why := no_commit(root):
        yield Problem(ProblemCode.NO_COMMIT, f"nobody could tell what was measured, {why}")
        return
    revision = current(root, None)
    own = {os.path.relpath(path, root) for path in written}
    dirty = [path for path in revision.dirty if path not in own]
    judges = sorted(baselines.rglob("*.json"))  # waivers and calibrations, too
    ignored = [os.path.relpath(path, root) for path in untracked(root, judges)]
    for path in dict.fromkeys([*dirty, *ignored]):
        text = "differs from the commit: commit it, or let git ignore it if it is no source"
        yield Problem(ProblemCode.DIRTY, f"{path} {text}", file=path)
    # What they guard would not be missed.
    tracked = (git(root, "ls-files", "-z", "--", str(baselines)) or "").split("\0")
    for path in tracked:
        if path and path not in dirty and not (root / path).exists():
            text = "is in the commit, and a sparse checkout leaves it out: git sparse-checkout add "
            yield Problem(ProblemCode.DIRTY, f"{path} {text}{Path(path).parent}", file=path)


def changed_since_start() -> Iterator[Problem]:
    """Yield what has changed since pytest was started, of all that launches would inherit."""
    for change in inherited.STARTED.changes(inherited.inherited_now()):
        text = f"{change} since pytest was started, by a conftest, a test or a plugin: what is set "
        text += "there is no part of the step; set it for the command, or in the workload's module"
        yield Problem(ProblemCode.OTHER_ENVIRONMENT, text)


def other_environment(result: Result, recorded: Recorded | None) -> Iterator[Problem]:
    """Yield a problem if the other revision's launches had other variables that steer than its own
    newest recording: both sides of the pairs had them.
    """
    base = result.comparison.base.fingerprint if result.comparison else None
    if base is None or recorded is None or not recorded.entry.newest.software:
        return
    case, newest = result.case, recorded.entry.newest.software
    was, now = (one.get("environment", "") for one in (newest, base.software_key(case.world_size)))
    if was != now:
        now, was = now or "no variable that steers", was or "none"
        text = f"both sides were measured with {now}, its recording in {recorded.path.name} with "
        text += f"{was}: set the same for the command, or record with it first"
        yield Problem(ProblemCode.OTHER_ENVIRONMENT, text, case.id)


def strict_marks(items: Sequence[pytest.Item]) -> Iterator[Problem]:
    """Yield cases that a mark lets fail."""
    for item in items:
        case, mark = case_of(item), item.get_closest_marker("xfail")
        if case is not None and mark is not None:
            text = "its mark xfail would let it fail without limit; remove the mark, and let a "
            waive = as_typed(f"stepguard waive {shlex.quote(case.id)} METRIC")
            text += f"known regression pass with: {waive}"
            file, line, _ = item.location
            yield Problem(ProblemCode.EXPECTED_TO_FAIL, text, case.id, file, (line or 0) + 1)


def fewer_gates(case: Case, recorded: Recorded | None) -> Iterator[Problem]:
    """Yield a problem if a case gates less than its recording has, or has wider margins."""
    if recorded is None:
        return
    entry, file = recorded.entry, recorded.path.name
    if missing := entry.lacking(case.gates, case.device, case.world_size):
        text = f"gates less than its recording in {file} has, no {', '.join(missing)}"
        text += "; gate it again, or record the case without it"
        yield Problem(ProblemCode.FEWER_GATES, text, case.id)
    # The case's own: what a calibration makes of them is the machine's noise, and may be wider.
    if case.margins.wider(entry.margins):
        text = wider_margins(case.margins, entry.margins, f"its recording in {file}")
        name = shlex.quote(case.id)
        record = as_typed(f"pytest perf_tests --perf-update --perf-select={name}")
        yield Problem(ProblemCode.FEWER_GATES, f"{text}: {record}", case.id)


def other_case(case: Case, recorded: Recorded | None) -> Iterator[Problem]:
    """Yield a problem if a case that is compared in pairs has other parameters than its recording:
    both sides would be of HEAD's case, which may do less.
    """
    if recorded is None:
        return
    was, now = ({**one, "nodes": 1} for one in (recorded.entry.case, case.as_dict()))
    if moved := sorted(key for key in was | now if was.get(key) != now.get(key)):
        text = f"is another case than its recording in {recorded.path.name}, by its "
        text += f"{' and '.join(moved)}: give it another id, or record it with these first"
        yield Problem(ProblemCode.OTHER_CASE, text, case.id)


def missing_cases(states: Sequence[CaseState], where: dict[str, str]) -> Iterator[Problem]:
    """Yield the cases that are guarded and were not measured; ``where`` they are recorded."""
    mends = {
        State.ABSENT: "bring its test back, or remove it from {}",
        State.DESELECTED: SELECT,
        State.SKIPPED: "let it run, or remove it together with its recording",
        State.UNMEASURED: "run it to its end",
    }
    for one in states:
        if one.guarded and one.state in mends:
            mend = mends[one.state].format(where.get(one.case, "the baselines"))
            text = f"guarded, but not measured: {one.why}; {mend}"
            case = one.case or one.test
            yield Problem(ProblemCode.CASE_MISSING, text, case, one.file, one.line)
