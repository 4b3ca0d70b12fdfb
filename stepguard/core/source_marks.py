"""Marks that the measured source may set. Each costs next to nothing unless the source is measured.

A host sync is deliberate, for a reason that the report prints:

    with allow_sync("the loss is logged every 100 steps"):
        print(loss.item())

    print(loss.item())  # stepguard: allow sync: the loss is logged every 100 steps

The comment is for code that must not import stepguard. This ends a step of a loop:

    for batch in loader:
        ...
        stepguard.step()
"""

import re
import tokenize
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_MARKER = re.compile(r"(?:^|\s)#\s*stepguard:\s*allow sync(?=[\s:,]|$)[\s:,-]*(?P<reason>.*)$")
# All threads share the list, since a backward pass syncs in autograd's threads.
_open: list[str] = []
# step() calls it. A rank sets it before it runs a loop.
_listener: Callable[[], None] | None = None


@contextmanager
def allow_sync(reason: str) -> Iterator[None]:
    """Allow the host syncs of the block: they are listed with ``reason``, and do not count."""
    if not reason.strip():
        raise ValueError("allow_sync needs a reason: it is printed on every run")
    _open.append(reason.strip())
    try:
        yield
    finally:
        _open.pop()


def allowed_now() -> str:
    """Return the innermost open ``allow_sync``'s reason; empty without one."""
    return _open[-1] if _open else ""


def allowed_by_comment(source_line: str) -> str:
    """Return the reason that a line's comment gives; empty without one."""
    marker = _MARKER.search(_comment(source_line))
    reason = marker["reason"].strip() if marker else ""
    return reason if re.search(r"\w", reason) else ""


def without_mark(source_line: str) -> str:
    """Return a line without the comment that allows its sync."""
    return _MARKER.sub("", source_line).rstrip()


def _comment(source_line: str) -> str:
    """Return the line's comment, not what looks like one inside a string."""
    with suppress(tokenize.TokenError, SyntaxError):  # a line need not be a whole statement
        for token in tokenize.generate_tokens(iter([source_line]).__next__):
            if token.type == tokenize.COMMENT:
                return token.string
    return ""


def step() -> None:
    """End a step of the loop if stepguard measures it; else do nothing."""
    if _listener is not None:
        _listener()


def hear_steps(listener: Callable[[], None] | None) -> None:
    """Let step() call ``listener`` from now on. With None it calls nothing."""
    global _listener
    _listener = listener
