"""Compile matmul.cu, run it under Nsight Compute, and keep the table that our reader makes of it.

python -m studies.matmul.measure --out matmul.json
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from stepguard.explain.advice import of_kernels
from stepguard.report.trace.advice import recommendations
from stepguard.report.trace.tables import ncu_page
from stepguard.trace.read.tables import read_ncu

SOURCE = Path(__file__).with_name("matmul.cu")


def main() -> None:
    """Measure, print the page and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--size", type=int, default=2048, help="of the square matrices")
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()
    for tool in ("nvcc", "ncu"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not installed; see: python -m stepguard doctor")
    with tempfile.TemporaryDirectory() as folder:
        program, table = Path(folder) / "matmul", Path(folder) / "kernels.csv"
        subprocess.run(["nvcc", "-O3", "-arch=native", "-o", str(program), str(SOURCE)], check=True)
        command = ["ncu", "--clock-control=none", "--set=detailed", "--csv", "--page=raw"]
        command += [f"--log-file={table}", str(program), str(options.size)]
        subprocess.run(command, check=True)
        rows = read_ncu(table.read_text())
    for line in (*ncu_page(rows, len(rows)), *recommendations(of_kernels(rows), on_gpu=True)):
        print(line)
    document = {"command": "python -m studies.matmul.measure", "size": options.size}
    options.out.write_text(json.dumps(document | {"launches": [asdict(r) for r in rows]}) + "\n")


if __name__ == "__main__":
    main()
