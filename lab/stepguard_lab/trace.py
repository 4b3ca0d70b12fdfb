"""The command trace: where the time of a step goes, in anybody's trace of torch.profiler.

python -m stepguard trace rank0.json.gz rank1.json.gz
python -m stepguard trace new.json.gz --against old.json.gz
"""

import argparse
import csv
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import stdev
from typing import Any

from stepguard.cli.common import (
    UsageError,
    add_json,
    put_json,
    put_text,
    refuse_target,
    say,
)
from stepguard.core.profile import Profile, Work, mean, merged, over_ranks
from stepguard.explain.causes import explain
from stepguard.machine.interpreter import as_typed
from stepguard.trace.columns import PYTHON
from stepguard.trace.kernel_classes import Classes, parse_classes, usual_classes
from stepguard.trace.make_profile import profile
from stepguard.trace.step_windows import marked
from stepguard_lab import explanation_page, measured_peaks
from stepguard_lab.exchanges import Exchange, exchanges
from stepguard_lab.folded_stacks import folded
from stepguard_lab.host_breakdown import annotations_in, host_page
from stepguard_lab.nsys_ncu_csv import NcuRow, is_ncu, ncu_page, read_ncu, read_stats, stats_page
from stepguard_lab.printed import add_top, page_width
from stepguard_lab.roofline import class_roofs, roofline
from stepguard_lab.timeline import BEGINS, timeline
from stepguard_lab.trace_files import (
    Files,
    Ranks,
    analysed,
    has_kernels,
    in_folders,
    named,
    on_cpu,
    read_files,
)
from stepguard_lab.trace_page import page, roof_lines
from stepguard_lab.trace_summary import Summary, summary

COLUMNS = ("rank", "kernel", "class", "phase", "operator", "source", "grid", "block")
FIGURES = (
    "flops_per_launch",
    "bytes_per_launch",
    "calls_per_step",
    "us_per_step",
    "us_sd_per_step",
)
TABLE = {".csv": ",".join(COLUMNS).encode()}  # how earlier such files begin
PICTURE = {".svg": BEGINS.encode()}
STACKS = {".folded": b""}


def add_command(commands: Any, root: Path) -> None:
    trace = commands.add_parser("trace", help="where a step's time goes, from profiler traces")
    each = "a trace of each rank, or a folder of them"
    trace.add_argument("files", nargs="+", type=Path, metavar="FILE", help=each)
    trace.add_argument(
        "--against", nargs="+", type=Path, metavar="FILE", help="explain the difference from these"
    )
    trace.add_argument("--rank", type=int, metavar="N", help="whose details to print (the first)")
    trace.add_argument("--step", metavar="REGEX", help="the annotations that mark steps")
    trace.add_argument("--classes", type=Path, metavar="TOML", help="kernel classes of your own")
    add_top(trace, 12)
    trace.add_argument(
        "--by-name", action="store_true", help="a row for each kernel's name, all launches in one"
    )
    add_json(trace)
    trace.add_argument("--svg", type=Path, metavar="PATH", help="draw one step: host and GPU")
    text = "draw the kernels under the roof"
    trace.add_argument("--roofline", type=Path, metavar="PATH", help=text)
    trace.add_argument("--csv", type=Path, metavar="PATH", help="write the table of kernels")
    text = "write folded stacks, for a flame graph"
    trace.add_argument("--stacks", type=Path, metavar="PATH", help=text)
    trace.set_defaults(call=_trace, root=root)


def _trace(options: argparse.Namespace) -> int:
    _refuse_targets(options)
    classes = _classes(options.classes, options.step)
    tables = [path for path in options.files if path.suffix == ".csv"]
    if tables and (len(tables) < len(options.files) or options.against or options.json):
        raise UsageError("tables in CSV are printed by themselves: give no other files and options")
    if tables:
        return _tables(options, classes)
    traces = _read(options.files, classes, options.step)
    if not has_kernels(traces):
        if options.against or options.csv or options.svg or options.roofline:
            needs = "--against, --csv, --svg and --roofline need traces with kernels of a GPU"
            raise UsageError(needs)
        _refuse_rank(options, sorted(traces))
        _put_stacks(traces, options)
        hosts = on_cpu(traces, classes, options.rank)
        say(*host_page(hosts, options.top, page_width()))
        put_json({"ranks": hosts}, options.json)
        return 0
    analyses = analysed(traces, classes)
    if options.against:
        before = analysed(_read(options.against, classes, options.step), classes)
        return _explain(analyses, before, options)
    order = sorted(analyses, key=lambda rank: (rank != options.rank, rank))
    _refuse_rank(options, order)
    _put_stacks(traces, options)
    ranks, rows = show(analyses, order, options.top, options.by_name)
    put_json({"ranks": ranks, "collectives": rows}, options.json)
    if options.csv:
        put_text(_csv(ranks), options.csv, "--csv")
    if options.svg:
        put_text(timeline(analyses[order[0]][1], ranks[0].source), options.svg, "--svg")
    if options.roofline:
        picture = _picture(profile(analyses[order[0]][1]), ranks[0])
        put_text(picture, options.roofline, "--roofline")
    return 0


