"""Plant changes between the ranks of a training step: does the gate fail, and by which metric?

    python -m studies.planted_ranks.measure --gpus 2 --out planted.json            # every plant
    python -m studies.planted_ranks.measure --gpus 2 --only "a slower rank" --out slower.json

The DDP step of perf_tests/ is measured in a clone for each plant, whose sources are edited, beside
the clone's own HEAD, as --perf-against does it. What moves a counter is judged by counters alone,
which one pair is enough for; a slower rank by the step time too, in pairs until that is decided.
Every verdict goes to --out as soon as it is known; the exit status is 1 where a plant has passed,
or where "nothing" has not. On a CPU times are not judged and no rank is slowed.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perf_tests.parameters import NANO_STEP, SEED_STEP
from stepguard import Case, default_gates
from stepguard.comparison import Comparison
from stepguard.git.revision import current
from stepguard.git.worktree import tree_of
from stepguard.gpu.nvml import visible_gpus
from stepguard.judge.ab.decision import judge_ab
from stepguard.measure.ab import PairsWanted
from stepguard.measure.confirm import compare_with
from stepguard.measure.workers import Bench
from stepguard.metrics import METRICS
from stepguard.report.words import evidence_lines, headline
from stepguard.verdict import Status, Verdict
from studies.common.clones import clone_head
from studies.common.pair_data import as_data, stages
from studies.common.results import ROOT, Document, command_line, default_path, machine

SETTINGS = "    ddp = DdpSettings(\n        bucket_cap_mb,\n"
UNUSED = (
    "        find_unused_parameters,\n        compile_before_wrap,\n        optimize_ddp,\n    )"
)
REDUCE = "                dist.all_reduce(total)\n"
# As studies/power has it: twenty passes over all parameters, 2.6 % of a step on one H100. They
# allocate nothing, so that time alone can fail.
STEP = "            self._scaler.step(self.optimizer)\n"
PASSES = """            if dist.get_rank() == dist.get_world_size() - 1:
                for _ in range(20):
                    torch._foreach_mul_([p.data for p in self.model.parameters()], 1.0)
"""
MORE = "                dist.all_reduce(torch.zeros(1000, device=total.device))\n"


@dataclass(frozen=True)
class Plant:
    """Replacements in model/workloads.py, and whether only a step's time can show them."""

    edits: dict[str, str] = field(default_factory=dict)
    timed: bool = False


PLANTS = {
    "nothing": Plant(),
    "gradient sync in every micro-step": Plant(
        {"wanted = (last and self.gradient_sync) or": "wanted = self.gradient_sync or"}
    ),
    "buckets of 1 MiB": Plant({SETTINGS: SETTINGS.replace("bucket_cap_mb", "1")}),
    "a search for unused parameters": Plant(
        {UNUSED: UNUSED.replace("find_unused_parameters", "True")}
    ),
    "one more all-reduce": Plant({REDUCE: REDUCE + MORE}),
    "a slower rank": Plant({STEP: PASSES + STEP}, timed=True),
}


def case_of(device: str, ranks: int, planted: str) -> Case:
    """The DDP step of perf_tests/, with the gates that a plant is to be caught by."""
    params = SEED_STEP if device == "cuda" else NANO_STEP | {"batch": 1, "seq": 16}
    gates = default_gates(device, ranks)
    if PLANTS[planted].edits and not PLANTS[planted].timed:
        gates = tuple(name for name in gates if METRICS[name].kind == "counter")
    launches = 2 if device == "cuda" else 1
    factory = "model.workloads:train_step"
    return Case("planted", factory, params, device, ranks, launches, gates=gates)


def clone(folder: Path, name: str) -> Path:
    """A clone of HEAD with one plant. Raises ValueError if the text to be replaced is not there."""
    tree, planted = clone_head(folder / name.replace(" ", "-")), PLANTS[name]
    target = tree / "model" / "workloads.py"
    text = target.read_text()
    for old, new in planted.edits.items():
        if text.count(old) != 1:
            raise ValueError(f"{target}: not once there, for the plant {name!r}: {old!r}")
        text = text.replace(old, new)
    target.write_text(text)
    return tree


