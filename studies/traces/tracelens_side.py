"""What AMD's TraceLens says of one file, and what it takes; run by a Python that can import it.

git clone https://github.com/AMD-AGI/TraceLens && python -m venv /tmp/tl
/tmp/tl/bin/pip install pandas openpyxl tqdm orjson tabulate PyYAML matplotlib
PYTHONPATH=TraceLens /tmp/tl/bin/python studies/traces/tracelens_side.py FILE
"""

import contextlib
import json
import resource
import sys
import time


def main() -> None:
    """Print the figures of one file as one line of JSON."""
    from TraceLens import TreePerfAnalyzer

    began = time.process_time()
    with contextlib.redirect_stdout(sys.stderr):
        table = TreePerfAnalyzer.from_file(sys.argv[1]).get_df_gpu_timeline()
    cpu_s = time.process_time() - began
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    figures = dict(zip(table["type"], table["time ms"], strict=True))
    print(json.dumps({"figures": figures, "took": {"cpu_s": cpu_s, "peak_mib": peak_mib}}))


if __name__ == "__main__":
    main()
