"""The templates of the HTML pages. Every text is escaped and made printable in this one place.

It imports jinja2: import this where a page is made, since other commands do not need it.
"""

import re
from collections.abc import Sequence
from zlib import crc32

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from stepguard.core.text import bounded, printable_lines
from stepguard_lab.charts import short

MOST_TEXT = 20_000  # characters of one text on a page
# A long name breaks behind the signs between its parts, and not into shorter pieces than this.
PIECE_CHARACTERS = 14
_BETWEEN_PARTS = re.compile(r"(?<=[_/.:])(?=\w)")


def _shown(value: object) -> object:
    """Return what an expression of a template shows."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    # Most texts are printable. Looking at each of their characters takes ten times as long.
    return bounded(value if value.isprintable() else printable_lines(value), MOST_TEXT)


def _breakable(text: str) -> object:
    """Return a text whose long names of kernels, operators and files may break."""
    pieces = [""]
    for part in _BETWEEN_PARTS.split(printable_lines(text)):
        if len(pieces[-1].rpartition(" ")[2]) < PIECE_CHARACTERS:
            pieces[-1] += part
        else:
            pieces.append(part)
    return Markup("<wbr>").join(pieces)


def _css_class(head: Sequence[str]) -> str:
    """Return the class of tables with these names of columns."""
    return f"h{crc32(repr(head).encode()) % 2**16:x}"


def _css_text(text: str) -> object:
    """Return a text and a blank as a string of a style sheet; signs are escaped."""
    return Markup('"{} "').format(re.sub(r"[^\w]", lambda sign: f"\\{ord(sign[0]):x} ", text))


TEMPLATES = Environment(
    loader=PackageLoader("stepguard_lab", "templates"),
    autoescape=True,
    finalize=_shown,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {
    "short": short,
    "breakable": _breakable,
    "css_class": _css_class,
    "css_text": _css_text,
}
