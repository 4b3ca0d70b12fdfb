"""Sentences that commands, refusals and the guard share."""

import shlex
from collections.abc import Sequence

from stepguard.core.margins import Margins
from stepguard.core.text import listed

TREE_CHANGED = "files changed while it was measured: its launches may be of different code"


def changed_in_pytest(change: str) -> str:
    """Return that something that launches inherit has changed since pytest started. ``change`` is
    "name old -> new".
    """
    return (
        f"{change} since pytest was started, by a conftest, a test or a plugin: what is set there "
        "is no part of the step; set it for the command, or in the workload's module"
    )


def other_variables(was: str, now: str, recording: str) -> str:
    """Return that both sides of a comparison ran with other environment variables than the
    recording.
    """
    return (
        f"both sides were measured with {now}, {recording} with {was}: run the command with the "
        "variables of the recording, or record with the new ones first"
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


def wider_margins(own: Margins, recorded: Margins, whose: str) -> str:
    """Return that a case's margins are wider than those recorded, and what mends it, without the
    command. ``whose`` names the recording.
    """
    return (
        f"has {margins_text(own)}, wider than the {both_pct(recorded)} of {whose}; "
        "narrow them again, or record the case with them"
    )
