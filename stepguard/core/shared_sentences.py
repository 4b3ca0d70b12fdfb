"""Sentences that commands, refusals and the guard share."""

import shlex
from collections.abc import Sequence

from stepguard.core.margins import Margins
from stepguard.core.text import listed

TREE_CHANGED = "files changed while it was measured: its launches may be of different code"


def changed_in_pytest(change: str) -> str:
    """Return that "name old -> new", which launches inherit, changed since pytest started."""
    return (
        f"{change} since pytest was started, by a conftest, a test or a plugin: what is set there "
        "is no part of the step; set it for the command, or in the workload's module"
    )


def uncommitted(files: Sequence[str]) -> str:
    """Return what differs from a tree's commit, and what mends it; empty if nothing does."""
    text = f"uncommitted changes ({listed(files, 3)})"
    return f"{text}: commit them, or add outputs to .gitignore" if files else ""


def margins_text(margins: Margins) -> str:
    """Return "margins 0.2 and 0.5 %"."""
    return f"margins {both_pct(margins)}"


def both_pct(margins: Margins) -> str:
    """Return "0.2 and 0.5 %"."""
    return f"{margins.ignore_pct:g} and {margins.matter_pct:g} %"


def no_folder(path: str) -> str:
    """Return that a folder of baselines is missing, and the command that makes it."""
    return f"no such folder; to record into a new one: mkdir -p {shlex.quote(path)}"
