"""The command memory: what holds the memory of a step at its peak.

    python -m stepguard memory 'train_step[124m-bf16]'
    python -m stepguard memory model.workloads:train_step size=nano device=cpu

On a GPU it also writes a file for https://pytorch.org/memory_viz.
"""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from stepguard.cli.common import add_json, add_top, put_json, refuse_target, say, suite_of
from stepguard.cli.record_traces import ask, new_folder
from stepguard.cli.workload_arguments import add_workload, chosen_case
from stepguard.lab.memory_events import memory_table
from stepguard.lab.memory_table import memory_page
from stepguard.machine.git.worktree import FOLDER
from stepguard.trace.chrome_trace import read_chrome
from stepguard.trace.kernel_classes import usual_classes


def add_command(commands: Any, root: Path) -> None:
    command = commands.add_parser("memory", help="what holds a step's memory at its peak")
    add_workload(command)
    text = "folder of the files (.stepguard/memory)"
    command.add_argument("--out", type=Path, metavar="DIR", help=text)
    add_top(command, 16)
    add_json(command)
    command.set_defaults(call=_memory, root=root)


def _memory(options: argparse.Namespace) -> int:
    refuse_target(options.json)
    case = chosen_case(options)
    folder = new_folder(options.out or options.root / FOLDER / "memory")
    tables = []
    for number, rank in enumerate(ask(suite_of(options.root), case, "memory", folder=str(folder))):
        with Path(rank["trace"]).open("rb") as file:
            trace = read_chrome(file)
        table = memory_table(trace, usual_classes(), rank["live_bytes"], rank["on_gpu"])
        say(*([""] if number else []), f"{case.id}, rank {number} of {case.world_size}")
        say(*memory_page(table, rank, options.top))
        tables.append({"allocator": rank, **dataclasses.asdict(table)})
        if snapshot := rank.get("snapshot"):
            say(f"drop into https://pytorch.org/memory_viz: {snapshot}")
    put_json({"ranks": tables}, options.json)
    return 0
