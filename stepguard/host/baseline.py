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
from statistics import fmean
from typing import Any, NoReturn

import msgspec

from stepguard.baseline_model import (
    KEPT_RECORDINGS,
    SCHEMA,
    BaselineFile,
    Entry,
    Epoch,
    RecordedDifference,
    Recording,
)
from stepguard.evidence import Evidence
from stepguard.judge import comparable, drifted, judge, measurement_problem
from stepguard.metrics import METRICS
from stepguard.site import Site
from stepguard.statistics import DEFAULT_LIMIT_PCT, DIFFERENCE_LIMIT_PCT, paired
from stepguard.verdict import Status

LINE_WIDTH = 100
CPU_MACHINE = "CPU"
COMMAND_LINE_RUN = "[run]"  # the ids that `python -m stepguard run` gives


class BaselineError(Exception):
    """A baseline file that cannot be used or written; one sentence with the remedy."""


class Refused(BaselineError):
    """Evidence that must not become a recording."""


def file_name(device: str, device_name: str, world_size: int, nodes: int = 1) -> str:
    """The file for a kind of machine: "h100-80gb-hbm3x1.json", "h200x16-2-nodes.json", "cpu.json".

    ``world_size`` is that of all ``nodes`` together.
    """
    over = f"-{nodes}-nodes" if nodes > 1 else ""
    if device == "cpu":
        return f"cpu{over}.json"
    words = re.findall(r"[a-z0-9]+", device_name.lower().replace("nvidia", ""))
    return f"{'-'.join(words)}x{world_size}{over}.json"


def path_of(folder: Path, evidence: Evidence) -> Path:
    """The file in ``folder`` that the evidence belongs to."""
    device_name = evidence.fingerprint.device_name if evidence.fingerprint else ""
    case = evidence.case
    size, nodes = int(case["world_size"]), int(case.get("nodes", 1))
    return folder / file_name(str(case["device"]), device_name, size, nodes)


