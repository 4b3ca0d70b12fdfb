"""The tables of docs/seeds.md on this machine, in one run: what traces and memory say.

python -m studies.public_profiles.measure --out h100.json --svg h100.svg
python -m studies.public_profiles.measure --only s0 --out h100.json
python -m studies.public_profiles.measure --cpu --out cpu.json      # tries the path, small
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepguard.cli.main import main as stepguard
from stepguard.cli.profilers.files import analysed, read_files
from stepguard.explain.roofs import class_roofs
from stepguard.profile import mean
from stepguard.report.trace.timeline import timeline
from stepguard.storage import peaks
from stepguard.trace.classes import usual_classes
from stepguard.trace.host_side.breakdown import host_summary
from stepguard.trace.summary import Summary, summary

STEP = "model.workloads:train_step"
# As their texts have it; "s1" is read per rank with --gpus.
GPU = {
    "s0": "size=124m batch=64 seq=1024 precision=bf16 micro_steps=2 lr=0.0",
    "s2": "size=350m batch=4 seq=512 precision=bf16 micro_steps=1 compile=False lr=0.0",
}
CPU = dict.fromkeys(GPU, "size=nano batch=1 seq=32 precision=fp32 compile=False device=cpu")


def main() -> int:
    """Measure what is asked for and write one document."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parts: dict[str, Callable[[argparse.Namespace], Any]] = {
        "peaks": _peaks,
        "s0": lambda options: _profile("s0", options, "--shapes"),
        "memory": _memory,
        "s2": lambda options: _profile("s2", options),
    }
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--cpu", action="store_true", help="small cases, on the CPU")
    parser.add_argument("--gpus", type=int, default=1, help="ranks of s0")
    parser.add_argument("--svg", type=Path, help="draw a step of s0")
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()
    if options.svg and (options.cpu or "s0" not in options.only):
        parser.error("--svg draws kernels of s0 on a GPU: leave out --cpu and --only, or --svg")
    found: dict[str, Any] = {"command": "python -m studies.public_profiles.measure"}
    for name in options.only:
        print(f"\n== {name}", flush=True)
        try:
            found[name] = parts[name](options)
        except (RuntimeError, ValueError) as error:
            found[name] = {"problem": str(error)}
        # After each part: what a time limit ends keeps what it had.
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return int(any("problem" in found[name] for name in options.only))


def _call(*arguments: str) -> None:
    print("stepguard", *arguments, flush=True)
    if status := stepguard(list(arguments)):
        raise RuntimeError(f"stepguard {arguments[0]} ended with status {status}")


def _params(name: str, options: argparse.Namespace) -> list[str]:
    return (CPU if options.cpu else GPU)[name].split()


def _peaks(options: argparse.Namespace) -> dict[str, Any]:
    stepguard(["doctor", "--peaks"])  # its status is about the machine's fitness
    files = sorted(peaks.folder().glob("*.json"), key=lambda path: path.stat().st_mtime)
    return dict(json.loads(files[-1].read_text()))


def _profile(name: str, options: argparse.Namespace, *more: str) -> dict[str, Any]:
    """Record a trace of the step, print its page, and return the tables of each rank."""
    ranks = ["--gpus", str(options.gpus)] if name == "s0" else []
    with tempfile.TemporaryDirectory() as folder:
        params = _params(name, options)
        _call("run", STEP, *params, *ranks, "--trace", folder, "--schedule", "5,3,6", *more)
        _call("trace", folder)
        traces, classes = read_files([Path(folder)]), usual_classes()
    if options.cpu:
        host = host_summary(traces[0][1], classes, "rank0", 0)
        return {"phases_ms": {row.path: row.us / 1e3 for row in host.phases}}
    found = analysed(traces, classes)
    if options.svg and name == "s0":
        options.svg.write_text(timeline(found[0][1], "rank 0"))
    return {f"rank{rank}": _tables(summary(one, "", rank)) for rank, (_, one) in found.items()}


def _tables(one: Summary) -> dict[str, Any]:
    parts = one.profile.parts
    known = peaks.newest(one.profile.gpu)
    roofs = class_roofs(one.profile, known) if known else []
    return {
        "gpu": one.profile.gpu,
        "steps": one.profile.steps,
        "parts_ms": {
            name.removesuffix("_us"): mean(series) / 1e3 for name, series in vars(parts).items()
        },
        "class_pct": {row.name: 100 * row.share for row in one.classes},
        "class_calls": {row.name: row.calls for row in one.classes},
        "call_pct": {row.name: 100 * row.share for row in one.calls[:6]},
        "phases_ms": {row.path: [row.host_us / 1e3, row.gpu_us / 1e3] for row in one.phases},
        "overlap_pct": None if one.overlap_share is None else 100 * one.overlap_share,
        "roof": {
            roof.kind: {
                "known_ms": roof.known_us / 1e3,
                "tflops_per_s": roof.tflops_per_s,
                "gb_per_s": roof.gb_per_s,
                "of_roof_pct": 100 * roof.position.utilisation,
                "bound": roof.position.bound,
            }
            for roof in roofs
        },
    }


def _memory(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "memory.json"
        where = ["--out", folder, "--json", str(to)]
        _call("memory", STEP, *_params("s0", options), *where)
        (rank,) = json.loads(to.read_text())["ranks"]
    return {**rank, "holders": rank["holders"][:12]}


if __name__ == "__main__":
    sys.exit(main())
