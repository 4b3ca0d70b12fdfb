"""How long the GPU idles between two steps: from the last optimizer kernel to the next product.

python -m studies.traces.borders FILE ...
"""

import argparse
from pathlib import Path
from statistics import median

import numpy as np

from stepguard.trace.classes import usual_classes
from stepguard.trace.columns import Trace
from stepguard.trace.intervals import union
from stepguard.trace.read.chrome import read_chrome

APART_US = 50_000.0  # optimizer kernels of two steps


def border_idle_ms(trace: Trace) -> list[float]:
    """Return the idle time of each border of two steps in a rank's trace."""
    classes, gpu = usual_classes(), trace.gpu
    kind = np.array([classes.kernel(name) for name in trace.names])[gpu.name]
    updates, products = kind == "optimizer", gpu.start_us[kind == "GEMM"]
    last = np.append(np.diff(gpu.start_us[updates]) > APART_US, True)
    busy, found = union(gpu.start_us, gpu.end_us), []
    for end in gpu.end_us[updates][last]:
        if len(following := products[products > end]):
            until = following[:1]
            idle = until - end - busy.inside(np.array([end]), until)
            found.append(float(idle[0]) / 1e3)
    return found


def main() -> None:
    """Print a line for each file."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    for path in parser.parse_args().files:
        with path.open("rb") as file:
            idle = border_idle_ms(read_chrome(file))
        shown = " ".join(f"{ms:.3f}" for ms in idle)
        print(f"{path.name}: {shown} ms, median {median(idle):.3f}")


if __name__ == "__main__":
    main()