def load(path: Path) -> BaselineFile | None:
    """The file's content; None where there is no file.

    Raises BaselineError for anything that is not exactly a baseline file: truncated, conflict
    markers, NaN, a key twice, a wrong or unknown field, another schema.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"{path}: cannot be read: {error}; {_restore(path)}") from None
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
        raise BaselineError(f"{path}: {error}; {_restore(path)}") from None
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema != SCHEMA:
        raise BaselineError(
            f"{path}: schema {schema!r}, this version of stepguard reads {SCHEMA}; "
            "record it anew with: pytest perf_tests --perf-update"
        )
    try:
        found = msgspec.convert(raw, BaselineFile, strict=True)
    except msgspec.ValidationError as error:
        raise BaselineError(f"{path}: {error}; {_restore(path)}") from None
    for case_id, entry in found.cases.items():
        _check_entry(path, case_id, entry)
        _check_sites(path, case_id, raw["cases"][case_id])
    return found


def machine_of(evidence: Evidence) -> str:
    """The kind of machine that the evidence is from, as a baseline file names it."""
    if evidence.case["device"] == "cpu":
        return CPU_MACHINE
    return evidence.fingerprint.device_name if evidence.fingerprint else ""


def load_for(path: Path, machine: str) -> BaselineFile | None:
    """The file's content. Raises BaselineError, as load() does, and when it is another machine's:
    nothing is compared with it, or recorded into it.
    """
    content = load(path)
    if content is not None and content.machine != machine:
        raise BaselineError(
            f"{path}: holds figures of {content.machine!r}, not of {machine!r}; {_restore(path)}"
        )
    return content


def _restore(path: Path) -> str:
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
    for recording in (r for epoch in entry.epochs for r in epoch.recordings):
        for name, values in recording.times_ms.items():
            if name not in METRICS or METRICS[name].kind != "time":
                raise BaselineError(f"{where}: {name!r} is no time metric; {_restore(path)}")
            if not values or not all(math.isfinite(value) for value in values):
                raise BaselineError(f"{where}: {name} {values}; {_restore(path)}")
        for name in recording.counters:
            if name not in METRICS or METRICS[name].kind != "counter":
                raise BaselineError(f"{where}: {name!r} is no counter; {_restore(path)}")
        for name, sites in recording.sites.items():
            if name not in METRICS or METRICS[name].kind != "counter":
                raise BaselineError(f"{where}: {name!r} is no counter; {_restore(path)}")
            if any(site.count < 1 for site in sites):
                raise BaselineError(f"{where}: {name} happens never somewhere; {_restore(path)}")
        for name in recording.differences_pct:
            if name not in METRICS or METRICS[name].kind != "difference":
                raise BaselineError(f"{where}: {name!r} is no difference; {_restore(path)}")
        if not all(math.isfinite(value) for value in recording.information.values()):
            raise BaselineError(f"{where}: information is not finite; {_restore(path)}")


def _check_sites(path: Path, case_id: str, entry: dict[str, Any]) -> None:
    """A Site is no Struct, and of other types msgspec passes over the fields that it does not know.

    ``entry`` is as it was read, and of the right shape.
    """
    known = {one.name for one in fields(Site)}
    recordings = (r for epoch in entry["epochs"] for r in epoch["recordings"])
    for site in (s for r in recordings for found in r.get("sites", {}).values() for s in found):
        if unknown := sorted(site.keys() - known):
            raise BaselineError(f"{path}: {case_id}: a site has {unknown[0]!r}; {_restore(path)}")


def save(path: Path, content: BaselineFile) -> None:
    """Write beside the file and rename over it: the old file stays until the new one is whole.

    Raises BaselineError, and leaves the old file as it was, when the folder cannot be written.
    """
    text = _layout(msgspec.to_builtins(content), 0) + "\n"
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
            "and the evidence is kept: python -m stepguard accept, once it can be written"
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


def recording_of(evidence: Evidence) -> Recording:
    """The evidence as a recording. Raises Refused, with the reason, when it must not be one."""
    problem = measurement_problem(evidence)
    if problem is not None:
        status, _, message, _ = problem
        raise Refused(f"{evidence.case_id}: not recorded, {status.value}: {message}")
    if evidence.case_id.endswith(COMMAND_LINE_RUN):
        raise Refused(f"{evidence.case_id}: not recorded, it is no case of the suite")
    if not evidence.commit:
        raise Refused(f"{evidence.case_id}: not recorded, the tree is not a git repository")
    if evidence.dirty:
        more = f" and {len(evidence.dirty) - 1} more" if len(evidence.dirty) > 1 else ""
        raise Refused(
            f"{evidence.case_id}: not recorded, measured on a tree with uncommitted changes "
            f"({evidence.dirty[0]}{more}); commit, then measure again"
        )
    differences = {one.name: paired(one.pairs_ms) for one in evidence.differences}
    for name, measured in differences.items():
        half = measured.half_width_pct
        if not half <= DIFFERENCE_LIMIT_PCT:
            raise Refused(
                f"{evidence.case_id}: not recorded, {name} is known to {half:.2f} % of a step "
                f"only, its limit is {DIFFERENCE_LIMIT_PCT} %; measure again"
            )
    assert evidence.fingerprint is not None
    values = evidence.values()
    timed = evidence.case["device"] == "cuda"
    counted = evidence.counts.detail if evidence.counts else {}
    found = evidence.counts.sites if evidence.counts else {}
    return Recording(
        date=evidence.date,
        commit=evidence.commit,
        device_uuid=evidence.fingerprint.device_uuid,
        software=evidence.fingerprint.software_key(),
        driver=evidence.fingerprint.driver,
        tokens_per_step=evidence.tokens_per_step,
        times_ms={
            name: [round(getattr(launch, name), 4) for launch in evidence.launches]
            for name in ("step_ms", "step_ms_median")
            if timed or name in evidence.gates  # a case may gate a CPU's time, if it insists
        },
        counters=dict(evidence.counts.values) if evidence.counts else {},
        information={
            name: float(f"{value:.6g}")
            for name, value in values.items()
            if METRICS[name].kind == "information" and timed
        },
        detail={
            name: parts
            for name, parts in counted.items()
            if parts and METRICS[name].kind == "counter"
        },
        sites={name: list(sites) for name, sites in found.items() if sites},
        differences_pct={
            f"{name}_pct": RecordedDifference(
                mean=round(measured.mean_pct, 4), half_width=round(measured.half_width_pct, 4)
            )
            for name, measured in differences.items()
        },
    )


def accept(path: Path, evidence: Evidence, reason: str) -> str:
    """Make the evidence a recording of its case in ``path``; one line that says what was done.

    `same` (and the first under new software) appends to the epoch; a change of level or of
    parameters opens one. Raises Refused or BaselineError; the file is then unchanged.
    """
    recording = recording_of(evidence)
    assert evidence.fingerprint is not None
    machine = machine_of(evidence)
    content = load_for(path, machine) or BaselineFile(schema=SCHEMA, machine=machine, cases={})
    entry = content.cases.get(evidence.case_id)
    status = judge(evidence, entry).status
    if not recording.times_ms and status is Status.SAME:
        return f"{evidence.case_id}: equal to what {path} holds, nothing to add"
    done, epochs = _place(evidence, recording, entry, status, reason)
    fresh = Entry(case=evidence.case, epochs=epochs)
    save(path, msgspec.structs.replace(content, cases=content.cases | {evidence.case_id: fresh}))
    return f"{evidence.case_id}: {done} in {path}"


def _place(
    evidence: Evidence, recording: Recording, entry: Entry | None, status: Status, reason: str
) -> tuple[str, list[Epoch]]:
    """What is done, and the case's epochs with the recording in its place."""
    if entry is None:
        return "first recording", [_opened(reason or "first recording", recording)]
    if any(_same_evidence(recording, r) for epoch in entry.epochs for r in epoch.recordings):
        raise Refused(f"{evidence.case_id}: this evidence ({recording.date}) is already recorded")
    if status is Status.INCONCLUSIVE:
        raise Refused(f"{evidence.case_id}: not recorded, {status.value}: measure again")
    last = entry.epochs[-1]
    known = comparable(last, evidence)
    drift = drifted(evidence, known) if known else _other_software(recording, last, reason)
    if entry.case == evidence.case and (status is Status.SAME or not known) and not drift:
        older = [_without_detail(r, recording.software) for r in last.recordings]
        # The first stays: it is what the epoch's drift is measured from.
        kept = [*older[:1], *[*older[1:], recording][1 - KEPT_RECORDINGS :]]
        done = f"recording {len(known) + 1} of its epoch" if known else "first under this software"
        return done, [*entry.epochs[:-1], Epoch(reason=last.reason, recordings=kept)]
    if not reason.strip(" .'\""):  # the "..." of a pasted command is none
        raise Refused(
            f"{evidence.case_id}: {drift or status.value}; a new level needs a reason: "
            f"python -m stepguard accept '{evidence.case_id}' --reason '...'"
        )
    done = f"epoch {len(entry.epochs) + 1} opened ({reason})"
    return done, [*entry.epochs, _opened(reason, recording)]


