"""Two kinds of plots, written as SVG by hand: bars, and lines over logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

COLOURS = ("#2563a8", "#c2571a", "#3f7d3a", "#7a4fa3", "#666666")
_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 720, 22, 270, 90, 40
_PLOT_HEIGHT, _PLOT_LEFT, _LEGEND = 260, 70, 150


def bars(title: str, unit: str, rows: Mapping[str, Mapping[str, float]]) -> str:
    """Horizontal bars: row → series → value. Every row has a scale of its own: its largest value
    fills it, since rows may be of different units.
    """
    series = list(dict.fromkeys(name for row in rows.values() for name in row))
    parts, y = [_text(10, 22, title, size=15)], _TOP
    for label, row in rows.items():
        largest = max(row.values()) or 1.0
        parts.append(_text(_LEFT - 8, y + 15, label, anchor="end"))
        for name, value in row.items():
            width = max(1.0, value / largest * (_WIDTH - _LEFT - _RIGHT))
            parts.append(
                f'<rect x="{_LEFT}" y="{y + 3}" width="{width:.1f}" height="{_ROW - 6}" '
                f'fill="{_colour(series, name)}"/>'
            )
            parts.append(_text(_LEFT + width + 5, y + 15, f"{_short(value)} {unit}".strip()))
            y += _ROW
        y += 8
    parts += _legend(series, _LEFT, y + 8)
    return _document(_WIDTH, y + 30, parts)


def lines(
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
) -> str:
    """Series → points; both axes are logarithmic, and all values greater than 0."""
    points = [point for each in series.values() for point in each]
    right, bottom = _WIDTH - _LEGEND - 20, _TOP + _PLOT_HEIGHT
    x_of = _LogAxis([x for x, _ in points], _PLOT_LEFT, right)
    y_of = _LogAxis([y for _, y in points], bottom, _TOP)
    parts = [_text(10, 22, title, size=15)]
    for x in sorted({x for x, _ in points}):
        parts.append(_line(x_of(x), _TOP, x_of(x), bottom))
        parts.append(_text(x_of(x), bottom + 16, _short(x), anchor="middle"))
    for y in y_of.decades:
        parts.append(_line(_PLOT_LEFT, y_of(y), right, y_of(y)))
        parts.append(_text(_PLOT_LEFT - 6, y_of(y) + 4, _short(y), anchor="end"))
    parts.append(_text(_PLOT_LEFT, bottom + 36, f"{x_label} →   {y_label} ↑"))
    for number, (name, values) in enumerate(series.items()):
        colour = _colour(list(series), name)
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in sorted(values))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in values:
            parts.append(f'<circle cx="{x_of(x):.1f}" cy="{y_of(y):.1f}" r="3" fill="{colour}"/>')
        parts += _legend([name], _WIDTH - _LEGEND, _TOP + 10 + number * _ROW, colour)
    return _document(_WIDTH, bottom + 50, parts)


class _LogAxis:
    """Value → place, over whole decades."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        self.decades = [10.0**power for power in range(low, max(high, low + 1) + 1)]
        self._low, self._begin = low, begin
        self._per_decade = (end - begin) / (len(self.decades) - 1)

    def __call__(self, value: float) -> float:
        return self._begin + self._per_decade * (math.log10(value) - self._low)


def _colour(series: Sequence[str], name: str) -> str:
    return COLOURS[series.index(name) % len(COLOURS)]


def _legend(names: Sequence[str], x: float, y: float, colour: str = "") -> list[str]:
    parts = []
    for name in names:
        fill = colour or _colour(names, name)
        parts.append(f'<rect x="{x:.1f}" y="{y - 10:.1f}" width="12" height="12" fill="{fill}"/>')
        parts.append(_text(x + 17, y, name))
        x += 30 + 7 * len(name)
    return parts


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" stroke="#dddddd"/>'


def _text(x: float, y: float, text: str, *, size: int = 12, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _document(width: float, height: float, parts: Sequence[str]) -> str:
    # White behind it: a page may be dark.
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" fill="#222222">\n<rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>", ""])
