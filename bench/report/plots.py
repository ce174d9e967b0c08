"""PNG plots, drawn with matplotlib (extra ``bench``)."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from bench.report.parts import Bars, Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OURS = "tidegate"
_COLOURS = ("#b8c4cc", "#0b6e99")
"""Colours of other routers and of Tidegate."""
_ROOM = 4.0
"""Margin below and above a curve, as a factor, so that a constant cost looks flat."""


def png(plot: Bars | Curve) -> bytes:
    """Draw a plot.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = _bars(plot) if isinstance(plot, Bars) else _curve(plot)
    file = BytesIO()
    figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    return file.getvalue()


def _bars(plot: Bars) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    names = list(plot.values)
    values = [plot.values[name] for name in names]
    figure = Figure(figsize=(7, 0.8 + 0.3 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    axes.barh(
        names,
        [value["median"] for value in values],
        xerr=(
            [value["median"] - value["low"] for value in values],
            [value["high"] - value["median"] for value in values],
        ),
        color=[_COLOURS[name == OURS] for name in names],
    )
    axes.invert_yaxis()
    axes.set_title(plot.title, fontsize=10)
    axes.set_xlabel(plot.unit, fontsize=9)
    axes.tick_params(labelsize=8)
    return figure


def _curve(plot: Curve) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    from matplotlib.ticker import NullFormatter, StrMethodFormatter  # noqa: PLC0415 - an extra

    sizes = [point["size"] for point in plot.points]
    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.loglog(sizes, [point["cost"] for point in plot.points], "o", color=_COLOURS[1])
    if plot.fit is not None:
        fit = plot.fit
        fitted = [fit["a"] * size ** fit["b"] for size in sizes]
        known = f", r² {fit['r2']:.2f}" if fit.get("r2") is not None else ""
        axes.loglog(sizes, fitted, "--", color="#888888", label=f"size^{fit['b']:.2f}{known}")
        axes.legend(fontsize=8)
    costs = [point["cost"] for point in plot.points]
    axes.set_ylim(min(costs) / _ROOM, max(costs) * _ROOM)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_title(plot.title, fontsize=10)
    axes.set_xlabel(plot.across, fontsize=9)
    axes.set_ylabel(plot.unit, fontsize=9)
    axes.tick_params(labelsize=8)
    return figure
