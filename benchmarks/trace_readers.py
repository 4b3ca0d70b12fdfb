"""How fast a trace of torch.profiler is read: stepguard beside json.load and HTA, in turns.

    python -m benchmarks.trace_readers --out readers.json FILE ...
    python -m benchmarks.trace_readers --copies 11 --out long.json FILE     # eleven times as long
    python -m benchmarks.trace_readers --hta /tmp/hta/bin/python --out compare.json FILE ...
    python -m benchmarks.trace_readers --made 300           # a file of so many MB that is made here

Each side reads a file in a process of its own: CPU seconds without imports, and peak memory, as
medians over turns. `json` is Python's json.load alone, which anybody's reader in Python begins
with, so that its ratio to stepguard says how fast the reader is on any machine. `--hta` names a
Python that has HolisticTraceAnalysis (`pip install traceinsight`), whose figures are compared, too:
the exit status is 1 if one differs by more than 0.1 %. `--copies` repeats the steps of each file,
later each time. The file of `--made` has steps of a GPU with shapes, as a rank's counting pass
records them, and is also read as a rank does: `rank` finds its counts, profile and identity.
"""

import argparse
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ("kernel_us", "compute_us", "exposed_us", "idle_us", "overlap_pct")
_IDS = ("correlation", "External id")
_STEP = re.compile(r"^ProfilerStep#(\d+)$")
MARK = "stepguard.step"  # of a step that a rank's counting pass profiles
OPERATORS = 1000  # a step that is made, each with a launch, a kernel and the arrow between them
OPERATOR_US = 20
OPERANDS = {
    "Input Dims": [[8, 1024, 768], [768, 768], []],
    "Input Strides": [[786432, 768, 1], [768, 1], []],
    "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"],
    "Concrete Inputs": ["", "", "1"],
}
Figures = dict[str, Any]
# A side may run in another Python, which has no stepguard: each imports what it needs, before its
# clock starts, and returns what it then does.
Reader = Callable[[], Figures]


def opened(path: str) -> Any:
    """Open a trace, packed or not."""
    return gzip.open(path) if path.endswith(".gz") else open(path, "rb")


def with_json(path: str) -> Reader:
    """Return a reader that knows no more of the file than its JSON."""

    def read() -> Figures:
        with opened(path) as file:
            return {"events": len(json.load(file)["traceEvents"])}

    return read


def with_stepguard(path: str) -> Reader:
    """Return the reader of this project, with all that `stepguard trace` says of a file."""
    import numpy.ma  # noqa: F401  # numpy loads it late

    from stepguard.trace.kernel_classes import usual_classes
    from stepguard.trace.make_profile import analyse
    from stepguard_lab.chrome_chunks import read_chrome
    from stepguard_lab.exchanges import exchanges
    from stepguard_lab.trace_summary import summary

    classes = usual_classes()  # a table in a file: loaded once, as modules are

    def read() -> Figures:
        with open(path, "rb") as file:
            found = analyse(read_chrome(file), classes)
        summary(found, path, 0)
        exchanges([found])
        return {"analysis": found}

    return read


def with_rank(path: str) -> Reader:
    """Return what a rank's counting pass reads of its own trace: counts, profile and identity."""
    from stepguard.trace.chrome_trace import decode_all
    from stepguard.trace.host_steps import identity_of, read_steps
    from stepguard.trace.kernel_classes import usual_classes
    from stepguard.trace.make_profile import analyse, profile

    classes = usual_classes()

    def read() -> Figures:
        decoded = decode_all(Path(path).read_bytes())
        events = decoded.events
        steps = sum(event.name == MARK for event in events)
        counted = read_steps(events, MARK, steps)
        return {
            "launches": sum(calls.launches.total() for calls in counted),
            "kernels": len(profile(analyse(decoded.trace(), classes)).kernels),
            "parts": len(identity_of(events, MARK, steps).parts),
        }

    return read


def with_hta(path: str) -> Reader:
    """Return HolisticTraceAnalysis, with what stepguard says, too."""
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    def read() -> Figures:
        found = TraceAnalysis(trace_files={0: path}, trace_dir="/")
        parts = found.get_temporal_breakdown(visualize=False).iloc[0]
        overlap = found.get_comm_comp_overlap(visualize=False).iloc[0]
        table = found.get_gpu_kernel_breakdown(
            visualize=False, num_kernels=10**6, duration_ratio=1
        )[1]
        found.get_idle_time_breakdown(ranks=[0], visualize=False)
        found.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)
        found.get_queue_length_summary(ranks=[0])
        pct = float(overlap["comp_comm_overlap_pctg"])
        return {
            "kernel_us": float(parts["kernel_time(us)"]),
            "compute_us": float(parts["compute_time(us)"]),
            "exposed_us": float(parts["non_compute_time(us)"]),
            "idle_us": float(parts["idle_time(us)"]),
            "overlap_pct": 0.0 if pct != pct else pct,  # NaN where nothing is exchanged
            "kernels_us": dict(zip(table["name"], map(float, table["sum (us)"]), strict=True)),
        }

    return read


