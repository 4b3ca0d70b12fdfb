"""Baseline files: read strictly, written so that a git diff is the review, never half written.

A file that cannot be trusted in every line is refused whole: a gate that skips what it does not
understand turns green by accident.
"""

import contextlib
import json
import math
import os
import re
import shlex
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from stepguard.baseline_model import SCHEMA, BaselineFile, Entry
from stepguard.device import is_gpu
from stepguard.evidence import Evidence
from stepguard.metrics import METRICS
from stepguard.site import Site

LINE_WIDTH = 100
CPU_MACHINE = "CPU"
EVIDENCE_KEPT = "the evidence is kept: python -m stepguard accept, once it can be written"
WAIVERS = "waivers.json"  # stands among the baseline files and is none


class BaselineError(Exception):
    """A baseline file that cannot be used or written; one sentence with the remedy."""


def file_name(device: str, device_name: str, world_size: int, nodes: int = 1) -> str:
    """The file for a kind of machine: "h100-80gb-hbm3x1.json", "h200x16-2-nodes.json", "cpu.json".

    ``world_size`` is that of all ``nodes`` together.
    """
    over = f"-{nodes}-nodes" if nodes > 1 else ""
    if not is_gpu(device):
        return f"cpu{over}.json"
    words = re.findall(r"[a-z0-9]+", device_name.lower().replace("nvidia", ""))
    return f"{'-'.join(words)}x{world_size}{over}.json"


def path_of(folder: Path, evidence: Evidence) -> Path:
    """The file in ``folder`` that the evidence belongs to."""
    device_name = evidence.fingerprint.device_name if evidence.fingerprint else ""
    case = evidence.case
    size, nodes = int(case["world_size"]), int(case.get("nodes", 1))
    return folder / file_name(str(case["device"]), device_name, size, nodes)


def usual(root: Path) -> Path:
    """The project's folder of baselines, where no other is named, as it would be typed here."""
    return Path(os.path.relpath(root / "baselines"))


def files(folder: Path) -> list[Path]:
    """The baseline files of a folder, by name."""
    return [path for path in sorted(folder.glob("*.json")) if path.name != WAIVERS]


def read(path: Path) -> dict[str, Any] | None:
    """A JSON object that people merge and edit, as plain types; None where there is no file.

    Raises BaselineError when it is truncated, has conflict markers, NaN or a key twice.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path}: cannot be read: {error}; {restore(path)}") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith(("<<<<<<< ", "=======", ">>>>>>> ")):
            raise BaselineError(
                f"{path}, line {number}: merge conflict marker {line[:20]!r}; "
                f"keep one side, e.g.: git checkout --ours {shlex.quote(str(path))}"
            )
    try:
        raw = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
        json.dumps(raw, allow_nan=False, ensure_ascii=False).encode()  # no 1e999, no half character
    except (ValueError, RecursionError) as error:
        raise BaselineError(f"{path}: {error}; {restore(path)}") from None
    if not isinstance(raw, dict):
        raise BaselineError(f"{path}: schema missing, it is no JSON object; {restore(path)}")
    return raw


def load(path: Path) -> BaselineFile | None:
    """The file's content; None where there is no file.

    Raises BaselineError for anything that is not exactly a baseline file: what read() refuses, a
    wrong or unknown field, another schema.
    """
    raw = read(path)
    if raw is None:
        return None
    schema = raw.get("schema")
    if schema != SCHEMA:
        raise BaselineError(
            f"{path}: schema {schema!r}, this version of stepguard reads {SCHEMA}; "
            "record it anew with: pytest perf_tests --perf-update"
        )
    try:
        found = msgspec.convert(raw, BaselineFile, strict=True)
    except msgspec.ValidationError as error:
        raise BaselineError(f"{path}: {error}; {restore(path)}") from None
    for case_id, entry in found.cases.items():
        _check_entry(path, case_id, entry)
        _check_sites(path, case_id, raw["cases"][case_id])
    return found


def machine_of(evidence: Evidence) -> str:
    """The kind of machine that the evidence is from, as a baseline file names it."""
    if not is_gpu(evidence.case["device"]):
        return CPU_MACHINE
    return evidence.fingerprint.device_name if evidence.fingerprint else ""


def load_for(path: Path, machine: str) -> BaselineFile | None:
    """The file's content. Raises BaselineError, as load() does, and when it is another machine's:
    nothing is compared with it, or recorded into it.
    """
    content = load(path)
    if content is not None:
        refuse_other_machine(path, content.machine, machine)
    return content


def refuse_other_machine(path: Path, holds: str, machine: str) -> None:
    """Raise BaselineError if a file holds another machine's figures."""
    if holds != machine:
        raise BaselineError(
            f"{path}: holds figures of {holds!r}, not of {machine!r}; {restore(path)}"
        )


