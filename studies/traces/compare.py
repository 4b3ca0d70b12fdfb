"""The same files read by stepguard and by HolisticTraceAnalysis, in turns: figures, time, memory.

python -m venv /tmp/hta && /tmp/hta/bin/pip install traceinsight
python -m studies.traces.compare --hta /tmp/hta/bin/python --out compare.json FILE ...
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ("kernel_us", "compute_us", "exposed_us", "idle_us", "overlap_pct")


def main() -> None:
    """Compare the files of the command line and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--hta", required=True, help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    rows = [compare(path.resolve(), options.hta, options.turns) for path in options.files]
    options.out.write_text(
        json.dumps({"command": "python -m studies.traces.compare", "files": rows}, indent=1) + "\n"
    )


def compare(path: Path, hta: str, turns: int) -> dict[str, Any]:
    """Return the row of one file: medians over turns, and by how much the figures differ."""
    ours, theirs = [], []
    for _ in range(turns):
        ours.append(_run([sys.executable, "-m", "studies.traces.our_side", str(path)]))
        theirs.append(_run([hta, str(ROOT / "studies" / "traces" / "hta_side.py"), str(path)]))
    both = ours[0]["figures"], theirs[0]["figures"]
    took = [{key: median(one["took"][key] for one in side) for key in side[0]["took"]}
            for side in (ours, theirs)]  # fmt: skip
    row = {
        "file": path.name,
        "mib": path.stat().st_size / 2**20,
        "ours": {key: both[0][key] for key in FIGURES} | took[0],
        "theirs": {key: both[1][key] for key in FIGURES} | took[1],
        "difference_pct": {key: _pct(both[0][key], both[1][key]) for key in FIGURES},
        "worst_kernel_difference_pct": _kernels(both[0]["kernels_us"], both[1]["kernels_us"]),
        "times_faster": took[1]["cpu_s"] / took[0]["cpu_s"],
        "times_less_memory": took[1]["peak_mib"] / took[0]["peak_mib"],
    }
    print(json.dumps(row), flush=True)
    return row


def _run(command: list[str]) -> dict[str, Any]:
    env = os.environ | {"HTA_DISABLE_NS_ROUNDING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _pct(ours: float, theirs: float) -> float:
    return 100 * abs(ours - theirs) / theirs if theirs else abs(ours)


def _kernels(ours: dict[str, float], theirs: dict[str, float]) -> float:
    """Return the worst difference of a kernel's sum, in % of the sum of all."""
    total = sum(theirs.values())
    names = ours.keys() | theirs.keys()
    return max(100 * abs(ours.get(name, 0) - theirs.get(name, 0)) / total for name in names)


if __name__ == "__main__":
    main()
