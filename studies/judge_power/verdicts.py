"""Collect verdicts of --perf-against on this GPU, at slowdowns of known size.

    python -m studies.judge_power.verdicts --runs 5 --plant-pct 0 1 --out verdicts.json

Each run is a whole `pytest perf_tests --perf-against HEAD` of the core train step in a clone,
planted with plant.py unless the percent is 0, and nothing else: the run that a user would make. A
plant adds operators and launches, so that its case is CHANGED too; the verdict that counts here is
the step time's. Every run goes to --out as soon as it is over, with its pairs, in the form of
pairs.py: resample.py reads both. A run that is stopped by its own verdict is no random
sample: means over its pairs are slightly biased, and stated as such.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stepguard.comparison import from_json
from studies.common.clones import only_case, share_cache
from studies.common.pair_data import as_data
from studies.common.results import Document, command_line
from studies.judge_power.pairs import clone

CASE = "test_train_step and 124m-bf16"


def verdict(tree: Path, folder: Path, case: str, extra: list[str]) -> dict[str, object]:
    """One run in ``tree``: what was said of its step time."""
    document, began = folder / "run.json", time.monotonic()
    document.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "perf_tests", "-q", "-k", case, *extra]
    command += ["--perf-against=HEAD", f"--perf-json={document}"]
    done = subprocess.run(command, cwd=tree, capture_output=True)
    measured = only_case(document, done.stdout.decode())
    found = measured["verdict"]
    times = [one for one in found["metrics"] if one["metric"] == "step_ms"]
    said = {key: times[0][key] for key in ("status", "change_pct")} if times else {}
    said |= {"note": measured["text"]["notes"].get("step_ms", "")} if times else {}
    kept = tree / measured["evidence"]
    pairs = as_data(from_json(kept.read_bytes(), str(kept))) if kept.is_file() else {"pairs": []}
    return {
        "case_verdict": found["status"],
        "step_ms": said,
        "message": measured["text"]["message"],
        "exit_status": done.returncode,
        "command_s": round(time.monotonic() - began, 1),
    } | pairs


def main() -> None:
    """Run them all, keeping every verdict."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--plant-pct", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--step-ms", type=float, default=250.0, help="(%(default)s)")
    parser.add_argument("--case", default=CASE, help="pytest's -k (%(default)s)")
    parser.add_argument("--pytest", nargs="*", default=[], help="more options of pytest's")
    parser.add_argument("--cache", type=Path, help="compile caches to share with other runs")
    parser.add_argument("--limit-s", type=float, default=1e9, help="no run begins after this")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    began = time.monotonic()
    kept: list[dict[str, object]] = []
    document = Document(options.out, {"command": command_line()})
    for percent in options.plant_pct:
        with tempfile.TemporaryDirectory() as name:
            tree = clone(Path(name), percent / 100 * options.step_ms, 0.0)
            share_cache(tree, options.cache)
            for number in range(options.runs):
                if time.monotonic() - began > options.limit_s:
                    return
                found = verdict(tree, Path(name), options.case, options.pytest)
                kept.append({"plant_pct": percent, "run": number + 1} | found)
                document.update(runs=kept)
                said = kept[-1]["step_ms"] or kept[-1]["case_verdict"]
                print(f"{percent:g} % {number + 1}: {said}", flush=True)


if __name__ == "__main__":
    main()
