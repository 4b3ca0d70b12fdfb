"""The command calibrate: learn this machine's own noise from kept comparisons of HEAD with itself.

pytest perf_tests --perf-against=HEAD --perf-select=CASES  # on a clean tree
python -m stepguard calibrate
"""

import argparse
import os
from pathlib import Path
from typing import Any

from stepguard.cli.common import add_parser, complain, say
from stepguard.cli.kept_evidence import add_evidence
from stepguard.core.comparison import Comparison
from stepguard.core.metrics import JUDGED_TIME
from stepguard.judge.ab.calibration import NotCalibrated, calibrated, pool
from stepguard.machine.interpreter import as_typed
from stepguard.report import calibration_text as report
from stepguard.storage import baseline_files as baseline
from stepguard.storage import calibrations
from stepguard.storage.json_file import FileError
from stepguard.storage.runs import COMPARISON, Store, read_comparison


def add_command(commands: Any, root: Path) -> None:
    text = "learn this machine's own noise from kept comparisons of HEAD with itself"
    command = add_parser(commands, root, "calibrate", _calibrate, text)
    add_evidence(command, "every case that was compared with itself")


def _calibrate(options: argparse.Namespace) -> int:
    # All files first: a bad one found halfway would leave some cases written and others not.
    calibrations.check_all(options.baselines)
    done = [
        _write(path, comparisons)
        for (_, path), comparisons in _comparisons_with_itself(options).items()
    ]
    return 0 if all(done) else 1


def _comparisons_with_itself(
    options: argparse.Namespace,
) -> dict[tuple[str, Path], list[Comparison]]:
    """Return the comparisons that the options name, oldest first, by case and calibration file: a
    case may have some of several machines.

    Raises ValueError when there is none, or none of a case that was named.
    """
    store = Store(options.root)
    source = Path(options.evidence) if options.evidence else store.runs
    files = sorted(source.rglob(COMPARISON)) if source.is_dir() else [source]
    kept = map(read_comparison, files) if options.evidence else store.comparisons()
    found: dict[tuple[str, Path], list[Comparison]] = {}
    for one in sorted(kept, key=lambda one: one.head.date):
        if usable(one):
            path = calibrations.path_for(baseline.path_of(options.baselines, one.head))
            its = found.setdefault((one.head.case_id, path), [])
            if one not in its:  # a download may lie beside its copy
                its.append(one)
    known = {case_id for case_id, _ in found}
    missing = [case_id for case_id in options.case if case_id not in known]
    if missing or not found:
        which = f" of {missing[0]!r}" if missing else ""
        has = f"; it has: {', '.join(sorted(known))}" if known else ""
        measure = as_typed("pytest perf_tests --perf-against=HEAD --perf-budget=MIN")
        raise ValueError(
            f"{source}: no comparison{which} with itself{has}; measure, in a tree without changes "
            f"or modules that git ignores, a case that gates {JUDGED_TIME}: {measure}"
        )
    return {key: found[key] for key in found if key[0] in (options.case or known)}


def usable(one: Comparison) -> bool:
    """Tell whether a comparison may say something of noise: it is of a commit with itself."""
    # Without what ran and its timing nobody could tell later whether the calibration still applies.
    known = one.head.fingerprint is not None and bool(one.timing)
    # A time that the case does not gate ends by no plan, after two pairs mostly.
    # A module that is in no commit ran on one side alone: that is other code.
    itself = one.same_commit and not one.head.untracked
    return itself and known and JUDGED_TIME in one.head.gates and not one.glance


def _write(path: Path, comparisons: list[Comparison]) -> bool:
    """Write a case's calibration and print its report, or say why there is none."""
    head = comparisons[-1].head
    try:
        pairs = pool(comparisons)
        entry = calibrated(pairs)
        calibrations.put(path, baseline.machine_of(head), head.case_id, entry)
    except (NotCalibrated, FileError) as error:
        complain(f"{head.case_id}: not calibrated, {error}")
        return False
    say(*report.lines(pairs, entry))
    say(f"written to {os.path.relpath(path)}: review it, and commit it")
    return True
