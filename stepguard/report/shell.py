"""What the command line prints: figures for a person, and one JSON document for a program."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepguard.baseline_model import Entry
from stepguard.host.suite import Result
from stepguard.metrics import METRICS, format_value


def figures(result: Result) -> Iterator[str]:
    """Every metric that was measured, a line each."""
    values = result.evidence.values()
    width = max((len(name) for name in values), default=0)
    for name in (name for name in METRICS if name in values):
        metric = METRICS[name]
        unit = "" if metric.unit == "B" else metric.unit
        yield f"{name.ljust(width)}  {format_value(name, values[name]):>16} {unit}".rstrip()


def recorded(path: Path, case_id: str, entry: Entry) -> str:
    """A case's baseline in a line."""
    last = entry.epochs[-1]
    newest = last.recordings[-1]
    times = ", ".join(f"{ms:.3f}" for ms in newest.times_ms.get("step_ms", []))
    return (
        f"{path.name}  {case_id}  epoch {len(entry.epochs)}, "
        f"{len(last.recordings)} recordings, newest {newest.date} {newest.commit[:10]}"
        + (f", step_ms {times}" if times else "")
    )


def put_json(document: Any, target: str | None, evidence: Path | None = None) -> None:
    """The document into ``target`` if there is one, and as the last line for whoever reads a pipe.

    A person at a terminal is told how to get it instead: thousands of characters in one line would
    push the figures off the screen.
    """
    text = json.dumps(document, allow_nan=False)
    if target:
        Path(target).write_text(text + "\n")
    if not sys.stdout.isatty():
        print(text)
        return
    if evidence:
        print(f"evidence: {os.path.relpath(evidence)}")
    print(f"as JSON: {target or '--json PATH, or pipe the output'}")
