"""A bar chart as SVG text: two bars for each name, with their values written out. Pure."""

from collections.abc import Sequence
from xml.sax.saxutils import escape

_WIDTH, _LEFT, _RIGHT, _TOP = 900, 300, 190, 84
_BAR, _GAP, _GROUP = 17, 3, 58
_COLORS = ("#4477aa", "#ee6677")
_FONT = 'font-family="sans-serif"'
_HEADING, _SMALL = f'{_FONT} font-size="16"', f'{_FONT} font-size="13"'


def grouped_bars(
    title: str,
    legend: tuple[str, str],
    rows: Sequence[tuple[str, str, tuple[float, float], tuple[str, str]]],
) -> str:
    """A picture of ``rows``: name, what it is, two values from 0 up, and the text beside each.

    Raises ValueError without a row or without a positive value.
    """
    largest = max((value for _, _, values, _ in rows for value in values), default=0.0)
    if not largest > 0:
        raise ValueError(f"nothing to draw: the largest value is {largest}")
    height = _TOP + _GROUP * len(rows) + 16
    scale = (_WIDTH - _LEFT - _RIGHT) / largest
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(16, 28, title, _HEADING),
    ]
    for index, name in enumerate(legend):
        left = 16 + 330 * index
        parts.append(f'<rect x="{left}" y="44" width="14" height="14" fill="{_COLORS[index]}"/>')
        parts.append(_text(left + 20, 56, name, _SMALL))
    for index, (name, what, values, texts) in enumerate(rows):
        top = _TOP + _GROUP * index
        parts.append(_text(16, top + 15, name, f'{_SMALL} font-weight="bold"'))
        parts.append(_text(16, top + 32, what, f'{_FONT} font-size="11"', "#555555"))
        for which, (value, said) in enumerate(zip(values, texts, strict=True)):
            y = top + which * (_BAR + _GAP)
            width = max(0.0, value) * scale
            parts.append(
                f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" '
                f'fill="{_COLORS[which]}"/>'
            )
            parts.append(_text(_LEFT + width + 6, y + 13, said, _SMALL))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, said: str, font: str, color: str = "#222222") -> str:
    return f'<text x="{x:.1f}" y="{y}" {font} fill="{color}">{escape(said)}</text>'
