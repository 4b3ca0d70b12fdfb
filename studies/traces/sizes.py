"""Is the time linear in the size of the file? Each file is read in a process of its own.

python -m studies.traces.sizes --out sizes.json FILE ...
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Measure the files of the command line and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", required=True, type=Path)
    options = parser.parse_args()
    rows = []
    for path in options.files:
        command = [sys.executable, "-m", "studies.traces.our_side", str(path.resolve())]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        mib = path.stat().st_size / 2**20
        took = json.loads(done.stdout.splitlines()[-1])["took"]
        rows.append({"file": path.name, "mib": mib} | took | {"mib_per_s": mib / took["cpu_s"]})
        print(json.dumps(rows[-1]), flush=True)
    options.out.write_text(
        json.dumps({"command": "python -m studies.traces.sizes", "files": rows}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
