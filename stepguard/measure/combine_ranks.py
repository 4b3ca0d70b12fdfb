"""Combine the answers of a launch's ranks: counts, machine and software. Pure functions.

Ranks need not do the same: in many loops only the first one logs. A count is that of the rank that
counted most. If ranks differ, the count of each rank is kept, too. Otherwise a rise on another rank
would be hidden.

The fingerprint has two peaks of the GPU. The nominal peak, which MFU refers to, is that of the
vendor's data sheet, dense. No result can beat the physical peak: what the chip could do at its
highest clock, SMs x FLOP per clock and SM x clock.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepguard.core import step_numbers
from stepguard.core.evidence import Counts, Fault
from stepguard.core.fingerprint import Fingerprint, steers
from stepguard.core.metrics import METRICS, OPERATORS, PEAK
from stepguard.core.profile import Profile, StepIdentity, over_ranks
from stepguard.core.reasons import Reason
from stepguard.core.recording import together
from stepguard.core.replies import Prepared
from stepguard.core.site import Site, merge
from stepguard.judge.comparable import Conditions, Tag, comparable
from stepguard.launch.diagnosis import LaunchFailed
from stepguard.machine.gpu import Gpu

Answers = list[Any]  # of every rank, in rank order: one of core/replies.py


def refuse_other_gpus(ranks: Answers, gpus: Sequence[Gpu]) -> None:
    """Raise LaunchFailed if a rank runs on another GPU than the one that is monitored for it."""
    for rank, (gpu, answer) in enumerate(zip(gpus, ranks, strict=True)):
        uuid = answer.fingerprint["device_uuid"]
        if uuid != gpu.uuid:
            message = f"rank {rank} runs on {uuid}, NVML's GPU {rank} is {gpu.uuid}"
            raise LaunchFailed(Fault(Reason.MACHINE_UNREADABLE, message))


def refuse_differing_ranks(ranks: Answers) -> None:
    """Raise LaunchFailed if a rank runs on other hardware or software than rank 0."""
    first = _platform(ranks[0])
    for rank, answer in enumerate(ranks):
        if odd := comparable(first, _platform(answer)):
            has = ", ".join(f"{difference.key} {difference.new or 'none'}" for difference in odd)
            torch = ranks[0].fingerprint["torch"]
            message = f"rank {rank} has {has}, rank 0 does not (torch {torch})"
            raise LaunchFailed(Fault(Reason.RANKS_DIFFER, message))


def _platform(answer: Prepared) -> Conditions:
    """Return the conditions that must be equal on all ranks of a launch. Their cards may differ."""
    known = answer.fingerprint
    software = ("torch", "cuda", "cudnn", "nccl", "triton", "python", "arch")
    steering = {key: value for key, value in known.get("environment", {}).items() if steers(key)}
    return {
        Tag.MACHINE: {"device_name": str(known.get("device_name", ""))},
        Tag.SOFTWARE: {name: str(known.get(name, "")) for name in software},
        Tag.ENVIRONMENT: {"steering variables": str(steering) if steering else ""},
    }


def fingerprint_of(answer: Prepared, gpus: Sequence[Gpu]) -> Fingerprint:
    """Return rank 0's fingerprint. On a GPU it has the driver and the peaks of rank 0's GPU."""
    known = dict(answer.fingerprint)
    capability, sm_count = known.pop("capability", ""), known.pop("sm_count", 0)
    if not known.get("cuda"):  # a CPU, whatever GPUs the machine has
        return Fingerprint(**known)
    gpu, precision = gpus[0], answer.precision
    return Fingerprint(
        **known,
        driver=gpu.driver,
        peak_flops=nominal_peak_flops(gpu.name, precision),
        floor_flops=physical_peak_flops(capability, sm_count, gpu.max_sm_clock_mhz, precision),
    )


def counts_of(ranks: Answers, wall_s: float, known: Mapping[str, float] = {}) -> Counts:
    """Return one Counts for all ranks' answers to a part of the counting pass. Values and parts are
    those of the rank that counted most, sites those of all, information rank 0's and what is
    ``known`` besides.
    """
    counted: list[Counts] = [rank.counts for rank in ranks]
    unstable: dict[str, str] = {}
    for rank, counts in enumerate(counted):
        for name, reason in counts.unstable.items():
            unstable.setdefault(name, f"rank {rank}: {reason}" if len(counted) > 1 else reason)
    names = {name: None for counts in counted for name in counts.values if name not in unstable}
    counted = _on_same_steps(counted)
    each = {name: tuple(counts.values.get(name, 0) for counts in counted) for name in names}
    most = {name: counted[values.index(max(values))] for name, values in each.items()}
    placed = (*names, *unstable, *counted[0].information)
    return Counts(
        values={name: max(values) for name, values in each.items()},
        lists={name: c.lists[name] for name, c in most.items() if name in c.lists},
        unstable=unstable,
        detail={name: c.detail[name] for name, c in most.items() if name in c.detail},
        sites={name: sites for name in placed if (sites := _sites_of(name, counted))},
        callers=most[OPERATORS].callers if OPERATORS in most else {},
        by_rank={name: values for name, values in each.items() if len({*values}) > 1},
        information={**known, **counted[0].information},
        **_profile_of(counted),
        identity=_identity_of(counted),
        wall_s=wall_s,
        after_steps=counted[0].after_steps,
        numbers=step_numbers.over_ranks([counts.numbers for counts in counted]),
    )


def _on_same_steps(counted: Sequence[Counts]) -> list[Counts]:
    """Return the ranks' counts, all of as many steps together."""
    lengths = {name: len(steps) for counts in counted for name, steps in counts.lists.items()}
    lengths.pop(PEAK, None)

    def of_all(counts: Counts) -> Counts:
        equal = lengths.keys() & counts.values.keys() - counts.lists.keys()
        alike = {name: lengths[name] for name in equal}
        lists = {name: (counts.values[name],) * steps for name, steps in alike.items()}
        fields = together(counts, ("values", "detail", "sites"), alike)
        return replace(counts, **fields, lists=counts.lists | lists)

    return [of_all(counts) for counts in counted]


