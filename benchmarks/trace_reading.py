"""What reading a trace costs: CPU seconds and peak memory, of columns and of a rank's own profile.

python -m benchmarks.trace_reading --mb 300 [FILE ...]

The file of ``--mb`` is made here: steps of a GPU with shapes, as a rank's counting pass records
them. Each reader gets a process of its own. Other files are read into columns alone.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepguard.trace.chrome_trace import decode_all, read_chrome
from stepguard.trace.host_steps import read_steps
from stepguard.trace.kernel_classes import usual_classes
from stepguard.trace.make_profile import analyse, profile
from stepguard.trace.operator_identity import identity_of

MARK = "stepguard.step"
OPERATORS = 1000  # a step, each with a launch, a kernel and the arrow between them
OPERATOR_US = 20
OPERANDS = {
    "Input Dims": [[8, 1024, 768], [768, 768], []],
    "Input Strides": [[786432, 768, 1], [768, 1], []],
    "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"],
    "Concrete Inputs": ["", "", "1"],
}


def main() -> None:
    """Print a line for each reader and file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--mb", type=float, default=300.0, help="size of the file that is made")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made.json")
        steps = write_trace(made, options.mb)
        for path in (made, *options.files):
            print(json.dumps(_in_a_process(path, 0)), flush=True)
        print(json.dumps(_in_a_process(made, steps)), flush=True)


def write_trace(path: Path, megabytes: float) -> int:
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
        one, ts = 1 + number * OPERATORS + at, began + at * OPERATOR_US
        ids = {"External id": one}
        yield _event("cpu_op", f"aten::op_{at % 60}", ts + 1, 15, **ids, **OPERANDS)
        launch = ids | {"cbid": 211, "correlation": one}
        yield _event("cuda_runtime", "cudaLaunchKernel", ts + 5, 4, **launch)
        grid = {"grid": [at % 9 + 1, 1, 1], "block": [128, 1, 1]}
        shape = {"registers per thread": 32, "shared memory": 0, "blocks per SM": 0.5} | grid
        where = {"device": 0, "context": 1, "stream": 7}
        yield _event("kernel", f"kernel_{at % 40}", ts + 9, 18, **launch, **where, **shape)
        flow = {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": one, "pid": 100, "tid": 1}
        yield flow | {"ts": ts + 5}


def _event(category: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    return dict(ph="X", cat=category, name=name, pid=100, tid=1, ts=ts, dur=dur, args=args)


def _in_a_process(path: Path, steps: int) -> dict[str, Any]:
    code = f"from {__spec__.name} import cost; cost({str(path)!r}, {steps})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def cost(path: str, steps: int) -> None:
    """Print the cost of reading a file into columns or, if it has ``steps``, as a rank's profile,
    with its counts, its profile and its identity.
    """
    classes, base_mb, began = usual_classes(), _peak_mb(), time.process_time()
    with open(path, "rb") as file:
        if steps:
            found = decode_all(file)
            events = found.events
            launches = sum(calls.launches.total() for calls in read_steps(events, MARK, steps))
            kernels = len(profile(analyse(found.trace(), classes)).kernels)
            figures = {"launches": launches, "kernels": kernels}
            figures["parts"] = len(identity_of(events, MARK, steps).parts)
        else:
            figures = {"records": len(read_chrome(file).gpu.kind)}
    cpu_s, peak_mb = time.process_time() - began, _peak_mb() - base_mb
    row = {"file": Path(path).name, "mb": round(Path(path).stat().st_size / 1e6, 1), **figures}
    print(json.dumps(row | {"cpu_s": round(cpu_s, 2), "peak_mb": round(peak_mb)}))


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


if __name__ == "__main__":
    main()
