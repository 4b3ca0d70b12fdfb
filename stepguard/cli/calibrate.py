"""The command that measures a machine's own noise: python -m stepguard calibrate [CASE]."""

import argparse
import difflib
import os
import shlex
import sys
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from stepguard.case import Case
from stepguard.cli.collect import cases_of
from stepguard.cli.usage import UsageError
from stepguard.comparison import JUDGED_TIME
from stepguard.device import is_gpu
from stepguard.git.revision import current
from stepguard.git.worktree import Tree, tree_of
from stepguard.gpu.nvml import Gpu, visible_gpus
from stepguard.judge.sequential_plan import MIN_PAIRS, SEQUENTIAL_PLAN
from stepguard.measure.calibrate import Calibration, NotCalibrated, calibrate
from stepguard.measure.confirm import Budget
from stepguard.measure.suite import BUDGET_S
from stepguard.measure.workers import Bench
from stepguard.report import calibration as report
from stepguard.report.live import ProgressLine, clock
from stepguard.storage import baselines as baseline
from stepguard.storage import calibrations
from stepguard.storage.runs import Store
from stepguard.verdict import Reason

MOST = SEQUENTIAL_PLAN[-1].pairs


def add_commands(commands: Any, root: Path) -> None:
    """Its parser; ``commands`` is what argparse's add_subparsers() gave."""
    command = commands.add_parser(
        "calibrate", help="measure this machine's own noise: HEAD beside itself"
    )
    command.add_argument(
        "case", nargs="*", metavar="CASE", help="default: the core suite's, as far as they fit"
    )
    command.add_argument(
        "--pairs", type=int, default=MOST, metavar="N", help="at most, for a case (%(default)s)"
    )
    command.add_argument(
        "--budget",
        type=float,
        default=BUDGET_S / 60,
        metavar="MIN",
        help="minutes that the pairs of all cases may take (%(default)g)",
    )
    command.add_argument(
        "--suite", default="perf_tests", metavar="DIR", help="where the cases are (%(default)s)"
    )
    folder = baseline.usual(root)
    command.add_argument("--baselines", type=Path, default=folder, metavar="DIR")
    command.set_defaults(call=_calibrate, root=root)


def _calibrate(options: argparse.Namespace) -> int:
    if not MIN_PAIRS <= options.pairs <= MOST:
        raise UsageError(f"--pairs {options.pairs}: from {MIN_PAIRS} to {MOST}")
    if not 0 < options.budget < 1e6:  # NaN neither
        raise UsageError(f"--budget {options.budget}: a number of minutes")
    gpus = tuple(visible_gpus())
    cases = chosen(cases_of(options.root, options.suite), options.case, gpus)
    calibrations.check_all(options.baselines)
    work = _Work(options, gpus, Budget(60 * options.budget, len(cases)))
    work.refuse_dirty()
    work.live.plan([(case.id, case.device) for case in cases])
    refused = 0
    with tree_of(options.root, "HEAD", print) as tree:
        for case in cases:
            try:
                print("\n".join(work.calibrated(case, tree)), flush=True)
            except (NotCalibrated, baseline.BaselineError) as error:
                print(f"stepguard: {case.id}: not calibrated, {error}", file=sys.stderr)
                refused += 1
    return 1 if refused else 0


def chosen(cases: Sequence[Case], names: Sequence[str], gpus: Sequence[Gpu]) -> list[Case]:
    """The cases meant by ``names``; by none, those of the core suite that this machine can judge.

    Raises ValueError for a name that is no case's, and for a case that cannot be calibrated here.
    """
    known = {case.id: case for case in cases}
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=3, cutoff=0.3)
            has = (
                f"close are: {', '.join(close)}" if close else f"it has: {', '.join(sorted(known))}"
            )
            raise ValueError(f"{name!r} is no case of the suite; {has}")
        if why := _unsuited(known[name], gpus):
            raise ValueError(f"{name}: {why}")
    if names:
        return [known[name] for name in dict.fromkeys(names)]
    core = [case for case in known.values() if is_gpu(case.device) and not case.extended]
    found = [case for case in core if not _unsuited(case, gpus)]
    if not found:
        raise ValueError(
            f"none of {len(core)} GPU cases of the core suite fits this machine, which shows "
            f"{len(gpus)} GPUs: python -m stepguard doctor, or name a case"
        )
    return found


