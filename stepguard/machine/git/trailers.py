"""Read permissions from the messages of commits: the trailers ``Perf-Expect`` of a range."""

import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from stepguard.core.metrics import GATEABLE, not_gateable
from stepguard.core.permission import FORM, KEY, Permission
from stepguard.core.text import short_hash
from stepguard.machine.git.resolve import DEEPEN, MAIN, TreeError, is_shallow
from stepguard.machine.git.revision import git

# A line that is meant as a trailer, wherever it is in a message: GitHub's squash can move it to
# the middle.
_MEANT = re.compile(rf"^{KEY}:(.*)", re.IGNORECASE | re.MULTILINE)
# As git revert writes it. With --reference the hash is short.
_REVERTS = re.compile(r"^This reverts commit ([0-9a-f]{7,64})\b", re.MULTILINE)
_TRAILERS = f"%(trailers:key={KEY},valueonly=true,unfold=true,separator=%x01)"
_FORMAT = f"%H%x00%an%x00{_TRAILERS}%x00%B%x00%x02"
_NO_TRAILER = "git does not take it for a trailer: it must be in the last paragraph, of trailers"
_AMEND = "amend the message (git commit --amend, git rebase -i)"
_FIELDS = 5  # of a commit; the last one is empty
_VALUE = re.compile(r"(?P<case>\S+) (?P<metric>\S+): +(?P<reason>\S.*)")


def trailers(
    root: Path,
    base: str,
    head: str,
    cases: Collection[str] | None = None,
    notice: Callable[[str], None] = lambda text: None,
) -> list[Permission]:
    """Return what the trailers of the commits ``base..head`` permit, newest first. Trailers of a
    reverted commit do not count, unless the revert is reverted, too.

    A line is wrong if it is malformed, names an unknown metric, names a case that is not among
    ``cases`` (None: any), or is not in a trailer's place. If the main branch lacks the commit, this
    raises TreeError with the commit, the line and the right form. A commit of the main branch
    cannot be amended any more. So its wrong lines only give a ``notice``, and its lines outside of
    a trailer's place count.

    Also raises TreeError if the range or a message cannot be read, or if a shallow clone's range
    has a permission: such a range may contain older commits of the base.
    """
    own = _not_on_main(root, base, head)
    permissions, reverted = [], list[str]()
    for commit, author, values, message in _commits(root, base, head):
        declared = []
        for value, in_place in _lines(values, message):
            permitted, wrong = _read(value, in_place, commit, author, cases)
            if wrong and commit in own:
                raise TreeError(f"{wrong}. The form is {FORM!r}; {_AMEND}")
            if wrong:
                notice(f"{wrong}; main has it")
            declared += permitted
        if not any(map(commit.startswith, reverted)):
            permissions += declared
            reverted += _REVERTS.findall(message)
    if permissions and is_shallow(root):
        named = f"commit {short_hash(permissions[0].commit)} has the trailer {KEY}"
        raise TreeError(f"{named}, and a shallow clone cannot tell if it is of the range: {DEEPEN}")
    return permissions


def _commits(root: Path, base: str, head: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield hash, author, values of trailers and message of the commits ``base..head``, the newest
    first. Raises TreeError if the range or a message cannot be read.
    """
    text = git(root, "log", f"--format={_FORMAT}", f"{base}..{head}", "--")
    commits = f"{short_hash(base)}..{short_hash(head)}"
    if text is None:
        raise TreeError(f"the commits {commits} cannot be read for {KEY}")
    for entry in filter(str.strip, text.split("\x02")):
        # A message may contain the separators, too: they are invisible.
        fields = entry.lstrip("\n").split("\x00")
        if len(fields) != _FIELDS or "\x01" in fields[3]:
            raise TreeError(
                f"a commit of {commits} has control characters in its message: amend it"
            )
        commit, author, values, message, _ = fields
        yield commit, author, values, message


def _not_on_main(root: Path, base: str, head: str) -> set[str]:
    """Return the commits ``base..head`` that the main branch lacks. The remote's main branch
    counts, since commits of a local one can be amended.
    """
    for main in (f"^{ref}" for ref in MAIN if ref.startswith("refs/remotes/")):
        if (text := git(root, "rev-list", f"{base}..{head}", main, "--")) is not None:
            return {*text.split()}
    return {*(git(root, "rev-list", f"{base}..{head}", "--") or "").split()}


def _lines(values: str, message: str) -> list[tuple[str, bool]]:
    """Return the values of a message's lines, each with whether git takes it for a trailer."""
    known = [value.strip() for value in values.split("\x01") if value.strip()]
    meant = [value.strip() for value in _MEANT.findall(message)]
    # git joins the lines of a folded value, so the line found here may be only the beginning of
    # git's value. git does not take a line without a value for a trailer.
    others = [line for line in meant if not line or not any(v.startswith(line) for v in known)]
    # If the message has a line twice and git knows it once, the first one is not in a trailer's
    # place.
    others = others or meant[: max(0, len(meant) - len(known))]
    return [*((value, True) for value in known), *((value, False) for value in others)]


def _read(
    value: str, in_place: bool, commit: str, author: str, cases: Collection[str] | None
) -> tuple[list[Permission], str]:
    """Return what a line permits, and what is wrong with it."""
    permissions, wrong = [], "" if in_place else _NO_TRAILER
    try:
        permissions = [parse(value, commit, author)]
        if cases is not None and permissions[0].case not in cases:
            there = ", ".join(sorted(cases)) or "none"
            permissions, wrong = [], f"there is no case {permissions[0].case!r}; cases: {there}"
    except ValueError as error:
        wrong = str(error)
    line = f"{KEY}: {value}"
    return permissions, f"commit {short_hash(commit)} says {line!r}: {wrong}" if wrong else ""


def parse(value: str, commit: str, author: str) -> Permission:
    """Return the permission in a trailer's value. Raises ValueError that says what is wrong."""
    parts = _VALUE.fullmatch(value.strip())
    if parts is None:
        raise ValueError("not of that form, or without a reason")
    # The reason is shown, in a terminal or a comment, to whoever approves the change.
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
