"""Options of the plugin. pytest loads this module in every project of the environment, so it
imports little.
"""

import argparse
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from stepguard.core import former
from stepguard.core.margins import BUDGET_MIN
from stepguard.machine import inherited

FLAGS = {
    "--perf-update": "record each case that has no baseline, and add a recording to the level of "
    "each that is `same`",
    "--perf-update-new": "record only the cases that have no baseline",
    "--perf-strict": "fail for whatever leaves a case unguarded; the default where CI is set",
    "--perf-no-strict": "do not fail for unguarded cases, also where CI is set",
}
TEXTS = {
    "--perf-baselines": ("DIR", "folder of the baseline files (baselines/)"),
    "--perf-base": (
        "REV",
        "judge by the baselines and waivers of the merge base with this branch, and print what the "
        "tree changes in them",
    ),
    "--perf-against": (
        "REV",
        "judge against this branch, tag or commit, measured beside the tree as it is",
    ),
    "--perf-against-python": (
        "PYTHON",
        "judge against this interpreter with its packages, measured beside the one that runs; of "
        "the same tree, or of that of --perf-against",
    ),
    "--perf-json": ("PATH", "write the run as one JSON document"),
    "--perf-report": ("PATH", "write the run as Markdown"),
}


def add_options(group: Any) -> None:
    """Add all options to a group of pytest's parser."""
    for name, text in FLAGS.items():
        group.addoption(name, action="store_true", help=text)
    for name, (metavar, text) in TEXTS.items():
        group.addoption(name, metavar=metavar, type=_named, help=text)
    former.add_options("pytest", group.addoption)
    text = "refuse to run with fewer GPUs than this, instead of skipping (%(default)s)"
    group.addoption("--perf-require-gpus", metavar="N", type=_count, default=0, help=text)
    text = "minutes that a run may spend on pairs with another revision (%(default)g)"
    group.addoption("--perf-budget", metavar="MIN", type=_minutes, default=BUDGET_MIN, help=text)


def _named(text: str) -> str:
    # An empty value would quietly change the gate: after --perf-against= the baseline judges.
    if not text.strip():
        raise argparse.ArgumentTypeError("empty; is a variable not set?")
    return text


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: give 0 or more")
    return int(text)


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes < 1e6:  # written this way so that NaN is refused, too
        raise argparse.ArgumentTypeError(f"{text}: minutes, above 0 and below 1,000,000")
    return minutes


# How CI services name the branch that a change will be merged into.
CI_BASES = (
    "GITHUB_BASE_REF",
    "CI_MERGE_REQUEST_TARGET_BRANCH_NAME",
    "BITBUCKET_PR_DESTINATION_BRANCH",
    "BUILDKITE_PULL_REQUEST_BASE_BRANCH",
    "CHANGE_TARGET",
    "SYSTEM_PULLREQUEST_TARGETBRANCH",
)


def asked_documents(arguments: Sequence[str]) -> list[str]:
    """Return the paths of the documents that a command asks for, before pytest reads it; none for a
    listing.
    """
    words = [*map(str, arguments), ""]
    if not {"--collect-only", "--collectonly", "--co"}.isdisjoint(words):
        return []
    paths = []
    for word, following in pairwise(words):
        name, equals, value = word.partition("=")
        if name in ("--perf-json", "--perf-report"):
            paths.append(value if equals else following)
    return list(filter(None, paths))


def begins_at_once(option: Any) -> bool:
    """Tell whether a run with these options must report or fail even if it has no case."""
    return bool(option.perf_json or option.perf_report or option.perf_strict)


def is_strict(config: Any) -> bool:
    """Tell whether a case that is not guarded fails the run. Only --perf-no-strict on the command
    line switches that off: the user may not know what settings and PYTEST_ADDOPTS contain.
    """
    # Most CI services set CI=true, some CI=1. The value is that of pytest's start, so no conftest
    # can change it.
    ci = inherited.STARTED.variables.get("CI", "").lower() not in ("", "0", "false")
    option = config.option
    loose = option.perf_no_strict and is_typed("--perf-no-strict", config)
    return bool(option.perf_strict or ci and not loose)


def base_branch(config: Any) -> tuple[str, str]:
    """Return the branch whose baselines judge, and the setting that names it: the option
    --perf-base or, in a strict run, a variable of CI. Both are empty if the tree's own baselines
    judge.
    """
    if rev := config.option.perf_base:
        return rev, f"--perf-base={rev}"
    for name in CI_BASES if is_strict(config) else ():
        if branch := inherited.STARTED.variables.get(name, "").removeprefix("refs/heads/"):
            return f"origin/{branch}", f"{name}={branch}"
    return "", ""


def is_typed(name: str, config: Any) -> bool:
    """Tell whether an option is on the command line, and not only in settings."""
    arguments = config.invocation_params.args
    return any(str(argument).partition("=")[0] == name for argument in arguments)
