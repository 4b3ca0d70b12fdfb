"""What a run sees on a card that was never recorded: its kernels, and its clock.

    python -m studies.other_card.report                     # of what is kept
    python -m studies.other_card.report --keep EVIDENCE ... # adds the profiles of these files

Kernels: profiles of the same step on two cards are compared as the screen does it, one as the run
and one as the recording. What is found to take more is wrong, since nothing changed. Then one
kernel of the run is made longer by a share of the step, each of the longest in turn, and the gaps
of one cause. Last, the faults of `studies/planted_causes`, each beside another card's recording.

Clock: step times of `train_step[124m-bf16]` on many cards, of recorded launches of unchanged code,
against the SM clock that was read meanwhile. The slope is that of least squares on logarithms.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepguard.evidence import from_json
from stepguard.judge.ab.profiled import against_recordings, risen_us
from stepguard.judge.recorded_profile import restored
from stepguard.judge.summary import stored
from stepguard.profile import IdleRow, KernelRow, Profile, mean
from stepguard.recording import RecordedProfile, Recording
from studies.common.results import Document, command_line
from studies.planted_causes.judge import KEPT as PLANTED
from studies.planted_causes.judge import Folder

HERE = Path(__file__).parent
KEPT = HERE / "profiles_2026-11-23.json"
LONGEST = 10  # kernels of a step that are made longer, one at a time
SHARES_PCT = (0.5, 1.0, 2.0)
CASE = "train_step[124m-bf16]"
PLANTED_MS = 260.0  # the core suite's runs with a planted slowdown are beyond it, all others not


@dataclass(frozen=True)
class Card:
    """One case on one card: the recording that a run of it would leave."""

    case: str
    device: str
    recording: Recording

    @property
    def profile(self) -> Profile:
        """Return the profile of the recording."""
        assert self.recording.profile is not msgspec.UNSET
        return restored(self.recording.profile)


def kept() -> list[Card]:
    """Return what is kept, in the order in which it was added."""
    known = json.loads(KEPT.read_text())["profiles"]
    return [Card(one["case"], one["device"], _recording(one)) for one in known]


def _recording(one: dict[str, Any]) -> Recording:
    return Recording(
        date=one["date"],
        commit=one["commit"],
        device_uuid=one["uuid"],
        software={},
        driver="",
        tokens_per_step=1,
        times_ms={},
        counters={},
        information={},
        detail={},
        profile=msgspec.convert(one["profile"], RecordedProfile),
    )


def keep(paths: Sequence[Path]) -> None:
    """Add the profiles of evidence files."""
    known = json.loads(KEPT.read_text())["profiles"] if KEPT.exists() else []
    for path in paths:
        evidence = from_json(path.read_bytes(), str(path))
        found = stored(evidence)
        assert evidence.fingerprint is not None
        known.append(
            {
                "case": evidence.case_id,
                "device": evidence.fingerprint.device_name,
                "uuid": found.device_uuid,
                "commit": found.commit,
                "date": found.date,
                "profile": msgspec.to_builtins(found.profile),
            }
        )
    Document(KEPT, {"command": command_line()}).update(profiles=known)


def neighbours(cards: Sequence[Card]) -> Iterator[tuple[Card, Card]]:
    """Yield each two cards of one kind that ran the same case, either way round."""
    for before, after in permutations(cards, 2):
        if (before.case, before.device) == (after.case, after.device):
            yield before, after


def slowed(profile: Profile, row: KernelRow | IdleRow, share_pct: float) -> Profile:
    """Return the profile with one of its kernels, or gaps, longer by a share of the step."""
    parts = profile.parts
    more_us = share_pct / 100 * mean(parts.step_us)
    longer = replace(row, us=tuple(us * (1 + more_us / mean(row.us)) for us in row.us))
    part = "compute_us" if isinstance(row, KernelRow) else "idle_us"
    more = {name: tuple(us + more_us for us in getattr(parts, name)) for name in ("step_us", part)}
    return replace(
        profile,
        kernels=tuple(longer if one is row else one for one in profile.kernels),
        idle=tuple(longer if one is row else one for one in profile.idle),
        parts=replace(parts, **more),
    )


def longest(profile: Profile) -> list[KernelRow]:
    """Return the longest kernels, of those with a name of their own."""
    own = [row for row in profile.kernels if row.grid]
    return sorted(own, key=lambda row: -mean(row.us))[:LONGEST]


def widest(profile: Profile) -> IdleRow:
    """Return the gaps that take longest."""
    return max(profile.idle, key=lambda row: mean(row.us))


def seen(now: Profile, before: Card) -> tuple[str, bool]:
    """Return two cells, what the step and what is found take more in percent, of a run beside
    another card's recording; and whether that asks for pairs.
    """
    why, moved = against_recordings(now, [before.recording], "another card")
    assert why is not None
    step_pct = 100 * (why.after_us / why.before_us - 1)
    found_pct = 100 * risen_us(why, before.profile.parts) / why.before_us
    return f"{step_pct:+.2f} | {found_pct:+.2f}", moved


def compare_kernels(cards: Sequence[Card]) -> None:
    """Print what is said of kernels that did not change, and of those that were made longer."""
    print("| case | cards | step [%] | found [%] |\n|---|---|---|---|")
    kernels, gaps = (dict.fromkeys(SHARES_PCT, 0) for _ in range(2))
    tried = alarms = compared = 0
    for before, after in neighbours(cards):
        now = after.profile
        cells, moved = seen(now, before)
        alarms += moved
        names = f"{before.recording.device_uuid[4:8]} -> {after.recording.device_uuid[4:8]}"
        kind = before.device.removeprefix("NVIDIA ").split()[0]
        print(f"| `{before.case}` | {kind} {names} | {cells} |")
        compared += 1
        for share in SHARES_PCT:
            gaps[share] += seen(slowed(now, widest(now), share), before)[1]
        for row in longest(now):
            tried += 1
            for share in SHARES_PCT:
                kernels[share] += seen(slowed(now, row, share), before)[1]
    print(f"\nunchanged: {alarms} of {compared} ask for pairs")
    for share in SHARES_PCT:
        print(f"longer by {share} % of the step: {kernels[share]} of {tried} kernels ask, ", end="")
        print(f"{gaps[share]} of {compared} gaps")


def compare_planted(cards: Sequence[Card]) -> None:
    """Print what is said of kernels where something was planted, on another card."""
    before = next(one for one in cards if one.case == CASE and one.device == "NVIDIA H200")
    folder = Folder(PLANTED)
    print("\n| planted | step [%] | found [%] | asks |\n|---|---|---|---|")
    for name in folder.trees:
        evidence = folder.evidence(name)
        counts = None if isinstance(evidence, str) else evidence.counts
        if counts is None or counts.profile is None or counts.profile.ranks > 1:
            continue
        cells, moved = seen(counts.profile, before)
        print(f"| {name} | {cells} | {'yes' if moved else 'no'} |")


def launches() -> Iterator[tuple[str, float, float]]:
    """Yield card, step time in ms and SM clock in MHz of recorded launches of unchanged code."""
    suite = json.loads((HERE.parent / "core_suite" / "h200_runs_2026-11-21.json").read_text())
    for run in suite["runs"]:
        if run["case"] == CASE and max(run["launch_step_ms"]) < PLANTED_MS:
            yield run["device_uuid"], mean(run["launch_step_ms"]), mean(run["sm_clock_mhz"])
    for path in sorted((HERE.parent / "judge_power").glob("h200_pairs_*.json")):
        read = json.loads(path.read_text())
        for run in read.get("runs", [read]):
            for side in (pair["base"] for pair in run["pairs"] if "base" in pair):
                if "gpu" in run and "sm_clock_mhz" in side:
                    yield run["gpu"], side["step_ms"], mean(side["sm_clock_mhz"])


def compare_clocks() -> None:
    """Print how far cards differ, as they are and at one clock."""
    cards: dict[str, list[tuple[float, float]]] = {}
    for uuid, step_ms, clock_mhz in launches():
        cards.setdefault(uuid, []).append((np.log(step_ms), np.log(clock_mhz)))
    step, clock = np.array([np.mean(found, axis=0) for found in cards.values()]).T
    slope, base = np.polyfit(clock, step, 1)
    left = step - slope * clock - base
    print(f"\n{len(cards)} H200s, {CASE}: step times differ by {100 * step.std(ddof=1):.2f} %,")
    print(
        f"clocks by {100 * clock.std(ddof=1):.2f} % (standard deviations); step = clock ^ ", end=""
    )
    print(f"{slope:.2f} leaves {100 * left.std(ddof=2):.2f} %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", type=Path, nargs="+", metavar="EVIDENCE", help="add profiles")
    arguments = parser.parse_args()
    if arguments.keep:
        keep(arguments.keep)
    compare_kernels(kept())
    compare_planted(kept())
    compare_clocks()


if __name__ == "__main__":
    main()