READERS = {"stepguard": with_stepguard, "json": with_json, "rank": with_rank, "hta": with_hta}


def in_their_terms(found: Any) -> Figures:
    """Return HolisticTraceAnalysis' figures by stepguard's analysis of a file: of all records of
    the complete steps, from the first begin to the last end, and of the next one, as they do.
    """
    import numpy as np

    from stepguard.trace.columns import NONE
    from stepguard.trace.kernel_classes import COMMUNICATION
    from stepguard.trace.step_windows import is_memory

    def length_us(rows: Any) -> float:
        union = found.busy(rows)
        return float((union.end_us - union.start_us).sum())

    windows, gpu = found.windows, found.windows.gpu
    scope = windows.step_of_record != NONE
    scope[min(np.searchsorted(gpu.start_us, windows.end_us[-1]), len(scope) - 1)] = True
    communicates = found.of(COMMUNICATION) & scope
    computes = scope & ~communicates & ~is_memory(gpu)
    kernel_us = float(gpu.end_us[scope].max() - gpu.start_us[scope].min())
    compute, busy, exchanged = map(length_us, (computes, scope, communicates))
    exposed = length_us(computes | communicates) - compute
    sums: Counter[str] = Counter()
    for name, us in zip(gpu.name[scope], (gpu.end_us - gpu.start_us)[scope], strict=True):
        sums[found.trace.names[name]] += float(us)
    return {
        "kernel_us": kernel_us,
        "compute_us": compute,
        "exposed_us": busy - compute,
        "idle_us": kernel_us - busy,
        "overlap_pct": 100 * (1 - exposed / exchanged) if exchanged else 0.0,
        "kernels_us": dict(sums),
    }


