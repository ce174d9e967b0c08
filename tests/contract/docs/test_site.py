"""The site of ``make docs``, as far as five tasks need it; ``make docs`` checks the whole of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.testing.site import LANDING, MAX_CLICKS, TASKS, clicks, far, read

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
BUILT = ("index", "quickstart", "how-to/index")
"""Pages between the landing page and the tasks."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the built pages of the tasks and of those that lead there."""
    tasks = {place.partition("#")[0].removesuffix(".html") for place in TASKS.values()}
    names = {path.relative_to(DOCS).with_suffix("").as_posix() for path in DOCS.rglob("*.md")}
    left_out = sorted(names - tasks - set(BUILT))
    folder = tmp_path_factory.mktemp("site")
    words = ("-q", "-b", "html", "-d", str(folder / "read"), str(DOCS), str(folder / "html"))
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "-D"),
            f"exclude_patterns=examples,generate,{','.join(f'{each}.md' for each in left_out)}",
            *words,
        ],
        env={**os.environ, "PYTHONWARNINGS": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return folder / "html"


def test_each_task_is_within_three_clicks_of_the_landing_page(site: Path) -> None:
    """By links in the text of the built pages; without the sidebar and the search."""
    pages = read(site)
    assert far(pages) == []
    distance = clicks(pages)
    assert all(distance[place.partition("#")[0]] <= MAX_CLICKS for place in TASKS.values())


def test_the_site_has_search_both_modes_and_pictures(site: Path) -> None:
    """The theme's switch, an index of words, our style and the landing page's picture."""
    text = (site / LANDING).read_text()
    assert 'class="theme-toggle"' in text
    assert "search.html" in text
    assert "canary" in (site / "searchindex.js").read_text()
    assert 'href="_static/site.css' in text
    (picture,) = re.findall(r'<img [^>]*src="([^"]+\.svg)"', text)
    assert (site / picture).is_file()


def test_the_figures_of_the_landing_page_are_those_of_the_report() -> None:
    """Each number of the table stands in the report that its row names."""
    page = (DOCS / "index.md").read_text()
    _, _, table = page.partition("\n## Three figures\n")
    rows = [line for line in table.partition("\n## ")[0].splitlines() if "](" in line]
    assert len(rows) == 3
    for row in rows:
        (report,) = re.findall(r"\]\(([^)]+)\)", row)
        told = (DOCS / report).read_text()
        figure, what = row.split("|")[1:3]
        for number in re.findall(r"\d[\d,.]*\d", figure + what.partition("(")[0]):
            assert re.search(rf"(?<![\d.]){re.escape(number)}(?![\d.])", told), (row, number)
