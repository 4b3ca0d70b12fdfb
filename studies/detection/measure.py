"""Run the gate on unchanged code and on planted slowdowns: does it fail when it must?

    python -m studies.detection.measure --runs 5 --step-ms 20.2 --out detection.json

Runs the train step of the core suite against the committed baseline: ``--runs`` times as it is,
then as often with every step slower by ``--step-ms``, then with every tenth step slower by ten
times that. The plants go into clones (studies/common/plant.py). Every verdict goes to ``--out`` as
soon as it is known, so that an interrupted run keeps what it has. Prints a table.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from studies.common.clones import clone_head, only_case, plant, share_cache
from studies.common.results import ROOT, Document, command_line

CASE = "test_train_step and 124m-bf16"
PLANTS = {"as it is": None, "every step": 1, "every tenth step": 10}


def clone(folder: Path, every: int | None, step_ms: float) -> Path:
    """A clone of HEAD with this tree's compile cache, planted unless ``every`` is None."""
    tree = clone_head(folder / f"tree-{every}")
    share_cache(tree, ROOT / ".stepguard" / "cache")
    if every is not None:
        plant(tree, step_ms, "--every", str(every))
    return tree


def verdict(tree: Path, folder: Path) -> dict[str, object]:
    """One run of the case in ``tree``: its verdict and the two judged times."""
    document = folder / "run.json"
    command = [sys.executable, "-m", "pytest", "perf_tests", "-q", "-k", CASE]
    done = subprocess.run([*command, f"--perf-json={document}"], cwd=tree, capture_output=True)
    case = only_case(document, done.stdout.decode())
    found = case["verdict"]
    times = {
        metric["metric"]: {key: metric[key] for key in ("new", "change_pct", "limit_pct")}
        for metric in found["metrics"]
        if metric["metric"] in ("step_ms", "step_ms_median")
    }
    return {
        "verdict": found["status"],
        "reason": found["reason"],
        "launches": case["launches"],
    } | (times)


def main() -> None:
    """Run them all, keeping every verdict."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--step-ms", type=float, required=True, help="size of the plant")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=list(PLANTS), help="one kind only")
    options = parser.parse_args()
    kept: list[dict[str, object]] = []
    document = Document(options.out, {"command": command_line()})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, every in PLANTS.items():
            if options.only not in (None, kind):
                continue
            tree = clone(folder, every, options.step_ms)
            for number in range(options.runs):
                kept.append({"plant": kind, "run": number + 1} | verdict(tree, folder))
                document.update(runs=kept)
                print(f"{kind:18} {number + 1}: {kept[-1]['verdict']}", flush=True)


if __name__ == "__main__":
    main()
