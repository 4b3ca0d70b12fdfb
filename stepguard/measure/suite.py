"""A run of cases: measure, compare with the baseline files, keep the evidence.

Both the pytest plugin and the command line drive this; neither measures or judges by itself.
"""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from stepguard.case import Case
from stepguard.comparison import Comparison
from stepguard.device import is_gpu
from stepguard.evidence import Evidence, Fault
from stepguard.git.revision import current
from stepguard.git.worktree import Tree
from stepguard.gpu.nvml import Gpu
from stepguard.judge.ab import judge_ab, without_false_discoveries
from stepguard.judge.calibration import RuleFor, decision_rule
from stepguard.judge.screen import comparable, judge, wants_another_launch
from stepguard.judge.waivers import waive
from stepguard.measure.ab import PAIR_TIMINGS
from stepguard.measure.confirm import Budget, compare_with, confirm
from stepguard.measure.launches import measure_launches
from stepguard.measure.progress import Progress
from stepguard.measure.workers import Bench
from stepguard.recording import Entry
from stepguard.storage import baselines as baseline
from stepguard.storage import calibrations
from stepguard.storage.accept import accept
from stepguard.storage.runs import Store
from stepguard.storage.waivers import today
from stepguard.verdict import Reason, Verdict
from stepguard.waiver import Waiver

BUDGET_S = 1800.0  # half an hour of pairs in a run, unless it says otherwise


@dataclass(frozen=True)
class Result:
    """One case, measured and judged, and where its evidence is kept."""

    case: Case
    evidence: Evidence
    verdict: Verdict
    evidence_path: Path
    baseline_path: Path
    comparison: Comparison | None = None  # with another revision, where one took turns


