"""The plugin's options, and the refusal of values that would turn the gate off."""

from pathlib import Path
from typing import Any

import pytest

from stepguard.git.resolve import TreeError, resolve
from stepguard.git.revision import current
from stepguard.judge.acceptance import has_words
from stepguard.measure.suite import BUDGET_S
from stepguard.report import documents

OPTIONS: dict[str, dict[str, Any]] = {
    "--perf-update": {
        "action": "store_true",
        "help": "record what is measured now: every sound result, changed levels too",
    },
    "--perf-update-new": {
        "action": "store_true",
        "help": "record only the cases that have no baseline",
    },
    "--perf-reason": {
        "metavar": "TEXT",
        "help": "why the levels that are recorded are right; stored with each that is new",
    },
    "--perf-baselines": {"metavar": "DIR", "help": "folder of the baseline files (baselines/)"},
    "--perf-require-gpus": {
        "metavar": "N",
        "type": int,
        "default": 0,
        "help": "refuse to run with fewer GPUs than this, instead of skipping (%(default)s)",
    },
    "--perf-against": {
        "metavar": "REV",
        "help": "judge against this branch, tag or commit, measured beside the tree as it is",
    },
    "--perf-budget": {
        "metavar": "MIN",
        "type": float,
        "default": BUDGET_S / 60,
        "help": "minutes that a run may spend on pairs with another revision (%(default)g)",
    },
    "--perf-no-confirm": {
        "action": "store_true",
        "help": "do not measure the baseline's commit beside the tree when a time moved",
    },
    "--perf-launcher": {
        "metavar": "CMD",
        "help": "put CMD in front of every launch of several ranks: it starts its argument once on "
        "each node; see docs/several-nodes.md",
    },
    "--perf-json": {"metavar": "PATH", "help": "write the run as one JSON document"},
    "--perf-report": {"metavar": "PATH", "help": "write the run as Markdown"},
}


def add_options(group: Any) -> None:
    """Add them all to a group of pytest's parser."""
    for name, settings in OPTIONS.items():
        group.addoption(name, **settings)


def refuse_bad_options(config: pytest.Config, root: Path, baselines: Path, gpus: int) -> None:
    """Raise UsageError for what would pass cases unmeasured, or could not be done."""
    option = config.option
    for name in ("reason", "baselines", "against", "launcher", "json", "report"):
        if (value := getattr(option, f"perf_{name}")) is not None and not value.strip():
            raise pytest.UsageError(
                f"{_flag(f'perf_{name}')}={value}: empty; a variable that is not set, maybe"
            )
    for name in ("benchmark_skip", "benchmark_disable"):
        if getattr(option, name, False):
            raise pytest.UsageError(f"{_flag(name)} would pass the performance cases unmeasured")
    if option.perf_require_gpus < 0:
        raise pytest.UsageError(
            f"--perf-require-gpus={option.perf_require_gpus}: 0 asks for none, 1 up for so many"
        )
    if gpus < option.perf_require_gpus:
        raise pytest.UsageError(
            f"--perf-require-gpus={option.perf_require_gpus}: this machine shows {gpus}; "
            "see: python -m stepguard doctor"
        )
    if option.perf_reason is not None:
        _refuse_bad_reason(option)
    _refuse_bad_revision(option, root, baselines)
    if option.perf_baselines and not baselines.is_dir():
        raise pytest.UsageError(f"--perf-baselines={option.perf_baselines}: no such folder")
    for name in ("perf_json", "perf_report"):
        target = getattr(option, name)
        path = Path(config.invocation_params.dir, target or "")
        if target and (problem := documents.unwritable(path)):
            raise pytest.UsageError(f"{_flag(name)}={target}: {problem}")


def _flag(name: str) -> str:
    """Return an attribute of pytest's options as it is typed."""
    return "--" + name.replace("_", "-")


def _refuse_bad_reason(option: Any) -> None:
    reason = option.perf_reason
    if not has_words(reason) or not reason.isprintable():
        raise pytest.UsageError(f"--perf-reason={reason!r}: write a line of words")
    if not (option.perf_update or option.perf_update_new):
        raise pytest.UsageError(
            "--perf-reason: nothing is recorded; it goes with --perf-update or --perf-update-new"
        )


def _refuse_bad_revision(option: Any, root: Path, baselines: Path) -> None:
    if not 0 < option.perf_budget < 1e6:  # NaN neither
        raise pytest.UsageError(f"--perf-budget={option.perf_budget}: a number of minutes")
    if not option.perf_against:
        return
    if option.perf_update or option.perf_update_new:
        raise pytest.UsageError(
            "--perf-against judges against a revision, not a baseline: record in another run"
        )
    try:
        named = resolve(root, option.perf_against)
    except TreeError as error:
        raise pytest.UsageError(f"--perf-against={option.perf_against}: {error}") from None
    head = current(root, baselines)
    if named.commit == head.commit and not head.dirty and option.perf_against != "HEAD":
        raise pytest.UsageError(
            f"--perf-against={option.perf_against}: that is HEAD itself, without a change, and "
            "always the same; to compare the machine with itself say --perf-against=HEAD"
        )
