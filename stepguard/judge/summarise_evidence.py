"""Summarise evidence as a recording. Only this module computes a recording's figures."""

import math
from collections.abc import Sequence
from itertools import chain
from statistics import fmean, geometric_mean, median, stdev

import msgspec

from stepguard.core.evidence import Counts, Evidence, Launch
from stepguard.core.metrics import JUDGED_TIME, METRICS, OPERATORS
from stepguard.core.recording import RecordedDifference, Recording, lines_of
from stepguard.core.site import Site
from stepguard.core.step_numbers import StepNumbers
from stepguard.core.student_t import t_quantile
from stepguard.judge.compare_profiles import recorded
from stepguard.judge.moved_places import without_lines


def summarise(evidence: Evidence) -> Recording:
    """Return every figure that the evidence has."""
    counts, fingerprint = evidence.counted, evidence.fingerprint
    times = _times(evidence.launches)
    # If several ranks count the same, the table is empty. That is not the same as no table: a
    # baseline file is refused if its newest recording has several ranks and no table.
    several = evidence.world_size > 1 or counts.by_rank
    return Recording(
        date=evidence.date,
        commit=evidence.commit,
        device_uuid=fingerprint.device_uuid if fingerprint else "",
        software=evidence.software_key() if fingerprint else {},
        driver=fingerprint.driver if fingerprint else "",
        libraries=fingerprint.libraries if fingerprint and fingerprint.libraries else msgspec.UNSET,
        tokens_per_step=evidence.tokens_per_step,
        times_ms={JUDGED_TIME: times} if times else {},
        counters=dict(counts.values),
        lists={name: list(each) for name, each in counts.lists.items()} or msgspec.UNSET,
        counted_after_steps=msgspec.UNSET if counts.after_steps is None else counts.after_steps,
        information=_information(evidence, times),
        detail=_parts(counts),
        sites=_sites(counts),
        callers=counts.callers or msgspec.UNSET,
        numbers=counts.numbers or msgspec.UNSET,
        differences_pct={
            f"{difference.name}_pct": paired(difference.pairs_ms)[1]
            for difference in evidence.differences
            if not difference.bad_times()
        },
        by_rank={name: list(each) for name, each in counts.by_rank.items()}
        if several
        else msgspec.UNSET,
    )


def _parts(counts: Counts) -> dict[str, dict[str, int]]:
    kept = ((name, parts) for name, parts in counts.detail.items() if parts)
    return {name: parts for name, parts in kept if METRICS[name].kind == "counter"}


def _sites(counts: Counts) -> dict[str, list[Site]]:
    """Return the places of the counters that have a value: the others differ by step."""
    kept = ((name, sites) for name, sites in counts.sites.items() if name in counts.values)
    return {name: list(sites) for name, sites in kept if sites}


def paired(pairs_ms: Sequence[tuple[float, float]]) -> tuple[float, RecordedDifference]:
    """Return the mean of other minus plain over (plain, other) pairs in ms a step, and in percent
    of the plain step. Half the 95 % interval is Student's t over the pairs; inf for one pair.

    The differences themselves are averaged, not ratios or logarithms, since a difference may be
    zero. Raises ValueError without a pair, or for a time that is not positive and finite.
    """
    if not pairs_ms:
        raise ValueError("paired() needs at least one pair")
    for ms in chain(*pairs_ms):
        if not 0 < ms < math.inf:
            raise ValueError(f"step time {ms!r} ms: not a positive finite number")
    pct = 100 / fmean(plain for plain, _ in pairs_ms)
    differences = [other - plain for plain, other in pairs_ms]
    count, mean = len(differences), fmean(differences)
    half = math.inf
    if count > 1:
        half = t_quantile(0.025, count - 1) * stdev(differences) / math.sqrt(count)
    return mean, RecordedDifference(mean=pct * mean, half_width=pct * half)


def _times(launches: tuple[Launch, ...]) -> list[float]:
    """Return the step time of each launch in ms; empty unless all launches have times."""
    if not launches or not all(launch.has_times() for launch in launches):
        return []
    return [launch.step_ms for launch in launches]


def stored(evidence: Evidence) -> Recording:
    """Return the summary as a baseline keeps it: rounded, and without times that do not gate."""
    assert evidence.fingerprint is not None
    recording = summarise(evidence)
    times_ms = recording.times_ms if JUDGED_TIME in evidence.gates else {}
    information = recording.information if evidence.on_gpu else {}
    profile = evidence.counted.profile
    return msgspec.structs.replace(
        recording,
        times_ms={name: [round(ms, 4) for ms in times] for name, times in times_ms.items()},
        sites={name: sites for name, sites in recording.sites.items() if name != OPERATORS},
        operators=lines_of(recording.sites.get(OPERATORS, ())) or msgspec.UNSET,
        callers=without_lines(recording.callers) if recording.callers else msgspec.UNSET,
        profile=recorded(profile) if profile else msgspec.UNSET,
        numbers=_rounded(numbers) if (numbers := recording.numbers) else msgspec.UNSET,
        information={name: float(f"{value:.6g}") for name, value in information.items()},
        differences_pct={
            name: RecordedDifference(
                mean=round(difference.mean, 4), half_width=round(difference.half_width, 4)
            )
            for name, difference in recording.differences_pct.items()
        },
    )


def _rounded(numbers: StepNumbers) -> StepNumbers:
    """Return the numbers with seven digits: the tightest limit is larger."""
    return msgspec.structs.replace(
        numbers,
        listed=[
            (name, [[None if n is None else float(f"{n:.7g}") for n in parts] for parts in steps])
            for name, steps in numbers.listed
        ],
    )


def _information(evidence: Evidence, times: Sequence[float]) -> dict[str, float]:
    figures = dict(evidence.counted.information)
    for difference in evidence.differences:
        if difference.bad_times():
            continue
        figures[f"{difference.name}_ms"] = paired(difference.pairs_ms)[0]
    if evidence.world_size > 1 and (profile := evidence.counted.profile):
        figures["exposed_comm_ms"] = fmean(profile.parts.exposed_communication_us) / 1e3
    if not times:
        return figures
    step_ms, launches = geometric_mean(times), evidence.launches
    blocks = [block for launch in launches for block in launch.blocks]
    figures["step_ms_median"] = geometric_mean([launch.step_ms_median for launch in launches])
    if warm := [launch.compile_s for launch in launches if not launch.cold]:
        figures["compile_s"] = max(warm)
    if evidence.tokens_per_step:  # 0 if the loop does not say it
        figures["tokens_per_s"] = evidence.tokens_per_step / step_ms * 1e3
    if enqueue := [block.enqueue_ms for block in blocks if block.enqueue_ms is not None]:
        figures["enqueue_ms"] = median(enqueue)
    energy = [(block.energy_j, block.steps) for block in blocks if block.energy_j is not None]
    if len(energy) == len(blocks):
        figures["energy_j_per_step"] = sum(j for j, _ in energy) / sum(n for _, n in energy)
    return figures | _mfu(evidence, step_ms)


def _mfu(evidence: Evidence, step_ms: float) -> dict[str, float]:
    """Return the MFU in percent, by the nominal peak; empty if a figure is unknown."""
    peak = evidence.fingerprint.peak_flops if evidence.fingerprint else None
    if not peak or not evidence.flops_per_step:
        return {}
    achieved = evidence.flops_per_step / evidence.world_size / step_ms * 1e3
    return {"mfu_pct": 100 * achieved / peak}