def _put_stacks(traces: Files, options: argparse.Namespace) -> None:
    """Write the stacks of one rank, if they were asked for. Raises UsageError if it has none."""
    if options.stacks is None:
        return
    rank = min(traces) if options.rank is None else options.rank
    path, trace = traces[rank]
    if not (trace.host.kind == PYTHON).any():
        record = as_typed("stepguard record-traces CASE --with-stack --out DIR")
        raise UsageError(f"--stacks: {path} has no frames of Python (with_stack=True): {record}")
    put_text("\n".join([*folded(trace), ""]), options.stacks, "--stacks")


def _picture(of_shapes: Profile, of_rank: Summary) -> str:
    """Return the roofline. Raises UsageError if work or peaks are unknown."""
    known = measured_peaks.newest(of_shapes.gpu)
    picture = roofline(of_shapes, known, of_rank.source) if known else ""
    if not picture:
        measure = as_typed("stepguard peaks")
        raise UsageError(
            f"--roofline: it needs shapes (record_shapes=True) and the card's peaks ({measure}); "
            f"{'no kernel has known work' if known else 'no peaks are known'}"
        )
    return picture


def _refuse_targets(options: argparse.Namespace) -> None:
    """Raise UsageError for a path that cannot be written, or whose file would be lost."""
    inputs = in_folders([*options.files, *(options.against or ())])
    inputs += [options.classes] if options.classes else []
    refuse_target(options.json, inputs=inputs)
    refuse_target(options.csv, "--csv", TABLE, inputs)
    refuse_target(options.svg, "--svg", PICTURE, inputs)
    refuse_target(options.roofline, "--roofline", PICTURE, inputs)
    refuse_target(options.stacks, "--stacks", STACKS, inputs)


def _read(files: list[Path], classes: Classes, step: str | None) -> Files:
    """Return the traces by rank. Raises UsageError if the requested step is in none."""
    traces = read_files(files)
    for path, trace in traces.values():
        # Without a mark a whole file counts as one step, which is not the requested one.
        if step is not None and not len(marked(trace, classes.steps)):
            has = annotations_in(trace) or "none; call profiler.step()"
            raise UsageError(f"--step {step!r}: no annotation of {path} matches; it has {has}")
    return traces


def _refuse_rank(options: argparse.Namespace, ranks: list[int]) -> None:
    if options.rank is not None and options.rank not in ranks:
        raise UsageError(f"--rank {options.rank}: the files have {', '.join(map(str, ranks))}")


def show(
    analyses: Ranks, order: list[int], top: int, by_name: bool = False
) -> tuple[list[Summary], list[Exchange]]:
    """Print the page of these ranks, in this order. Return its figures."""
    ranks = [summary(analyses[rank][1], analyses[rank][0].name, rank) for rank in order]
    roofline = list(_roofline(ranks[0]))  # before shapes are merged: it needs the work of each
    if by_name:
        ranks = [replace(rank, profile=merged_by_name(rank.profile)) for rank in ranks]
    rows = exchanges([analyses[rank][1] for rank in order])
    say(*page(ranks, rows, top, page_width()), *roofline)
    return ranks, rows


def _roofline(of_rank: Summary) -> Iterator[str]:
    """Yield how close each class of kernels is to its roof, if shapes are known. If the card's
    peaks are not, yield how to measure them.
    """
    if any(row.work.flops or row.work.bytes for row in of_rank.profile.kernels):
        if peaks := measured_peaks.newest(of_rank.profile.gpu):
            yield from roof_lines(class_roofs(of_rank.profile, peaks), peaks)
        else:
            yield ""
            measure = as_typed("stepguard peaks")
            yield f"For a roofline measure the card's peaks: {measure}"


