"""What a baseline keeps of an evidence: its summary, as a recording. Pure.

Whether it may be recorded is storage/baselines.py's to say.
"""

import msgspec

from stepguard.baseline_model import RecordedDifference, Recording
from stepguard.device import is_gpu
from stepguard.evidence import Evidence
from stepguard.judge.limits import paired
from stepguard.metrics import METRICS

TIMES = ("step_ms", "step_ms_median")


def summary_of(evidence: Evidence) -> Recording:
    """The evidence as what later ones are compared with. It must have a fingerprint."""
    assert evidence.fingerprint is not None
    values = evidence.values()
    timed = is_gpu(evidence.case["device"])
    counted = evidence.counts.detail if evidence.counts else {}
    found = evidence.counts.sites if evidence.counts else {}
    ranks = evidence.counts.by_rank if evidence.counts else {}
    differences = {one.name: paired(one.pairs_ms) for one in evidence.differences}
    return Recording(
        date=evidence.date,
        commit=evidence.commit,
        device_uuid=evidence.fingerprint.device_uuid,
        software=evidence.software_key(),
        driver=evidence.fingerprint.driver,
        tokens_per_step=evidence.tokens_per_step,
        times_ms={
            name: [round(getattr(launch, name), 4) for launch in evidence.launches]
            for name in TIMES
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
        by_rank={name: list(counts) for name, counts in ranks.items()}
        if evidence.case["world_size"] > 1
        else msgspec.UNSET,
    )
