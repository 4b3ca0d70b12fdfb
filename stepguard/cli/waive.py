"""The command waive: let a known regression pass for some days, up to a size.

    python -m stepguard waive 'train_step[124m-bf16]' step_ms --limit-pct 6 \\
        --reason 'waits for torch 2.14' --days 30
    python -m stepguard waive 'train_step[124m-bf16]' step_ms --remove
"""

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

from stepguard.cli.common import UsageError, add_parser, say
from stepguard.git.revision import user_name
from stepguard.judge.waivers import MAX_DAYS
from stepguard.report.waivers import described
from stepguard.storage.runs import Store
from stepguard.storage.waivers import BadWaiver, add_waiver, remove_waiver, today
from stepguard.waiver import Waiver


def add_command(commands: Any, root: Path) -> None:
    """Add its parser."""
    text = "let a known regression pass for some days"
    command = add_parser(commands, root, "waive", _waive, text)
    command.add_argument("case", metavar="CASE")
    command.add_argument("metric", metavar="METRIC")
    size = command.add_mutually_exclusive_group(required=True)
    size.add_argument("--remove", action="store_true", help="remove the waiver of this metric")
    size.add_argument("--limit-pct", type=float, metavar="X", help="of a time: at most X percent")
    size.add_argument("--value", type=int, metavar="N", help="of a counter: at most N")
    command.add_argument("--reason", help="why it may pass, and what will end that")
    command.add_argument("--days", type=int, metavar="N", help=f"1 to {MAX_DAYS}")
    command.add_argument("--who", help="who answers for it (default: git's user.name)")


def _waive(options: argparse.Namespace) -> int:
    if options.remove:
        path = remove_waiver(options.baselines, options.case, options.metric, today())
        say(f"{options.case}: waiver of {options.metric} removed from {path}; commit it")
        return 0
    for name in ("reason", "days"):
        if getattr(options, name) is None:
            raise UsageError(f"--{name} is missing: a waiver has a reason and an end")
    if not 1 <= options.days <= MAX_DAYS:
        raise UsageError(
            f"--days {options.days}: 1 to {MAX_DAYS}; accept what is going to last longer"
        )
    waiver = Waiver(
        case=options.case,
        metric=options.metric,
        limit_pct=options.limit_pct,
        value=options.value,
        reason=options.reason,
        expires=today() + timedelta(days=options.days),
        who=options.who or user_name(options.root),
    )
    try:
        path = add_waiver(options.baselines, waiver, today(), Store(options.root).measured_cases())
    except BadWaiver as error:
        raise UsageError(str(error)) from None
    say(f"{waiver.case}: {described(waiver)}")
    say(f"written to {path}; commit it, so that everybody has it")
    return 0
