"""Plots as SVG inside the page: bars and lines over time, rankings.

Each plot has a title and a description, a title for each bar or point (shown under the pointer),
and a table of its numbers, for readers who cannot see the plot.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from broker.spark.report.page import Html, clip, join, tag

WIDTH, HEIGHT = 640, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 10, 10, 26
_PLOT_W, _PLOT_H = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
LABELS_MAX: Final = 8  # below a plot; half as many if they are long
LABEL_CHARS: Final = 8
POINTS_MAX: Final = 400  # of more points, the largest of each group is drawn
_ROW_H: Final = 22
_NAME_CHARS: Final = 34
_BAR_MAX: Final = 64.0  # width: a single bar must not look like a background
_DOT, _DOT_STEP = 2.5, 1.5  # radius of the last series, and how much larger each earlier one is

Text = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Plot:
    """The texts and formats of a plot. `key` is unique in the page."""

    key: str
    title: str
    text: str  # what it shows, in a sentence
    show: Text  # formats a value
    binary: bool = False  # bytes: the axis ends at 1, 2 or 5 times a power of 1024


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot; None is a gap in it."""

    name: str
    values: Sequence[float | None]


def nice_top(highest: float, *, binary: bool = False) -> float:
    """The end of an axis, at or above `highest`: 1, 2, 4, 6 or 8 times a power of ten in the
    displayed unit, so that a quarter of it has few digits, too."""
    unit = 1024.0 ** int(math.log(highest, 1024)) if binary and highest >= 1024 else 1.0
    if highest <= sys.float_info.min:  # powers of ten below it are 0
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(highest / unit)) * unit
    return next((s * power for s in (1, 2, 4, 6, 8) if s * power >= highest), 10 * power)


def _figure(plot: Plot, svg: Sequence[Html], legend: Html | None, table: Html, height: int) -> Html:
    body = tag(
        "svg",
        tag("title", plot.title, id=f"{plot.key}-t"),
        tag("desc", plot.text, id=f"{plot.key}-d"),
        svg,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
        aria_labelledby=f"{plot.key}-t {plot.key}-d",
    )
    details = tag("details", tag("summary", "as a table"), tag("div", table, class_="wide"))
    return tag("figure", tag("figcaption", plot.title), legend, body, details)


def _axes(ticks: Sequence[tuple[float, str]], labels: Sequence[tuple[float, str]]) -> list[Html]:
    elements = []
    for y, text in ticks:
        elements.append(tag("line", x1=_LEFT, x2=WIDTH - _RIGHT, y1=_n(y), y2=_n(y), class_="grid"))
        elements.append(tag("text", text, x=_LEFT - 6, y=_n(y + 4), text_anchor="end"))
    for x, text in labels:
        elements.append(tag("text", text, x=_n(x), y=HEIGHT - 8, text_anchor="middle"))
    return elements


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _every(labels: Sequence[str], position: Callable[[int], float]) -> list[tuple[float, str]]:
    limit = LABELS_MAX if max(map(len, labels), default=0) <= LABEL_CHARS else LABELS_MAX // 2
    step = max(1, math.ceil(len(labels) / limit))
    return [(position(i), labels[i]) for i in range(0, len(labels), step)]


def downsample(values: Sequence[float | None], limit: int = POINTS_MAX) -> list[float | None]:
    """Reduce to at most `most` values, each the largest of its neighbours, so that peaks stay."""
    step = max(1, math.ceil(len(values) / limit))
    groups = [values[i : i + step] for i in range(0, len(values), step)]
    return [max((v for v in g if v is not None), default=None) for g in groups]


def squeeze_labels(labels: Sequence[str], limit: int = POINTS_MAX) -> list[str]:
    return list(labels[:: max(1, math.ceil(len(labels) / limit))])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> Html:
    top = tag("tr", [tag("th", text, scope="col") for text in head])
    body = [
        tag("tr", tag("th", row[0], scope="row"), [tag("td", text, class_="n") for text in row[1:]])
        for row in rows
    ]
    return tag("table", tag("caption", caption), tag("thead", top), tag("tbody", body))


def bars(
    plot: Plot, labels: Sequence[str], values: Sequence[float], *, logarithmic: bool = False
) -> Html:
    """A bar for each label, from left to right."""
    drawn = [value or 0.0 for value in downsample(values)]
    names = squeeze_labels(labels)
    highest = max(drawn, default=0.0)
    width = _PLOT_W / max(len(drawn), 1)
    thick = min(max(width - min(2.0, width * 0.2), 0.5), _BAR_MAX)
    position, marks = _powers(highest) if logarithmic else _quarters(highest, plot)
    elements = _axes(
        [(position(value), plot.show(value)) for value in marks],
        _every(names, lambda i: _LEFT + width * (i + 0.5)),
    )
    for i, value in enumerate(drawn):
        y = position(value)
        elements.append(
            tag(
                "rect",
                tag("title", f"{names[i]}: {plot.show(value)}"),
                x=_n(_LEFT + width * (i + 0.5) - thick / 2),
                y=_n(y),
                width=_n(thick),
                height=_n(max(_TOP + _PLOT_H - y, 0.0)),
                class_="bar",
            )
        )
    rows = [(label, plot.show(value)) for label, value in zip(labels, values, strict=True)]
    return _figure(plot, elements, None, _table(("", plot.title), rows, plot.text), HEIGHT)


