"""Files of profilers: their traces by rank, taken apart. Errors name the file."""

import shlex
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from stepguard.core.text import counted
from stepguard.storage.json_file import FileError
from stepguard.trace.chrome_trace import TraceError
from stepguard.trace.columns import Trace
from stepguard.trace.kernel_classes import Classes
from stepguard.trace.make_profile import Analysis, analyse
from stepguard_lab.chrome_chunks import read_chrome
from stepguard_lab.host_breakdown import HostSummary, host_summary
from stepguard_lab.nsys_ncu_csv import refuse_page
from stepguard_lab.nsys_sqlite import read_nsys
from stepguard_lab.record_traces import TRACES, traces_in

_TWO_RUNS = "two runs: name the files of one, or put each run into a folder of its own"
_LOOKED_AT = 1 << 12  # bytes at the beginning
_SQLITE = b"SQLite format 3\0"
_REPORTS = {  # reports of Nsight's tools, with the command that exports them
    ".nsys-rep": "nsys export --type sqlite {path}",
    ".qdrep": "nsys export --type sqlite {path}",
    ".ncu-rep": "ncu --import {path} --csv --page raw > {stem}.csv",
}
Files = dict[int, tuple[Path, Trace]]  # by rank
Ranks = dict[int, tuple[Path, Analysis]]


def read_ranks(files: list[Path], classes: Classes) -> Ranks:
    """Return the analysed trace of each file, by rank. Raises FileError that names the file."""
    return analysed(read_files(files), classes)


def read_files(files: list[Path]) -> Files:
    """Return the trace of each file by rank: the rank that the file names, or its place in the
    list.

    Raises FileError that names the file.
    """
    traces: Files = {}
    for path in in_folders(files):
        with named(path):
            for trace in _traces(path):
                _refuse_other_size(trace, traces)
                own = trace.machine.rank
                rank = len(traces) if own is None else own
                if rank in traces:
                    raise TraceError(f"it is of rank {rank}, as {traces[rank][0]} is; {_TWO_RUNS}")
                traces[rank] = path, trace
    return traces


def _refuse_other_size(trace: Trace, traces: Files) -> None:
    """Raise TraceError if a trace has another number of ranks than those before it."""
    size = trace.machine.world_size
    for path, earlier in traces.values():
        if (other := earlier.machine.world_size) != size:
            sizes = f"its run has {counted(size, 'rank')}, and that of {path} {other}"
            raise TraceError(f"{sizes}; {_TWO_RUNS}")


def analysed(traces: Files, classes: Classes) -> Ranks:
    """Return the traces taken apart. Raises FileError that names the file."""
    ranks: Ranks = {}
    for rank, (path, trace) in traces.items():
        with named(path):
            ranks[rank] = path, analyse(trace, classes)
    return ranks


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Add the file's name to an error."""
    try:
        yield
    except OSError as error:
        # The error of a pipe, which cannot be read twice, is the only one without a text.
        raise FileError(f"{path}: {error.strerror or 'give a file, not a pipe'}") from None
    except TraceError as error:
        raise FileError(f"{path}: {error}") from None


def on_cpu(traces: Files, classes: Classes, first: int | None = None) -> list[HostSummary]:
    """Return where the host's time goes if the host computes. The rank ``first`` comes first."""
    ranks = []
    for rank in sorted(traces, key=lambda rank: (rank != first, rank)):
        path, trace = traces[rank]
        with named(path):
            ranks.append(host_summary(trace, classes, path.name, rank))
    return ranks


def in_folders(paths: list[Path]) -> list[Path]:
    """Return the paths. For a folder return its traces, or else the reports of Nsight's tools,
    whose errors name their export. Raises FileError if a folder has none.
    """
    files: list[Path] = []
    for path in paths:
        inside = traces_in(path) or sorted(p for p in path.glob("*") if p.suffix in _REPORTS)
        if path.is_dir() and not inside:
            raise FileError(f"{path}: no trace in it, looked for {', '.join(TRACES)}")
        files += inside if path.is_dir() else [path]
    return files


def _traces(path: Path) -> list[Trace]:
    """Return the traces in a file: one of torch.profiler, or one for each process in an export of
    nsys.
    """
    if command := _REPORTS.get(path.suffix):
        export = command.format(path=shlex.quote(str(path)), stem=shlex.quote(str(path.stem)))
        raise TraceError(f"it is a report of Nsight's own; export it: {export}")
    with path.open("rb") as file:
        begin = file.read(_LOOKED_AT)
        refuse_page(begin.decode("utf-8", "replace"))
        if not begin.startswith(_SQLITE):
            file.seek(0)
            return [read_chrome(file)]
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        return read_nsys(connection)


def has_kernels(traces: Files) -> bool:
    """Tell whether any of the traces has records of a GPU."""
    return any(len(trace.gpu.kind) for _, trace in traces.values())
