"""baselines/waivers.json: the waivers that people wrote, read strictly like a baseline file."""

from collections.abc import Collection, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

import msgspec

from stepguard.judge.waivers import SCHEMA, Waiver, problem_of
from stepguard.storage.baselines import WAIVERS, BaselineError, files, load, read, restore, write


class WaiverFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    schema: int
    waivers: list[Waiver]


class BadWaiver(BaselineError):
    """A waiver that is wrong by itself, before it is written."""


def today() -> date:
    """The day that waivers expire by, in UTC: the same on every machine."""
    return datetime.now(UTC).date()


def load_waivers(folder: Path, day: date) -> tuple[Waiver, ...]:
    """The waivers of a folder of baselines; none where there is no file.

    Raises BaselineError, which names the place, for a file that is not exactly one, and for a
    waiver that is too long, without a limit or there twice. Whether there is such a case is
    unknown()'s to say: whoever judges against revisions alone has no baseline.
    """
    path = folder / WAIVERS
    raw = read(path)
    if raw is None:
        return ()
    schema = raw.get("schema")
    if schema != SCHEMA:
        raise BaselineError(
            f"{path}: schema {schema!r}, this version of stepguard reads {SCHEMA}; {restore(path)}"
        )
    try:
        waivers = msgspec.convert(raw, WaiverFile, strict=True).waivers
    except msgspec.ValidationError as error:
        raise BaselineError(f"{path}: {error}; mend it, or {restore(path)}") from None
    for index, waiver in enumerate(waivers):
        if problem := _problem(waiver, waivers[:index], day):
            where = f"waiver {index + 1} ({waiver.case}, {waiver.metric})"
            raise BaselineError(f"{path}, {where}: {problem}")
    return tuple(waivers)


def held_by(folder: Path, case_id: str, day: date) -> tuple[dict[str, float], str]:
    """How many percent of each metric of a case another revision's folder waives, also if that has
    expired, since what was waived is in its code; or why nobody knows.
    """
    try:
        waivers = load_waivers(folder, day)
    except BaselineError as error:
        return {}, str(error)
    mine = [one for one in waivers if one.case == case_id]
    return {one.metric: one.limit_pct for one in mine if one.limit_pct is not None}, ""


def unknown(folder: Path, waivers: Sequence[Waiver], known: Collection[str]) -> list[str]:
    """The cases of the waivers that no baseline of the folder has and that are not ``known``
    otherwise: misspelt, or gone.
    """
    contents = (load(path) for path in files(folder)) if waivers else ()
    recorded = {case_id for content in contents if content for case_id in content.cases}
    return sorted({waiver.case for waiver in waivers} - recorded - set(known))


def _problem(waiver: Waiver, earlier: Sequence[Waiver], day: date) -> str:
    if problem := problem_of(waiver, day):
        return problem
    if any((one.case, one.metric) == (waiver.case, waiver.metric) for one in earlier):
        return "stands twice; keep one"
    return ""


def add_waivers(
    folder: Path, waivers: Sequence[Waiver], day: date, measured: Collection[str] = ()
) -> Path:
    """Write the waivers into the folder's file, in place of older ones of the same metrics.

    Raises BadWaiver when one of them is not sound, or of a case that no baseline has and that was
    not ``measured`` either, BaselineError when the file is not; the file is then unchanged.
    """
    path = folder / WAIVERS
    fresh = {(one.case, one.metric) for one in waivers}
    others = [one for one in load_waivers(folder, day) if (one.case, one.metric) not in fresh]
    nowhere = unknown(folder, waivers, measured)
    for waiver in waivers:
        problem = _problem(waiver, others, day)
        if waiver.case in nowhere:
            problem = problem or "no baseline and no run that is kept here has this case"
        try:
            msgspec.convert(msgspec.to_builtins(waiver), Waiver, strict=True)
        except msgspec.ValidationError as error:
            problem = problem or str(error)
        if problem:
            raise BadWaiver(f"{waiver.case}: not waived, {problem}")
    ordered = sorted([*others, *waivers], key=lambda one: (one.case, one.metric))
    whole = msgspec.to_builtins(WaiverFile(schema=SCHEMA, waivers=ordered))
    for one in whole["waivers"]:
        for name in [name for name, value in one.items() if value is None]:
            del one[name]
    write(path, whole)
    return path
