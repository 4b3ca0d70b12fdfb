"""The history of what main measured: one SQLite file, a row for each measurement of a case.

A measurement has a key (case, machine, card, date), so that importing it again changes nothing, and
stores of several machines can be joined by importing from all of them.
"""

import errno
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from stepguard.core.metrics import METRICS
from stepguard.core.recording import Recording
from stepguard.storage.json_file import FileError, aside

APPLICATION_ID = 0x53544747  # "STGG": tells the file from other programs' databases
SCHEMA = 1
WAIT_S = 30.0  # for another command that writes the same file
_OTHER = "name another file with --store"
TABLES = """
CREATE TABLE measurement (
    id INTEGER PRIMARY KEY,
    case_id TEXT NOT NULL,
    machine TEXT NOT NULL,
    card TEXT NOT NULL,
    date TEXT NOT NULL,
    commit_hash TEXT NOT NULL,
    parameters TEXT NOT NULL,
    environment TEXT NOT NULL,
    level_reason TEXT NOT NULL DEFAULT '',
    UNIQUE (case_id, machine, card, date)
);
CREATE TABLE figure (
    measurement INTEGER NOT NULL REFERENCES measurement (id),
    metric TEXT NOT NULL,
    value REAL NOT NULL,
    PRIMARY KEY (measurement, metric)
) WITHOUT ROWID;
CREATE TABLE read_version (hash TEXT PRIMARY KEY) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Measurement:
    """One measurement of a case on one card."""

    case_id: str
    machine: str  # as a baseline file names it
    card: str  # its UUID; empty for a CPU
    date: str  # UTC, ISO 8601
    commit: str
    parameters: Mapping[str, object]  # of the case
    environment: Mapping[str, str]  # versions of software, driver and libraries
    values: Mapping[str, float] = field(default_factory=dict)  # by metric
    level_reason: str = ""  # why a baseline's level begins with it; empty if none does


def measurement_of(
    recording: Recording,
    case_id: str,
    machine: str,
    parameters: Mapping[str, object],
    reason: str = "",
) -> Measurement:
    """Return a recording as a measurement. ``reason``: why a level begins with it, if one does."""
    environment = dict(recording.software) | (
        {"driver": recording.driver} if recording.driver else {}
    )
    libraries = recording.libraries if isinstance(recording.libraries, dict) else {}
    return Measurement(
        case_id=case_id,
        machine=machine,
        card=recording.device_uuid,
        date=recording.date,
        commit=recording.commit,
        parameters=parameters,
        environment=environment | libraries,
        values=recording.values(),
        level_reason=reason,
    )


@dataclass(frozen=True)
class Series:
    """One metric of one case on one card, oldest first."""

    case_id: str
    machine: str
    card: str
    metric: str
    points: tuple[Measurement, ...]

    @property
    def values(self) -> list[float]:
        """Return the metric's value at each point."""
        return [point.values[self.metric] for point in self.points]


