"""Time what the suite itself costs: collection, one launch, the smoke suite, the core suite.

    python -m studies.costs.measure                # collection and launch
    python -m studies.costs.measure --suites       # and the suites this machine can run (minutes)

Collection alternates with starting pytest on an empty folder, and a launch with importing torch:
the difference is ours. The counting pass and the rest of the launch are shown apart. Prints a
table; the last line is one JSON document.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from stepguard.case import Case
from stepguard.evidence import Evidence
from stepguard.git.revision import Revision
from stepguard.gpu.nvml import visible_gpus
from stepguard.measure.launches import measure_launches
from stepguard.measure.workers import Bench
from studies.common.results import ROOT

TINY = {"size": "nano", "batch": 1, "seq": 16, "precision": "fp32", "compile": False}


def run(*arguments: str, cwd: Path = ROOT) -> None:
    """Run a Python command; its output is shown only if it could not run (exit status over 1)."""
    done = subprocess.run([sys.executable, *arguments], cwd=cwd, capture_output=True, text=True)
    if done.returncode > 1 and done.returncode != 5:  # pytest's 5: an empty folder
        raise SystemExit(f"{arguments}: exit status {done.returncode}\n{done.stdout}{done.stderr}")


def alternating(rounds: int, **commands: Callable[[], object]) -> dict[str, list[float]]:
    """Seconds of every command, all of them once a round."""
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            began = time.perf_counter()
            command()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def launch(folder: str) -> Evidence:
    """One whole case of one launch on the CPU: torchrun, import, build, blocks, counting pass."""
    bench = Bench(
        ROOT, Path(folder, "cache"), Path(folder, "runs"), (), Revision(), "studies.costs"
    )
    case = Case("tiny", "model.workloads:forward", TINY, device="cpu", launches=1)
    evidence = measure_launches(case, bench)
    if evidence.faults:
        raise SystemExit(evidence.faults[0].message)
    return evidence


def parts(launches: list[Evidence]) -> dict[str, list[float]]:
    """Seconds of the counting pass, and of a launch less that: on a CPU one launch does both."""
    counting = [evidence.counts.wall_s for evidence in launches if evidence.counts]
    whole = [evidence.launches[0].wall_s for evidence in launches]
    timed = [wall - count for wall, count in zip(whole, counting, strict=True)]
    return {"counting_pass_s": counting, "timed_launch_s": timed}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--suites", action="store_true")
    options = parser.parse_args()
    launches: list[Evidence] = []
    with tempfile.TemporaryDirectory() as folder:
        seconds = alternating(
            options.rounds,
            empty_collection_s=lambda: run("-m", "pytest", "--co", "-q", "--noconftest", folder),
            collection_s=lambda: run("-m", "pytest", "perf_tests", "--co", "-q"),
            import_torch_s=lambda: run("-c", "import torch"),
            launch_s=lambda: launches.append(launch(folder)),
        )
    seconds |= parts(launches)
    if options.suites:
        kind = "core_suite_s" if visible_gpus() else "smoke_suite_s"
        seconds |= alternating(1, **{kind: lambda: run("-m", "pytest", "perf_tests", "-q")})
    medians = {name: round(statistics.median(values), 3) for name, values in seconds.items()}
    for name, median in medians.items():
        values = seconds[name]
        print(f"{name:20} {median:9.3f}   (min {min(values):.3f}, max {max(values):.3f})")
    print(json.dumps({"benchmark": "costs", "median_s": medians, "all_s": seconds}))


if __name__ == "__main__":
    main()
