"""Are profiler files that others wrote read rightly? Each is read twice and the figures compared.

    python -m benchmarks.public_traces --out read.json FOLDER ...

One side is stepguard's reader, the other plain_trace.py, which shares no code with it. Compared are
the steps and their lengths, the time of each kernel (on a CPU of each operator), idle time, and
time in which ranks only exchange. A file is `equal`, or refused by both; anything else fails the
run. The table has a row for each folder, and below it what was refused, and why.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks import plain_trace
from benchmarks.plain_trace import Figures
from stepguard.storage.json_file import FileError
from stepguard.trace.kernel_classes import usual_classes
from stepguard.trace.make_profile import Analysis, profile
from stepguard_lab.host_breakdown import HostSummary
from stepguard_lab.trace_files import analysed, has_kernels, on_cpu, read_files

KINDS = (".json", ".gz", ".sqlite")
AGREE_SHARE = 1e-4  # of all steps' time
AGREE_US = 0.5  # a step: a begin of 1e15 us, as files count them, is a multiple of 0.125 us
EQUAL, REFUSED = "equal", "refused"


@dataclass(frozen=True)
class Row:
    """One file, read by both."""

    folder: str
    file: str
    said: str  # EQUAL, REFUSED, or what differs
    ours: str = ""  # why stepguard refuses it
    plain: str = ""  # why the other does
    steps: int = 0
    names: int = 0  # kernels or operators


def by_stepguard(path: Path) -> list[Figures]:
    """Return a file's figures by `stepguard trace`. Raises FileError."""
    classes, traces = usual_classes(), read_files([path])
    if has_kernels(traces):
        return [_of_gpu(found) for _, (_, found) in sorted(analysed(traces, classes).items())]
    return [_of_cpu(found) for found in on_cpu(traces, classes)]


def _of_gpu(found: Analysis) -> Figures:
    said, names = profile(found), Counter[str]()
    for row in said.kernels:
        names[row.name] += sum(row.us)
    parts = said.parts
    exchanged, idle = sum(parts.exposed_communication_us), sum(parts.idle_us)
    return Figures(True, list(parts.step_us), names, idle, exchanged)


def _of_cpu(found: HostSummary) -> Figures:
    names = Counter[str]()
    for row in found.operators:
        names[row.name] += row.us * len(found.step_us)
    return Figures(False, list(found.step_us), names)


def difference(ours: Sequence[Figures], plain: Sequence[Figures]) -> str:
    """Return the first figure in which two readings differ; empty where none does."""
    if len(ours) != len(plain):
        return f"{len(ours)} processes, {len(plain)} by plain JSON"
    return next(filter(None, map(_differs, ours, plain)), "")


def _differs(ours: Figures, plain: Figures) -> str:
    steps = len(ours.step_us), len(plain.step_us)
    if (ours.on_gpu, steps[0]) != (plain.on_gpu, steps[1]):
        return f"{steps[0]} steps, {steps[1]} by plain JSON"
    least = max(AGREE_SHARE * sum(plain.step_us), AGREE_US * steps[0])
    figures = {
        "step": (sum(ours.step_us), sum(plain.step_us)),
        "idle": (ours.idle_us, plain.idle_us),
        "exchange": (ours.exchanged_us, plain.exchanged_us),
    }
    figures |= {
        name: (ours.names_us[name], plain.names_us[name])
        for name in ours.names_us.keys() | plain.names_us.keys()
    }
    apart = ((name, *both) for name, both in figures.items() if not abs(both[0] - both[1]) <= least)
    return next((f"{name[:60]}: {a:.1f} us, {b:.1f} by plain JSON" for name, a, b in apart), "")


def compared(folder: Path, path: Path) -> Row:
    """Return the row of a file."""
    where = folder.name, str(path.relative_to(folder))
    ours, plain, why = [], [], {"ours": "", "plain": ""}
    try:
        ours = by_stepguard(path)
    except FileError as error:
        why["ours"] = str(error).removeprefix(f"{path}: ")
    try:
        plain = plain_trace.figures(path)
    except plain_trace.Refused as error:
        why["plain"] = str(error)
    if all(why.values()):
        return Row(*where, REFUSED, **why)
    if any(why.values()):
        return Row(
            *where, f"refused by {'stepguard' if why['ours'] else 'plain JSON'} alone", **why
        )
    steps = sum(len(one.step_us) for one in ours)
    names = len({name for one in ours for name in one.names_us})
    return Row(*where, difference(ours, plain) or EQUAL, steps=steps, names=names)


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder that may be a profiler's, in order of their paths."""
    return sorted(path for path in folder.rglob("*") if path.suffix in KINDS and path.is_file())


def table(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the counts by folder, then each reason for which files were refused, in Markdown."""
    rows = list(rows)
    yield "| folder | files | equal | steps | refused by both | different |"
    yield "|---|---|---|---|---|---|"
    for folder in dict.fromkeys(row.folder for row in rows):
        mine = [row for row in rows if row.folder == folder]
        said = Counter(row.said for row in mine)
        other = len(mine) - said[EQUAL] - said[REFUSED]
        steps = sum(row.steps for row in mine)
        yield f"| {folder} | {len(mine)} | {said[EQUAL]} | {steps} | {said[REFUSED]} | {other} |"
    yield ""
    why = Counter(re.sub(r"[\d,]+", "N", row.ours) for row in rows if row.said == REFUSED)
    yield from (f"* {count} refused: {reason}" for reason, count in why.most_common())
    yield from (
        f"* {row.folder}/{row.file}: {row.said}. {row.ours or row.plain}".rstrip()
        for row in rows
        if row.said not in (EQUAL, REFUSED)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the folders of the command line; return 1 if any file is read in two ways."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, help="result file")
    options = parser.parse_args(arguments)
    rows = [compared(folder, path) for folder in options.folders for path in files_in(folder)]
    print("\n".join(table(rows)))
    if options.out:
        options.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0 if all(row.said in (EQUAL, REFUSED) for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