def timed(reader: Reader) -> Figures:
    """Return what a reader says of its file, and what it takes of this process."""
    began = time.process_time()
    figures, cpu_s = reader(), time.process_time() - began
    took = {"cpu_s": cpu_s, "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    if "analysis" in figures:
        figures = in_their_terms(figures["analysis"])
    return {"figures": figures, "took": took}


def write_made(path: Path, megabytes: float) -> int:
    """Write a trace of at least that size, and return the steps in it."""
    steps = 0
    with path.open("w") as file:
        file.write('{"deviceProperties": [{"name": "made"}], "traceEvents": [{"ph": "M"}')
        while file.tell() < megabytes * 1e6 or steps < 2:
            file.writelines(",\n" + json.dumps(event) for event in _step(steps))
            steps += 1
        file.write("]}")
    return steps


def _step(number: int) -> Iterator[dict[str, Any]]:
    began = 1e9 + number * (OPERATORS + 1.0) * OPERATOR_US
    length = OPERATORS * OPERATOR_US
    yield _event("user_annotation", MARK, began, length)
    for at in range(OPERATORS):
        ident, ts = 1 + number * OPERATORS + at, began + at * OPERATOR_US
        ids = {"External id": ident}
        yield _event("cpu_op", f"aten::op_{at % 60}", ts + 1, 15, **ids, **OPERANDS)
        launch = ids | {"cbid": 211, "correlation": ident}
        yield _event("cuda_runtime", "cudaLaunchKernel", ts + 5, 4, **launch)
        grid = {"grid": [at % 9 + 1, 1, 1], "block": [128, 1, 1]}
        shape = {"registers per thread": 32, "shared memory": 0, "blocks per SM": 0.5} | grid
        where = {"device": 0, "context": 1, "stream": 7}
        yield _event("kernel", f"kernel_{at % 40}", ts + 9, 18, **launch, **where, **shape)
        flow = {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": ident, "pid": 100, "tid": 1}
        yield flow | {"ts": ts + 5}


def _event(category: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return dict(ph="X", cat=category, name=name, pid=100, tid=1, ts=ts, dur=dur, args=args)


def write_longer(source: Path, target: Path, copies: int) -> None:
    """Write a trace with its events ``copies`` times, in time, ids and step numbers apart."""
    with opened(str(source)) as file:
        trace = json.load(file)
    events = trace.pop("traceEvents")
    lasting = [event for event in events if event.get("ph") == "X" and "ts" in event]
    length_us = max(e["ts"] + e["dur"] for e in lasting) - min(e["ts"] for e in lasting) + 1.0
    ids = max(event.get("args", {}).get(key, 0) for event in lasting for key in _IDS) + 1
    numbers = [int(found[1]) for e in lasting if (found := _STEP.match(e["name"]))]
    steps = max(numbers) - min(numbers) + 1
    with target.open("w") as out:
        out.write(f'{json.dumps(trace)[:-1]}, "traceEvents": [\n')
        for copy in range(copies):
            shift = copy * length_us, copy * ids, copy * steps
            parts = (json.dumps(_later(event, *shift)) for event in events)
            out.write(",\n" * bool(copy) + ",\n".join(parts))
        out.write("\n]}\n")


def _later(event: Figures, us: float, ids: int, steps: int) -> Figures:
    moved = dict(event)
    if "ts" in moved:
        moved["ts"] = round(moved["ts"] + us, 3)
    if isinstance(moved.get("id"), int):
        moved["id"] += ids
    if found := _STEP.match(str(moved.get("name"))):
        moved["name"] = f"ProfilerStep#{int(found[1]) + steps}"
    if args := moved.get("args"):
        moved["args"] = args | {key: args[key] + ids for key in _IDS if key in args}
    return moved


def differences_pct(ours: Figures, theirs: Figures) -> dict[str, float]:
    """Return by how much figures differ, in percent; of kernels the worst, of the sum of all."""
    found = {one: 100 * abs(ours[one] - theirs[one]) / (theirs[one] or 1.0) for one in FIGURES}
    mine, other = ours["kernels_us"], theirs["kernels_us"]
    total = sum(other.values())
    apart = [abs(mine.get(name, 0) - other.get(name, 0)) for name in mine.keys() | other.keys()]
    return found | {"worst_kernel": 100 * max(apart) / total}


def compare(path: Path, pythons: dict[str, str], turns: int) -> Figures:
    """Return the row of one file: medians over turns of each side, and how HTA's figures differ."""
    sides: dict[str, list[Figures]] = {side: [] for side in pythons}
    for _ in range(turns):
        for side, python in pythons.items():
            sides[side].append(_run([python, __file__, "--side", side, str(path)]))
    row: Figures = {"file": path.name, "mib": path.stat().st_size / 2**20}
    for side, runs in sides.items():
        row[side] = {key: median(one["took"][key] for one in runs) for key in runs[0]["took"]}
        row[side]["times_ours"] = row[side]["cpu_s"] / row["stepguard"]["cpu_s"]
    if "hta" in sides:
        ours, theirs = sides["stepguard"][0]["figures"], sides["hta"][0]["figures"]
        row["difference_pct"] = differences_pct(ours, theirs)
    return row


def _run(command: Sequence[str]) -> Figures:
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'lab'}", "HTA_DISABLE_NS_ROUNDING": "1"}
    done = subprocess.run(command, env=os.environ | path, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    """Read the files of the command line; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--made", type=float, default=0.0, help="MB of a file that is made here")
    parser.add_argument("--hta", help="a Python that has HolisticTraceAnalysis")
    parser.add_argument("--copies", type=int, default=1, help="of each file's steps (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--side", choices=READERS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="result file")
    options = parser.parse_args()
    if options.side:
        print(json.dumps(timed(READERS[options.side](str(options.files[0])))))
        return 0
    pythons = dict.fromkeys(("stepguard", "json"), sys.executable)
    pythons |= {"hta": options.hta} if options.hta else {}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for path in map(Path.resolve, options.files):
            if options.copies > 1:
                longer = Path(folder) / f"{path.name.partition('.')[0]}_x{options.copies}.json"
                write_longer(path, longer, options.copies)
                path = longer
            rows.append(compare(path, pythons, options.turns))
            print(json.dumps(rows[-1]), flush=True)
        if options.made:
            path = Path(folder) / "made.json"
            write_made(path, options.made)
            rows.append(compare(path, pythons | {"rank": sys.executable}, options.turns))
            print(json.dumps(rows[-1]), flush=True)
    if options.out:
        record = {"command": sys.orig_argv[1:], "files": rows}
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    apart = [pct for row in rows for pct in row.get("difference_pct", {}).values()]
    return 1 if any(pct > 0.1 for pct in apart) else 0


if __name__ == "__main__":
    sys.exit(main())