class Suite:
    """The cases of one run on one machine."""

    def __init__(
        self,
        root: Path,
        baselines: Path,
        gpus: tuple[Gpu, ...],
        arguments: list[str],
        waivers: tuple[Waiver, ...] = (),
    ) -> None:
        self.waivers = waivers
        self.root, self.baselines, self.gpus = root, baselines, gpus
        self.store = Store(root)
        self.run_folder = self.store.new_run()
        self.results: list[Result] = []
        self.tree: Tree | None = None  # of the revision that every case is to be judged against
        self.budget = Budget(BUDGET_S, 1)  # for pairs
        self.confirms = True  # whether what a baseline calls SLOWER or FASTER is judged on the spot
        self._bench = Bench(
            root=root,
            cache=self.store.cache,
            folder=self.run_folder,
            gpus=gpus,
            revision=current(root, baselines),
            command=shlex.join(arguments),
        )

    def baseline_path(self, case: Case) -> Path:
        """The file that holds the case's baseline on this machine."""
        name = baseline.file_name(case.device, self._machine(case), case.world_size)
        return self.baselines / name

    def entry(self, case: Case) -> Entry | None:
        """The case's baseline. Raises FileError if its file cannot be trusted."""
        content = baseline.load_for(self.baseline_path(case), self._machine(case))
        return content.cases.get(case.id) if content else None

    def terms(self, case: Case) -> RuleFor:
        """By what pairs of the case are judged here: its calibration says, where there is one.

        Raises FileError if the calibration file cannot be trusted.
        """
        path = calibrations.path_for(self.baseline_path(case))
        content = calibrations.load_for(path, self._machine(case))
        entry, turn = (
            content.cases.get(case.id) if content else None,
            PAIR_TIMINGS[case.device].as_dict(),
        )
        return lambda found: decision_rule(entry, found, turn, case.margins)

    def _machine(self, case: Case) -> str:
        if not is_gpu(case.device):
            return baseline.CPU_MACHINE
        return self.gpus[0].name if self.gpus else ""

    def run(self, case: Case, progress: Progress) -> Result:
        """Measure and judge one case. Raises FileError before anything is measured if the
        baseline file cannot be trusted, FileError when the evidence cannot be kept.
        """
        result = self._against(case, progress) if self.tree else self._screened(case, progress)
        self.results.append(result)
        return result

    def _screened(self, case: Case, progress: Progress) -> Result:
        """Against the stored baseline; what moved by time is judged against its commit."""
        entry, terms = self.entry(case), self.terms(case)
        evidence = measure_launches(
            case, self._bench, progress, lambda e: wants_another_launch(e, entry)
        )
        evidence = self._as_it_is(evidence)
        path = self.store.keep(self.run_folder, case.slug, evidence)
        with self.budget.spent():
            verdict, comparison = self._confirmed(case, evidence, entry, terms, progress)
        if comparison is not None:
            self.store.keep_comparison(self.run_folder, case.slug, comparison)
        return Result(case, evidence, verdict, path, self.baseline_path(case), comparison)

    def _confirmed(
        self,
        case: Case,
        evidence: Evidence,
        entry: Entry | None,
        terms: RuleFor,
        progress: Progress,
    ) -> tuple[Verdict, Comparison | None]:
        """The screen's verdict, confirmed where a time decided it; and what was measured for it."""
        verdict = judge(evidence, entry)
        if verdict.reason is Reason.NOT_RECORDED:
            path = self.baseline_path(case)
            path = path.relative_to(self.root) if path.is_relative_to(self.root) else path
            verdict = replace(verdict, facts={"path": str(path)})
        waived = waive(verdict, evidence, self.waivers, today())
        if not self.confirms or entry is None or evidence.fingerprint is None:
            return waived, None
        if waived.waived_until:  # code or machine, it passes
            return waived, None
        recordings = comparable(entry.epochs[-1], evidence)
        # The first of the epoch: what was recorded since is `same` by the limit, not by pairs, and
        # may have crept.
        recorded = recordings[0].commit if recordings else ""
        share_s = self.budget.share_s()
        found, comparison = confirm(
            case, self._bench, verdict, evidence, recorded, progress, share_s, terms
        )
        return waive(found, evidence, self.waivers, today()), comparison

    def _against(self, case: Case, progress: Progress) -> Result:
        """Against the other revision's tree; no stored baseline has a say."""
        assert self.tree is not None
        terms = self.terms(case)
        with self.budget.spent():
            share_s = self.budget.share_s()
            found = compare_with(case, self._bench, self.tree, progress, share_s, rule_for=terms)
        head = self._as_it_is(found.head)
        if head.tree_changed:  # pairs may be of two trees
            fault = Fault(Reason.TREE_CHANGED.name, Reason.TREE_CHANGED.value, "", "pairs")
            head = replace(head, faults=(*head.faults, fault))
        found = replace(found, head=head)
        path = self.store.keep_comparison(self.run_folder, case.slug, found)
        verdict = waive(judge_ab(found), found.head, self.waivers, today())
        return Result(case, found.head, verdict, path, self.baseline_path(case), found)

    def _as_it_is(self, evidence: Evidence) -> Evidence:
        """Return the evidence, marked if its tree changed meanwhile."""
        now, then = current(self.root, self.baselines), self._bench.revision
        if (now, now.state) == (then, then.state):
            return evidence
        return replace(evidence, tree_changed=True)

    def hold_false_discoveries(self) -> list[str]:
        """Take back, at the run's end, what all its claims together do not prove; who it was."""
        taken = {
            verdict.case_id: verdict
            for verdict in without_false_discoveries([r.verdict for r in self.results])
        }
        self.results = [
            replace(r, verdict=taken[r.case.id]) if r.case.id in taken else r for r in self.results
        ]
        return list(taken)

    def accept(self, result: Result, reason: str, dry: bool = False) -> str:
        """Record a result's evidence; with ``dry`` only find out whether that would be refused.

        Raises FileError when it is.
        """
        return accept(result.baseline_path, result.evidence, reason, dry)
