"""Under which conditions two measurements were made, and which conditions differ. Pure. Each caller
says which tags matter to it. Whether two steps do the same work is another question
(judge/time_rules.py). Settings that a workload changes have no tag: a counter counts them.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from msgspec import UnsetType

from stepguard.core.evidence import Evidence
from stepguard.core.fingerprint import Fingerprint
from stepguard.core.margins import margins_of
from stepguard.core.reason_sentences import Changed
from stepguard.core.recording import Recording

Change = tuple[str, str, str]  # key, old, new
_OF_MACHINE = ("device_name", "driver", "torch", "python", "cpu_threads")
_VERSIONS = ("torch", "python", "cuda", "cudnn", "nccl", "triton")
UNSET = "unset"  # stands for a value that one side lacks
_VARIABLES = "environment"  # the key for the variables that change what runs, in software_key()


class Tag(Enum):
    """The kind of a condition."""

    CASE = "case"
    MACHINE = "machine"
    CARD = "card"
    SOFTWARE = "software"
    ENVIRONMENT = "environment"
    STEPS = "counted steps"
    LIBRARIES = "libraries"  # they explain a change, and never forbid a comparison


Conditions = Mapping[Tag, Mapping[str, object]]
SOFTWARE = (
    Tag.SOFTWARE,
    Tag.ENVIRONMENT,
    Tag.STEPS,
)  # these must be equal for stored figures to be compared


@dataclass(frozen=True)
class Mismatch:
    """A condition that two measurements do not share."""

    tag: Tag
    key: str
    old: str
    new: str


def comparable(
    then: Conditions, now: Conditions, tags: Collection[Tag] = tuple(Tag)
) -> tuple[Mismatch, ...]:
    """Return the conditions that differ, torch first, of those that both sides have."""
    return tuple(
        Mismatch(tag, *change)
        for tag in Tag
        if tag in tags and tag in then and tag in now
        for change in _changes(then[tag], now[tag])
    )


def conditions_of(evidence: Evidence) -> Conditions:
    """Return the conditions of evidence. Without a fingerprint only the case is known."""
    margins = margins_of(evidence.margins_pct, evidence.case["device"])
    case = evidence.case | {"margins_pct": (margins.ignore_pct, margins.matter_pct)}
    if evidence.fingerprint is None:
        return {Tag.CASE: case}
    known, after = evidence.fingerprint, evidence.counted.after_steps
    machine = {name: getattr(known, name) for name in _OF_MACHINE}
    recorded = _recorded(known.device_uuid, evidence.software_key(), after)
    return {Tag.CASE: case, Tag.MACHINE: machine, **recorded}


def between_environments(then: Fingerprint, now: Fingerprint) -> tuple[Mismatch, ...]:
    """Return which versions and variables differ between two environments on one machine."""
    return comparable(*map(_environment, (then, now)))


def _environment(of: Fingerprint) -> Conditions:
    own = {name: version for name in _VERSIONS if (version := getattr(of, name))}
    others = {name: version for name, version in of.libraries.items() if name not in own}
    return {Tag.SOFTWARE: own, Tag.ENVIRONMENT: of.environment, Tag.LIBRARIES: others}


def conditions_recorded(recording: Recording) -> Conditions:
    """Return the conditions that a recording keeps."""
    return _recorded(recording.device_uuid, recording.software, recording.counted_after_steps)


def of_one_card(then: Recording, now: Recording) -> bool:
    """Tell whether two recordings are known to be of one card. A CPU's recordings never are."""
    return then.device_uuid != "" and then.device_uuid == now.device_uuid


def changed(differences: Iterable[Mismatch]) -> Changed:
    """Return differences as figures of a sentence, "batch 32 -> 64, seq 512 -> 1024"."""
    return Changed(changes=tuple((each.key, each.old, each.new) for each in differences))


def _recorded(
    card: str, software: Mapping[str, str], counted_after: int | None | UnsetType
) -> Conditions:
    # A software key has only the variables that change what runs. They get a tag of their own.
    steering = {name: value for name, value in software.items() if name == _VARIABLES}
    known: dict[Tag, Mapping[str, object]] = {
        Tag.SOFTWARE: {name: value for name, value in software.items() if name != _VARIABLES},
        Tag.ENVIRONMENT: steering,
    }
    if card:
        known[Tag.CARD] = {"device_uuid": card}
    if isinstance(counted_after, int):
        known[Tag.STEPS] = {"counted_after_steps": counted_after}
    return known


def _changes(old: Mapping[str, object], new: Mapping[str, object]) -> tuple[Change, ...]:
    """Return the keys whose values differ; "unset" stands for a value that one side lacks."""
    then, now = _flat(old), _flat(new)
    return tuple(
        (key, str(then.get(key, UNSET)), str(now.get(key, UNSET)))
        for key in sorted(then | now, key=lambda key: (key != "torch", key))
        # A parameter that is None differs from one that is missing.
        if (key in then, then.get(key)) != (key in now, now.get(key))
    )


def _flat(case: Mapping[str, object]) -> dict[str, Any]:
    params = case.get("params")
    flat = {key: value for key, value in case.items() if key != "params"}
    for key, value in params.items() if isinstance(params, Mapping) else ():
        # A parameter may have the name of a field of the case, such as "device".
        flat[f"params.{key}" if key in flat else key] = value
    return flat