def _unsuited(case: Case, gpus: Sequence[Gpu]) -> str:
    if JUDGED_TIME not in case.gates:
        how = f"a case that is to be has {JUDGED_TIME!r} among its gates"
        return f"it gates no {JUDGED_TIME}, so that no pair would judge it; {how}"
    if is_gpu(case.device) and case.world_size > len(gpus):
        return f"it needs {case.world_size} GPU(s), this machine shows {len(gpus)}"
    return ""


class _Work:
    """One run of the command: where it measures, and what it tells meanwhile."""

    def __init__(self, options: argparse.Namespace, gpus: tuple[Gpu, ...], budget: Budget) -> None:
        self.options, self.gpus, self.budget = options, gpus, budget
        self.revision = current(options.root, options.baselines)
        self.store = Store(options.root)
        self.expected_s: dict[str, float] = {}
        self.live = ProgressLine(
            _to_stderr,
            terminal=sys.stderr.isatty(),
            verbose=True,
            width=100,
            expected_s=self.expected_s,
        )

    @cached_property
    def run_folder(self) -> Path:
        """Where the pairs of all cases are kept; made when the first one begins."""
        return self.store.new_run()

    def refuse_dirty(self) -> None:
        """Raise ValueError if HEAD's tree would be other code than the one in use."""
        if self.revision.dirty:
            raise ValueError(
                f"HEAD is to be measured beside itself, and {self.revision.dirty[0]} is not as it "
                "is there; commit or git stash, then calibrate"
            )

    def calibrated(self, case: Case, tree: Tree) -> list[str]:
        """Measure a case and keep what was found; the report of it.

        Raises NotCalibrated or BaselineError, and keeps the pairs only.
        """
        path = self._path(case)
        calibrations.load_for(path, self._machine(case))  # hours later would be late
        store, run = self.store, self.run_folder
        with self.budget.spent():
            share_s = self.budget.share_s()
            try:
                found = self._measured(case, tree, store.cache, run, share_s)
            except NotCalibrated as none:
                store.keep_comparison(run, case.slug, none.comparison)
                raise
        store.keep_comparison(run, case.slug, found.comparison)
        if current(self.options.root, self.options.baselines) != self.revision:
            raise NotCalibrated(Reason.TREE_CHANGED.value, found.comparison)
        calibrations.put(path, self._machine(case), case.id, found.entry)
        shown = os.path.relpath(path)
        return [
            *report.lines(found, share_s, case.margins),
            f"written to {shown}: review it, and commit it",
        ]

    def _measured(
        self, case: Case, tree: Tree, cache: Path, run: Path, share_s: float
    ) -> Calibration:
        command = shlex.join(["python", "-m", "stepguard", *sys.argv[1:]])
        bench = Bench(self.options.root, cache, run, self.gpus, self.revision, command)
        so_far, began = [""], time.monotonic()
        self.expected_s[case.id] = share_s
        self.live.begin(case.id)

        def told(pairs: int, last_pct: float, pair_s: float) -> None:
            left_s = (self.options.pairs - pairs) * pair_s
            self.expected_s[case.id] = min(share_s, time.monotonic() - began + left_s)
            so_far[0] = f"{pairs}/{self.options.pairs} pairs, the last {last_pct:+.3f} %"
            if not sys.stderr.isatty():  # there the live line has it
                so_far[0] += f", about {clock(left_s)} left"
            so_far[0] += "; "

        def progress(text: str) -> None:
            self.live.stage(so_far[0] + text)

        try:
            return calibrate(case, bench, tree, self.options.pairs, share_s, progress, told)
        finally:
            self.live.end()

    def _machine(self, case: Case) -> str:
        return self.gpus[0].name if is_gpu(case.device) else baseline.CPU_MACHINE

    def _path(self, case: Case) -> Path:
        name = baseline.file_name(case.device, self._machine(case), case.world_size)
        return calibrations.path_for(self.options.baselines / name)


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