Place = Callable[[float], float]


def _quarters(highest: float, plot: Plot) -> tuple[Place, list[float]]:
    """The position of a value on a linear axis, and the marks of the axis."""
    top = nice_top(highest, binary=plot.binary)
    return lambda value: _TOP + _PLOT_H * (1 - value / top), [top * part / 4 for part in range(5)]


def _powers(highest: float) -> tuple[Place, list[float]]:
    """The same for a logarithmic axis. A value of 1 has a third of a step, so that it is
    visible."""
    limit = max(math.ceil(math.log10(max(highest, 1.0))), 1)

    def position(value: float) -> float:
        part = (math.log10(value) + 1 / 3) / (limit + 1 / 3) if value > 0 else 0.0
        return _TOP + _PLOT_H * (1 - max(part, 0.0))

    return position, [10.0**power for power in range(limit + 1)]


def lines(plot: Plot, labels: Sequence[str], series: Sequence[Series]) -> Html:
    """Lines over the same labels, on a logarithmic scale, for values of different magnitude."""
    drawn = [downsample(one.values) for one in series]
    names = squeeze_labels(labels)
    known = [value for values in drawn for value in values if value is not None and value > 0]
    low = math.floor(math.log10(min(known, default=1.0)))
    high = max(math.ceil(math.log10(max(known, default=10.0))), low + 1)
    step = _PLOT_W / max(len(names) - 1, 1)

    def y_of(value: float) -> float:
        power = math.log10(value) if value > 0 else float(low)
        return _TOP + _PLOT_H * (1 - (max(power, low) - low) / (high - low))

    elements = _axes(
        [(y_of(10.0**power), plot.show(10.0**power)) for power in range(low, high + 1)],
        _every(names, lambda i: _LEFT + step * i),
    )
    for number, (one, values) in enumerate(zip(series, drawn, strict=True)):
        for run in _runs(values):
            points = " ".join(f"{_n(_LEFT + step * i)},{_n(y_of(v))}" for i, v in run)
            if len(run) > 1:
                elements.append(tag("polyline", points=points, class_=f"line s{number}"))
        # Equal values of two series have one centre: the earlier dot is a ring around it.
        radius = _n(_DOT + _DOT_STEP * (len(series) - 1 - number))
        for i, value in enumerate(values):
            if value is not None:
                title = tag("title", f"{names[i]}: {one.name} {plot.show(value)}")
                x, y = _n(_LEFT + step * i), _n(y_of(value))
                elements.append(tag("circle", title, cx=x, cy=y, r=radius, class_=f"dot k{number}"))
    rows = [
        (label, *(plot.show(v) if (v := one.values[i]) is not None else "" for one in series))
        for i, label in enumerate(labels)
    ]
    head = ("", *(one.name for one in series))
    return _figure(plot, elements, _legend(series), _table(head, rows, plot.text), HEIGHT)


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """The runs of values without a gap, as lists of (index, value)."""
    runs: list[list[tuple[int, float]]] = [[]]
    for i, value in enumerate(values):
        if value is not None:
            runs[-1].append((i, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _legend(series: Sequence[Series]) -> Html:
    elements = []
    for number, one in enumerate(series):
        mark = tag("line", x1=0, x2=24, y1=5, y2=5, class_=f"line s{number}")
        drawn = tag("svg", mark, viewBox="0 0 24 10", aria_hidden="true")
        elements.append(tag("span", drawn, one.name))
    return tag("div", elements, class_="legend")


def ranks(plot: Plot, rows: Sequence[tuple[str, float]]) -> Html:
    """A ranking: names with a bar each, the longest first."""
    top = max((value for _, value in rows), default=0.0) or 1.0
    name_width, room = 286, WIDTH - 286 - 90
    height = max(len(rows), 1) * _ROW_H + 8
    elements = []
    for i, (name, value) in enumerate(rows):
        y = 4 + i * _ROW_H
        width = max(room * value / top, 1.0)
        elements += [
            tag("text", clip(name, _NAME_CHARS), x=name_width - 8, y=y + 15, text_anchor="end"),
            tag(
                "rect",
                tag("title", f"{name}: {plot.show(value)}"),
                x=name_width,
                y=y + 3,
                width=_n(width),
                height=_ROW_H - 6,
                class_="bar",
            ),
            tag("text", plot.show(value), x=_n(name_width + width + 6), y=y + 15),
        ]
    table = _table(("", plot.title), [(n, plot.show(v)) for n, v in rows], plot.text)
    return _figure(plot, elements, None, table, height)


def spark_line(values: Sequence[float], text: str) -> Html:
    """A small line for a cell of a table."""
    drawn = [value or 0.0 for value in downsample(values, 60)]
    top = max(drawn, default=0.0) or 1.0
    step = 96 / max(len(drawn) - 1, 1)
    points = " ".join(f"{_n(2 + i * step)},{_n(20 - 18 * v / top)}" for i, v in enumerate(drawn))
    return join(
        tag(
            "svg",
            tag("title", text),
            tag("polyline", points=points, class_="line s0"),
            viewBox="0 0 100 22",
            width="100",
            height="22",
            role="img",
            style="width:100px",
        )
    )
