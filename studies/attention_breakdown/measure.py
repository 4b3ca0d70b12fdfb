"""Shares of the parts of attention, on the host and on the GPU, beside those of a published table.

python -m studies.attention_breakdown.measure --out attention.json
python -m studies.attention_breakdown.measure --out a.json size=nano batch=2 seq=64 device=cpu
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from model.explicit import PARTS
from stepguard.cli.main import main as stepguard
from stepguard.cli.profilers.files import analysed, read_files
from stepguard.report.table import aligned
from stepguard.trace.classes import usual_classes
from stepguard.trace.host_side.breakdown import host_summary
from stepguard.trace.summary import summary

USUAL = ["size=350m", "batch=4", "seq=512", "precision=bf16", "rope=true"]
# S2, medium, 4 x 512 tokens, bf16, RTX 5090: % of attention, by the time between NVTX marks.
THEIRS = {
    "qkv_projection": 28.25,
    "rope": 18.23 + 16.18,
    "scores_and_mask": 13.98,
    "softmax": 2.83,
    "attention_times_v": 11.45,
    "output_projection": 7.66,
}
THEIRS_OF_FORWARD = 68.5
Shares = dict[str, dict[str, float]]  # host and GPU, ms a step by phase


def main() -> int:
    """Record, print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("params", nargs="*", default=USUAL, metavar="key=value")
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()
    factory = ["model.explicit:explicit_attention", "passes=forward", *options.params]
    with tempfile.TemporaryDirectory() as folder:
        if status := stepguard(["run", *factory, "--trace", folder, "--schedule", "5,3,6"]):
            return status
        device, ms = phases_ms(Path(folder))
    for line in table(ms):
        print(line)
    document = {"command": "python -m studies.attention_breakdown.measure"}
    document |= {"params": options.params, "device": device, "ms": ms, "theirs_pct": THEIRS}
    options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


def phases_ms(folder: Path) -> tuple[str, Shares]:
    """Return what was measured on, and ms a step of each phase on the host and on a GPU."""
    traces, classes = read_files([folder]), usual_classes()
    ((path, trace),) = traces.values()
    if not len(trace.gpu.kind):
        host = host_summary(trace, classes, path.name, 0)
        return "CPU", {"host": {row.path: row.us / 1e3 for row in host.phases}}
    one = summary(analysed(traces, classes)[0][1], path.name, 0)
    return one.profile.gpu, {
        "host": {row.path: row.host_us / 1e3 for row in one.phases if row.path},
        "GPU": {row.path: row.gpu_us / 1e3 for row in one.phases if row.path},
    }


def table(ms: Shares) -> list[str]:
    """Return a line for each part: its share of attention, and attention's of the forward pass."""
    lanes = list(ms)
    whole = {lane: sum(ms[lane].values()) for lane in lanes}
    parts = [part for part in PARTS if part in ms[lanes[0]]]
    attention = {lane: sum(ms[lane].get(part, 0.0) for part in parts) for lane in lanes}
    rows = [("% of attention", *lanes, "published (host)")]
    for part in parts:
        shares = (f"{100 * ms[lane].get(part, 0.0) / attention[lane]:.1f}" for lane in lanes)
        rows.append((part, *shares, f"{THEIRS[part]:.1f}"))
    of_forward = (f"{100 * attention[lane] / whole[lane]:.1f}" for lane in lanes)
    rows.append(("attention, % of forward", *of_forward, f"{THEIRS_OF_FORWARD:.1f}"))
    rows.append(("attention, ms", *(f"{attention[lane]:.3f}" for lane in lanes), "26.005"))
    return list(aligned(rows, left=(0,)))


if __name__ == "__main__":
    sys.exit(main())