def of_profiles(profiles: Sequence[Profile]) -> dict[str, Any]:
    """Return the fields of Counts that come of profiles: their mean, and each rank's parts."""
    parts = tuple(profile.parts for profile in profiles) if len(profiles) > 1 else ()
    return {"profile": over_ranks(profiles), "parts_by_rank": parts}


def without_eager(first: Counts, device: str, world_size: int) -> Counts:
    """Return the counts if the second part of the counting pass did not fit into memory."""
    lost = [name for name, row in METRICS.items() if row.eager and row.exists(device, world_size)]
    reasons = dict.fromkeys(lost, "the eager step does not fit into memory")
    return replace(first, unstable=first.unstable | reasons)


def _profile_of(counted: Sequence[Counts]) -> dict[str, Any]:
    """Return the profile's fields of Counts: the ranks' mean, or else a rank's problem."""
    profiles = [counts.profile for counts in counted if counts.profile is not None]
    if len(profiles) < len(counted):
        problems = (counts.profile_problem for counts in counted if counts.profile is None)
        return {"profile_problem": next(filter(None, problems), "")}
    return of_profiles(profiles)


def _identity_of(counted: Sequence[Counts]) -> StepIdentity | None:
    known = [
        (rank, identity) for rank, c in enumerate(counted) if (identity := c.identity) is not None
    ]
    if len(known) < len(counted):
        return None
    if len(known) == 1:
        return known[0][1]
    return StepIdentity(
        {f"{name} of rank {rank}": part for rank, its in known for name, part in its.parts.items()},
        next((f"rank {rank}: {its.problem}" for rank, its in known if its.problem), ""),
    )


def _sites_of(name: str, counted: Sequence[Counts]) -> tuple[Site, ...]:
    """Return each site of a metric, with the highest count that a rank has for it. If the metric
    differs between steps, only the ranks on which it does count.
    """
    differs = [counts for counts in counted if name in counts.unstable]
    by_place: dict[tuple[str, ...], Site] = {}
    for counts in differs or counted:
        for site in merge(counts.sites.get(name, ())):
            if site.key not in by_place or site.count > by_place[site.key].count:
                by_place[site.key] = site
    return tuple(by_place.values())


_PRECISION_RATE = {"bf16": "half", "fp16": "half", "tf32": "tf32", "fp32": "fp32"}

# NVIDIA data sheets, dense TFLOP/s. Longer names come first: the first that fits is used.
_NOMINAL_TFLOPS: tuple[tuple[str, dict[str, float]], ...] = (
    ("H200 NVL", {"half": 836, "tf32": 418, "fp32": 60}),
    ("H200", {"half": 989, "tf32": 494, "fp32": 67}),
    ("H100 NVL", {"half": 835, "tf32": 417, "fp32": 60}),
    ("H100 PCIe", {"half": 756, "tf32": 378, "fp32": 51}),
    ("H100", {"half": 989, "tf32": 494, "fp32": 67}),
    ("A100", {"half": 312, "tf32": 156, "fp32": 19.5}),
)

# FLOP per clock and SM of dense matrix products (vendor's architecture white papers). fp32 is the
# plain FMA pipe.
_FLOP_PER_CLOCK_AND_SM: dict[str, dict[str, int]] = {
    "9.0": {"half": 4096, "tf32": 2048, "fp32": 256},
    "8.0": {"half": 2048, "tf32": 1024, "fp32": 128},
}


def nominal_peak_flops(device_name: str, precision: str) -> float | None:
    """Return the data sheet's dense peak in FLOP/s; None if it is not in the table."""
    rate = _PRECISION_RATE.get(precision)
    for name, tflops in _NOMINAL_TFLOPS:
        if re.search(rf"{name}(?!\d)", device_name) and rate is not None:  # an A1000 is no A100
            return tflops[rate] * 1e12
    return None


def physical_peak_flops(
    capability: str, sm_count: int, max_clock_mhz: float, precision: str
) -> float | None:
    """Return FLOP/s at the highest clock the card can run; None if the rate is unknown."""
    rate = _PRECISION_RATE.get(precision)
    if rate is None or capability not in _FLOP_PER_CLOCK_AND_SM:
        return None
    return sm_count * _FLOP_PER_CLOCK_AND_SM[capability][rate] * max_clock_mhz * 1e6
