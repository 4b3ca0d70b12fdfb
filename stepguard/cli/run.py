"""The command run: measure one workload, without a baseline.

python -m stepguard run -- train.py --batch_size=12
python -m stepguard run model.workloads:train_step size=nano device=cpu
"""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from stepguard.cli.common import (
    add_json,
    progress_line,
    put_json,
    refuse_target,
    say,
    suite_of,
)
from stepguard.cli.workload_arguments import RUNS_AS_IT_IS, add_workload, chosen_case
from stepguard.judge.soundness import measurement_problem
from stepguard.launch.nodes import named_launcher, survey
from stepguard.machine.interpreter import interpreter
from stepguard.measure.suite import Ended, Result
from stepguard.report.document_json import result_document
from stepguard.report.metric_list import figures
from stepguard.report.next_steps import Commands, next_steps
from stepguard.report.verdict_text import block, page_of


def add_command(commands: Any, root: Path) -> None:
    run = commands.add_parser("run", help="measure one workload, without a baseline")
    add_workload(run)
    run.add_argument("--launches", type=int, metavar="N", help="timed launches (3; 1 on a CPU)")
    add_json(run)
    run.set_defaults(call=_run, root=root)


def _run(options: argparse.Namespace) -> int:
    refuse_target(options.json)
    case = chosen_case(options, options.launches)
    launcher, text = None, named_launcher()
    if text is not None and case.world_size > 1:
        launcher = survey(text, options.root)
        launcher.per_node(case)
    suite = suite_of(options.root, launcher)
    if case.loop:
        say(RUNS_AS_IT_IS.format(workload=case.workload))
    line = progress_line(options.root, [case])
    try:
        with line.case(case.id):
            result = suite.run(case, line.stage)
    except Ended as ended:
        _report(ended.result, options)
        raise
    say(*suite.notices)
    return _report(result, options)


def _report(result: Result, options: argparse.Namespace) -> int:
    commands = Commands(python=interpreter(Path.cwd()))
    if shown := list(figures(result)):
        explain = commands.called("stepguard explain-code METRIC")
        say(*shown, f"how a metric is measured: {explain}")
    # The exit status depends only on the measurement: a baseline's verdict does not count here.
    measured = measurement_problem(result.evidence) is None
    evidence = os.path.relpath(result.evidence_path)
    if measured:
        say(f"evidence: {evidence}")
    else:
        steps = next_steps(result.verdict, evidence, commands)
        sys.stderr.write(block(page_of(result.verdict, steps)) + "\n")
    put_json(result_document(result, Commands(options.root)), options.json)
    return 0 if measured else 1
