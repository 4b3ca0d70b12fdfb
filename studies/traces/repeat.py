"""Make a long trace of a short one: its steps again and again, later each time.

python -m studies.traces.repeat rank0.json.gz long.json --copies 11
"""

import argparse
import gzip
import json
import re
from pathlib import Path
from typing import Any

_IDS = ("correlation", "External id")
_STEP = re.compile(r"^ProfilerStep#(\d+)$")


def main() -> None:
    """Write the file of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--copies", type=int, default=11)
    options = parser.parse_args()
    text = options.source.read_bytes()
    trace = json.loads(gzip.decompress(text) if options.source.suffix == ".gz" else text)
    write(trace, options.target, options.copies)


def write(trace: dict[str, Any], target: Path, copies: int) -> None:
    """Write ``trace`` with its events ``copies`` times, in time, ids and step numbers apart."""
    events = trace.pop("traceEvents")
    lasting = [event for event in events if event.get("ph") == "X" and "ts" in event]
    began = min(event["ts"] for event in lasting)
    ended = max(event["ts"] + event["dur"] for event in lasting)
    ids = max(event.get("args", {}).get(key, 0) for event in lasting for key in _IDS) + 1
    numbers = [int(found[1]) for e in lasting if (found := _STEP.match(e["name"]))]
    steps = max(numbers) - min(numbers) + 1
    with target.open("w") as file:
        file.write(f'{json.dumps(trace)[:-1]}, "traceEvents": [\n')
        for copy in range(copies):
            shift = copy * (ended - began + 1.0), copy * ids, copy * steps
            parts = (json.dumps(_later(event, *shift)) for event in events)
            file.write(",\n" * bool(copy) + ",\n".join(parts))
        file.write("\n]}\n")


def _later(event: dict[str, Any], us: float, ids: int, steps: int) -> dict[str, Any]:
    moved = dict(event)
    if "ts" in moved:
        moved["ts"] = round(moved["ts"] + us, 3)
    if "id" in moved and isinstance(moved["id"], int):
        moved["id"] += ids
    if found := _STEP.match(str(moved.get("name"))):
        moved["name"] = f"ProfilerStep#{int(found[1]) + steps}"
    if args := moved.get("args"):
        moved["args"] = args | {key: args[key] + ids for key in _IDS if key in args}
    return moved


if __name__ == "__main__":
    main()
