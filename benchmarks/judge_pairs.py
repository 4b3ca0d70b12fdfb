"""Pairs of the judge on this GPU, as data: the same code in both trees, or a known slowdown.

    python benchmarks/judge_pairs.py --pairs 24 --out aa.json                  # the same code
    python benchmarks/judge_pairs.py --pairs 12 --plant-pct 1 --out one.json   # 1 % slower
    python benchmarks/judge_pairs.py --pairs 6 --memory-gib 74.5 --out cap.json # 80 GB a process

The core suite's train step, measured as --perf-against does it, but without an end before --pairs
pairs: what the rule would have said of any number of them is then a matter of arithmetic
(judge_resamples.py). The plant is plant.py's: a memory-bound kernel, its time measured by events.
Every pair goes to --out as soon as it is there, with the most memory that the card had in use.
"""

import argparse
import contextlib
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pynvml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.clones import clone_head, commit_all, plant  # noqa: E402
from benchmarks.documents import Document, command_line  # noqa: E402
from perf_tests.parameters import NANO_STEP, SEED_STEP  # noqa: E402
from stepguard import Case  # noqa: E402
from stepguard.comparison import Comparison  # noqa: E402
from stepguard.evidence import Launch  # noqa: E402
from stepguard.git.revision import current  # noqa: E402
from stepguard.git.worktree import tree_of  # noqa: E402
from stepguard.gpu.nvml import visible_gpus  # noqa: E402
from stepguard.judge.ab import judge_ab  # noqa: E402
from stepguard.measure.ab import PAIR_TIMINGS  # noqa: E402
from stepguard.measure.confirm import compare_with  # noqa: E402
from stepguard.measure.workers import Bench  # noqa: E402

GATES = ("step_ms", "flops_per_step")


CAP = """

# Planted by benchmarks/judge_pairs.py: no process may take more than {gib} GiB of its card.
torch.cuda.set_per_process_memory_fraction(
    {gib} * 2**30 / torch.cuda.get_device_properties(0).total_memory
)
"""


class MostMemory(threading.Thread):
    """Samples how much of a card's memory is in use, by whomever."""

    def __init__(self, uuids: list[str]) -> None:
        super().__init__(daemon=True)
        self.uuids, self.most_bytes, self.over = uuids, 0, threading.Event()

    def run(self) -> None:
        """Until ``over`` is set."""
        handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in self.uuids]
        while handles and not self.over.wait(0.05):
            used = [int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles]
            self.most_bytes = max(self.most_bytes, *used)


def clone(folder: Path, plant_ms: float, memory_gib: float) -> Path:
    """A clone of HEAD, planted unless ``plant_ms`` is 0; the cap is in both trees."""
    tree = clone_head(folder / "tree")
    if memory_gib:
        with (tree / "model" / "workloads.py").open("a") as file:
            file.write(CAP.format(gib=memory_gib))
        commit_all(tree, "cap")
    if plant_ms:
        plant(tree, plant_ms)
    return tree


def side(launch: Launch) -> dict[str, object]:
    """One group of a pair."""
    return {
        "step_ms": round(launch.step_ms, 5),
        "step_ms_median": round(launch.step_ms_median, 5),
        "blocks_ms": [round(block.mean_ms, 5) for block in launch.blocks],
        "sm_clock_mhz": [block.sm_clock_mhz for block in launch.blocks],
        "temperature_c": [block.temperature_c for block in launch.blocks],
        "warmup_s": round(launch.warmup_s, 2),
        "compile_s": round(launch.compile_s, 2),
        "discarded": [block.tainted for block in launch.discarded],
    }


def busy_s(found: Comparison) -> float:
    """GPU time of the pairs: warm-up, leads and timed blocks of both sides."""
    turn = PAIR_TIMINGS[str(found.head.case["device"])]
    both = [launch for side in (found.head, found.base) for launch in side.launches]
    timed = sum(max(block.wall_ms) for launch in both for block in launch.blocks) / 1e3
    leads = 4 * turn.lead_s * found.pairs  # one before each block
    return timed + sum(launch.warmup_s for launch in both) + leads


def as_data(found: Comparison) -> dict[str, object]:
    """What its arithmetic needs: whose card, how long, and every pair."""
    print_of = found.head.fingerprint
    return {
        "date": found.head.date,
        "commit": found.head.commit,
        "gpu": print_of.device_uuid if print_of else "",
        "device": print_of.device_name if print_of else "",
        "torch": print_of.torch if print_of else "",
        "driver": print_of.driver if print_of else "",
        "together": found.together,
        "wall_s": round(found.wall_s, 1),
        "gpu_s": round(busy_s(found), 1),
        "faults": [fault.message for fault in (*found.head.faults, *found.base.faults)],
        "pairs": [
            {"head": side(head), "base": side(base)}
            for head, base in zip(found.head.launches, found.base.launches, strict=False)
        ],
    }


def stages(began: float) -> Callable[[str], None]:
    """Prints every stage once, with the seconds since ``began``: where the wall time goes."""
    last = ""

    def tell(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    return tell


def document(
    found: Comparison, options: argparse.Namespace, folder: Path, memory: MostMemory
) -> dict[str, object]:
    """What is known so far."""
    logs = "\n".join(path.read_text() for path in folder.glob("runs/head/**/stdout.log"))
    planted = [float(ms) for ms in re.findall(r"planted ([\d.]+) ms", logs)]
    return {
        "command": command_line(),
        "plant_pct": options.plant_pct,
        "planted_ms": planted,
        "memory_gib": options.memory_gib,
        "most_memory_bytes": memory.most_bytes,
        "verdict_so_far": judge_ab(found).status.value if found.pairs else "",
    } | as_data(found)


def main() -> None:
    """Measure the pairs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--plant-pct", type=float, default=0.0, help="of --step-ms (%(default)s)")
    parser.add_argument("--step-ms", type=float, default=250.0, help="(%(default)s)")
    parser.add_argument("--memory-gib", type=float, default=0.0, help="a process's share; 0: all")
    parser.add_argument("--limit-s", type=float, default=1e9, help="no pair begins after this")
    parser.add_argument("--cache", type=Path, help="compile caches to share with other runs")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    began = time.monotonic()
    params = SEED_STEP if options.device == "cuda" else NANO_STEP
    case = Case("pairs", "model.workloads:train_step", params, options.device, gates=GATES)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        plant_ms = options.plant_pct / 100 * options.step_ms
        root = clone(folder, plant_ms, options.memory_gib)
        tree = stack.enter_context(tree_of(root, "HEAD", print))
        gpus = tuple(visible_gpus()) if options.device == "cuda" else ()
        memory = MostMemory([gpu.uuid for gpu in gpus])
        memory.start()
        stack.callback(memory.over.set)
        revision = current(root, root / "baselines")
        cache = options.cache.resolve() if options.cache else folder / "cache"
        kept = Document(options.out, {})
        bench = Bench(root, cache, folder / "runs", gpus, revision, "judge_pairs.py")

        def keep(found: Comparison) -> bool:
            kept.update(**document(found, options, folder, memory))
            if found.pairs:
                d = 100 * found.log_ratios()[-1]
                print(f"pair {found.pairs}: {d:+.3f} % after {found.wall_s:.0f} s", flush=True)
            return found.pairs < options.pairs and time.monotonic() - began < options.limit_s

        found = compare_with(case, bench, tree, stages(began), 1e9, more=keep)
        keep(found)
    for fault in (*found.head.faults, *found.base.faults):
        print(f"{fault.during}: {fault.message}\n{fault.detail}")
    print(judge_ab(found).status.value)


if __name__ == "__main__":
    main()