def restore(path: Path) -> str:
    """The command that brings the committed file back."""
    return f"restore it with: git checkout -- {shlex.quote(str(path))}"


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"key {key!r} stands twice")
    return dict(pairs)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that can be compared")


def _check_entry(path: Path, case_id: str, entry: Entry) -> None:
    where = f"{path}: {case_id}"
    newest = [recording for epoch in entry.epochs[-1:] for recording in epoch.recordings[-1:]]
    if entry.case.get("world_size", 1) != 1 and any(r.by_rank is msgspec.UNSET for r in newest):
        raise BaselineError(
            f"{where}: the newest recording lacks by_rank, without which a rank hides behind the "
            f"busiest; {restore(path)}"
        )
    for recording in (r for epoch in entry.epochs for r in epoch.recordings):
        for name, values in recording.times_ms.items():
            if name not in METRICS or METRICS[name].kind != "time":
                raise BaselineError(f"{where}: {name!r} is no time metric; {restore(path)}")
            if not values or not all(math.isfinite(value) for value in values):
                raise BaselineError(f"{where}: {name} {values}; {restore(path)}")
        for name in recording.counters:
            if name not in METRICS or METRICS[name].kind != "counter":
                raise BaselineError(f"{where}: {name!r} is no counter; {restore(path)}")
        for name, sites in recording.sites.items():
            if name not in METRICS or METRICS[name].kind != "counter":
                raise BaselineError(f"{where}: {name!r} is no counter; {restore(path)}")
            if any(site.count < 1 for site in sites):
                raise BaselineError(f"{where}: {name} happens never somewhere; {restore(path)}")
        for name, counts in recording.unlike_ranks().items():
            if name not in recording.counters or len(counts) != entry.case["world_size"]:
                raise BaselineError(
                    f"{where}: by_rank of {name!r} has {len(counts)} ranks; {restore(path)}"
                )
        for name in recording.differences_pct:
            if name not in METRICS or METRICS[name].kind != "difference":
                raise BaselineError(f"{where}: {name!r} is no difference; {restore(path)}")
        if not all(math.isfinite(value) for value in recording.information.values()):
            raise BaselineError(f"{where}: information is not finite; {restore(path)}")


def _check_sites(path: Path, case_id: str, entry: dict[str, Any]) -> None:
    """A Site is no Struct, and of other types msgspec passes over the fields that it does not know.

    ``entry`` is as it was read, and of the right shape.
    """
    known = {one.name for one in fields(Site)}
    recordings = (r for epoch in entry["epochs"] for r in epoch["recordings"])
    for site in (s for r in recordings for found in r.get("sites", {}).values() for s in found):
        if unknown := sorted(site.keys() - known):
            raise BaselineError(f"{path}: {case_id}: a site has {unknown[0]!r}; {restore(path)}")


def save(path: Path, content: BaselineFile) -> None:
    """Write a baseline file, as write() does."""
    write(path, msgspec.to_builtins(content))


def write(path: Path, content: Any, kept: str = EVIDENCE_KEPT) -> None:
    """Write beside the file and rename over it: the old file stays until the new one is whole.

    Raises BaselineError, and leaves the old file as it was, when the folder cannot be written;
    ``kept`` says what has become of the figures then.
    """
    text = _layout(content, 0) + "\n"
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise BaselineError(
            f"{path}: cannot be written: {error.strerror or error}; the old file is unchanged, "
            f"and {kept}"
        ) from None


def _layout(value: Any, depth: int) -> str:
    """JSON with sorted keys; what fits a line stands on one, so that a diff shows whole facts."""
    compact = json.dumps(value, sort_keys=True, allow_nan=False)
    if len(compact) + depth <= LINE_WIDTH and depth > 2 or not isinstance(value, dict | list):
        return compact
    if not value:
        return compact
    pad, end = " " * (depth + 1), " " * depth
    if isinstance(value, list):
        items = [f"{pad}{_layout(item, depth + 1)}" for item in value]
        return "[\n" + ",\n".join(items) + f"\n{end}]"
    items = [f"{pad}{json.dumps(key)}: {_layout(value[key], depth + 1)}" for key in sorted(value)]
    return "{\n" + ",\n".join(items) + f"\n{end}}}"


def as_builtins(entry: Entry) -> Any:
    """An entry as plain JSON types, for display."""
    return msgspec.to_builtins(entry)
