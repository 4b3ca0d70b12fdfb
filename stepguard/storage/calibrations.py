"""Calibration files: the noise of a kind of machine, beside the baselines and read as strictly.

baselines/calibration/h200x1.json       of the machines whose baselines are in baselines/h200x1.json
"""

from pathlib import Path

import msgspec

from stepguard.git.revision import CALIBRATION
from stepguard.judge.calibration import SCHEMA, CalibratedCase, CalibrationFile
from stepguard.storage import baselines as baseline
from stepguard.storage.baselines import BaselineError, refuse_other_machine, restore

ANEW = "python -m stepguard calibrate"


def path_for(baseline_path: Path) -> Path:
    """The calibration file that belongs to a baseline file."""
    return baseline_path.parent / CALIBRATION / baseline_path.name


def load(path: Path) -> CalibrationFile | None:
    """The file's content; None where there is no file.

    Raises BaselineError for anything that is not exactly a calibration file.
    """
    raw = baseline.read(path)
    if raw is None:
        return None
    if raw.get("schema") != SCHEMA:
        raise BaselineError(
            f"{path}: schema {raw.get('schema')!r}, this version of stepguard reads {SCHEMA}; "
            f"measure it anew: {ANEW}"
        )
    try:
        found = msgspec.convert(raw, CalibrationFile, strict=True)
    except msgspec.ValidationError as error:
        raise BaselineError(f"{path}: {error}; {restore(path)}") from None
    for case_id, entry in found.cases.items():
        if entry.degrees != entry.pairs - 1:
            raise BaselineError(
                f"{path}: {case_id}: {entry.degrees:g} degrees of freedom from {entry.pairs} "
                f"pairs; {restore(path)}"
            )
    return found


def load_for(path: Path, machine: str) -> CalibrationFile | None:
    """The file's content; raises BaselineError as load() does, and for another machine's file."""
    content = load(path)
    if content is not None:
        refuse_other_machine(path, content.machine, machine)
    return content


def check_all(baselines: Path) -> None:
    """Raise BaselineError if a calibration file of the folder cannot be trusted."""
    for path in sorted((baselines / CALIBRATION).glob("*.json")):
        load(path)


def put(path: Path, machine: str, case_id: str, entry: CalibratedCase) -> None:
    """Write a case's calibration into its file; those of other cases stay as they are.

    Raises BaselineError, and leaves the file as it was, where it cannot be trusted or written.
    """
    old = load_for(path, machine)
    cases = {**(old.cases if old else {}), case_id: entry}
    whole = msgspec.to_builtins(CalibrationFile(schema=SCHEMA, machine=machine, cases=cases))
    try:
        msgspec.convert(whole, CalibrationFile, strict=True)
    except msgspec.ValidationError as error:
        raise BaselineError(f"{case_id}: not written to {path}: {error}") from None
    baseline.write(path, whole, f"nothing else is kept: {ANEW} again")