def _explain(after: Ranks, before: Ranks, options: argparse.Namespace) -> int:
    """Print why ``after`` takes longer. Return 1 if the two cannot be compared."""
    others = options.csv or options.svg or options.roofline or options.stacks
    if others or options.rank is not None:
        refused = "--against: it takes no --csv, --svg, --roofline, --stacks or --rank"
        raise UsageError(refused)
    if before.keys() != after.keys():
        ranks = [", ".join(map(str, sorted(side))) for side in (after, before)]
        raise UsageError(f"--against: ranks {ranks[0]} against {ranks[1]}; give the same ones")
    sides = (before, after)
    old, new = (over_ranks([profile(side[rank][1]) for rank in sorted(side)]) for side in sides)
    explanation = explain(old, new)
    say(
        *_unmarked(before, after),
        *explanation_page.lines(explanation, peaks=measured_peaks.newest(new.gpu)),
    )
    put_json({"explanation": explanation, "before": old, "after": new}, options.json)
    return 1 if explanation.refused else 0


def _unmarked(before: Ranks, after: Ranks) -> Iterator[str]:
    """Yield a warning if nothing marks steps in a file: one side may have recorded more."""
    sides = {"FILE": after, "--against": before}
    bare = [name for name, side in sides.items()
            if not all(analysis.windows.has_marks for _, analysis in side.values())]  # fmt: skip
    if bare:
        yield f"Nothing marks steps in {' and '.join(bare)}: a whole file counts as one step, and"
        yield "the two may have recorded more or less. Mark steps: --step, profiler.step()"
        yield ""


def with_more(text: str) -> Classes:
    """Return the rules of a user's file (TOML), followed by the usual ones. Raises ValueError."""
    mine, usual = parse_classes(text), usual_classes()
    return Classes(
        mine.kernels + usual.kernels,
        mine.canonical + usual.canonical,
        mine.phases + usual.phases,
    )


def _classes(path: Path | None, step: str | None) -> Classes:
    try:
        classes = with_more(path.read_text(encoding="utf-8")) if path else usual_classes()
    except (OSError, ValueError) as error:
        raise UsageError(f"--classes {path}: {error}") from None
    try:
        return classes if step is None else replace(classes, steps=(re.compile(step).pattern,))
    except re.error as error:
        raise UsageError(f"--step {step!r}: {error}") from None


def merged_by_name(profile: Profile) -> Profile:
    """Return a profile with one row for each kernel name, whatever the phases and shapes."""
    rows = merged(profile.kernels, phase="", grid=(), block=(), code="", work=Work())
    return replace(profile, kernels=tuple(sorted(rows, key=lambda row: -sum(row.us))))


def _tables(options: argparse.Namespace, classes: Classes) -> int:
    """Print the tables of nsys stats and of ncu."""
    for path in options.files:
        say(str(path))
        with named(path):
            print_table(path, classes, options.top)
    return 0


def print_table(path: Path, classes: Classes, top: int) -> list[NcuRow]:
    """Print a table of nsys stats or ncu. Return the launches, if it is one of ncu's.

    Raises OSError or TraceError if the file is neither.
    """
    text = path.read_text(encoding="utf-8", errors="replace")
    if not is_ncu(text):
        say(*stats_page(read_stats(text), classes, top, page_width()))
        return []
    rows = read_ncu(text)
    say(*ncu_page(rows, top, page_width()))
    return rows


def _csv(ranks: list[Summary]) -> str:
    """Return a row for each kernel, launch shape, work and phase of each rank."""
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow([*COLUMNS, *FIGURES])
    for rank in ranks:
        for row in rank.profile.kernels:
            spread = stdev(row.us) if len(row.us) > 1 else 0.0
            shape = ["x".join(map(str, row.grid)), "x".join(map(str, row.block))]
            named = [rank.rank, row.name, row.kind, row.phase, row.operator, row.source]
            # Without shapes the work is unknown, which is not the same as none.
            work = [row.work.flops or "", row.work.bytes or ""]
            table.writerow([*named, *shape, *work, mean(row.calls), mean(row.us), spread])
    return text.getvalue()