def bench_of(case: Case, tree: Path, folder: Path, cache: Path) -> Bench:
    """To measure a clone; the compile cache is that of all."""
    gpus = tuple(visible_gpus()) if case.device == "cuda" else ()
    revision = current(tree, tree / "baselines")
    return Bench(tree, cache, folder / "runs" / tree.name, gpus, revision, "studies.planted_ranks")


def beside_head(
    case: Case, tree: Path, folder: Path, cache: Path, began: float, budget_s: float
) -> Comparison:
    """The tree as it is now beside its own HEAD, in pairs."""
    bench = bench_of(case, tree, folder, cache)
    with tree_of(tree, "HEAD", lambda text: None) as base:
        return compare_with(case, bench, base, stages(began), PairsWanted(budget_s))


def verdict_data(verdict: Verdict) -> dict[str, Any]:
    """A verdict as data: what moved, from where to where, and what the report says of it."""
    return {
        "verdict": verdict.status.value,
        "headline": headline(verdict),
        "moved": {
            metric.metric: [metric.old, metric.new]
            for metric in verdict.metrics
            if metric.gated and metric.status is not Status.SAME
        },
        "lines": evidence_lines(verdict),
    }


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gpus", "--ranks", dest="ranks", type=int, default=2)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=list(PLANTS), help="(every plant)")
    text = "of a plant's pairs, in seconds (%(default)s)"
    parser.add_argument("--budget-s", type=float, default=300.0, help=text)
    parser.add_argument("--cache", type=Path, help="compile caches to share with other runs")
    parser.add_argument("--out", type=Path, help="(.stepguard/planted_ranks.json)")
    options = parser.parse_args()
    options.out = options.out or default_path("planted_ranks.json")
    if options.ranks < 2:
        parser.error(f"--ranks is {options.ranks}; possible: 2 up")
    if not options.out.resolve().parent.is_dir():
        parser.error(f"{options.out}: there is no folder {options.out.resolve().parent}")
    possible = [name for name in PLANTS if options.device != "cpu" or not PLANTS[name].timed]
    options.only = options.only or possible
    for name in options.only:
        if name not in possible:
            parser.error(f"--only {name!r}: not on a CPU, where times are not judged")
    return options


def main() -> int:
    """Every plant beside HEAD; each verdict is kept."""
    options = arguments()
    content = {
        "command": command_line(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": current(ROOT, ROOT / "baselines").commit,
        "machine": machine(options.device, options.ranks),
        "ranks": options.ranks,
    }
    document = Document(options.out, content)
    kept: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = options.cache.resolve() if options.cache else folder / "cache"
        for index, planted in enumerate(options.only, 1):
            began = time.monotonic()
            print(f"[{index}/{len(options.only)}] {planted}", flush=True)
            case = case_of(options.device, options.ranks, planted)
            tree = clone(folder, planted)
            compared = beside_head(case, tree, folder, cache, began, options.budget_s)
            found = {"plant": planted} | verdict_data(judge_ab(compared))
            took = {"wall_s": round(time.monotonic() - began, 1)}
            kept.append(found | took | {"comparison": as_data(compared)})
            document.update(plants=kept)
            print(f"{planted}: {found['headline']}", flush=True)
    wrong = [one["plant"] for one in kept if not as_expected(one["plant"], one["verdict"])]
    for name in wrong:
        print(f"NOT AS IT HAS TO BE: {name}", file=sys.stderr)
    print(f"raw figures: {options.out}")
    return 1 if wrong else 0


def as_expected(planted: str, verdict: str) -> bool:
    """Return whether a plant fails by name, and whether nothing planted passes."""
    if planted == "nothing":
        return verdict == Status.SAME.value
    return verdict in (Status.SLOWER.value, Status.CHANGED.value)


if __name__ == "__main__":
    sys.exit(main())
