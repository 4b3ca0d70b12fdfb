"""Calibration files: the noise of a kind of machine, beside the baselines and read as strictly.

baselines/calibration/h200x1.json       of the machines whose baselines are in baselines/h200x1.json
"""

from pathlib import Path

from stepguard.judge.ab.calibration import SCHEMA, CalibratedCase, CalibrationFile
from stepguard.machine.git.revision import CALIBRATION
from stepguard.machine.interpreter import as_typed
from stepguard.storage.baseline_files import refuse_other_machine
from stepguard.storage.json_file import one_at_a_time, read, save


def path_for(baseline_path: Path) -> Path:
    """Return the calibration file that belongs to a baseline file."""
    return baseline_path.parent / CALIBRATION / baseline_path.name


def load(path: Path) -> CalibrationFile | None:
    """Return the file's content; None where there is no file.

    Raises FileError for anything that is not exactly a calibration file.
    """
    return read(path, CalibrationFile, SCHEMA, "stepguard calibrate")


def load_for(path: Path, machine: str) -> CalibrationFile | None:
    """Return the file's content; raises FileError as load() does, and for another machine's."""
    content = load(path)
    if content is not None:
        refuse_other_machine(path, content.machine, machine)
    return content


def check_all(baselines: Path) -> None:
    """Raise FileError if a calibration file of the folder cannot be trusted."""
    for path in sorted((baselines / CALIBRATION).glob("*.json")):
        load(path)


@one_at_a_time
def put(path: Path, machine: str, case_id: str, entry: CalibratedCase) -> None:
    """Write a case's calibration into its file; those of other cases stay as they are.

    Raises FileError, and leaves the file as it was, where it cannot be trusted or written.
    """
    old = load_for(path, machine)
    cases = {**(old.cases if old else {}), case_id: entry}
    content = CalibrationFile(schema=SCHEMA, machine=machine, cases=cases)
    save(path, content, SCHEMA, f"nothing else is kept: {as_typed('stepguard calibrate')} again")
