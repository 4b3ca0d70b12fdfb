"""What is planted between the ranks of a training step: does the gate fail, and by which metric?

    python benchmarks/planted_ranks.py --gpus 2 --out planted.json            # every plant
    python benchmarks/planted_ranks.py --gpus 2 --only "a slower rank" --out slower.json

The DDP step of perf_tests/ is measured in a clone and becomes the recording; then it is measured in
a clone for each plant, whose sources are edited, and judged against it. "nothing" is a second clean
clone, which has to be `same`. A rank that is slower by 3 % is below what the screen can tell by one
recording, so that plant is also judged beside HEAD, in pairs, as --perf-against does it. Every
verdict goes to --out as soon as it is known. On a CPU times are not judged and no rank is slowed.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.clones import clone_head, plant  # noqa: E402
from benchmarks.documents import Document  # noqa: E402
from perf_tests.parameters import NANO_STEP, SEED_STEP  # noqa: E402
from stepguard import Case, default_gates  # noqa: E402
from stepguard.baseline_model import Entry, Epoch  # noqa: E402
from stepguard.evidence import Evidence  # noqa: E402
from stepguard.explain import evidence_lines, headline  # noqa: E402
from stepguard.host.accept import recording_of  # noqa: E402
from stepguard.host.against import compare_with  # noqa: E402
from stepguard.host.machine import visible_gpus  # noqa: E402
from stepguard.host.measure import measure  # noqa: E402
from stepguard.host.revision import current  # noqa: E402
from stepguard.host.station import Bench  # noqa: E402
from stepguard.host.worktree import tree_of  # noqa: E402
from stepguard.judge import judge  # noqa: E402
from stepguard.verdict import Status, Verdict  # noqa: E402
from stepguard.versus import judge_turns  # noqa: E402

BUDGET_S = 300.0  # of the pairs
SETTINGS = "    ddp = DdpSettings(\n        bucket_cap_mb,\n"
UNUSED = (
    "        find_unused_parameters,\n        compile_before_wrap,\n        optimize_ddp,\n    )"
)
REDUCE = "                dist.all_reduce(total)\n"
MORE = "                dist.all_reduce(torch.zeros(1000, device=total.device))\n"


@dataclass(frozen=True)
class Plant:
    """What replaces what in model/workloads.py, and how much slower the last rank gets."""

    edits: dict[str, str] = field(default_factory=dict)
    slower_pct: float = 0.0


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
    "a slower rank": Plant(slower_pct=3.0),
}


def case_of(device: str, ranks: int) -> Case:
    """The DDP step of perf_tests/, with as few launches to a measurement as there may be."""
    gates = (*default_gates(device, ranks), "exposed_comm_pct") if device == "cuda" else ()
    params = SEED_STEP if device == "cuda" else NANO_STEP | {"batch": 1, "seq": 16}
    launches = 2 if device == "cuda" else 1
    factory = "model.workloads:train_step"
    return Case("planted", factory, params, device, ranks, launches, gates=gates)


def clone(folder: Path, name: str, ranks: int, step_ms: float) -> Path:
    """A clone of HEAD with one plant. Raises ValueError if the text to be replaced is not there."""
    tree, planted = clone_head(folder / name.replace(" ", "-")), PLANTS[name]
    target = tree / "model" / "workloads.py"
    text = target.read_text()
    for old, new in planted.edits.items():
        if text.count(old) != 1:
            raise ValueError(f"{target}: not once there, for the plant {name!r}: {old!r}")
        text = text.replace(old, new)
    target.write_text(text)
    if planted.slower_pct:
        plant(tree, planted.slower_pct / 100 * step_ms, "--rank", str(ranks - 1))
    return tree


@dataclass(frozen=True)
class Work:
    """Where and what is measured."""

    folder: Path
    case: Case

    def bench(self, tree: Path) -> Bench:
        """For one clone; the compile cache is that of all."""
        gpus = tuple(visible_gpus()) if self.case.device == "cuda" else ()
        runs = self.folder / "runs" / tree.name
        revision = current(tree, tree / "baselines")
        return Bench(tree, self.folder / "cache", runs, gpus, revision, "planted_ranks.py")

    def evidence(self, tree: Path) -> Evidence:
        """One measurement, which is sound. Raises RuntimeError otherwise."""
        found = measure(self.case, self.bench(tree))
        if found.faults:
            raise RuntimeError(f"{tree.name}: {found.faults[0].message}\n{found.faults[0].detail}")
        return found

    def beside_head(self, tree: Path) -> Verdict:
        """The tree as it is now beside its own HEAD, in pairs."""
        with tree_of(tree, "HEAD", lambda text: None) as base:
            found = compare_with(self.case, self.bench(tree), base, print, BUDGET_S)
        return judge_turns(found)


def against(found: Evidence, clean: Evidence) -> Verdict:
    """The screen's verdict, with the clean measurement as the only recording."""
    epoch = Epoch(reason="clean", recordings=[recording_of(clean)])
    return judge(found, Entry(case=clean.case, epochs=[epoch]))


def told(verdict: Verdict) -> dict[str, object]:
    """A verdict as data: what moved, from where to where, and what the report says of it."""
    skew = [metric for metric in verdict.metrics if metric.metric == "rank_skew_pct"]
    return {
        "verdict": verdict.status.value,
        "headline": headline(verdict),
        "moved": {
            metric.metric: [metric.old, metric.new]
            for metric in verdict.metrics
            if metric.gated and metric.status is not Status.SAME
        },
        "rank_skew_pct": [[one.old, one.new, one.note] for one in skew],
        "lines": evidence_lines(verdict),
    }


def main() -> None:
    """Measure the clean step and every plant; keep each verdict."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gpus", "--ranks", dest="ranks", type=int, default=2)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--only", nargs="+", choices=list(PLANTS), default=list(PLANTS))
    parser.add_argument("--step-ms", type=float, default=260.0, help="for 3 %% of it (%(default)s)")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    case = case_of(options.device, options.ranks)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work = Work(folder, case)
        clean = work.evidence(clone(folder / "clean", "nothing", options.ranks, options.step_ms))
        print_of, kept = clean.fingerprint, []
        document = Document(
            options.out,
            {
                "command": " ".join(["python", *sys.argv]),
                "date": clean.date,
                "commit": clean.commit,
                "device": print_of.device_name if print_of else "",
                "torch": print_of.torch if print_of else "",
                "ranks": options.ranks,
            },
        )
        for planted in options.only:
            if options.device == "cpu" and PLANTS[planted].slower_pct:
                continue
            began = time.monotonic()
            tree = clone(folder, planted, options.ranks, options.step_ms)
            found = {"plant": planted} | told(against(work.evidence(tree), clean))
            if PLANTS[planted].slower_pct:
                found["beside HEAD"] = told(work.beside_head(tree))
            kept.append(found | {"wall_s": round(time.monotonic() - began, 1)})
            document.update(plants=kept)
            print(f"{planted}: {found['headline']}", flush=True)
            if "beside HEAD" in found:
                print(f"  beside HEAD: {found['beside HEAD']['headline']}", flush=True)


if __name__ == "__main__":
    main()
