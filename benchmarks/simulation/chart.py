"""Draw a small line chart as SVG. It needs no library."""

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 150, 56, 44
_COLOURS = ("#b3261e", "#8a8a8a", "#1a73e8", "#188038")

Points = Sequence[tuple[float, float]]


def line_chart(title: str, x_label: str, y_label: str, lines: Mapping[str, Points]) -> str:
    """Return the chart of some lines, each a sequence of points (x, y) in the order of x."""
    x_ticks = _ticks(max(x for points in lines.values() for x, _ in points))
    y_ticks = _ticks(max(y for points in lines.values() for _, y in points))
    x_max, y_max = x_ticks[-1], y_ticks[-1]
    plot_width, plot_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + plot_width * x / x_max, _TOP + plot_height * (1 - y / y_max)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        _text(_LEFT, 20, title, size=14),
        _text(_LEFT + plot_width / 2, _HEIGHT - 8, x_label, anchor="middle"),
        _text(6, _TOP - 8, y_label),
    ]
    for tick in y_ticks:
        _, y = place(0, tick)
        parts.append(_line([(_LEFT, y), (_LEFT + plot_width, y)], "#dddddd", 1))
        parts.append(_text(_LEFT - 6, y + 4, f"{tick:g}", anchor="end"))
    for tick in x_ticks:
        x, _ = place(tick, 0)
        parts.append(_text(x, _TOP + plot_height + 16, f"{tick:g}", anchor="middle"))
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        parts.append(_line([place(x, y) for x, y in points], colour, 2))
        parts.append(_text(_WIDTH - _RIGHT + 10, _TOP + 16 * number + 8, name, colour=colour))
    return "\n".join([*parts, "</svg>", ""])


def _ticks(largest: float) -> list[float]:
    """Return round numbers from 0 up to at least `largest`, which is above 0; at most seven."""
    magnitude = 10.0 ** math.floor(math.log10(largest))
    step = next(
        factor * magnitude for factor in (0.2, 0.5, 1.0, 2.0) if 6 * factor * magnitude >= largest
    )
    return [round(number * step, 9) for number in range(math.ceil(largest / step) + 1)]


def _line(points: Points, colour: str, width: int) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    colour: str = "#333333",
    size: int = 12,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
        f'font-size="{size}">{escape(text)}</text>'
    )
