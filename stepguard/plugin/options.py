"""Options of the plugin. pytest loads this module in every project of the environment, so it
imports little.
"""

import argparse
import contextlib
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

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


def add_options(parser: Any) -> None:
    """Add all options, and the settings that serve where a command has no such option."""
    parser.addini("perf_baselines", "folder of the baseline files, from the root folder")
    parser.addini("perf_against", "what --perf-against names")
    parser.addini("perf_budget", "minutes, as --perf-budget", default=str(BUDGET_MIN))
    group = parser.getgroup("stepguard", "performance regression gate")
    for name, text in FLAGS.items():
        group.addoption(name, action="store_true", help=text)
    for name, (metavar, text) in TEXTS.items():
        group.addoption(name, metavar=metavar, type=_named, help=text)
    former.add_options("pytest", group.addoption)
    text = "refuse to run with fewer GPUs than this, instead of skipping (%(default)s)"
    group.addoption("--perf-require-gpus", metavar="N", type=_count, default=0, help=text)
    text = f"minutes that a run may spend on pairs with another revision ({BUDGET_MIN:g})"
    group.addoption("--perf-budget", metavar="MIN", type=_minutes, help=text)


def read_settings(config: Any) -> None:
    """Give the options that the command lacks the values of the settings."""
    option, start = config.option, config.invocation_params.dir
    if not option.perf_baselines and (folder := config.getini("perf_baselines")):
        option.perf_baselines = os.path.relpath(config.rootpath / folder, start)
    if not (option.perf_update or option.perf_update_new):  # recordings alone judge these
        option.perf_against = option.perf_against or config.getini("perf_against") or None
    if option.perf_budget is None:
        option.perf_budget = _minutes(config.getini("perf_budget"))


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
    with contextlib.suppress(ValueError):
        if 0 < (minutes := float(text)) < 1e6:  # written this way so that NaN is refused, too
            return minutes
    raise pytest.UsageError(f"perf-budget {text!r}: minutes, above 0 and below 1,000,000")


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
    """Return the paths of the documents that a command asks for; none for a listing."""
    words = [*map(str, arguments), ""]
    if not {"--collect-only", "--collectonly", "--co"}.isdisjoint(words):
        return []
    paths = []
    for word, following in pairwise(words):
        name, equals, value = word.partition("=")
        if name in ("--perf-json", "--perf-report"):
            paths.append(value if equals else following)
    return list(filter(None, paths))


def is_strict(config: Any) -> bool:
    """Tell whether an unguarded case fails the run. Only a typed --perf-no-strict excuses it."""
    # Most CI services set CI=true, some CI=1. The value is that of pytest's start, so no conftest
    # can change it.
    ci = inherited.STARTED.variables.get("CI", "").lower() not in ("", "0", "false")
    option = config.option
    loose = option.perf_no_strict and "--perf-no-strict" in map(str, config.invocation_params.args)
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
