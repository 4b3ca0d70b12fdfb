"""The command judge: judge kept evidence by today's baselines; nothing is measured.

python -m stepguard judge 'train_step[124m-bf16]' --evidence artifacts/
"""

import argparse
from pathlib import Path
from typing import Any

from stepguard.cli.common import (
    add_evidence,
    add_json,
    add_parser,
    complain,
    put_json,
    refuse_target,
    say,
    table_width,
    verdict_of_run,
    wanted_evidence,
)
from stepguard.core.status import Status
from stepguard.core.text import short_hash
from stepguard.core.verdict import Verdict, outcome_of_run
from stepguard.report import table, verdict_text
from stepguard.report.document_json import judged_document
from stepguard.report.metric_notes import of_waivers
from stepguard.storage import baseline_files as baseline
from stepguard.storage.kept_runs import Store, pairs_beside


def add_command(commands: Any, root: Path) -> None:
    text = "judge kept evidence against the baselines again"
    command = add_parser(commands, root, "judge", _judge, text)
    add_evidence(command, "every case of the last run")
    add_json(command)


def _judge(options: argparse.Namespace) -> int:
    refuse_target(options.json)
    verdicts = []
    waivers = baseline.load_waivers(options.baselines, baseline.today())
    wanted, pairs_alone = wanted_evidence(options, in_pairs=True)
    # A new case may have a waiver but no baseline yet. All kept runs are read to find such cases.
    known = Store(options.root).measured_cases() if waivers else set()
    known |= {evidence.case_id for _, evidence in wanted}
    for case_id in baseline.unknown(options.baselines, waivers, known):
        where = options.baselines / baseline.WAIVERS
        complain(f"{where}: no baseline or kept run has {case_id!r}")
    for kept, evidence in wanted:
        path = baseline.path_of(options.baselines, evidence)
        pairs = pairs_beside(kept)
        verdicts.append(verdict_of_run(evidence, pairs, options.baselines, waivers))
        commit = short_hash(evidence.commit) or "no commit"
        say(f"{evidence.case_id}: measured {evidence.date} on {commit}, {path.name}")
    for comparison in pairs_alone:
        verdicts.append(verdict_of_run(None, comparison, options.baselines, waivers))
        with_base = f"in pairs with {comparison.named}"
        say(f"{comparison.head.case_id}: measured {comparison.head.date}, {with_base}")
    _say(verdicts)
    put_json([judged_document(verdict) for verdict in verdicts], options.json)
    return 0 if outcome_of_run(verdicts) == "passed" else 1


def _say(verdicts: list[Verdict]) -> None:
    say(*(text for text, _ in table.lines(table.rows(verdicts), table_width())))
    for verdict in verdicts:
        if verdict.status is not Status.SAME:
            say(verdict_text.headline(verdict), *verdict_text.evidence_lines(verdict))
        else:
            say(*(f"{verdict.case_id}: {text}" for text in of_waivers(verdict)))
