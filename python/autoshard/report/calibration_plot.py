"""How a calibration fits what it measured: tables and a plot, for a terminal or as HTML."""

from __future__ import annotations

import importlib
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.errors import AutoshardError
from autoshard.planned.summary import seconds_text
from autoshard.report.cluster_table import cluster_table

if TYPE_CHECKING:
    from autoshard.calibration.calibrate import Calibration

_COLUMNS, _LINES = 72, 22
_MARKS = "obvxgrast*+#%&"
_WORST_ROWS = 8


def calibration_report(calibration: Calibration) -> RenderableType:
    """Constants, quality of the fit by kind, the worst points, and a plot."""
    return Group(
        cluster_table(calibration.cluster),
        _qualities(calibration),
        _worst(calibration),
        Text(text_plot(calibration)),
        *(Text(f"note: {note}") for note in calibration.notes),
        Text(f"{len(calibration.points)} points in {calibration.seconds:.0f} s"),
    )


def text_plot(calibration: Calibration) -> str:
    """Predicted over measured seconds, both logarithmic; points on the diagonal fit."""
    if not calibration.points:
        return "no points"
    predicted = [log10(seconds) for seconds in calibration.predicted()]
    measured = [log10(point.seconds) for point in calibration.points]
    low, high = floor(min(predicted + measured)), ceil(max(predicted + measured))
    span = max(1, high - low)

    def column(value: float) -> int:
        return min(_COLUMNS - 1, int((value - low) / span * _COLUMNS))

    def line(value: float) -> int:
        return _LINES - 1 - min(_LINES - 1, int((value - low) / span * _LINES))

    grid = [[" "] * _COLUMNS for _ in range(_LINES)]
    for at in range(_COLUMNS):
        grid[line(low + (at + 0.5) / _COLUMNS * span)][at] = "."
    kinds = list(dict.fromkeys(point.kind for point in calibration.points))
    for point, x, y in zip(calibration.points, measured, predicted, strict=True):
        grid[line(y)][column(x)] = _MARKS[kinds.index(point.kind) % len(_MARKS)]
    lowest, highest = (seconds_text(10.0**power) for power in (low, low + span))
    legend = ", ".join(f"{_MARKS[i % len(_MARKS)]} {kind}" for i, kind in enumerate(kinds))
    rows = [f"predicted (up) over measured (right), {lowest} to {highest} each; dots: equal"]
    rows += ["|" + "".join(row).rstrip() for row in grid]
    rows += ["+" + "-" * _COLUMNS, legend]
    return "\n".join(rows)


def plotly() -> Any:
    """The package that draws plots as HTML.

    Raises:
        AutoshardError: It is not installed.
    """
    try:
        return importlib.import_module("plotly.graph_objects")
    except ImportError as error:
        raise AutoshardError(
            f"a plot as HTML needs plotly: {error}. Install autoshard[report], or print the"
            " calibration, which has a plot of text."
        ) from error


def write_html(calibration: Calibration, path: Path) -> None:
    """The same plot, with a point's name where the pointer is.

    Raises:
        AutoshardError: plotly is not installed.
    """
    figure: Any = plotly().Figure()
    predicted = calibration.predicted()
    for kind in dict.fromkeys(point.kind for point in calibration.points):
        chosen = [i for i, point in enumerate(calibration.points) if point.kind == kind]
        figure.add_scatter(
            x=[calibration.points[i].seconds for i in chosen],
            y=[predicted[i] for i in chosen],
            text=[str(calibration.points[i].work) for i in chosen],
            mode="markers",
            name=kind,
        )
    seconds = [*predicted, *(point.seconds for point in calibration.points)]
    ends = [min(seconds), max(seconds)]
    figure.add_scatter(x=ends, y=ends, mode="lines", name="equal")
    figure.update_layout(
        title=f"{calibration.cluster.name}: {calibration.cluster.calibration}",
        xaxis={"title": "measured, s", "type": "log"},
        yaxis={"title": "predicted, s", "type": "log"},
    )
    figure.write_html(path, include_plotlyjs=True)


def _qualities(calibration: Calibration) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("measured", "points", "predicted / measured", "median off by", "worst off by"):
        table.add_column(column, overflow="fold")
    for quality in calibration.qualities():
        table.add_row(
            quality.kind,
            str(quality.points),
            f"{quality.median_ratio:.2f}",
            f"{1 + quality.median_error:.2f}x",
            f"{1 + quality.worst_error:.2f}x",
        )
    return table


def _worst(calibration: Calibration) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("worst points", "measured", "predicted", "predicted / measured"):
        table.add_column(column, overflow="fold")
    pairs = zip(calibration.points, calibration.predicted(), strict=True)
    order = sorted(pairs, key=lambda pair: -abs(log10(pair[1] / pair[0].seconds)))
    for point, predicted in order[:_WORST_ROWS]:
        table.add_row(
            str(point.work),
            seconds_text(point.seconds),
            seconds_text(predicted),
            f"{predicted / point.seconds:.2f}",
        )
    return table
