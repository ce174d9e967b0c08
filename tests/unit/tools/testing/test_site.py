"""What is checked of the built documentation."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from tools.testing.site import LANDING, TASKS, broken, clicks, far, main, read, target

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, **pages: str) -> Path:
    """Write pages of a site, each with the sidebar of a theme."""
    for name, text in pages.items():
        path = folder / f"{name.replace('__', '/')}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        menu = '<nav><a href="https://example.org/x.html#y">out</a></nav>'
        path.write_text(f"<html><body>{menu}<article>{text}</article></body></html>")
    return folder


def chain(folder: Path, length: int) -> Path:
    """Write a site where each task is that many clicks from the landing page."""
    for place in TASKS.values():
        path, _, anchor = place.partition("#")
        write(folder, **{path.removesuffix(".html").replace("/", "__"): f'<p id="{anchor}">'})
    names = ["index", *(f"page{number}" for number in range(1, length))]
    for name, following in pairwise(names):
        write(folder, **{name: f'<a href="{following}.html">on</a>'})
    links = "".join(f'<a href="{place}">{task}</a>' for task, place in TASKS.items())
    return write(folder, **{names[-1]: links})


@pytest.mark.parametrize(
    ("page", "link", "leads"),
    [
        ("index.html", "how-to/tls.html", ("how-to/tls.html", "")),
        ("how-to/tls.html", "../index.html#tasks", ("index.html", "tasks")),
        ("how-to/tls.html", "#roles", ("how-to/tls.html", "roles")),
        ("how-to/tls.html", "./drain%2Dnow.html#a%20b", ("how-to/drain-now.html", "a b")),
        ("how-to/tls.html", "https://example.org/tls.html", None),
        ("how-to/tls.html", "mailto:a@example.org", None),
    ],
)
def test_a_link_leads_where_a_browser_goes(
    page: str, link: str, leads: tuple[str, str] | None
) -> None:
    """Relative to the page; other schemes and hosts leave the site."""
    assert target(page, link) == leads


def test_a_link_above_the_site_is_refused() -> None:
    """It would work on one machine only."""
    with pytest.raises(ValueError, match=r"how-to/tls.html: ../../a.html leads out of the site"):
        target("how-to/tls.html", "../../a.html")


def test_links_to_missing_pages_and_anchors_are_named(tmp_path: Path) -> None:
    """Each once, with the page that has it; a file that is no page may be the target."""
    (tmp_path / "picture.svg").write_text("")
    text = '<a href="b.html">x</a><a href="b.html">x</a><a href="a.html#no">x</a>'
    good = '<a href="picture.svg">x</a><a href="#here">x</a><p id="here"></p>'
    folder = write(tmp_path, index=good, a=text)
    assert broken(read(folder), folder) == [
        "a.html: b.html: there is no b.html",
        "a.html: a.html#no: a.html has no anchor 'no'",
    ]


def test_tasks_within_three_clicks_pass(tmp_path: Path) -> None:
    """The landing page, two pages between, the task."""
    pages = read(chain(tmp_path, 3))
    assert far(pages) == []
    assert clicks(pages)["how-to/tls.html"] == 3


def test_tasks_at_four_clicks_do_not(tmp_path: Path) -> None:
    """Each is named."""
    assert len(far(read(chain(tmp_path, 4)))) == len(TASKS)


def test_a_link_of_the_sidebar_is_no_click(tmp_path: Path) -> None:
    """Else each page were one click from each."""
    folder = write(tmp_path, quickstart="<p id='send-a-request'></p>")
    (folder / LANDING).write_text('<nav><a href="quickstart.html">x</a></nav><article></article>')
    assert far(read(folder))[0] == (
        "first request: quickstart.html#send-a-request is more than 3 clicks from index.html"
    )


def test_a_task_whose_anchor_is_gone_is_missing(tmp_path: Path) -> None:
    """A page that exists is not enough."""
    folder = write(chain(tmp_path, 1), quickstart="<p id='other'></p>")
    assert far(read(folder)) == ["first request: there is no quickstart.html#send-a-request"]


@pytest.mark.parametrize(("length", "code"), [(1, 0), (3, 0), (4, 1)])
def test_a_site_that_is_wrong_ends_the_command_with_1(
    length: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``make docs`` fails then, and says what is wrong."""
    assert main([str(chain(tmp_path, length))]) == code
    said = capsys.readouterr()
    assert bool(said.err) is (code == 1)
    assert bool(said.out) is (code == 0)


def test_a_folder_without_a_site_says_what_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, as for a wrong call."""
    assert main([str(tmp_path)]) == main([]) == 2
    assert "build it with `make docs`" in capsys.readouterr().err
