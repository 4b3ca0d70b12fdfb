"""What HolisticTraceAnalysis says of one file, and what it takes; run by the Python that has it.

HTA_DISABLE_NS_ROUNDING=1 python hta_side.py FILE
"""

import json
import resource
import sys
import time


def main() -> None:
    """Print the figures of one file as one line of JSON."""
    from hta.trace_analysis import TraceAnalysis  # type: ignore[import-not-found]

    began = time.process_time()
    found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
    read_s = time.process_time() - began
    parts = found.get_temporal_breakdown(visualize=False).iloc[0]
    overlap = found.get_comm_comp_overlap(visualize=False).iloc[0]
    kernels = found.get_gpu_kernel_breakdown(visualize=False, num_kernels=10**6, duration_ratio=1)
    found.get_idle_time_breakdown(ranks=[0], visualize=False)
    found.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)
    found.get_queue_length_summary(ranks=[0])
    table, pct = kernels[1], float(overlap["comp_comm_overlap_pctg"])
    figures = {
        "kernel_us": float(parts["kernel_time(us)"]),
        "compute_us": float(parts["compute_time(us)"]),
        "exposed_us": float(parts["non_compute_time(us)"]),
        "idle_us": float(parts["idle_time(us)"]),
        "overlap_pct": 0.0 if pct != pct else pct,  # NaN where nothing is exchanged
        "kernels_us": dict(zip(table["name"], map(float, table["sum (us)"]), strict=True)),
    }
    cpu_s = time.process_time() - began
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    took = {"read_s": read_s, "cpu_s": cpu_s, "peak_mib": peak_mib}
    print(json.dumps({"figures": figures, "took": took}))


if __name__ == "__main__":
    main()
