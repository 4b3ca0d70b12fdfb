"""Plant faults into the training step, one at a time: is the first cause that is named right?

    python -m studies.planted_causes.measure --gpus 2 --out causes.json   # the fault of two GPUs
    python -m studies.planted_causes.measure --out causes.json            # all others, beside it
    python -m studies.planted_causes.measure --device cpu                 # what counters tell there

The step is counted and profiled, as a comparison of two revisions does it before its pairs, in the
tree as it is and in a clone for each fault; the functions of the verdict name the first cause. No
pair is timed: that the step is slower is what its causes say. Whether the cause is right is decided
by its kind, the class, name and phase of its kernels, or the counter, and the line (faults.py).
Every fault is in --out as soon as it is known, beside those that were there. The exit status is 1
with fewer than eleven right, or, of fewer faults, with any wrong.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perf_tests.parameters import NANO_STEP, SEED_STEP
from stepguard.case import Case
from stepguard.comparison import Comparison, judged
from stepguard.evidence import Evidence
from stepguard.explanation import Cause, Kind
from stepguard.git.revision import current
from stepguard.gpu.nvml import visible_gpus
from stepguard.judge.ab.decision import beside_time, why
from stepguard.judge.compare import compare
from stepguard.judge.summary import summarise
from stepguard.measure.ab import PAIR_TIMINGS
from stepguard.measure.running_launch import RunningLaunch, WorkersFailed
from stepguard.measure.workers import Bench, CaseWorkers, Ticker, watch
from stepguard.metrics import METRICS
from stepguard.report.why import culprit, site_of
from stepguard.report.words import headline
from stepguard.site import Site
from stepguard.verdict import MetricVerdict, Reason, Status, Verdict
from studies.common.clones import clone_head
from studies.common.pair_data import stages
from studies.common.results import ROOT, Document, command_line, default_path, machine
from studies.planted_causes.faults import CLOCK, FAULTS, NOTHING, slower_clock

ENOUGH = 11  # of twelve
SLOWER_SHARE = 0.002  # of the step: the margin below which a comparison ignores a slowdown
FACTORY = "model.workloads:train_step"


@dataclass(frozen=True)
class Planted:
    """A tree with a fault, or, for ``base``, none; and where it was planted."""

    name: str
    tree: Path
    lines: range


def verdict_of(comparison: Comparison) -> Verdict:
    """Return the verdict as pairs would decide it if they saw no more than the causes."""
    head, base = comparison.head, comparison.base
    now, then = summarise(head), summarise(base)
    reasons = why(comparison)
    found = reasons.get("explanation")
    work_us = 0.0
    if found is not None:
        # Pairs take turns, two counting passes do not: that the second ran at a faster clock
        # would hide a fault.
        work_us = sum(one.us for one in found.causes if one.kind is not Kind.CLOCK or one.us > 0)
    slower = found is not None and work_us > SLOWER_SHARE * found.before_us
    status = Status.SLOWER if slower else Status.SAME
    values = now.values()
    metrics = [
        beside_time(compare(name, now, [then], head.gates), status if found else None)
        for name in METRICS
        if name in values and METRICS[name].kind == "counter"
    ]
    if found is not None and not found.refused:
        old = found.before_us / 1e3
        reason = Reason.BEYOND_MARGIN if slower else Reason.WITHIN_MARGINS
        change = 100 * work_us / found.before_us
        time_ms = MetricVerdict("step_ms", status, reason, old, old + work_us / 1e3, change)
        metrics.append(time_ms)
    blank = Verdict(head.case_id, status, Reason.WORK_MOVED, against=comparison.named, **reasons)
    return blank.with_metrics(tuple(metrics))


def first_cause(verdict: Verdict) -> tuple[Cause | MetricVerdict | None, Site | None]:
    """Return what is named first, with its line: what explains the time, else a counter that moved,
    else what else the profiles differ in.
    """
    named = culprit(verdict)
    worst = verdict.worst
    if named is None and worst is not None and worst.status is Status.CHANGED:
        named = worst
    if named is None and verdict.explanation and verdict.explanation.causes:
        named = verdict.explanation.causes[0]
    if isinstance(named, Cause):
        return named, site_of(named, verdict)
    return named, named.place if named else None


def judged_fault(planted: Planted, base: Evidence, head: Evidence) -> dict[str, Any]:
    """Return what is said of a fault, as data, and whether it is right."""
    verdict = verdict_of(Comparison("HEAD", head, base))
    first, site = first_cause(verdict)
    right = FAULTS[planted.name].is_right(first, site, planted.lines)
    found = verdict.explanation
    return {
        "right": right,
        "headline": headline(verdict),
        "first": asdict(first) if isinstance(first, Cause) else _counter(first),
        "line": site.place if site else "",
        "planted": [FAULTS[planted.name].path, *planted.lines],
        "before_ms": found.before_us / 1e3 if found else None,
        "change_ms": found.change_us / 1e3 if found else None,
        "causes": [asdict(one) for one in found.causes[:5]] if found else [],
        "no_profile": head.counts.profile_problem if head.counts else "not counted",
        "refused": [asdict(one) for one in found.refused] if found else [],
    }


def _counter(first: MetricVerdict | None) -> dict[str, Any]:
    if first is None:
        return {}
    parts = [[part.name, part.old, part.new] for part in first.moved[:5]]
    return {"metric": first.metric, "old": first.old, "new": first.new, "parts": parts}


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

    def count(self, launches: Sequence[RunningLaunch]) -> list[Evidence | str]:
        """Build all at once, since that is the compiler's work, then count one after the other;
        return the evidence of each, or why there is none.
        """
        found: list[Evidence | str] = [self._tried(launch, launch.hello) for launch in launches]
        RunningLaunch.expect(*launches)
        with ThreadPoolExecutor(len(launches)) as pool:
            builds = [pool.submit(_built, launch) for launch in launches]
        for at, build in enumerate(builds):
            found[at] = found[at] or build.result()
        for at, launch in enumerate(launches):
            found[at] = found[at] or self._tried(launch, launch.count)
            found[at] = found[at] or self._tried(launch, launch.leave)
            launch.group.close()
            if not found[at]:
                gates = judged(self._case)
                found[at] = launch.workers.evidence(planned_launches=1, gates=gates)
        return found

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
    """Return a clone of HEAD with one fault."""
    tree = clone_head(folder / name.replace(" ", "-"))
    return Planted(name, tree, FAULTS[name].plant(tree))


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--gpus", type=int, default=1, help="(%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=list(FAULTS), help="(all of so many GPUs)")
    parser.add_argument("--batch", type=int, help="sequences (16; on a CPU 4)")
    parser.add_argument("--compile", action="store_true", help="on a CPU, too")
    parser.add_argument("--at-once", type=int, default=4, help="trees built (%(default)s)")
    parser.add_argument("--seconds", type=float, default=200.0, help="no new ones (%(default)s)")
    parser.add_argument("--cache", type=Path, help="compile caches to share with other runs")
    parser.add_argument("--out", type=Path, help="(.stepguard/planted_causes.json)")
    options = parser.parse_args()
    options.out = options.out or default_path("planted_causes.json")
    if not options.out.resolve().parent.is_dir():
        parser.error(f"{options.out}: there is no folder {options.out.resolve().parent}")
    cpu = options.device == "cpu"
    options.compile = options.compile or not cpu
    possible = [
        name
        for name, fault in FAULTS.items()
        if fault.gpus == options.gpus
        and (not cpu or ((fault.on_cpu or name == NOTHING) and fault.compiled <= options.compile))
    ]
    options.only = options.only or possible
    if wrong := [name for name in options.only if name not in possible]:
        parser.error(f"--only {wrong[0]!r}: not there; possible: {', '.join(possible)}")
    if CLOCK in options.only and NOTHING not in options.only:
        parser.error(f"--only {CLOCK!r}: it is made of what {NOTHING!r} measures; name both")
    return options


def case_of(options: argparse.Namespace) -> Case:
    """The step of perf_tests/, with fewer sequences: causes are the same, in less time."""
    params = SEED_STEP if options.device == "cuda" else NANO_STEP
    batch = options.batch or (16 if options.device == "cuda" else 4)
    params = params | {"batch": batch, "compile": options.compile}
    return Case("planted", FACTORY, params, options.device, options.gpus)


class Results:
    """The faults so far, in a file that is whole at any time."""

    def __init__(self, options: argparse.Namespace) -> None:
        content = json.loads(options.out.read_text()) if options.out.exists() else {}
        self.faults: dict[str, dict[str, Any]] = content.get("faults", {})
        self._document = Document(options.out, content)
        self._about = {
            "command": command_line(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": current(ROOT, ROOT / "baselines").commit,
            "machine": machine(options.device, options.gpus),
        }

    def take(self, name: str, found: dict[str, Any]) -> None:
        """Add a fault, and print its row."""
        self.faults[name] = found | self._about
        self._document.update(faults=self.faults)
        said = found.get("failed") or found["headline"]
        print(f"| {name} | {said} | {'yes' if found['right'] else 'NO'} |", flush=True)


def measure(options: argparse.Namespace, results: Results) -> None:
    """Count the tree as it is, then each fault; judge each as soon as it is counted."""
    began, base = time.monotonic(), None
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        cache = options.cache.resolve() if options.cache else folder / "cache"
        counting = Counting(case_of(options), folder, cache, stack)
        wanted = [one for one in options.only if one != CLOCK]
        queue = [Planted("base", clone_head(folder / "base"), range(0))]
        queue += [planted_tree(folder, one) for one in wanted]
        while queue and time.monotonic() - began < options.seconds:
            group, queue = queue[: options.at_once], queue[options.at_once :]
            counted = counting.count([counting.start(one) for one in group])
            for planted, found in zip(group, counted, strict=True):
                if planted.name == "base":
                    base = found
                    continue
                if isinstance(base, str) or base is None:
                    raise SystemExit(f"the tree as it is was not counted: {base}")
                took(results, planted, base, found, options)
        for planted in queue:
            results.take(planted.name, {"right": False, "failed": "not begun: time was over"})


def took(
    results: Results,
    planted: Planted,
    base: Evidence,
    found: Evidence | str,
    options: argparse.Namespace,
) -> None:
    """Judge one tree; of the one without a fault make the slower clock, too."""
    if isinstance(found, str):
        results.take(planted.name, {"right": False, "failed": found})
        return
    results.take(planted.name, judged_fault(planted, base, found))
    counts = found.counts
    if planted.name == NOTHING and CLOCK in options.only and counts and counts.profile:
        slower = replace(found, counts=replace(counts, profile=slower_clock(counts.profile)))
        results.take(CLOCK, judged_fault(replace(planted, name=CLOCK), base, slower))


def main() -> int:
    """Run the study; return the exit status."""
    options = arguments()
    results = Results(options)
    print("| planted | named | right |\n|---|---|---|", flush=True)
    measure(options, results)
    faults = {name: one for name, one in results.faults.items() if name != NOTHING}
    right = sum(one["right"] for one in faults.values())
    print(f"first cause right in {right} of {len(faults)}; raw figures: {options.out}")
    return 0 if right >= min(ENOUGH, len(faults)) else 1


if __name__ == "__main__":
    sys.exit(main())
