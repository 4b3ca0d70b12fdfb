"""Text for a reader: what a file, a branch or a worker says must not steer who prints it.

A terminal obeys escape sequences, and a CI log obeys lines that begin with "::" and what follows
"##[". Whatever is printed, or written for others to print, passes through here.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

# Signs; an underscore that is not within a word; what begins a quotation, a link's definition, a
# box to tick, a list or a rule.
_MARKUP = re.compile(
    r"[\\`*<|#@&~]|(?<![^\W_])_|_(?![^\W_])"
    r"|^(?:[>\[]|[-+](?=\s|$)|-(?=[-\s]+$)|\d(?=\d*[.)](?:\s|$)))"
)

# At most, of what a failure says: of its sentence, and of a traceback or a rank's last output.
MESSAGE_CHARACTERS = 2_000
DETAIL_CHARACTERS = 20_000


def printable(text: object) -> str:
    """Return the text as one line of visible characters.

    Control, format and other invisible characters become their escapes, a line break "\\n"; a
    command for a CI log is taken apart by a blank.
    """
    shown = "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in str(text)
    )
    shown = shown.replace("##[", "# #[")
    # A log trims what is before a command.
    begins = len(shown) - len(shown.lstrip())
    return f"{shown[:begins]}: :{shown[begins + 2 :]}" if shown[begins:].startswith("::") else shown


def bounded(text: str, most: int) -> str:
    """Return a text of about ``most`` characters at most: of a longer one the beginning and the
    end, and between them how much is left out.
    """
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} [... {len(text) - 2 * half} characters left out ...] {text[-half:]}"


def first(lines: Sequence[str], most: int, front: str = "") -> list[str]:
    """Return as many lines at most, and one behind ``front`` that counts the others."""
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
    """Return as much of a commit's hash as a reader needs."""
    return commit[:12]


def revision(asked: str, commit: str) -> str:
    """Return a revision as a reader knows it, "main (4f2a91c0d3e7)"; a hash stands alone."""
    short = short_hash(commit)
    return short if commit.startswith(asked) else f"{asked} ({short})"


def meant(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean a or b?)" of the names that are like a mistyped one; empty without."""
    close = get_close_matches(name, list(known))
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def cut(text: str, width: int) -> str:
    """Return a text that fits so many columns: less its end where it is longer."""
    return text if len(text) <= width else f"{text[: width - 3].rstrip()}..."


def end_of(text: str, width: int) -> str:
    """Return a text that fits so many columns: less its begin where it is longer."""
    return text if len(text) <= width else f"...{text[3 - width :]}"


def shortened(case_id: str, width: int) -> str:
    """Cut an id to so many columns, in its middle: cases differ at the end."""
    if len(case_id) <= width:
        return case_id
    end = (width - 2) // 2
    return f"{case_id[: width - 2 - end]}..{case_id[len(case_id) - end :]}"


def printable_lines(text: object) -> str:
    """Return text that has several lines, each of them printable; tabs become blanks."""
    return "\n".join(map(printable, str(text).expandtabs().split("\n")))


def markdown(text: object) -> str:
    """Return text that Markdown shows as it is, in a line, a cell or a heading."""
    # A numeric entity is shown as its character and never taken for markup.
    plain = _MARKUP.sub(lambda match: f"&#{ord(match[0])};", printable(text).lstrip())
    # GitHub finds mentions in what it has rendered: a word joiner, of no width, takes them apart.
    plain = re.sub(r"&#(35|64);", r"&#\1;&#8288;", plain)
    return plain.replace("](", "]&#40;")


def printable_document(value: Any) -> Any:
    """Return a JSON document with all its texts and keys printable, for whoever shows them."""
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, dict):
        return {printable(key): printable_document(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [printable_document(item) for item in value]
    return value


def has_words(reason: str) -> bool:
    """Tell whether a reason says anything: the "..." of a pasted command does not."""
    return bool(reason.strip(" .'\""))
