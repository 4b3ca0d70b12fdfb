"""The command that measures a machine's own noise: python -m stepguard calibrate [CASE]."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepguard.case import Case
from stepguard.cli.collect import cases_of
from stepguard.cli.common import UsageError, progress_line
from stepguard.comparison import JUDGED_TIME, Comparison
from stepguard.device import is_gpu
from stepguard.git.revision import current
from stepguard.git.worktree import Tree, tree_of
from stepguard.gpu.nvml import Gpu, visible_gpus
from stepguard.judge.calibration import MOST_PAIRS, NotCalibrated, calibrated
from stepguard.judge.sequential_plan import MIN_PAIRS
from stepguard.measure.ab import PAIR_TIMINGS, PairsWanted
from stepguard.measure.confirm import Budget, compare_with
from stepguard.measure.suite import BUDGET_S
from stepguard.measure.workers import Bench
from stepguard.report import calibration as report
from stepguard.storage import baselines as baseline
from stepguard.storage import calibrations
from stepguard.storage.json_file import FileError
from stepguard.storage.runs import Store
from stepguard.verdict import Reason


def add_command(commands: Any, root: Path) -> None:
    """Add its parser; ``commands`` is what argparse's add_subparsers() gave."""
    command = commands.add_parser(
        "calibrate", help="measure this machine's own noise: HEAD beside itself"
    )
    command.add_argument(
        "case", nargs="*", metavar="CASE", help="default: the core suite's, as far as they fit"
    )
    command.add_argument(
        "--pairs",
        type=int,
        default=MOST_PAIRS,
        metavar="N",
        help="a case, at most (%(default)s)",
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
    if not MIN_PAIRS <= options.pairs <= MOST_PAIRS:
        raise UsageError(f"--pairs {options.pairs}: from {MIN_PAIRS} to {MOST_PAIRS}")
    if not 0 < options.budget < 1e6:  # NaN neither
        raise UsageError(f"--budget {options.budget}: a number of minutes")
    gpus = tuple(visible_gpus())
    cases = chosen(cases_of(options.root, options.suite), options.case, gpus)
    calibrations.check_all(options.baselines)
    with tree_of(options.root, "HEAD", print) as tree:
        run = _Run(options, gpus, tree, cases)
        refused = [case for case in cases if not run.calibrated(case)]
    return 1 if refused else 0


def chosen(cases: Sequence[Case], names: Sequence[str], gpus: Sequence[Gpu]) -> list[Case]:
    """Return the cases with these ``names``; without any, those of the core suite that this
    machine can judge.

    Raises ValueError for a name that is no case's, and for a case that cannot be calibrated here.
    """
    known = {case.id: case for case in cases}
    for name in names:
        if name not in known:
            raise ValueError(
                f"{name!r} is no case of the suite; it has: {', '.join(sorted(known))}"
            )
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
        return (
            f"it gates no {JUDGED_TIME}, so that no pair would judge it; add {JUDGED_TIME!r} to "
            "the case's gates"
        )
    if is_gpu(case.device) and case.world_size > len(gpus):
        return f"it needs {case.world_size} GPU(s), this machine shows {len(gpus)}"
    return ""


class _Run:
    """One run of the command. Raises ValueError if HEAD's tree would be other code than this."""

    def __init__(
        self,
        options: argparse.Namespace,
        gpus: tuple[Gpu, ...],
        tree: Tree,
        cases: Sequence[Case],
    ) -> None:
        self.options, self.gpus, self.tree = options, gpus, tree
        self.revision = current(options.root, options.baselines)
        if self.revision.dirty:
            raise ValueError(
                f"HEAD is measured beside itself, and {self.revision.dirty[0]} differs from it; "
                "commit or git stash, then calibrate"
            )
        self.budget = Budget(60 * options.budget, len(cases))
        self.store = Store(options.root)
        self.folder = self.store.new_run()
        self.line = progress_line({})
        self.line.plan([(case.id, case.device) for case in cases])

    def calibrated(self, case: Case) -> bool:
        """Measure a case, keep its calibration and print the report, or say why there is none."""
        machine = self.gpus[0].name if is_gpu(case.device) else baseline.CPU_MACHINE
        name = baseline.file_name(case.device, machine, case.world_size)
        path = calibrations.path_for(self.options.baselines / name)
        try:
            calibrations.load_for(path, machine)  # better refused now than after an hour
            with self.budget.spent():
                comparison, pair_s = self._pairs(case, self.budget.share_s())
            self.store.keep_comparison(self.folder, case.slug, comparison)
            if current(self.options.root, self.options.baselines) != self.revision:
                raise NotCalibrated(Reason.TREE_CHANGED.value)
            entry = calibrated(comparison, pair_s, PAIR_TIMINGS[case.device].as_dict())
            calibrations.put(path, machine, case.id, entry)
        except (NotCalibrated, FileError) as error:
            print(f"stepguard: {case.id}: not calibrated, {error}", file=sys.stderr)
            return False
        print("\n".join(report.lines(comparison, entry, case.margins)))
        print(f"written to {os.path.relpath(path)}: review it, and commit it", flush=True)
        return True

    def _pairs(self, case: Case, budget_s: float) -> tuple[Comparison, float]:
        """Measure pairs of HEAD with itself, as many as are wanted or ``budget_s`` allows, and the
        seconds that one took on average.
        """
        command = shlex.join(["python", "-m", "stepguard", *sys.argv[1:]])
        root: Path = self.options.root
        wanted: int = self.options.pairs
        bench = Bench(root, self.store.cache, self.folder, self.gpus, self.revision, command)
        counted_s = pair_s = 0.0  # the counting passes before the first pair are no pair's time
        done = ""

        def wants_another(found: Comparison) -> bool:
            nonlocal counted_s, pair_s, done
            if not found.pairs:
                counted_s = found.wall_s
                return True
            pair_s = (found.wall_s - counted_s) / found.pairs
            done = f"{found.pairs}/{wanted} pairs, the last {100 * found.log_ratios()[-1]:+.3f} %; "
            return found.pairs < wanted

        # Other gates say nothing of noise, but where FLOPs differ the two sides are not the same.
        timed = replace(case, gates=(JUDGED_TIME, "flops_per_step"))
        self.line.begin(case.id, budget_s)
        try:
            found = compare_with(
                timed,
                bench,
                self.tree,
                lambda text: self.line.stage(done + text),
                PairsWanted(budget_s, wants_another),
            )
        finally:
            self.line.end()
        return found, pair_s
