"""What a run sees on a card that was never recorded: of kernels and gaps that take longer.

    python -m benchmarks.other_card                                    # of profiles that are kept
    python -m benchmarks.other_card --profiles mine.json --keep EVIDENCE ...   # adds these files'

Profiles of the same step on two cards are compared as the screen does it, one as the run and one as
the recording. What is found to take more is wrong, since nothing changed. Then one kernel of the
run is made longer by a share of the step, each of the longest in turn, and the gaps of one cause.
The exit status is 1 if an unchanged step asks for pairs.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.shared import ROOT, Document, about
from stepguard.core.evidence import from_json
from stepguard.core.profile import IdleRow, KernelRow, Profile, mean
from stepguard.core.recording import RecordedProfile, Recording
from stepguard.judge.compare_profiles import against_recordings, restored, risen_us
from stepguard.judge.summarise_evidence import stored

KEPT = ROOT / "benchmarks" / "data" / "other_card_profiles_2026-11-23.json"
LONGEST = 10  # kernels of a step that are made longer, one at a time
SHARES_PCT = (0.5, 1.0, 2.0)


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


def kept(path: Path = KEPT) -> list[Card]:
    """Return the profiles of a file, in the order in which they were added."""
    known = json.loads(path.read_text())["profiles"]
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


def keep(evidence_files: Sequence[Path], out: Path) -> None:
    """Add the profiles of evidence files to ``out``."""
    known = json.loads(out.read_text())["profiles"] if out.exists() else []
    for path in evidence_files:
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
    Document(out, about()).update(profiles=known)


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
    why, moved = against_recordings(now, before.recording, [before.recording])
    assert why is not None
    step_pct = 100 * (why.after_us / why.before_us - 1)
    found_pct = 100 * risen_us(why, before.profile.parts) / why.before_us
    return f"{step_pct:+.2f} | {found_pct:+.2f}", moved


def compare(cards: Sequence[Card]) -> int:
    """Print what is said of kernels that did not change, and of those that were made longer; return
    how many unchanged steps ask for pairs.
    """
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
    return alarms


def main() -> int:
    """Compare the profiles of a file; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--profiles", type=Path, default=KEPT, help="(the kept ones)")
    parser.add_argument("--keep", type=Path, nargs="+", metavar="EVIDENCE", help="add these files")
    options = parser.parse_args()
    if options.keep and options.profiles.resolve() == KEPT:
        parser.error("--keep: these figures are never edited, name another --profiles")
    if options.keep:
        keep(options.keep, options.profiles)
    return 1 if compare(kept(options.profiles)) else 0


if __name__ == "__main__":
    sys.exit(main())
