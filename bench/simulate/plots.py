"""Bar charts of a report with intervals, drawn with matplotlib (extra ``bench``)."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Final

from bench.simulate.report import titles

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from bench.simulate.report import Report

FIGURES: Final = {
    "ttft_mean": "Time to the first token, mean (s)",
    "ttft_p50": "Time to the first token, median (s)",
    "ttft_p99": "Time to the first token, p99 (s)",
    "e2e_p50": "End to end, median (s)",
    "e2e_p99": "End to end, p99 (s)",
    "hit_ratio": "Input tokens found in the cache (share)",
    "spread_tokens": "Spread of computed tokens, max / mean",
}


class PlotsMissingError(Exception):
    """The extra is not installed; the message contains the pip command."""


def require_matplotlib() -> None:
    """Check that matplotlib is installed, before a long run.

    Raises:
        PlotsMissingError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl  # noqa: F401, PLC0415 - an extra, needed for plots only
    except ImportError:
        raise PlotsMissingError(
            "plots need matplotlib: pip install -e '.[bench]' in the checkout"
        ) from None


def figure(report: Report, metric: str) -> Figure:
    """Draw one metric: a group of bars per load, one bar per policy, whiskers for intervals."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra

    loads = titles(report)
    policies = list(dict.fromkeys(row.policy for row in report.rows))
    drawn = Figure(figsize=(9, 1.2 + 0.26 * len(policies) * len(loads)), layout="constrained")
    axes = drawn.add_subplot()
    height = 0.8 / max(1, len(loads))
    for number, (key, title) in enumerate(loads.items()):
        rows = {row.policy: row for row in report.rows if (row.load, row.rate) == key}
        known = [
            (place + number * height, value)
            for place, policy in enumerate(policies)
            if (value := rows[policy].metrics[metric]) is not None
        ]
        axes.barh(
            [place for place, _ in known],
            [value.mean for _, value in known],
            height,
            xerr=(
                [max(0.0, value.mean - value.low) for _, value in known],
                [max(0.0, value.high - value.mean) for _, value in known],
            ),
            label=title,
        )
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(policies))], labels=policies)
    axes.margins(y=0.4 / max(1, len(policies)))
    axes.invert_yaxis()
    axes.set_title(report.workload, fontsize="medium", loc="left")
    axes.set_xlabel(f"{FIGURES[metric]}; whiskers: 95 % over {report.seeds} seeds")
    drawn.legend(loc="outside upper right", fontsize="small", ncols=len(loads))
    axes.grid(axis="x", alpha=0.3)
    return drawn


def write_pngs(report: Report, folder: Path, name: str = "") -> list[Path]:
    """Write one PNG per metric; create the folder if it is missing.

    Args:
        report: Report to draw.
        folder: Target folder.
        name: Prefix of the file names; default: the workload's name.

    Raises:
        OSError: A file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for metric in FIGURES:
        path = folder / f"{name or report.workload}-{metric}.png"
        figure(report, metric).savefig(path, dpi=130)
        written.append(path)
    return written


def svg(report: Report, metric: str) -> str:
    """Return a metric's plot as an SVG element for a page."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    text = StringIO()
    # Fixed ids and no date make the page reproducible; text elements take a fifth of the size.
    with mpl.rc_context({"svg.hashsalt": "tidegate", "svg.fonttype": "none"}):
        figure(report, metric).savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]
