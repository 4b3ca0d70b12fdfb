"""Former names: metrics, gates, reasons, options and commands that are gone. Only this table has
them. Files that people keep still do; what a reader finds of them is ignored, and a run says so
once. Behind each name is what serves instead.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

_TWO_CASES = "a run says it if it measures the case on one rank, too"
METRICS: Mapping[str, str] = {
    "exposed_comm_pct": "exposed_comm_ms shows it, from the profile",
    "one_rank_step_ms": _TWO_CASES,
    "rank_skew_pct": "in pairs the verdict names a rank that got slower",
    "scaling_efficiency_pct": _TWO_CASES,
}
# A metric that a case could gate and that is information now.
GATES: Mapping[str, str] = {"compile_s": "it is shown beside the verdict"}
# A former code, and the one that replaced it.
REASONS: Mapping[object, str] = {
    "AGENT_DIED": "KILLED",
    "CONTRADICTION": "CLOCKS_DISAGREE",
    "EXPECTED": "NOT_JUDGED",
    "FASTER_THAN_PHYSICS": "CLOCKS_DISAGREE",
    "GPU_LOCKED": "FOREIGN_PROCESS",
    "GROWING_SLOWDOWN": "BEYOND_MARGIN",
    "LATE_SLOWDOWN": "BEYOND_MARGIN",
    "MACHINE_MOVED": "UNCONFIRMED",
    "MACHINE_TOO_FAR": "UNCONFIRMED",
    "MAYBE_SLOWER": "NO_SLOWDOWN",
    "METRIC_MISSING": "NOTHING_MEASURED",
    "METRIC_NOT_RECORDED": "NOT_RECORDED",
    "NOT_STARTED": "NO_ANSWER",
    "OTHER_FLOPS": "WORK_MOVED",
    "OTHER_PARAMETERS": "OTHER_CONDITIONS",
    "OTHER_SOFTWARE": "OTHER_CONDITIONS",
    "OTHER_TOKENS": "WORK_MOVED",
    "PERIODIC_SLOWDOWN": "BEYOND_MARGIN",
    "PAID_FOR": "TIME_DECIDES",
    "TOO_FEW_LAUNCHES": "NOTHING_MEASURED",
    "UNPROVEN": "UNDECIDED",
    "UNREAD_FILES": "IDENTICAL_STEP",
    "WITHIN_LEVEL": "UNCONFIRMED",
}
PROBLEMS: Mapping[object, str] = {
    "EXPECTED_TO_FAIL": "REFUSED",
    "NO_COMMIT": "DIRTY",
    "ONLY_COLLECTED": "NOTHING_MEASURED",
}
_LAUNCHER = "set STEPGUARD_LAUNCHER to the command"
# Of pytest, and of each command.
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "comment": {"--conclusion": "the document says it"},
    "doctor": {"--launcher": _LAUNCHER, "--peaks": "the command peaks of stepguard-lab"},
    "pytest": {
        "--perf-append": "--perf-update adds a recording to each level that is `same`",
        "--perf-fresh": "every run measures its pairs",
        "--perf-launcher": _LAUNCHER,
        "--perf-no-confirm": "pairs answer a time that moved, and --perf-budget bounds them",
        "--perf-reason": "`stepguard accept CASE --reason` opens a level",
        "--perf-select": "name files or tests",
    },
    "run": {
        "--launcher": _LAUNCHER,
        "--trace": "the command record-traces CASE --out DIR of stepguard-lab",
    },
}
COMMANDS: Mapping[str, str] = {
    "baselines": "git diff shows what a change records, and an entry that is taken out of its file "
    "under baselines/ is removed",
    "schema": "the documentation has it, as run-document.schema.json",
}
# Types of a reason's figures, and the words that stand before the figures in their place.
FIGURES: Mapping[object, str] = {
    "BadTime": "a time is no positive finite number",
    "BelowFloor": "the step is faster than the GPU's peak allows",
    "BlockWithoutTimes": "a block lacks times",
    "EventsGap": "clocks disagree",
    "HostGap": "clocks disagree",
    "NegativeDifference": "the step takes longer without the exchange between ranks than with it",
    "NotTimed": "the pairs did not time all steps that the run timed",
    "TooFar": "no other card or clock changes a time so much",
    "NoGates": "the case gates no metric",
    "NoneMeasured": "something was not measured",
    "NotMeasured": "a metric was not measured",
    "OtherTokens": "the step has another number of tokens",
    "OtherWork": "the step does other work",
    "OtherWorkOfRanks": "ranks do other work",
    "RepeatedGap": "clocks disagree again and again",
    "TooFewLaunches": "launches are missing",
    "UnknownWork": "a metric is not known",
    "Unpaired": "launches are not in pairs",
}
_ABOUT = ("revision", "launch")  # what each sentence of a reason may be about
# Fields of documents, each behind the field or the list that it is in.
FIELDS = frozenset(
    {(side, "changed_read") for side in ("", "head", "base")}
    | {("pairs", "stays"), ("step", "stays"), ("", "glance"), ("", "files")}
    | {("launches", "untimed"), ("again", "untimed"), ("metrics", "slow_steps")}
    | {("figures", "alarm"), ("causes", "other_code"), ("other_machine_code", "other_code")}
)


class _Gone(argparse.Action):
    """An option that is gone: its error says what serves instead."""

    def __call__(self, *_: object) -> NoReturn:
        name = self.option_strings[0]
        raise argparse.ArgumentError(None, f"{name} is no option any more: {self.const}")


def add_options(command: str, add: Callable[..., Any]) -> None:
    """Add a command's former options by a parser's method, which no help shows."""
    for name, instead in OPTIONS.get(command, {}).items():
        add(name, action=_Gone, nargs="?", const=instead, help=argparse.SUPPRESS)


def gates_of(gates: Iterable[str]) -> tuple[str, ...]:
    """Return the gates that a case can no longer have."""
    return tuple(gate for gate in gates if gate in METRICS or gate in GATES)


def named_in(text: bytes) -> list[str]:
    """Return the former metrics that a JSON document names."""
    return [name for name in METRICS if f'"{name}"'.encode() in text]


def without(raw: Any, inside: str = "") -> Any:
    """Return plain data without former metrics, gates and fields. ``inside`` is its field."""
    if isinstance(raw, dict):
        if said := FIGURES.get(raw.get("type")):
            figures = [
                f"{name} {value}"
                for name, value in raw.items()
                if name not in ("type", *_ABOUT) and isinstance(value, str | int | float)
            ]
            message = f"{said}: {', '.join(figures)}" if figures else said
            about = {name: raw[name] for name in _ABOUT if name in raw}
            return {"type": "Said", "message": message} | about
        return {
            name: without(value, name)
            for name, value in raw.items()
            if name not in METRICS and (inside, name) not in FIELDS
        }
    if not isinstance(raw, list):
        return raw
    if inside == "gates":
        gone = gates_of(gate for gate in raw if isinstance(gate, str))
        return [gate for gate in raw if gate not in gone]
    return [without(row, inside) for row in raw if not _is_of_former_metric(row)]


def _is_of_former_metric(row: Any) -> bool:
    """Tell whether a row of a list is a verdict, a waiver or a difference of a former metric."""
    if not isinstance(row, dict):
        return False
    return f"{row.get('metric')}" in METRICS or f"{row.get('name')}_pct" in METRICS
