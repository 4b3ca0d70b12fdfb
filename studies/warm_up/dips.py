"""What a change of the step reads in blocks whose clock dips: simulated with recorded blocks.

    python -m studies.warm_up.dips

The mean of the six blocks of forward[350m-bf16] on an H200 (blocks_2026-11-23.json) is taken as the
card's speed since a block began, and constant behind its end. Blocks of two seconds of the base
have as many steps as those of HEAD, whose steps are longer by the true change.
"""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

from studies.common.series import table

BLOCKS = Path(__file__).with_name("blocks_2026-11-23.json")
CASE = "forward[350m-bf16]"
BLOCK_MS = 2000.0
STEPS_MS = (40.0, 123.0, 160.0, 247.0, 270.0, 332.0)
CHANGES_PCT = (-5.0, -1.0, 0.5, 1.0, 2.0, 5.0)


def clock() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return times since a block began, in ms, and the work that is done by then, in ms of the
    usual speed.
    """
    launches = json.loads(BLOCKS.read_text())[CASE]["launches"]
    steps_ms = np.mean([block["step_ms"] for blocks in launches for block in blocks], axis=0)
    usual_ms = float(np.median(steps_ms))
    times = np.concatenate([[0.0], np.cumsum(steps_ms), [1e6]])
    work = usual_ms * np.arange(len(steps_ms) + 1)
    return times, np.append(work, work[-1] + 1e6 - times[-2])


def steps_ms(steps: int, step_ms: float) -> npt.NDArray[np.float64]:
    """Return the times of a block's steps that take ``step_ms`` at the usual speed."""
    times, work = clock()
    return np.diff(np.interp(np.arange(steps + 1) * step_ms, work, times))


def main() -> None:
    """Print a row for each step time."""
    rows = []
    for step_ms in STEPS_MS:
        steps = round(BLOCK_MS / step_ms)
        base = steps_ms(steps, step_ms).sum()
        read = (steps_ms(steps, step_ms * (1 + pct / 100)).sum() / base - 1 for pct in CHANGES_PCT)
        rows.append([f"{step_ms:g} ms", *(f"{100 * found:+.2f}" for found in read)])
    print(table(["step", *(f"{pct:+g} %" for pct in CHANGES_PCT)], rows))


if __name__ == "__main__":
    main()
