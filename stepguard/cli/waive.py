"""The command waive: let a known regression pass for some days, up to a size.

Without METRIC the waiver is for all that failed in the case's last measurement, up to the
measured sizes.

    python -m stepguard waive 'train_step[124m-bf16]' \\
        --reason 'waits for torch 2.14' --days 30
    python -m stepguard waive 'train_step[124m-bf16]' step_ms --limit-pct 6 \\
        --reason 'waits for torch 2.14' --days 30
    python -m stepguard waive 'train_step[124m-bf16]' --remove
"""

import argparse
from datetime import timedelta
from pathlib import Path
from typing import Any

from stepguard.cli.common import UsageError, add_parser, say, verdict_of_run
from stepguard.core.permission import Permission
from stepguard.judge.waiver_rules import MAX_DAYS, Size, suggested_sizes
from stepguard.machine.git.revision import git
from stepguard.report.metric_notes import described
from stepguard.report.verdict_text import headline
from stepguard.storage.baseline_files import (
    add_waiver,
    load_waivers,
    remove_waivers,
    today,
)
from stepguard.storage.kept_runs import Store, last_measured


def add_command(commands: Any, root: Path) -> None:
    text = "let a known regression pass for some days"
    command = add_parser(commands, root, "waive", _waive, text)
    command.add_argument("case", metavar="CASE")
    command.add_argument(
        "metric",
        nargs="?",
        metavar="METRIC",
        help="default: all that failed, or is waived (--remove)",
    )
    command.add_argument("--evidence", metavar="PATH", help="a file or folder, e.g. of a CI run")
    size = command.add_mutually_exclusive_group()
    size.add_argument("--remove", action="store_true", help="remove the waiver")
    size.add_argument("--limit-pct", type=float, metavar="X", help="of a time: at most X percent")
    size.add_argument("--value", type=int, metavar="N", help="of a counter: at most N")
    command.add_argument("--reason", help="why it may pass, and what will end that")
    command.add_argument("--days", type=int, metavar="N", help=f"1 to {MAX_DAYS}")
    command.add_argument("--who", help="who answers for it (default: git's user.name)")


def _waive(options: argparse.Namespace) -> int:
    sized = (options.limit_pct, options.value) != (None, None)
    if options.remove:
        path = remove_waivers(options.baselines, options.case, options.metric or "", today())
        which = f"waiver of {options.metric}" if options.metric else "waivers"
        say(f"{options.case}: {which} removed from {path}; commit it")
        return 0
    if bool(options.metric) != sized:
        raise UsageError(
            "a METRIC and one of --limit-pct --value go together; without them the waiver is "
            "for all that failed in the last measurement"
        )
    for name in ("reason", "days"):
        if getattr(options, name) is None:
            raise UsageError(f"--{name} is missing: a waiver has a reason and an end")
    if not 1 <= options.days <= MAX_DAYS:
        raise UsageError(
            f"--days {options.days}: 1 to {MAX_DAYS}; record what will last longer (accept)"
        )
    known = Store(options.root).measured_cases()
    sizes = {options.metric: (options.limit_pct, options.value)}
    for metric, (limit_pct, value) in (sizes if options.metric else _as_measured(options)).items():
        waiver = Permission(
            case=options.case,
            metric=metric,
            limit_pct=limit_pct,
            value=value,
            reason=options.reason,
            expires=today() + timedelta(days=options.days),
            who=options.who or (git(options.root, "config", "user.name") or "").strip(),
        )
        try:
            path = add_waiver(options.baselines, waiver, today(), known)
        except ValueError as error:
            raise UsageError(str(error)) from None
        say(f"{waiver.case}: {described(waiver)}")
    say(f"written to {path}; commit it, so that everybody has it")
    return 0


def _as_measured(options: argparse.Namespace) -> dict[str, Size]:
    """Return the size of all that the case failed for. Raises ValueError if no waiver covers it."""
    source = Path(options.evidence) if options.evidence else Store(options.root).runs
    evidence, pairs = last_measured(source, options.case)
    waivers = load_waivers(options.baselines, today())
    verdict = verdict_of_run(evidence, pairs, options.baselines, waivers)
    if sizes := suggested_sizes(verdict):
        return sizes
    if verdict.outcome == "passed":
        raise ValueError(f"{options.case}: it passes, so there is nothing to waive")
    raise ValueError(f"{headline(verdict)}: no waiver covers that")
