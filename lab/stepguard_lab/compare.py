"""The command compare: machines, clouds or versions side by side, from what each of them wrote.

python -m stepguard compare \\
    baselines/h100-80gb-hbm3x1.json baselines/h200x1.json
python -m stepguard compare \\
    baselines/h200x1.json:GPU-84398e68 baselines/h200x1.json:GPU-7b74249a
python -m stepguard compare a.json b.json --trace a.gz --trace b.gz
"""

import argparse
import json
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec

from stepguard.cli.common import UsageError, say
from stepguard.core.metrics import JUDGED_TIME
from stepguard.core.recording import Recording
from stepguard.core.run_document import RunDocument
from stepguard.core.text import listed, short_hash
from stepguard.judge.compare_profiles import restored
from stepguard.judge.summarise_evidence import summarise
from stepguard.storage import baseline_files as baseline
from stepguard.storage.json_file import FileError, contents
from stepguard.storage.kept_runs import read_evidence
from stepguard.storage.run_document_file import load_document
from stepguard.trace.kernel_classes import usual_classes
from stepguard_lab.compare_table import TRACE, Side, observations, tables
from stepguard_lab.trace_files import read_ranks
from stepguard_lab.trace_summary import summary

WHICH = "a baseline file, what --perf-json wrote, or an evidence.json"


def add_command(commands: Any, root: Path) -> None:
    compare = commands.add_parser("compare", help="machines side by side, from what they wrote")
    help_text = f"{WHICH}; of the first perhaps one card (FILE:GPU-84398e68)"
    compare.add_argument("files", nargs="+", type=_file, metavar="FILE", help=help_text)
    of = "of torch.profiler, one for each FILE and in their order: kernels and CUDA calls"
    compare.add_argument("--trace", action="append", type=Path, metavar="TRACE", help=of)
    compare.set_defaults(call=_compare, root=root)


def _file(text: str) -> tuple[Path, str]:
    """Return the path and the card of "PATH:GPU-84398e68". The card is the beginning of a UUID; ""
    stands for any card.
    """
    path, colon, card = text.rpartition(":GPU-")
    return (Path(path), f"GPU-{card}") if colon else (Path(text), "")


def _compare(options: argparse.Namespace) -> int:
    files, traces = options.files, options.trace or []
    if len(files) < 2:
        raise UsageError("compare: give two files or more")
    if traces and len(traces) != len(files):
        raise UsageError(f"--trace: {len(traces)} traces for {len(files)} files; one for each")
    sides = [
        replace(side_of(*file), label=label)
        for file, label in zip(files, _labels(files), strict=True)
    ]
    if traces:
        sides = [_traced(side, path) for side, path in zip(sides, traces, strict=True)]
    if not set.intersection(*(set(side.cases) for side in sides)):
        cases = "; ".join(f"{side.label}: {listed([*side.cases], 2) or 'none'}" for side in sides)
        raise ValueError(f"no case is in all files: {cases}")
    say(*lines_of(sides))
    return 0


def lines_of(sides: Sequence[Side]) -> list[str]:
    """Return the tables of sides that share a case, and the observations on them."""
    wrap = textwrap.TextWrapper(80, subsequent_indent="  ", break_on_hyphens=False).wrap
    return [*tables(sides), "", *chain.from_iterable(map(wrap, observations(sides)))]


def _labels(files: list[tuple[Path, str]]) -> list[str]:
    """Return the shortest names that tell the files apart."""
    bare = [(path.with_suffix(""), card) for path, card in files]
    # a.json and a.txt have one stem: they differ only with their suffixes.
    named = bare if len(set(bare)) == len(bare) else files
    for parts in range(1, max(len(path.parts) for path, _ in named) + 1):
        labels = [
            " ".join(filter(None, ("/".join(path.parts[-parts:]), card))) for path, card in named
        ]
        if len(set(labels)) == len(labels):
            return labels
    raise UsageError("compare: a file is there twice")


def side_of(path: Path, card: str = "") -> Side:
    """Read a file of any of the three kinds. Raises FileError, which names it, for any other
    file.
    """
    data = contents(path, "give a file that can be")
    if data is None:
        raise FileError(f"{path}: No such file or directory")
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path}: no JSON ({error}); give {WHICH}") from None
    keys = set(raw) if isinstance(raw, dict) else set()
    if card and keys & {"case_id", "results"}:
        raise FileError(f"{path}: only a baseline file has recordings of several cards")
    if "case_id" in keys:
        evidence = read_evidence(path)
        case_id, profile = evidence.case_id, evidence.counted.profile
        recordings, declared = {case_id: summarise(evidence)}, {case_id: evidence.case}
        side = _of_recordings(baseline.machine_of(evidence), recordings, declared)
        return replace(side, profiles={case_id: profile} if profile else {})
    if "results" in keys:
        return _of_document(load_document(path))
    return _of_baseline(path, card)


def _of_baseline(path: Path, card: str) -> Side:
    """Return the newest recording of each case, of this card if one is given."""
    content = baseline.load(path)
    assert content is not None, "it was read before"
    newest: dict[str, Recording] = {}
    for name, entry in content.cases.items():
        known = entry.level.recordings
        of_card = [recording for recording in known if recording.device_uuid.startswith(card)]
        newest |= {name: of_card[-1]} if of_card else {}
    if not newest:
        epochs = (entry.level for entry in content.cases.values())
        cards = sorted(
            {recording.device_uuid for epoch in epochs for recording in epoch.recordings}
        )
        raise FileError(
            f"{path}: no recording of {card} at a newest level, but of {', '.join(cards)}"
        )
    cases = {name: content.cases[name].case for name in newest}
    return _of_recordings(content.machine, newest, cases)


def _of_document(document: RunDocument) -> Side:
    drivers = {gpu.driver for gpu in document.gpus}
    return Side(
        environment={
            "machine": document.machine,
            "driver": ", ".join(sorted(drivers)),
            "commit": short_hash(document.commit),
        },
        cases={result.case: result.metrics for result in document.results},
        launches_ms={r.case: [x.step_ms for x in r.launches] for r in document.results},
        declared={result.case: result.parameters for result in document.results},
    )


def _of_recordings(
    machine: str, recordings: dict[str, Recording], cases: dict[str, dict[str, Any]]
) -> Side:
    software: dict[str, str] = {}
    for recording in recordings.values():
        software |= recording.software | {"driver": recording.driver}
    commits = dict.fromkeys(short_hash(recording.commit) for recording in recordings.values())
    software["commit"] = ", ".join(commits)
    return Side(
        environment={"machine": machine} | software,
        cases={name: recording.values() for name, recording in recordings.items()},
        launches_ms={
            name: tuple(r.times_ms.get(JUDGED_TIME, ())) for name, r in recordings.items()
        },
        declared=cases,
        profiles={
            name: restored(recording.profile)
            for name, recording in recordings.items()
            if recording.profile is not msgspec.UNSET
        },
    )


def _traced(side: Side, path: Path) -> Side:
    (analysed,) = read_ranks([path], usual_classes()).values()
    traced = summary(analysed[1], path.name, 0)
    return replace(
        side,
        profiles={**side.profiles, TRACE: traced.profile},
        calls={row.name: 100 * row.share for row in traced.calls},
        waits_pct=100 * sum(row.share for row in traced.calls if row.waits),
    )
