"""What stepguard says of one file in the terms of HolisticTraceAnalysis, and what it takes.

python -m studies.traces.our_side FILE
"""

import json
import resource
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
import numpy.ma  # noqa: F401  # numpy loads it late; imports count on neither side

from stepguard.trace.classes import COMMUNICATION, usual_classes
from stepguard.trace.collectives import exchanges
from stepguard.trace.columns import NONE
from stepguard.trace.profiles import Analysis, analyse
from stepguard.trace.read.chrome import read_chrome
from stepguard.trace.summary import summary
from stepguard.trace.windows import is_memory


def main() -> None:
    """Print the figures of one file as one line of JSON."""
    classes = usual_classes()  # a table in a file: loaded once, as modules are
    began = time.process_time()
    with open(sys.argv[1], "rb") as file:
        trace = read_chrome(file)
    read_s = time.process_time() - began
    found = analyse(trace, classes)
    summary(found, sys.argv[1], 0)
    exchanges([found])
    cpu_s = time.process_time() - began
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    took = {"read_s": read_s, "cpu_s": cpu_s, "peak_mib": peak_mib}
    print(json.dumps({"figures": in_their_terms(found), "took": took}))


def in_their_terms(found: Analysis) -> dict[str, Any]:
    """Return their figures: of all records of the complete steps, from the first begin to the last
    end, and of the first record of the step after them, which they keep.
    """
    windows, gpu = found.windows, found.windows.gpu
    scope = windows.step_of_record != NONE
    scope[np.searchsorted(gpu.start_us, windows.end_us[-1])] = True
    communicates = found.of(COMMUNICATION) & scope
    computes = scope & ~communicates & ~is_memory(gpu)
    kernel_us = gpu.end_us[scope].max() - gpu.start_us[scope].min()
    compute, busy = _length(found, computes), _length(found, scope)
    communication = _length(found, communicates)
    exposed = _length(found, computes | communicates) - compute
    sums: Counter[str] = Counter()
    for name, us in zip(gpu.name[scope], (gpu.end_us - gpu.start_us)[scope], strict=True):
        sums[found.trace.names[name]] += us
    return {
        "kernel_us": float(kernel_us),
        "compute_us": compute,
        "exposed_us": busy - compute,
        "idle_us": float(kernel_us) - busy,
        "overlap_pct": 100 * (1 - exposed / communication) if communication else 0.0,
        "kernels_us": dict(sums),
    }


def _length(found: Analysis, rows: Any) -> float:
    union = found.busy(rows)
    return float((union.end_us - union.start_us).sum())


if __name__ == "__main__":
    main()
