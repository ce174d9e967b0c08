"""Pages that a reader decides by: their length, and their figures beside the reports'."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.lines import words

DOCS = Path(__file__).resolve().parents[3] / "docs"
GUIDES = (
    "how-to/migrate.md",
    "how-to/sizing.md",
    "how-to/run-with-your-tritons.md",
    "how-to/openai-engines.md",
    "explanation/which-router.md",
    "reference/settings.md",
)
MAX_WORDS = 400
FIGURES = {
    "how-to/sizing.md": {
        "performance.md": ("388", "323", "567", "1,097", "60", "232", "338"),
        "components.md": ("1.46", "1.53", "19.4"),
        "attempts.md": ("4.7", "24.3"),
        "routing.md": ("102", "154"),
        "control.md": ("118", "216"),
    },
    "explanation/which-router.md": {
        "performance.md": ("2.12", "4.06", "5.06", "10,573", "3,521", "0.1.17", "0.3.2"),
        "routing.md": ("16", "21", "35"),
    },
}
"""Figures of a page, by the report that has them."""


@pytest.mark.parametrize("guide", GUIDES)
def test_a_guide_is_short(guide: str) -> None:
    """One that is longer hides what to do."""
    assert 100 < words((DOCS / guide).read_text()) <= MAX_WORDS


@pytest.mark.parametrize("guide", FIGURES)
def test_figures_are_those_of_the_reports(guide: str) -> None:
    """A later report changes the page, too, and each report is linked."""
    page = (DOCS / guide).read_text()
    for name, figures in FIGURES[guide].items():
        told = (DOCS / "reports" / name).read_text()
        assert f"(../reports/{name}" in page
        for figure in figures:
            stands = re.compile(rf"(?<![\d.,]){re.escape(figure)}(?!\d|[.,]\d)")
            assert stands.search(page), figure
            assert stands.search(told), (name, figure)


def test_the_capacity_of_a_core_follows_from_the_report() -> None:
    """60 % of a core over the picker's part of a request; two workers by their measured ratio."""
    page = (DOCS / "how-to/sizing.md").read_text()
    report = (DOCS / "reports/performance.md").read_text()
    (picker,) = re.findall(r"µs per request: envoy 232, picker (\d+) against", report)
    one, two = 0.6e6 / int(picker), 2 * 0.6e6 / (int(picker) * 1.5)
    assert f"{round(one, -2):,.0f} requests/s" in page
    assert f"{round(two, -2):,.0f} requests/s" in page


def test_the_cost_beside_sglang_router_follows_from_the_report() -> None:
    """CPU of a request, 2 and 32 KB."""
    page = (DOCS / "explanation/which-router.md").read_text()
    report = (DOCS / "reports/performance.md").read_text()
    row = re.compile(
        r"^\| (tidegate|sglang-cache_aware) \|(?:[^|]+\|){2} (\d+) \|(?:[^|]+\|){2} (\d+) \|$",
        re.MULTILINE,
    )
    ours, theirs = (tuple(map(int, found[1:])) for found in row.findall(report))
    small, large = (mine / other for mine, other in zip(ours, theirs, strict=True))
    assert f"{large:.1f} to {small:.1f} times" in page
