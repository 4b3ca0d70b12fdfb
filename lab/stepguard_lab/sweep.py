"""The command sweep: measure a declared grid of parameters, row by row.

python -m stepguard sweep lab/sweeps/attention.toml
"""

import argparse
import contextlib
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from stepguard.cli.common import (
    UsageError,
    progress_line,
    refuse_target,
    say,
    suite_of,
    table_width,
)
from stepguard.cli.workload_arguments import missing
from stepguard.core.case import Case, Scalar
from stepguard.core.device import is_gpu
from stepguard.core.reasons import Reason
from stepguard.core.text import counted
from stepguard.judge.soundness import measurement_problem
from stepguard.judge.summarise_evidence import summarise
from stepguard.machine.git.revision import current
from stepguard.machine.git.worktree import FOLDER
from stepguard.machine.gpu import visible_gpus
from stepguard.measure.suite import Result
from stepguard.storage import baseline_files as baseline
from stepguard.storage.json_file import FileError, read, save
from stepguard_lab import sweep_table as report
from stepguard_lab.sweep_file import MEASURED, SCHEMA, Row, Sweep, SweepFile, flattened, parse

ROWS = "rows.json"


def add_command(commands: Any, root: Path) -> None:
    sweep = commands.add_parser("sweep", help="measure a declared grid of parameters")
    sweep.add_argument("file", type=Path, metavar="FILE", help="the declaration, in TOML")
    sweep.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the rows (.stepguard/sweeps)"
    )
    sweep.add_argument("--anew", action="store_true", help="drop the rows that are there")
    sweep.set_defaults(call=_sweep, root=root)


def read_declaration(path: Path) -> Sweep:
    """Return a sweep. Raises UsageError, which names the file, if it is none."""
    try:
        return parse(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # TOMLDecodeError is one
        raise UsageError(f"{path}: {error}") from None


def _sweep(options: argparse.Namespace) -> int:
    sweep = read_declaration(options.file)
    folder = options.out or options.root / FOLDER / "sweeps" / options.file.stem
    revision, gpus = current(options.root, baseline.usual(options.root)), visible_gpus()
    machine = baseline.CPU_MACHINE
    if is_gpu(sweep.device):
        machine = gpus[0].name if gpus else "no GPU"
    now = SweepFile(SCHEMA, sweep, revision.commit, list(revision.dirty), machine, rows=[])
    content = now if options.anew else _known(folder, now)
    done = [row.parameters for row in content.rows]
    left = [(values, case) for values, case in sweep.cases() if values not in done]
    if done:
        say(f"{len(done)} of {len(done) + len(left)} rows are in {folder / ROWS}")
    if left:
        _refuse(options, sweep, len(gpus))
        refuse_target(folder / ROWS, "--out")
        content = _measured(options.root, folder, content, left)
    return _report(folder, content)


def _measured(
    root: Path, folder: Path, content: SweepFile, left: list[tuple[dict[str, Scalar], Case]]
) -> SweepFile:
    """Measure the rows that are missing. Write each to the file as soon as it is measured."""
    cases = [case for _, case in left]
    line = progress_line(root, cases)
    with contextlib.closing(suite_of(root)) as suite:
        for (values, case), following in zip(left, [*cases[1:], None], strict=True):
            with line.case(case.id):
                result = suite.run(case, line.stage, following)
            if not result.evidence.faults:
                line.learn(case.id, result.evidence.wall_s)
            rows = [*content.rows, _row(values, result)]
            content = msgspec.structs.replace(content, rows=rows)
            save(folder / ROWS, content, SCHEMA, "the rows before are kept: the same command again")
    return content


def _refuse(options: argparse.Namespace, sweep: Sweep, gpus: int) -> None:
    """Raise UsageError for an error that all rows would share."""
    if problem := missing(sweep.workload, options.root):
        raise UsageError(f"{options.file}: {problem}")
    if is_gpu(sweep.device) and gpus < sweep.world_size:
        needs = counted(sweep.world_size, "GPU")
        raise UsageError(f"{options.file}: needs {needs}, this machine shows {gpus}")


def _known(folder: Path, now: SweepFile) -> SweepFile:
    """Return the rows that were already measured. Raises FileError if they belong to another
    sweep.
    """
    known = read(folder / ROWS, SweepFile, SCHEMA, "stepguard sweep FILE --anew")
    if known is None:
        return now
    for name in ("sweep", "commit", "dirty", "machine"):
        if getattr(known, name) != getattr(now, name):
            both = f" {getattr(known, name)!r}, not {getattr(now, name)!r}"
            was = "" if name == "sweep" else both
            raise FileError(
                f"{folder / ROWS}: its rows are of another {name}{was}; keep them by another "
                "--out, or drop them by --anew"
            )
    # Files have sorted keys, but the columns follow the order of the declaration.
    return msgspec.structs.replace(known, sweep=now.sweep)


def _row(values: dict[str, Scalar], result: Result) -> Row:
    problem = measurement_problem(result.evidence)
    figures = flattened(summarise(result.evidence).values(), result.evidence)
    if problem is None:
        return Row(values, MEASURED, "", figures)
    return Row(values, problem.reason, result.verdict.message, figures)


def _report(folder: Path, content: SweepFile) -> int:
    """Print the table, and write CSV and chart. Return 1 if a row failed, other than for lack of
    memory.
    """
    say(*report.table(content, table_width()))
    report.write_csv(content, folder / "rows.csv")
    written = [ROWS, "rows.csv"]
    if content.sweep.report.plot:
        if problem := report.write_plot(content, folder / "rows.svg"):
            say(f"no chart: {problem}")
        else:
            written.append("rows.svg")
    say(f"in {folder}: {', '.join(written)}")
    fine = (MEASURED, Reason.OUT_OF_MEMORY)
    failed = [row for row in content.rows if row.status not in fine]
    say(*(f"{report.named(row.parameters)}: {row.message}" for row in failed))
    return 1 if failed else 0
