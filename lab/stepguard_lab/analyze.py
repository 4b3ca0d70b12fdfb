"""The command analyze: one report of a folder of profiler files, with recommendations.

    python -m stepguard analyze FOLDER

It reads traces of torch.profiler, exports of nsys (.sqlite), and tables of nsys stats and ncu
(.csv).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stepguard.cli.common import say
from stepguard.storage.json_file import FileError
from stepguard.trace.kernel_classes import usual_classes
from stepguard_lab import measured_peaks
from stepguard_lab.advice import Recommendation, of_kernels, of_roofs, of_step, recommendations
from stepguard_lab.host_breakdown import host_page
from stepguard_lab.printed import add_top, page_width
from stepguard_lab.roofline import class_roofs
from stepguard_lab.trace import print_table, show
from stepguard_lab.trace_files import (
    Files,
    analysed,
    has_kernels,
    in_folders,
    named,
    on_cpu,
    read_files,
)


def add_command(commands: Any, root: Path) -> None:
    text = "one report of a folder of profiler files, with recommendations"
    command = commands.add_parser("analyze", help=text)
    command.add_argument("paths", nargs="+", type=Path, metavar="FOLDER", help="or files")
    add_top(command, 12)
    command.set_defaults(call=lambda options: report(options.paths, options.top), root=root)


def report(paths: list[Path], top: int) -> int:
    """Print what the files say, and the recommendations. Return the exit status.

    Raises FileError if nothing can be read.
    """
    files = (file for path in paths for file in (path.glob("*") if path.is_dir() else [path]))
    tables = sorted(path for path in files if path.suffix == ".csv")
    traces = [path for path in paths if path not in tables and _has_trace(path)]
    if not traces and not tables:
        raise FileError(f"{paths[0]}: no trace, no export of nsys and no table in it")
    advised: list[Recommendation] = []
    on_gpu = bool(tables)
    for read in _by_profiler(traces):
        on_gpu |= has_kernels(read)
        advised += _of_traces(read, top)
    for path in tables:
        say("", str(path))
        with named(path):
            advised += of_kernels(print_table(path, usual_classes(), top))
    say("", *recommendations(advised, on_gpu))
    return 0


def _has_trace(path: Path) -> bool:
    try:
        return bool(in_folders([path]))
    except FileError:
        return False


def _by_profiler(paths: list[Path]) -> Iterator[Files]:
    """Yield the traces of each profiler, by rank."""
    files = in_folders(paths)
    for kind in dict.fromkeys(path.suffix == ".sqlite" for path in files):
        yield read_files([path for path in files if (path.suffix == ".sqlite") == kind])


def _of_traces(traces: Files, top: int) -> Iterator[Recommendation]:
    """Print a page for a run's traces. Yield the recommendations for the first rank."""
    if not has_kernels(traces):
        say(*host_page(on_cpu(traces, usual_classes()), top, page_width()))
        return
    ranks = analysed(traces, usual_classes())
    (first, *_), _ = show(ranks, sorted(ranks), top)
    yield from of_step(first)
    if known := measured_peaks.newest(first.profile.gpu):
        yield from of_roofs(class_roofs(first.profile, known))
