"""A run of cases: measure, compare with the baseline files, keep the evidence.

Both the pytest plugin and the command line drive this; neither measures or judges by itself.
"""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from stepguard.baseline_model import Entry
from stepguard.case import Case
from stepguard.evidence import Evidence
from stepguard.host import baseline
from stepguard.host.machine import Gpu
from stepguard.host.measure import Bench, measure
from stepguard.host.nodes import Nodes, spread
from stepguard.host.revision import current
from stepguard.host.store import Store
from stepguard.judge import judge, wants_more
from stepguard.verdict import Verdict

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Result:
    """One case, measured and judged, and where its evidence is kept."""

    case: Case
    evidence: Evidence
    verdict: Verdict
    evidence_path: Path
    baseline_path: Path


class Suite:
    """The cases of one run on one machine."""

    def __init__(
        self,
        root: Path,
        baselines: Path,
        gpus: tuple[Gpu, ...],
        arguments: list[str],
        nodes: Nodes | None = None,
    ) -> None:
        self.root, self.baselines, self.gpus, self.nodes = root, baselines, gpus, nodes
        self.store = Store(root)
        self.run_folder = self.store.new_run()
        self.results: list[Result] = []
        self._bench = Bench(
            root=root,
            cache=self.store.cache,
            folder=self.run_folder,
            gpus=gpus,
            revision=current(root, baselines),
            command=shlex.join(arguments),
            nodes=nodes,
        )

    def baseline_path(self, case: Case) -> Path:
        """The file that holds the case's baseline on this machine."""
        nodes = spread(case, self.nodes)
        over = nodes.count if nodes else 1
        name = baseline.file_name(case.device, self._machine(case), case.world_size, over)
        return self.baselines / name

    def entry(self, case: Case) -> Entry | None:
        """The case's baseline. Raises BaselineError if its file cannot be trusted."""
        content = baseline.load_for(self.baseline_path(case), self._machine(case))
        return content.cases.get(case.id) if content else None

    def _machine(self, case: Case) -> str:
        if case.device == "cpu":
            return baseline.CPU_MACHINE
        return self.gpus[0].name if self.gpus else ""

    def run(self, case: Case, progress: Progress) -> Result:
        """Measure and judge one case. Raises BaselineError before anything is measured if the
        baseline file cannot be trusted, StoreError when the evidence cannot be kept.
        """
        entry = self.entry(case)
        evidence = measure(case, self._bench, progress, lambda e: wants_more(e, entry))
        if current(self.root, self.baselines) != self._bench.revision:
            moved = (*evidence.dirty, "the tree changed while it was measured")
            evidence = replace(evidence, dirty=moved)
        path = self.store.keep(self.run_folder, case.slug, evidence)
        verdict = judge(evidence, entry)
        result = Result(case, evidence, verdict, path, self.baseline_path(case))
        self.results.append(result)
        return result

    def accept(self, result: Result, reason: str) -> str:
        """Record a result's evidence. Raises BaselineError when that is refused."""
        return baseline.accept(result.baseline_path, result.evidence, reason)
