"""The pairs of an A/B comparison as plain data, for the result files of the studies."""

import time
from collections.abc import Callable

from stepguard.comparison import Comparison
from stepguard.evidence import Launch
from stepguard.measure.ab import PAIR_TIMINGS


def side(launch: Launch) -> dict[str, object]:
    """Return one side of a pair."""
    return {
        "step_ms": round(launch.step_ms, 5),
        "step_ms_median": round(launch.step_ms_median, 5),
        "blocks_ms": [round(block.mean_ms, 5) for block in launch.blocks],
        "sm_clock_mhz": [block.sm_clock_mhz for block in launch.blocks],
        "temperature_c": [block.temperature_c for block in launch.blocks],
        "warmup_s": round(launch.warmup_s, 2),
        "compile_s": round(launch.compile_s, 2),
        "discarded": [one.disturbance.text for one in launch.discarded if one.disturbance],
    }


def busy_s(found: Comparison) -> float:
    """Return the GPU time of the pairs in s: warm-up, leads and timed blocks of both sides."""
    timing = PAIR_TIMINGS[str(found.head.case["device"])]
    both = [launch for side in (found.head, found.base) for launch in side.launches]
    timed = sum(max(block.wall_ms) for launch in both for block in launch.blocks) / 1e3
    leads = 4 * timing.lead_s * found.pairs  # one before each block
    return timed + sum(launch.warmup_s for launch in both) + leads


def as_data(found: Comparison) -> dict[str, object]:
    """Return the machine, the durations and every pair, as the result files hold them."""
    print_of = found.head.fingerprint
    return {
        "date": found.head.date,
        "commit": found.head.commit,
        "gpu": print_of.device_uuid if print_of else "",
        "device": print_of.device_name if print_of else "",
        "torch": print_of.torch if print_of else "",
        "driver": print_of.driver if print_of else "",
        "together": found.together,
        "wall_s": round(found.head.wall_s, 1),
        "gpu_s": round(busy_s(found), 1),
        "faults": [fault.message for fault in (*found.head.faults, *found.base.faults)],
        "pairs": [
            {"head": side(head), "base": side(base)}
            for head, base in zip(found.head.launches, found.base.launches, strict=False)
        ],
    }


def stages(began: float) -> Callable[[str], None]:
    """Print every stage once, with the seconds since ``began``: where the wall time goes."""
    last = ""

    def tell(text: str) -> None:
        nonlocal last
        if text != last:
            last = text
            print(f"{time.monotonic() - began:7.1f} s  {text}", flush=True)

    return tell
