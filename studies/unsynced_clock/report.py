"""Figures and tables of what measure.py found. Pure: no torch, no files."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from stepguard.judge.noise_limits import paired
from stepguard.trace.classes import COMMUNICATION
from stepguard.trace.summary import Summary
from studies.common.series import slowest, table

PLAIN = "P"
MARK = "unsynced_clock.step"  # the name of a profiled step in a trace
WHAT = {
    "P": "pinned, non-blocking inputs; no host sync",
    "PS": "P, synchronize() each step",
    "U": "pageable .to(device), blocking",
    "US": "U, synchronize() each step",
    "UI": "U, loss.item() after the clock is read",
    "PI": "P, loss.item() after the clock is read",
}
_MINOR_PCT = 0.5  # calls below this share of every variant are one row


def summary(
    series: Sequence[Mapping[str, Any]], tokens_per_step: int
) -> dict[str, dict[str, float | int | None]]:
    """By variant: true ms a step, what the clock reads, and the difference to P in pairs.

    A pair is the block of a variant and the block of P in the same series. Raises ValueError
    without a series.
    """
    if not series:
        raise ValueError("no series was finished, so there is nothing to compare")
    plain = [slowest(one["blocks"][PLAIN]["rank_ms"]) for one in series]
    found = {}
    for name in [name for name in WHAT if name in series[0]["blocks"]]:
        blocks = [one["blocks"][name] for one in series]
        true = [slowest(block["rank_ms"]) for block in blocks]
        true_ms = fmean(true)
        clock_ms = fmean(ms for block in blocks for ms in block["clock_ms"])
        one: dict[str, float | int | None] = {
            "true_ms": true_ms,
            "true_tokens_per_s": tokens_per_step / true_ms * 1e3,
            "clock_ms": clock_ms,
            "clock_first_ms": fmean(block["clock_ms"][0] for block in blocks),
            "clock_tokens_per_s": tokens_per_step / clock_ms * 1e3,
            "clock_error_pct": 100 * (clock_ms / true_ms - 1),
            "series": len(series),
        }
        if name != PLAIN:
            difference = paired(list(zip(plain, true, strict=True)))
            one["against_p_ms"] = difference.mean_ms
            one["against_p_pct"] = difference.mean_pct
            one["against_p_half_width_pct"] = difference.half_width_pct if len(series) > 1 else None
        found[name] = one
    return found


def profile_figures(found: Summary) -> dict[str, Any]:
    """Shares in percent, and ms a step, of a profiled variant."""
    parts = found.profile.parts
    return {
        "steps": found.profile.steps,
        "api_ms_per_step": sum(row.us for row in found.calls) / 1e3,
        "sync_share_of_api_pct": 100 * sum(row.share for row in found.calls if row.waits),
        "api_share_pct": {row.name: 100 * row.share for row in found.calls},
        "api_calls_per_step": {row.name: row.calls for row in found.calls},
        "kernel_ms_per_step": sum(row.us for row in found.classes) / 1e3,
        "kernel_share_pct": {row.name: 100 * row.share for row in found.classes},
        "gpu_idle_pct": 100 * sum(parts.idle_us) / sum(parts.step_us),
        "window_ms_per_step": fmean(parts.step_us) / 1e3,
        "launches": found.launches,
        "launches_without_record": found.lost,
    }


def timing_table(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """True time beside what the clock reads."""
    header = ["variant", "true ms/step", "tokens/s", "against P", "clock reads, mean ms"]
    header += ["first step of a block", "clock's tokens/s", "clock's error"]
    rows = []
    for name, one in figures.items():
        rows.append(
            [
                f"**{name}** {WHAT[name]}",
                f"{one['true_ms']:.2f}",
                f"{one['true_tokens_per_s']:,.0f}",
                _against(one),
                f"{one['clock_ms']:.2f}",
                f"{one['clock_first_ms']:.2f}",
                f"{one['clock_tokens_per_s']:,.0f}",
                f"{one['clock_error_pct']:+.1f} %",
            ]
        )
    return table(header, rows)


def _against(one: Mapping[str, Any]) -> str:
    if "against_p_pct" not in one:
        return "-"
    half = one["against_p_half_width_pct"]
    return f"{one['against_p_pct']:+.2f} % " + (f"+- {half:.2f}" if half is not None else "+- ?")


def api_table(profiles: Mapping[str, Mapping[str, Any]]) -> str:
    """Share of the host's time in CUDA calls, by call."""
    largest: dict[str, float] = {}
    for one in profiles.values():
        for call, share in one["api_share_pct"].items():
            largest[call] = max(largest.get(call, 0.0), share)
    if not largest:
        return "No CUDA calls: not measured on a CPU.\n"
    named = sorted((c for c in largest if largest[c] >= _MINOR_PCT), key=lambda c: -largest[c])
    rows = [
        [call, *(f"{one['api_share_pct'].get(call, 0.0):.1f}" for one in profiles.values())]
        for call in named
    ]
    rest = [
        sum(share for call, share in one["api_share_pct"].items() if call not in named)
        for one in profiles.values()
    ]
    rows.append(["all other calls", *(f"{share:.1f}" for share in rest)])
    rows.append(
        ["**all that wait**"]
        + [f"**{one['sync_share_of_api_pct']:.1f}**" for one in profiles.values()]
    )
    rows.append(["ms a step in calls", *(f"{p['api_ms_per_step']:.1f}" for p in profiles.values())])
    return table(["% of CUDA-API time", *profiles], rows)


def kernel_table(profiles: Mapping[str, Mapping[str, Any]]) -> str:
    """Share of kernel time by class; how long the GPU had nothing to do."""
    if not profiles:
        return "No kernels: not measured on a CPU.\n"
    rows = []
    for kind in dict.fromkeys(
        kind for one in profiles.values() for kind in one["kernel_share_pct"]
    ):
        found = [one["kernel_share_pct"].get(kind, 0.0) for one in profiles.values()]
        rows.append([kind, *(f"{share:.1f}" for share in found)])
    for title, key, form in (
        ("kernel ms a step", "kernel_ms_per_step", "{:.1f}"),
        ("GPU idle, % of the time", "gpu_idle_pct", "{:.2f}"),
        ("launches without a record", "launches_without_record", "{:,}"),
    ):
        cells = [one[key] for one in profiles.values()]
        rows.append([title, *(form.format(cell) for cell in cells)])
    note = f"Kernels of {COMMUNICATION} overlap others, and wait in them for slower ranks.\n"
    return table(["% of kernel time", *profiles], rows) + "\n" + note


def phase_table(phases: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Host ms and GPU ms a step by phase, nested phases below the one they are part of."""
    paths = dict.fromkeys(path for one in phases.values() for path in one)
    rows = []
    for path in paths:
        cells = [_phase_cell(one.get(path)) for one in phases.values()]
        depth, _, name = path.rpartition(" > ")
        rows.append(["&nbsp;&nbsp;" * (depth.count(">") + bool(depth)) + name, *cells])
    return table(["phase: host ms / GPU ms", *phases], rows)


def _phase_cell(one: Mapping[str, Any] | None) -> str:
    if one is None:
        return "-"
    return f"{one['host_ms']:.2f} / " + ("-" if one["gpu_ms"] is None else f"{one['gpu_ms']:.2f}")
