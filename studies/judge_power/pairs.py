"""Measure A/B pairs on this GPU, as data: the same code in both trees, or a known slowdown.

    python -m studies.judge_power.pairs --pairs 24 --out aa.json                  # the same code
    python -m studies.judge_power.pairs --pairs 12 --plant-pct 1 --out one.json   # 1 % slower
    python -m studies.judge_power.pairs --pairs 6 --memory-gib 74.5 --out cap.json # 80 GB a process

The core suite's train step, measured as --perf-against does it, but without an end before --pairs
pairs: what the rule would have said of any number of them is then a matter of arithmetic
(resample.py). The plant is plant.py's: a memory-bound kernel, its time measured by events.
Every pair goes to --out as soon as it is there, with the most memory that the card had in use.
"""

import argparse
import contextlib
import re
import tempfile
import threading
import time
from pathlib import Path

import pynvml

from perf_tests.parameters import NANO_STEP, SEED_STEP
from stepguard import Case
from stepguard.comparison import Comparison
from stepguard.git.revision import current
from stepguard.git.worktree import tree_of
from stepguard.gpu.nvml import visible_gpus
from stepguard.judge.ab.decision import judge_ab
from stepguard.measure.ab import PairsWanted
from stepguard.measure.confirm import compare_with
from stepguard.measure.workers import Bench
from studies.common.clones import clone_head, commit_all, plant
from studies.common.pair_data import as_data, stages
from studies.common.results import Document, command_line

GATES = ("step_ms", "flops_per_step")


CAP = """

# Planted by studies.judge_power.pairs: no process may take more than {gib} GiB of its card.
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


def document(
    found: Comparison, options: argparse.Namespace, folder: Path, memory: MostMemory
) -> dict[str, object]:
    """Return the result so far."""
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
        bench = Bench(root, cache, folder / "runs", gpus, revision, "studies.judge_power.pairs")

        def keep(found: Comparison) -> bool:
            kept.update(**document(found, options, folder, memory))
            if found.pairs:
                d = 100 * found.log_ratios()[-1]
                print(f"pair {found.pairs}: {d:+.3f} % after {found.wall_s:.0f} s", flush=True)
            return found.pairs < options.pairs and time.monotonic() - began < options.limit_s

        found = compare_with(case, bench, tree, stages(began), PairsWanted(1e9, keep))
        keep(found)
    for fault in (*found.head.faults, *found.base.faults):
        print(f"{fault.during}: {fault.message}\n{fault.detail}")
    print(judge_ab(found).status.value)


if __name__ == "__main__":
    main()
