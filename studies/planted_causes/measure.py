"""Plant faults into the training step, one at a time, and keep what is counted and profiled of it.

    python -m studies.planted_causes.measure --gpus 2 --out causes   # the fault of two GPUs
    python -m studies.planted_causes.measure --out causes            # all others, beside it
    python -m studies.planted_causes.measure --device cpu            # what counters tell there

The step is counted and profiled, as a comparison of two revisions does it before its pairs, in the
tree as it is and in a clone for each fault. The evidence of each is in the folder --out as soon as
it is there; judge.py, which needs no GPU, says what is named first. So does this command at its
end, with the same exit status.
"""

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perf_tests.parameters import NANO_STEP, SEED_STEP
from stepguard.case import Case
from stepguard.comparison import judged
from stepguard.evidence import Evidence
from stepguard.git.revision import current
from stepguard.gpu.nvml import visible_gpus
from stepguard.measure.ab import PAIR_TIMINGS
from stepguard.measure.running_launch import RunningLaunch, WorkersFailed
from stepguard.measure.workers import Bench, CaseWorkers, Ticker, watch
from studies.common.clones import clone_head
from studies.common.pair_data import stages
from studies.common.results import ROOT, command_line, default_path, machine
from studies.planted_causes import judge
from studies.planted_causes.faults import CLOCK, FAULTS, NOTHING
from studies.planted_causes.judge import Folder, base_name

FACTORY = "model.workloads:train_step"


@dataclass(frozen=True)
class Planted:
    """A tree with a fault, or the tree as it is; and where the fault was planted."""

    name: str
    tree: Path
    lines: range


class Counting:
    """The counting passes of several trees on one machine."""

    def __init__(self, case: Case, folder: Path, cache: Path, stack: contextlib.ExitStack) -> None:
        self._case, self._folder, self._cache, self._stack = case, folder, cache, stack
        self._ticker = Ticker(stages(time.monotonic()))
        self._gpus = tuple(visible_gpus()) if case.device == "cuda" else ()
        self._monitor, unfit = watch(case, self._bench(ROOT), stack, self._ticker)
        if unfit:
            raise SystemExit(unfit.message)

    def _bench(self, tree: Path) -> Bench:
        revision = current(tree, tree / "baselines")
        runs = self._folder / "runs" / tree.name
        return Bench(tree, self._cache, runs, self._gpus, revision, "studies.planted_causes")

    def start(self, planted: Planted) -> RunningLaunch:
        """Start a launch in a tree, which imports from now on."""
        bench = self._bench(planted.tree)
        workers = CaseWorkers(self._case, bench, self._ticker, self._monitor, self._stack)
        return RunningLaunch(workers, planted.name, PAIR_TIMINGS[self._case.device].warmup)

    def count(self, launches: Sequence[RunningLaunch]) -> Iterator[Evidence | str]:
        """Build all at once, since that is the compiler's work, then count one after the other;
        yield the evidence of each, or why there is none.
        """
        failed = [self._tried(launch, launch.hello) for launch in launches]
        RunningLaunch.expect(*launches)
        with ThreadPoolExecutor(len(launches)) as pool:
            builds = [pool.submit(_built, launch) for launch in launches]
        for launch, build, problem in zip(launches, builds, failed, strict=True):
            problem = problem or build.result() or self._tried(launch, launch.count)
            problem = problem or self._tried(launch, launch.leave)
            launch.group.close()
            gates = judged(self._case)
            yield problem or launch.workers.evidence(planned_launches=1, gates=gates)

    def _tried(self, launch: RunningLaunch, call: Any) -> str:
        try:
            call()
        except WorkersFailed as failed:
            return failed.fault.message
        return ""


def _built(launch: RunningLaunch) -> str:
    """Build a launch's workload and give the memory back that it needs only in a step."""
    try:
        launch.build(quietly=True)
        launch.ask("park", quietly=True)
    except WorkersFailed as failed:
        return failed.fault.message
    return ""


def planted_tree(folder: Path, name: str) -> Planted:
    """Return a clone of HEAD with one fault; without one for a name that is none."""
    tree = clone_head(folder / name.replace(" ", "-"))
    return Planted(name, tree, FAULTS[name].plant(tree) if name in FAULTS else range(0))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gpus", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), help="(all of so many GPUs)")
    parser.add_argument("--batch", type=int, help="sequences (those of the suite; on a CPU 4)")
    parser.add_argument("--compile", action="store_true", help="on a CPU, too")
    text = "trees built at once, each with a step's memory (%(default)s: 126 GB)"
    parser.add_argument("--at-once", type=int, default=3, help=text)
    parser.add_argument("--seconds", type=float, default=240.0, help="no new ones (%(default)s)")
    parser.add_argument("--cache", type=Path, help="compile caches to share with other runs")
    parser.add_argument("--out", type=Path, help="folder (.stepguard/planted_causes)")
    options = parser.parse_args()
    options.out = options.out or default_path("planted_causes")
    if not options.out.resolve().parent.is_dir():
        parser.error(f"{options.out}: there is no folder {options.out.resolve().parent}")
    cpu = options.device == "cpu"
    options.compile = options.compile or not cpu
    possible = [
        name
        for name, fault in FAULTS.items()
        if fault.gpus == options.gpus
        and name != CLOCK  # made of what NOTHING measures
        and (not cpu or ((fault.on_cpu or name == NOTHING) and fault.compiled <= options.compile))
    ]
    options.only = options.only or possible
    if wrong := [name for name in options.only if name not in possible]:
        parser.error(f"--only {wrong[0]!r}: not there; possible: {', '.join(possible)}")
    return options


def case_of(options: argparse.Namespace) -> Case:
    """Return the step of perf_tests/. With fewer sequences a GPU would wait for its host."""
    params = SEED_STEP if options.device == "cuda" else NANO_STEP | {"batch": 4}
    more = {"batch": options.batch} if options.batch else {}
    params = params | {"compile": options.compile} | more
    return Case("planted", FACTORY, params, options.device, options.gpus)


def about(options: argparse.Namespace) -> dict[str, Any]:
    """Return how and where it is measured."""
    return {
        "command": command_line(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(options.device, options.gpus),
    }


def measure(options: argparse.Namespace, kept: Folder) -> None:
    """Count the tree as it is, alone, so that the compiler's choices are there for the others to
    find; then the faults, in groups.
    """
    began, how = time.monotonic(), about(options)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        cache = options.cache.resolve() if options.cache else folder / "cache"
        counting = Counting(case_of(options), folder, cache, stack)
        queue = [planted_tree(folder, one) for one in options.only]
        group = [planted_tree(folder, base_name(options.gpus))]
        while group and time.monotonic() - began < options.seconds:
            launches = [counting.start(one) for one in group]
            for planted, found in zip(group, counting.count(launches), strict=True):
                lines = planted.lines.start, planted.lines.stop
                kept.keep(planted.name, found, how | {"lines": lines})
            group, queue = queue[: options.at_once], queue[options.at_once :]
        for planted in (*group, *queue):
            kept.keep(planted.name, "not begun: time was over", how)


def main() -> int:
    """Run the study; return the exit status."""
    options = arguments()
    options.out.mkdir(exist_ok=True)
    measure(options, Folder(options.out))
    return judge.main([str(options.out)])


if __name__ == "__main__":
    sys.exit(main())