class HistoryStore:
    """An open history. Make it with open_store()."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def add(self, measurements: Iterable[Measurement]) -> int:
        """Add measurements and return how many are new.

        A known measurement keeps what it has. It gets the figures and the level's reason that it
        lacks, since evidence has more figures than a baseline file.
        """
        return sum(self._add(measurement) for measurement in measurements)

    def _add(self, measurement: Measurement) -> bool:
        key = (measurement.case_id, measurement.machine, measurement.card, measurement.date)
        row = (
            *key,
            measurement.commit,
            _json(measurement.parameters),
            _json(measurement.environment),
        )
        added = self._connection.execute(
            "INSERT OR IGNORE INTO measurement (case_id, machine, card, date, commit_hash, "
            "parameters, environment) VALUES (?, ?, ?, ?, ?, ?, ?)",
            row,
        )
        (number,) = self._connection.execute(
            "SELECT id FROM measurement WHERE (case_id, machine, card, date) = (?, ?, ?, ?)", key
        ).fetchone()
        self._connection.executemany(
            "INSERT OR IGNORE INTO figure VALUES (?, ?, ?)",
            [(number, metric, value) for metric, value in measurement.values.items()],
        )
        if measurement.level_reason:
            self._connection.execute(
                "UPDATE measurement SET level_reason = ? WHERE id = ? AND level_reason = ''",
                (measurement.level_reason, number),
            )
        return added.rowcount > 0

    def read_versions(self) -> set[str]:
        """Return the hashes of the versions of baseline files that were imported."""
        return {version for (version,) in self._connection.execute("SELECT hash FROM read_version")}

    def note_read(self, versions: Iterable[str]) -> None:
        """Note that these versions of baseline files were imported."""
        rows = [(version,) for version in versions]
        self._connection.executemany("INSERT OR IGNORE INTO read_version VALUES (?)", rows)

    def measurements(self, case_id: str = "") -> Iterator[Measurement]:
        """Yield the measurements of a case, or of all, oldest first. Metrics that this version does
        not know are left out.
        """
        figures: dict[int, dict[str, float]] = {}
        rows = self._connection.execute("SELECT measurement, metric, value FROM figure")
        for number, metric, value in rows:
            if metric in METRICS:
                figures.setdefault(number, {})[metric] = value
        names = "case_id, machine, card, date, commit_hash, parameters, environment, level_reason"
        for number, case, machine, card, date, commit, *rest in self._connection.execute(
            f"SELECT id, {names} FROM measurement WHERE ? IN ('', case_id) ORDER BY date, id",
            (case_id,),
        ):
            parameters, environment, reason = rest
            yield Measurement(
                case_id=case,
                machine=machine,
                card=card,
                date=date,
                commit=commit,
                parameters=json.loads(parameters),
                environment=json.loads(environment),
                values=figures.get(number, {}),
                level_reason=reason,
            )


def series_of(measurements: Iterable[Measurement]) -> list[Series]:
    """Return a series for each case, card and metric, in the order of their names."""
    points: dict[tuple[str, str, str, str], list[Measurement]] = {}
    for measurement in measurements:
        for metric in measurement.values:
            points.setdefault(
                (measurement.case_id, measurement.machine, measurement.card, metric), []
            ).append(measurement)
    return [Series(*key, tuple(points[key])) for key in sorted(points)]


@contextmanager
def open_store(path: Path) -> Iterator[HistoryStore]:
    """Open a history. Make it if there is none. What was added is kept if the block ends without an
    error. Raises FileError for a file that is no history, or cannot be used.
    """
    if path.exists() and not path.is_file():
        raise FileError(f"{path}: is no file; {_OTHER}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path, timeout=WAIT_S)) as connection, connection:
            _prepare(connection, path)
            yield HistoryStore(connection)
    except (sqlite3.Error, OSError) as error:
        raise FileError(f"{path}: {_problem(error, path)}") from None


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    """Make the tables of a new file. Raises FileError for a file of another program or another
    schema.

    The transaction locks out other writers, so two commands that begin together make the tables
    once.
    """
    connection.execute("BEGIN IMMEDIATE")
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not application and not tables:
        for statement in filter(str.strip, TABLES.split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
    elif application != APPLICATION_ID:
        raise FileError(f"{path}: another program's database; {_OTHER}")
    elif schema > SCHEMA:
        raise FileError(f"{path}: has schema {schema}, {SCHEMA} is known: update stepguard")
    elif schema != SCHEMA:
        raise FileError(f"{path}: has schema {schema}, {SCHEMA} is known; {_anew(path)}")


def _problem(error: sqlite3.Error | OSError, path: Path) -> str:
    """Return what is wrong, and what mends it. A history that is locked, or for which there is no
    space, is whole.
    """
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without SQLite's details of a code
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return f"locked by another command, waited {WAIT_S:g} s; again when that one has ended"
    if code == sqlite3.SQLITE_FULL or getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT):
        return "nothing was added, no space is left; free some space, then again"
    if code == sqlite3.SQLITE_NOTADB:
        return f"is no history; {_OTHER}"
    if code == sqlite3.SQLITE_CORRUPT:
        return f"is damaged: {error}; {_anew(path)}"
    return f"nothing was added: {error}; make it readable and writable, or {_OTHER}"


def _anew(path: Path) -> str:
    return f"put it aside, and import again: {aside(path)}"


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, sort_keys=True)