def _other_software(recording: Recording, last: Epoch, reason: str) -> str:
    """What the first recording under new software would change unseen; empty if that is reasoned.

    Versions cannot be compared exactly, but a build that does other work or is slower by more than
    the limit is not the level that the epoch was opened for.
    """
    older = last.recordings[-1]
    moves = []
    old_flops, flops = (r.counters.get("flops_per_step") for r in (older, recording))
    if old_flops and flops and old_flops != flops:
        moves.append(f"flops_per_step {100 * (flops / old_flops - 1):+.2f} %")
    for name in recording.times_ms.keys() & older.times_ms.keys():
        change = 100 * (fmean(recording.times_ms[name]) / fmean(older.times_ms[name]) - 1)
        if change > DEFAULT_LIMIT_PCT:
            moves.append(f"{name} {change:+.2f} %")
    if not moves or reason:
        return ""
    return f"against the recordings of other software: {', '.join(sorted(moves))}"


def _opened(reason: str, recording: Recording) -> Epoch:
    return Epoch(reason=reason, recordings=[recording])


def _same_evidence(a: Recording, b: Recording) -> bool:
    return (a.date, a.commit, a.device_uuid) == (b.date, b.commit, b.device_uuid)


def _without_detail(recording: Recording, software: dict[str, str]) -> Recording:
    """The recording less what a newer one of the same software repeats."""
    if recording.software != software:
        return recording
    return msgspec.structs.replace(recording, detail={}, sites={})


def as_builtins(entry: Entry) -> Any:
    """An entry as plain JSON types, for display."""
    return msgspec.to_builtins(entry)
