"""Text for a reader: text from a file, a branch or a worker must not control who prints it.

A terminal obeys escape sequences. A CI log obeys lines that begin with "::", and what follows
"##[". All that is printed, or written for others to print, passes through here.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

# Signs; an underscore that is not within a word; what begins a quotation, a link's definition, a
# check box, a list or a rule.
_MARKUP = re.compile(
    r"[\\`*<|#@&~$]|(?<![^\W_])_|_(?![^\W_])"
    r"|^(?:[>\[]|[-+](?=\s|$)|-(?=[-\s]+$)|\d(?=\d*[.)](?:\s|$)))"
)
# What GitHub looks for in rendered text: mentions, formulas, emoji, addresses.
_FOUND = re.compile(r"&#(?:35|36|64);|:(?=//|[\w+-]+:)|\bwww(?=\.)|\bGH(?=-\d)", re.IGNORECASE)

# The most that a failure shows of its sentence, and of a traceback or a rank's last output.
MESSAGE_CHARACTERS = 2_000
DETAIL_CHARACTERS = 20_000
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def printable(text: object) -> str:
    """Return the text as one line of visible characters.

    Control, format and other invisible characters become escapes, and a line break becomes "\\n".
    Colours are left out. A command for a CI log is broken up by a blank.
    """
    shown = _COLOUR.sub("", str(text))
    if not shown.isprintable():
        shown = "".join(
            c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
            for c in shown
        )
    shown = shown.replace("##[", "# #[")
    # A log ignores blanks before a command.
    begins = len(shown) - len(shown.lstrip())
    return f"{shown[:begins]}: :{shown[begins + 2 :]}" if shown[begins:].startswith("::") else shown


def bounded(text: str, most: int) -> str:
    """Return a text of about ``most`` characters: of a longer one the beginning and the end."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters left out ...] {text[-half:]}"


def first(lines: Sequence[str], most: int, front: str = "") -> list[str]:
    """Return the first ``most`` lines, and one that counts the others, behind ``front``."""
    rest = len(lines) - most
    return [*lines[:most], *([f"{front}and {rest} more"] if rest > 0 else [])]


def listed(items: Sequence[str], most: int = 1) -> str:
    """Return "a, b and 3 more"."""
    rest = len(items) - most
    return ", ".join(items[:most]) + (f" and {rest} more" if rest > 0 else "")


def counted(count: int, what: str) -> str:
    """Return "1 GPU" or "2 GPUs"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def short_hash(commit: str) -> str:
    """Return the part of a commit's hash that a reader needs."""
    return commit[:12]


def revision(asked: str, commit: str) -> str:
    """Return a revision for a reader: "main (4f2a91c0d3e7)", or the hash alone."""
    short = short_hash(commit)
    return short if commit.startswith(asked) else f"{asked} ({short})"


def meant(name: str, known: Iterable[str], asked: str = "did you mean") -> str:
    """Return " (did you mean a or b?)" with the names like a mistyped one; else empty."""
    close = get_close_matches(name, list(known))
    return f" ({asked} {' or '.join(close)}?)" if close else ""


def cut(text: str, width: int) -> str:
    """Return a text of at most so many columns. A longer one loses its end."""
    return text if len(text) <= width else f"{text[: width - 3].rstrip()}..."


def shortened(case_id: str, width: int) -> str:
    """Return an id of so many columns, cut in its middle: cases differ at the end."""
    if len(case_id) <= width:
        return case_id
    end = (width - 2) // 2
    return f"{case_id[: width - 2 - end]}..{case_id[len(case_id) - end :]}"


def printable_lines(text: object) -> str:
    """Return text of several lines, each printable. Tabs become blanks."""
    return "\n".join(map(printable, str(text).expandtabs().split("\n")))


def markdown(text: object) -> str:
    """Return text that Markdown shows unchanged, in a line, a cell or a heading."""
    # A numeric entity shows its character, and is never markup.
    plain = _MARKUP.sub(lambda match: f"&#{ord(match[0])};", printable(text).lstrip())
    # A word joiner, which has no width, breaks them up.
    return _FOUND.sub(r"\g<0>&#8288;", plain).replace("](", "]&#40;")


def printable_document(value: Any) -> Any:
    """Return a JSON document whose texts and keys are all printable."""
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, dict):
        return {printable(key): printable_document(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable_document(item) for item in value]
    return value


def has_words(reason: str) -> bool:
    """Return whether a reason says anything: the "..." of a pasted command does not."""
    return bool(reason.strip(" .'\""))
