"""Permissions in the messages of commits: the trailers ``Perf-Expect`` of a range."""

import re
from collections.abc import Collection
from pathlib import Path

from stepguard.core.metrics import GATEABLE, not_gateable
from stepguard.core.permission import FORM, KEY, Permission
from stepguard.core.text import short_hash
from stepguard.machine.git.resolve import DEEPEN, TreeError, is_shallow
from stepguard.machine.git.revision import git

# What somebody may have meant as the trailer, wherever it is in a message.
_MEANT = re.compile(r"^\s*perf[-_ ]?expect\w*\b.*", re.IGNORECASE | re.MULTILINE)
# As git revert writes it; with --reference the hash is a short one.
_REVERTS = re.compile(r"^This reverts commit ([0-9a-f]{7,64})\b", re.MULTILINE)
_TRAILERS = f"%(trailers:key={KEY},valueonly=true,unfold=true,separator=%x01)"
_FORMAT = f"%H%x00%an%x00{_TRAILERS}%x00%B%x00%x02"
_FIELDS = 5  # of a commit; the last one is empty
_VALUE = re.compile(r"(?P<case>\S+) (?P<metric>\S+): +(?P<reason>\S.*)")


def trailers(
    root: Path, base: str, head: str, cases: Collection[str] | None = None
) -> list[Permission]:
    """Return what the trailers of the commits ``base..head`` permit, the newest first. The trailers
    of a commit that another one of the range reverts do not count, unless that is reverted, too.

    Raises TreeError, with the commit, the line and the right form, for a trailer that is malformed,
    of an unknown metric or of a case that is not among ``cases`` (None: any), for a line that was
    meant as one and is none to git, and where the range or a message cannot be read: in a shallow
    clone commits of the base's own past may seem to be in it.
    """
    text = git(root, "log", f"--format={_FORMAT}", f"{base}..{head}", "--")
    commits = f"{short_hash(base)}..{short_hash(head)}"
    if text is None:
        raise TreeError(f"the commits {commits} cannot be read for {KEY}")
    found, reverted = [], list[str]()
    for entry in filter(str.strip, text.split("\x02")):
        # What separates values and commits here a message may hold as well, where nobody sees it.
        fields = entry.lstrip("\n").split("\x00")
        if len(fields) != _FIELDS or "\x01" in fields[3]:
            raise TreeError(
                f"a commit of {commits} has control characters in its message: amend it"
            )
        commit, author, values, message, _ = fields
        known = [value for value in values.split("\x01") if value.strip()]
        meant = [line.strip() for line in _MEANT.findall(message)]
        declared = [_parsed(value, commit, author, cases) for value in known]
        if not any(map(commit.startswith, reverted)):
            found += declared
            reverted += _REVERTS.findall(message)
        if len(meant) > len(known):
            # Of lines that say the same as a trailer the first is not the last paragraph, either.
            other = (line for line in meant if not any(v.split(":")[0] in line for v in known))
            line = next(other, meant[0])
            raise TreeError(_wrong(commit, line, _no_trailer(line)))
    if found and is_shallow(root):
        named = f"commit {short_hash(found[0].commit)} has the trailer {KEY}"
        raise TreeError(f"{named}, and a shallow clone cannot tell if it is of the range: {DEEPEN}")
    return found


def _parsed(value: str, commit: str, author: str, cases: Collection[str] | None) -> Permission:
    line = f"{KEY}: {value.strip()}"
    try:
        found = parse(value, commit, author)
    except ValueError as error:
        raise TreeError(_wrong(commit, line, str(error))) from None
    if cases is not None and found.case not in cases:
        there = ", ".join(sorted(cases)) or "none"
        raise TreeError(_wrong(commit, line, f"there is no case {found.case!r}; cases: {there}"))
    return found


def parse(value: str, commit: str, author: str) -> Permission:
    """Return the permission of a trailer's value. Raises ValueError saying what is wrong."""
    parts = _VALUE.fullmatch(value.strip())
    if parts is None:
        raise ValueError("not of that form, or without a reason")
    # Whoever approves the change reads it, in a terminal or a comment.
    if not parts["reason"].isprintable() or not any(map(str.isalnum, parts["reason"])):
        raise ValueError("its reason is no line of words")
    if parts["metric"] not in GATEABLE:
        raise ValueError(not_gateable(parts["metric"]))
    return Permission(
        case=parts["case"],
        metric=parts["metric"],
        reason=parts["reason"],
        commit=commit,
        who=author,
    )


def _no_trailer(line: str) -> str:
    """Return why git takes a line for no trailer of this key."""
    if line.lower().startswith(f"{KEY.lower()}:"):
        return (
            "git takes it for no trailer: those are the last paragraph of a message, with nothing "
            "else in it"
        )
    return f"its first word is not '{KEY}:'"


def _wrong(commit: str, line: str, why: str) -> str:
    return (
        f"commit {short_hash(commit)} says {line!r}: {why}. The form is {FORM!r}; "
        "amend the message (git commit --amend, git rebase -i)"
    )
