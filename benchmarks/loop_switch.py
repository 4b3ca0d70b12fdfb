"""What it costs a training loop that it rests at each step's border: the loop beside itself.

    python -m benchmarks.loop_switch
    python -m benchmarks.loop_switch --turns 41 --out switch.json

A script trains a small model. It runs as Python runs it and as a rank does, in turns, each time in
a process of its own. The script takes its own time, so that both sides mean the same: the CPU time
of its thread, which other processes hardly change. What a step takes longer with stepguard is set
in relation to a step of 25 ms, which is short for a GPU. No GPU is needed.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.shared import about

STEP_US = 25_000.0
WARMUP = 50  # steps of each run before the clock starts
SCRIPT = """
import sys, time
import torch

steps, warmup = map(int, sys.argv[1:])
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
batch = torch.ones(2, 4)
for number in range(warmup + steps + 2):
    if number == warmup:
        began = time.thread_time()
    if number == warmup + steps:
        print((time.thread_time() - began) / steps * 1e6, flush=True)
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def as_it_is(script: str, arguments: tuple[str, ...]) -> None:
    """Run the script to its end."""
    from stepguard.worker.loops.looped import run_script

    run_script(script, arguments)


def as_guarded(script: str, arguments: tuple[str, ...]) -> None:
    """Run the script a step at a time, until it ends."""
    from stepguard.core.case import Case
    from stepguard.worker.loops.looped import LoopedWorkload
    from stepguard.worker.workload import BadWorkload

    case = Case("switch", script, device="cpu", launches=1, args=arguments)
    try:
        workload = LoopedWorkload(case, "cpu", timed_s=1.0)
        while True:
            workload.step()
    except BadWorkload:  # how a script that ends is reported
        return


Side = Callable[[str, tuple[str, ...]], None]
SIDES: dict[str, Side] = {"as it is": as_it_is, "guarded": as_guarded}


def step_us(side: Side, steps: int) -> float:
    """Return a step's microseconds on a side, measured in a fork: a watched loop stays so."""
    with tempfile.TemporaryFile("w+") as output:
        if (pid := os.fork()) == 0:
            os.dup2(output.fileno(), 1)
            sys.stdout = os.fdopen(1, "w")  # whoever captured it has another one
            status = 1
            try:
                side("train.py", (str(steps), str(WARMUP)))
                status = 0
            finally:
                sys.stdout.flush()
                os._exit(status)
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            raise RuntimeError("the script failed; its error is above")
        output.seek(0)
        return float(output.read())


def measured(turns: int, steps: int) -> dict[str, float]:
    """Return the microseconds of a step on either side in its fastest turn, what the guarded one
    takes longer, and the share of a step of STEP_US that this is. Disturbance only adds time.
    """
    rows = []
    for turn in range(turns):
        order = list(SIDES) if turn % 2 else list(SIDES)[::-1]
        rows.append({name: step_us(SIDES[name], steps) for name in order})
    fastest = {name: min(row[name] for row in rows) for name in SIDES}
    switch_us = fastest["guarded"] - fastest["as it is"]
    return {
        **{f"{name}_us": us for name, us in fastest.items()},
        "switch_us": switch_us,
        "share_pct": 100 * switch_us / STEP_US,
    }


def main() -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--turns", type=int, default=21, help="(%(default)s)")
    parser.add_argument("--steps", type=int, default=1000, help="of a run (%(default)s)")
    parser.add_argument("--out", type=Path, help="result file")
    options = parser.parse_args()
    import torch
    import torch._dynamo  # its first optimizer imports it, which each fork would do

    torch.set_num_threads(1)
    folder, here = tempfile.TemporaryDirectory(), Path.cwd()
    with folder:
        (Path(folder.name) / "train.py").write_text(SCRIPT)
        os.chdir(folder.name)
        try:
            found = measured(options.turns, options.steps)
        finally:
            os.chdir(here)
    print(*(f"{name} {value:.4g}" for name, value in found.items()), sep="\n")
    if options.out:
        document = about() | {"turns": options.turns, "steps": options.steps} | found
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
