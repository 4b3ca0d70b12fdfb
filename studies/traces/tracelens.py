"""The same files read by stepguard and by AMD's TraceLens, in turns: figures, time, memory.

python -m studies.traces.tracelens --python /tmp/tl/bin/python --source TraceLens FILE ...
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from stepguard.report.table import aligned
from stepguard.trace.classes import COMMUNICATION, usual_classes
from stepguard.trace.columns import COPY, FILL, NONE, Bools, Trace, launched_by
from stepguard.trace.intervals import union
from stepguard.trace.read.chrome import read_chrome

THEIRS = Path(__file__).with_name("tracelens_side.py")


def in_their_terms(trace: Trace) -> dict[str, float]:
    """Return their figures of a whole file, in ms, by their definitions: all records launched
    in the file, steps or not; a fill counts as computation.
    """
    gpu, classes = trace.gpu, usual_classes()
    gpu = gpu.where(launched_by(trace.calls, gpu.correlation) != NONE)
    kinds = np.array([classes.kernel(name) for name in trace.names])[gpu.name]
    copies = gpu.kind == COPY
    exchanges = (kinds == COMMUNICATION) & ~copies & (gpu.kind != FILL)
    computes = ~copies & ~exchanges

    def ms(rows: Bools) -> float:
        found = union(gpu.start_us[rows], gpu.end_us[rows])
        return float((found.end_us - found.start_us).sum()) / 1e3

    busy = ms(copies | exchanges | computes)
    total = float(gpu.end_us.max() - gpu.start_us.min()) / 1e3
    return {
        "computation_time": ms(computes),
        "exposed_comm_time": ms(computes | exchanges) - ms(computes),
        "exposed_memcpy_time": busy - ms(computes | exchanges),
        "idle_time": total - busy,
        "total_time": total,
        "total_comm_time": ms(exchanges),
    }


def main() -> None:
    """Compare the files of the command line, a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--python", required=True, help="a Python that has what TraceLens needs")
    parser.add_argument("--source", required=True, type=Path, help="TraceLens' folder")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    rows = [("file", "CPU s: ours", "theirs", "MiB: ours", "theirs", "worst difference")]
    for path in options.files:
        ours, theirs = [], []
        for _ in range(options.turns):
            ours.append(_run([sys.executable, "-m", "studies.traces.our_side", str(path)]))
            env = {"PYTHONPATH": str(options.source)}
            theirs.append(_run([options.python, str(THEIRS), str(path)], env))
        with path.open("rb") as file:
            mine = in_their_terms(read_chrome(file))
        worst = max(mine, key=lambda name: abs(mine[name] - theirs[0]["figures"][name]))
        apart = abs(mine[worst] - theirs[0]["figures"][worst])
        took = [
            f"{median(one['took'][key] for one in side):.{digits}f}"
            for key, digits in (("cpu_s", 3), ("peak_mib", 0))
            for side in (ours, theirs)
        ]
        rows.append((path.name, *took, f"{worst} {apart:.6f} ms"))
    print("\n".join(aligned(rows, left=(0, 5))))


def _run(command: list[str], more: dict[str, str] | None = None) -> dict[str, Any]:
    done = subprocess.run(
        command, env=os.environ | (more or {}), capture_output=True, text=True, check=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


if __name__ == "__main__":
    main()
