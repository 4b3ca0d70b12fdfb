"""Options of the plugin. Every project of the environment has them, so that little is imported."""

import os
from functools import partial
from typing import Any

from stepguard.ab_margins import BUDGET_MIN


def add_options(group: Any) -> None:
    """Add them all to a group of pytest's parser."""
    add, flag = group.addoption, partial(group.addoption, action="store_true")
    flag("--perf-update", help="record what is measured now: every sound result, changed ones too")
    flag("--perf-update-new", help="record only the cases that have no baseline")
    flag("--perf-append", help="record what is `same` as one more recording; no new level")
    add(
        "--perf-reason",
        metavar="TEXT",
        help="why the levels that are recorded are right; stored with each that is new",
    )
    add("--perf-baselines", metavar="DIR", help="folder of the baseline files (baselines/)")
    add(
        "--perf-base",
        metavar="REV",
        help="judge by the baselines and waivers of the branch that this tree is merged into, and "
        "say what it changes in them",
    )
    add(
        "--perf-require-gpus",
        metavar="N",
        type=int,
        default=0,
        help="refuse to run with fewer GPUs than this, instead of skipping (%(default)s)",
    )
    add(
        "--perf-against",
        metavar="REV",
        help="judge against this branch, tag or commit, measured beside the tree as it is",
    )
    add(
        "--perf-budget",
        metavar="MIN",
        type=float,
        default=BUDGET_MIN,
        help="minutes that a run may spend on pairs with another revision (%(default)g)",
    )
    flag("--perf-no-confirm", help="do not measure the baseline's commit when a time moved")
    add(
        "--perf-launcher",
        metavar="CMD",
        help="put CMD in front of every launch of several ranks: it starts its argument once on "
        "each node, as srun --nodes=2 --ntasks-per-node=1 does",
    )
    add(
        "--perf-select",
        metavar="CASES",
        help="measure these cases alone, ids with commas between; * stands for any characters",
    )
    flag("--perf-strict", help="fail for all that leaves a case unguarded; the default if CI=true")
    flag("--perf-no-strict", help="a run that gates nothing, also if CI=true")
    add("--perf-json", metavar="PATH", help="write the run as one JSON document")
    add("--perf-report", metavar="PATH", help="write the run as Markdown")


def begins_at_once(option: Any) -> bool:
    """Tell whether a run with these options has something to say though it has no case."""
    return bool(option.perf_json or option.perf_report or option.perf_strict)


def is_strict(config: Any) -> bool:
    """Tell whether whatever leaves a case unguarded fails the run. That it need not is said by the
    command alone: settings and PYTEST_ADDOPTS are meant by nobody who runs it.
    """
    ci, option = os.environ.get("CI", "").lower() == "true", config.option
    loose = option.perf_no_strict and is_typed("--perf-no-strict", config)
    return bool(option.perf_strict or ci and not loose)


def is_typed(name: str, config: Any) -> bool:
    """Tell whether the command itself has an option."""
    arguments = config.invocation_params.args
    return any(str(argument).partition("=")[0] == name for argument in arguments)
