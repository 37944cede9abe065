"""Lines over time or quantiles, as inline SVG without a foreign asset.

Colours are variables of the page's style sheet, so that a plot follows its light or dark theme.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 480, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 24, 34, 200  # room for half a label on the right
_LINES = 4  # of a linear axis
_CHARACTER = 6.5  # width of one in the legend

Points = Sequence[tuple[float, float | None]]


@dataclass(frozen=True)
class Plot:
    """One plot."""

    title: str  # with the unit of y
    series: Mapping[str, Points]  # x rises; a y of None leaves a gap
    ticks: Sequence[tuple[float, str]]  # x and label
    x_label: str
    marks: Sequence[tuple[float, str]] = ()  # x and name of events
    logarithmic: bool = False  # then values below 1 are drawn as 1


def seconds_ticks(last_s: float) -> list[tuple[float, str]]:
    """Ticks from 0 to at most `last_s`, at round seconds: six or fewer."""
    step = _round_up(max(last_s, 1.0) / 5)
    return [(tick * step, f"{tick * step:g}") for tick in range(int(last_s / step) + 1)]


def draw(plot: Plot) -> str:
    """The SVG element."""
    xs = [x for points in plot.series.values() for x, _ in points]
    xs += [x for x, _ in (*plot.ticks, *plot.marks)]
    ys = [y for points in plot.series.values() for _, y in points if y is not None]
    low_x, high_x = min(xs, default=0.0), max(xs, default=1.0)
    axis = _Axis(max(ys, default=1.0), plot.logarithmic)

    def x_of(x: float) -> float:
        return _LEFT + (x - low_x) / ((high_x - low_x) or 1.0) * (_WIDTH - _LEFT - _RIGHT)

    parts = [f'<text class="title" x="0" y="13">{escape(plot.title)}</text>']
    for y, label in axis.ticks:
        at = axis(y)
        parts.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{_WIDTH - _RIGHT}"/>')
        parts.append(f'<text x="{_LEFT - 5}" y="{at + 4:.1f}" text-anchor="end">{label}</text>')
    for x, label in plot.ticks:
        parts.append(
            f'<text x="{x_of(x):.1f}" y="{_BOTTOM + 16}" text-anchor="middle">'
            f"{escape(label)}</text>"
        )
    for x, name in plot.marks:
        parts.append(
            f'<path class="mark" d="M{x_of(x):.1f} {_TOP}V{_BOTTOM}"><title>{escape(name)}</title>'
            "</path>"
        )
    for number, points in enumerate(plot.series.values()):
        path = _path([(x_of(x), None if y is None else axis(y)) for x, y in points])
        parts.append(f'<path class="line s{number}" d="{path}"/>')
    parts += _legend(list(plot.series), plot)
    label = escape(plot.title, quote=True)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">\n'
        + "\n".join(parts)
        + "\n</svg>"
    )


class _Axis:
    """Maps a value to its y in the drawing."""

    def __init__(self, highest: float, logarithmic: bool) -> None:
        self._logarithmic = logarithmic
        if logarithmic:
            decades = max(1, math.ceil(math.log10(max(highest, 1.0))))
            self._top = float(decades)
            self.ticks = [(10.0**power, _number(10.0**power)) for power in range(decades + 1)]
        else:
            step = _round_up(max(highest, 1.0) / _LINES)
            lines = max(1, math.ceil(highest / step))
            self._top = step * lines
            self.ticks = [(step * line, _number(step * line)) for line in range(lines + 1)]

    def __call__(self, value: float) -> float:
        height = math.log10(max(value, 1.0)) if self._logarithmic else value
        return _BOTTOM - height / self._top * (_BOTTOM - _TOP)


def _number(value: float) -> str:
    """At most seven characters, for which the left margin has room: 100,000 and 1.5M."""
    return f"{value / 1e6:,g}M" if value >= 1e6 else f"{value:,g}"


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, …"""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999)


def _path(points: Sequence[tuple[float, float | None]]) -> str:
    commands, draws = [], False
    for x, y in points:
        if y is None:
            draws = False
            continue
        # A point without neighbours would not be seen: it is drawn as a line of no length.
        commands.append(f"{'L' if draws else 'M'}{x:.1f} {y:.1f}" + ("" if draws else "h0"))
        draws = True
    return "".join(commands)


def _legend(names: Sequence[str], plot: Plot) -> list[str]:
    x, y, parts = float(_LEFT), _HEIGHT - 8, []
    shown = [(f"s{number}", name) for number, name in enumerate(names)]
    if plot.marks:
        shown.append(("mark", "start or kill"))
    for style, name in shown:
        parts.append(f'<path class="line {style}" d="M{x:.1f} {y - 4}h16"/>')
        parts.append(f'<text x="{x + 20:.1f}" y="{y}">{escape(name)}</text>')
        x += 32 + _CHARACTER * len(name)
    label = f'<text x="{_WIDTH - _RIGHT}" y="{y}" text-anchor="end">{escape(plot.x_label)}</text>'
    return [*parts, label]
