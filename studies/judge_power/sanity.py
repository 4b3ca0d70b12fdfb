"""How often the pair that is enough for a step that did not change looks odd, and what it sees.

    python -m studies.judge_power.sanity                     # of what is kept
    python -m studies.judge_power.sanity --keep EVIDENCE ... # adds the launches of these files

Launches of unchanged code of one card and case are paired anew, each with each other. Printed is
how many of these pairs a criterion calls odd, as they are and with every n-th step of HEAD made
longer: the criterion in use, and one that compares how far each side's slowest steps are from its
own median. A pair whose mean moved by more than MEAN_LIMIT is odd by either.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from pathlib import Path
from statistics import fmean, median

from stepguard.evidence import Block, Launch, from_json
from stepguard.judge.rules.identical_step import TAIL, TAIL_LIMIT, lopsided

KEPT = Path(__file__).with_name("launch_steps_2026-11-23.json")
BLOCKS = 2  # of a launch, as a pair has
PLANTED = ((1, 0.0), (8, 0.06), (8, 0.1), (16, 0.1), (16, 0.15))  # every n-th step, longer by
MEAN_LIMIT, OWN_LIMIT = 0.004, 0.03


def keep(paths: Sequence[Path]) -> None:
    """Add the steps of the launches of evidence files."""
    known = json.loads(KEPT.read_text()) if KEPT.exists() else []
    for path in paths:
        evidence = from_json(path.read_bytes(), str(path))
        assert evidence.fingerprint is not None
        for launch in evidence.launches:
            blocks = [[round(ms, 3) for ms in one.step_ms] for one in launch.blocks[:BLOCKS]]
            about = {"gpu": evidence.fingerprint.device_uuid, "commit": evidence.commit}
            known.append({"case": evidence.case_id, **about, "blocks_ms": blocks})
    KEPT.write_text("[\n" + ",\n".join(json.dumps(one) for one in known) + "\n]\n")


def launch_of(blocks_ms: Sequence[Sequence[float]]) -> Launch:
    """Return a launch of such blocks."""
    blocks = tuple(
        Block(len(one), (math.fsum(one),), (math.fsum(one),), tuple(one)) for one in blocks_ms
    )
    return Launch(1, blocks, 0.0, 0.0, 0, "", 0.0)


def planted(launch: Launch, every: int, longer: float, first: int) -> Launch:
    """Return the launch with every n-th step longer, counted through its blocks."""
    count, blocks = 0, []
    for block in launch.blocks:
        blocks.append([])
        for ms in block.step_ms:
            blocks[-1].append(ms * (1 + longer * (count % every == first)))
            count += 1
    return launch_of(blocks)


def own(launch: Launch) -> float:
    """Return by how much the slowest steps are slower than the median, as a log."""
    times = sorted(ms for block in launch.blocks for ms in block.step_ms)
    return math.log(fmean(times[-math.ceil(TAIL * len(times)) :]) / median(times))


CRITERIA: dict[str, Callable[[Launch, Launch], bool]] = {
    "in use": lambda head, base: lopsided(head, base) > TAIL_LIMIT,
    "own median": lambda head, base: own(head) - own(base) > OWN_LIMIT,
}


def pairs(case: str) -> Iterator[tuple[Launch, Launch]]:
    """Yield each two launches of a case on one card, either way round."""
    known = [one for one in json.loads(KEPT.read_text()) if one["case"] == case]
    for one, other in permutations(known, 2):
        if one["gpu"] == other["gpu"]:
            yield launch_of(one["blocks_ms"]), launch_of(other["blocks_ms"])


def odd(case: str, criterion: str, every: int, longer: float) -> list[bool]:
    """Return of each pair whether it looks odd, wherever the longer steps begin."""
    found = []
    for before, base in pairs(case):
        for first in range(0, every, max(1, every // 4)):
            head = planted(before, every, longer, first)
            moved = longer and abs(math.log(head.step_ms / base.step_ms)) > MEAN_LIMIT
            found.append(bool(moved) or CRITERIA[criterion](head, base))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--keep", type=Path, nargs="+", metavar="EVIDENCE", help="add launches")
    options = parser.parse_args()
    if options.keep:
        keep(options.keep)
    titles = [f"1/{every} +{100 * longer:.0f} %" for every, longer in PLANTED[1:]]
    print("| case | pairs | criterion | unchanged | " + " | ".join(titles) + " |")
    print("|---|---|---|" + "---|" * len(PLANTED))
    for case in dict.fromkeys(one["case"] for one in json.loads(KEPT.read_text())):
        for criterion in CRITERIA:
            shares = [100 * fmean(odd(case, criterion, *how)) for how in PLANTED]
            cells = " | ".join(f"{share:.0f} %" for share in shares)
            print(f"| `{case}` | {len(list(pairs(case)))} | {criterion} | {cells} |")


if __name__ == "__main__":
    main()
